"""VR-PCA, FedPower and DSAG against literal dense transcriptions, their theory, and what clusters do."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import grassia
from grassia.backends import Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.errors import InvalidInput
from grassia.geometry import geodesic_distance, projection_distance
from grassia.solvers import Dsag, FedPower, Orthogonal, VrPca
from problems import heterogeneous, iterates

UPDATES = 100
STEP, SHIFT = 0.1, 0.7

SOLVERS = {
    "vrpca": VrPca(),
    "fedpower": FedPower(),
    "fedpower, a worker's basis": FedPower(reference="worker"),
    "dsag": Dsag(),
    "dsag, the fastest one": Dsag(wait=1),
}

BACKENDS = {
    "serial": Serial,
    "simulated": lambda: Simulated(LogNormal(), seed=3),
    "threads": Threads,
}

UNEVEN = Fixed([1, 2, 3, 5, 2, 1, 4])


@pytest.fixture(scope="module")
def slow():
    """A gap so small that a hundred updates do not exhaust it."""
    return heterogeneous(n=7, d=20, k=3, seed=1, gap=0.1)


@pytest.fixture(scope="module")
def W0():
    return np.linalg.qr(np.random.default_rng(5).standard_normal((20, 3)))[0]


def replies_after_opening(log, n):
    """[(component, version), ...] of each batch of a recorded run, without the n that opened it."""
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    batches = [[(m[2], m[3]) for m in line["m"] if m[0] == "reply"] for line in lines if "m" in line]
    opened = 0
    while opened < n:
        opened += len(batches.pop(0))
    assert opened == n
    return batches


def run_quietly(problem, solver, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return grassia.eigenspace(
            problem.components,
            options.pop("k", 3),
            weights=problem.weights,
            solver=solver,
            rng=options.pop("rng", 0),
            **options,
        )


def worst(found, expected):
    assert set(range(1, UPDATES + 1)) <= set(found)
    return max(np.abs(found[t] - expected[t]).max() for t in range(UPDATES + 1))


def worst_projector(found, expected):
    assert set(range(1, UPDATES + 1)) <= set(found)
    return max(projection_distance(found[t], expected[t]) for t in range(UPDATES + 1))


# -- VR-PCA -------------------------------------------------------------------------------------


def vr_pca(problem, W0, step, inner, drawn):
    """The block algorithm of Shamir 2016; `drawn` gives the component of each inner update."""
    W, found = W0, [W0]
    while len(found) <= UPDATES:
        V, AV = W, problem.A @ W
        for _ in range(inner):
            P, _, Qt = np.linalg.svd(V.T @ W)
            B = P @ Qt
            M = W + step * (problem.components[next(drawn)] @ (W - V @ B) + AV @ B)
            values, vectors = np.linalg.eigh(M.T @ M)
            W = M @ (vectors / np.sqrt(values)) @ vectors.T
            found.append(W)
            if len(found) > UPDATES:
                break
    return found


def drawn_components(log, n, inner):
    """Who answered for the inner updates: an epoch is n answers for the anchor, then the inner ones."""
    answers = [i for batch in replies_after_opening(log, n) for i, _ in batch]
    while answers:
        assert sorted(answers[:n]) == list(range(n)) or len(answers) < n
        yield from answers[n : n + inner]
        answers = answers[n + inner :]


@pytest.mark.parametrize("inner", [None, 23])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_vr_pca_is_its_transcription(slow, W0, backend, inner, tmp_path):
    log = tmp_path / "run.jsonl"
    found = iterates(slow, VrPca(step=STEP, inner=inner), backend(), W0, UPDATES, record=log)
    length = inner or 7
    expected = vr_pca(slow, W0, STEP, length, drawn_components(log, 7, length))
    assert worst(found, expected) <= 1e-10


def test_vr_pca_draws_components_by_their_weights(tmp_path):
    problem = heterogeneous(n=3, d=8, k=1, seed=0)
    weights = np.array([0.6, 0.3, 0.1])
    log = tmp_path / "run.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grassia.eigenspace(
            problem.components,
            1,
            weights=weights,
            solver=VrPca(step=1e-9, inner=450),
            rng=1,
            tol=1e-12,
            record=log,
            max_passes=310,
        )
    drawn = list(drawn_components(log, 3, 450))[:900]
    share = np.bincount(drawn, minlength=3) / len(drawn)
    assert len(drawn) == 900
    np.testing.assert_array_less(abs(share - weights), 4 * np.sqrt(weights * (1 - weights) / 900))


def test_vr_pca_asks_one_component_at_a_time_between_anchors():
    """On seven workers an epoch takes one tick for the anchor and seven for the inner updates."""
    problem = heterogeneous(n=7, d=20, k=2, seed=1)
    times = {}

    def watch(progress):
        if progress.version:
            times.setdefault(progress.version, progress.time)
        return progress.version >= 14

    run_quietly(problem, VrPca(), k=2, backend=Simulated(Fixed(1.0)), callbacks=watch)
    epoch = [times[t] for t in range(1, 15)]
    np.testing.assert_allclose(np.diff(epoch), [1.0] * 6 + [2.0] + [1.0] * 6)


@pytest.mark.parametrize("inner", [1, 4, 30])
@pytest.mark.parametrize("noise", [0.3, 5.0])
def test_the_automatic_step_of_vr_pca_suits_any_length_of_epoch(noise, inner):
    problem = heterogeneous(n=7, d=20, k=3, seed=1, noise=noise)
    result = run_quietly(problem, VrPca(inner=inner), tol=1e-8)
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 3e-8


def test_a_step_of_vr_pca_that_is_too_long_for_unlike_components_does_not_converge():
    problem = heterogeneous(n=7, d=20, k=3, seed=1, noise=3.0)
    result = run_quietly(problem, VrPca(step=3.0), max_passes=200, tol=1e-8)
    assert result.status is grassia.Status.MAX_PASSES
    assert set(result.history["step"]) == {3.0}


# -- FedPower -----------------------------------------------------------------------------------


def fed_power(problem, W0, local_steps, decay, reference, shift):
    """Local power steps and an average after orthogonal Procrustes, as in the paper's Algorithm 1."""
    components = [A + shift * np.eye(len(A)) for A in problem.components]
    heaviest = int(np.argmax(problem.weights))
    W, found = W0, [W0]
    for t in range(UPDATES):
        p = local_steps
        for _ in range(0 if decay is None else t // decay):
            p = max(1, p // 2)
        Z = [W] * len(components)
        for _ in range(p - 1):
            Z = [np.linalg.qr(A @ Zi)[0] for A, Zi in zip(components, Z, strict=True)]
        target = W if reference == "iterate" else Z[heaviest]
        total = np.zeros_like(W)
        for w, A, Zi in zip(problem.weights, components, Z, strict=True):
            U, _, Vt = np.linalg.svd(Zi.T @ target)
            total += w * (A @ Zi) @ (U @ Vt)
        W = np.linalg.qr(total)[0]
        found.append(W)
    return found


@pytest.mark.parametrize("reference", ["iterate", "worker"])
@pytest.mark.parametrize(("local_steps", "decay"), [(1, None), (3, None), (5, 20)])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_fedpower_is_its_transcription(slow, W0, backend, local_steps, decay, reference):
    solver = FedPower(local_steps=local_steps, decay=decay, reference=reference, shift=SHIFT)
    found = iterates(slow, solver, backend(), W0, UPDATES)
    expected = fed_power(slow, W0, local_steps, decay, reference, SHIFT)
    assert worst_projector(found, expected) <= 1e-10


def test_fedpower_of_one_step_is_orthogonal_iteration(slow, W0):
    one = iterates(slow, FedPower(local_steps=1, shift=SHIFT), Serial(), W0, UPDATES)
    other = iterates(slow, Orthogonal(shift=SHIFT), Serial(), W0, UPDATES)
    assert worst(one, other) <= 1e-10


def floor_of(problem, solver, passes=150):
    result = run_quietly(problem, solver, tol=1e-10, max_passes=passes)
    assert not result.converged
    return geodesic_distance(result.vectors, problem.leading(3))


@pytest.mark.parametrize("reference", ["iterate", "worker"])
def test_local_steps_without_decay_have_a_floor_of_second_order_in_the_unlikeness(reference):
    solver = FedPower(local_steps=3, decay=None, reference=reference)
    floors = [floor_of(heterogeneous(5, 20, 3, 2, noise=noise), solver) for noise in (0.04, 0.08, 0.16)]
    assert floors[0] >= 1e-5
    for small, large in ((floors[0], floors[1]), (floors[1], floors[2])):
        assert large / small == pytest.approx(4.0, rel=0.25)


def test_local_steps_that_decay_have_no_floor():
    problem = heterogeneous(5, 20, 3, 2, noise=0.16)
    result = run_quietly(problem, FedPower(local_steps=8, decay=3), tol=1e-10)
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 1e-10


def test_local_steps_save_rounds_where_components_are_alike():
    """To a distance above the floor: a round of four steps does the work of nearly four."""
    problem = heterogeneous(5, 40, 3, 2, gap=0.1, noise=1e-4)
    oracle = problem.leading(3)
    W0 = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 3)))[0]
    rounds = []
    for p in (1, 4):
        solver = FedPower(local_steps=p, decay=None, shift=0.0)
        found = iterates(problem, solver, Serial(), W0, UPDATES)
        rounds.append(next(t for t in sorted(found) if geodesic_distance(found[t], oracle) <= 1e-3))
    assert rounds[1] <= 0.3 * rounds[0]


def test_the_floor_of_the_noise_is_proportional_to_it():
    problem = heterogeneous(5, 20, 3, 2)
    floors = [floor_of(problem, FedPower(noise=noise), passes=60) for noise in (1e-3, 1e-5, 1e-7)]
    assert floors[0] <= 0.1
    for large, small in ((floors[0], floors[1]), (floors[1], floors[2])):
        assert large / small == pytest.approx(100.0, rel=0.5)


def test_the_noise_is_drawn_from_the_seed_of_the_run():
    problem = heterogeneous(4, 15, 3, 0)
    first, again, other = (
        run_quietly(problem, FedPower(noise=1e-2), max_passes=20, rng=seed, v0=np.eye(15)[:, :3]).vectors
        for seed in (1, 1, 2)
    )
    assert first.tobytes() == again.tobytes()
    assert geodesic_distance(first, other) > 1e-4


def test_the_noise_of_different_components_averages_out():
    """Equal noise on sixteen components would do as much harm as on one; independent noise a quarter."""
    A = np.diag([1.0, 1.0, 0.1, 0.1, 0.1, 0.1])

    def distance(n, seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver = FedPower(local_steps=1, noise=1e-4)
            result = grassia.eigenspace([A] * n, 2, solver=solver, tol=1e-12, max_passes=14, rng=seed)
        return geodesic_distance(result.vectors, np.eye(6)[:, :2])

    one, sixteen = (np.mean([distance(n, seed) for seed in range(8)]) for n in (1, 16))
    assert one / sixteen == pytest.approx(4.0, rel=0.4)


def test_a_floor_ends_the_run_as_stalled_with_the_truth_in_its_certificate():
    problem = heterogeneous(3, 10, 2, 0, noise=0.5)
    with pytest.warns(match="STALLED"):
        result = grassia.eigenspace(
            problem.components, 2, weights=problem.weights, solver=FedPower(decay=None), tol=1e-6, rng=0
        )
    assert result.status is grassia.Status.STALLED
    sine = np.sin(geodesic_distance(result.vectors, problem.leading(2)))
    assert 1e-3 <= sine <= result.certificate.sin_theta.value


# -- DSAG ---------------------------------------------------------------------------------------


def gram_schmidt(X):
    Q = np.zeros_like(X)
    for j in range(X.shape[1]):
        v = X[:, j].copy()
        for _ in range(2):
            v -= Q[:, :j] @ (Q[:, :j].T @ v)
        Q[:, j] = v / np.linalg.norm(v)
    return Q


def dsag(problem, W0, wait, step, divisor, shift, batches):
    """A cache of products, and a step whenever `wait` of them are of the current iterate."""
    n, k = len(problem.components), W0.shape[1]
    cache, fresh, found = {}, set(), [W0]
    for batch in batches:
        W = found[-1]
        for i, version in batch:
            cache[i] = problem.components[i] @ found[version]
            if version == len(found) - 1:
                assert i not in fresh  # nobody is asked twice at one iterate
                fresh.add(i)
        if len(fresh) < min(wait, n):
            continue
        weight = sum(problem.weights[i] for i in cache)
        Y = sum(problem.weights[i] * product for i, product in cache.items()) / weight + shift * W
        scale = np.trace(W.T @ Y) / k if divisor == "auto" else divisor
        found.append(gram_schmidt(W - step * (W - Y / scale)))
        fresh = set()
        if len(found) > UPDATES:
            break
    return found


@pytest.mark.parametrize("divisor", ["auto", 0.4])
@pytest.mark.parametrize("wait", [1, 3, 7])
@pytest.mark.parametrize(
    "backend",
    [
        Serial,
        lambda: Simulated(UNEVEN),
        lambda: Simulated(LogNormal(), seed=11, workers=4),
        lambda: Threads(faults=["delay:0:1ms", "delay:3:2ms"]),
    ],
    ids=["serial", "fixed", "lognormal", "threads"],
)
def test_dsag_is_its_transcription(slow, W0, backend, wait, divisor, tmp_path):
    log = tmp_path / "run.jsonl"
    solver = Dsag(wait=wait, step=0.8, divisor=divisor, shift=SHIFT)
    found = iterates(slow, solver, backend(), W0, UPDATES, record=log)
    expected = dsag(slow, W0, wait, 0.8, divisor, SHIFT, replies_after_opening(log, 7))
    assert worst(found, expected) <= 1e-10


def test_dsag_takes_in_stale_products_as_well(slow, W0, tmp_path):
    log = tmp_path / "run.jsonl"
    iterates(slow, Dsag(wait=3, shift=SHIFT), Simulated(UNEVEN), W0, UPDATES, record=log)
    updates, ages = 0, []
    fresh = set()
    for batch in replies_after_opening(log, 7):
        ages += [updates - version for _, version in batch]
        fresh |= {i for i, version in batch if version == updates}
        if len(fresh) >= 3:
            updates, fresh = updates + 1, set()
    assert max(ages) >= 2
    assert min(ages) == 0


def test_a_fraction_of_the_workers_to_wait_for_is_rounded_up(slow, W0):
    half = iterates(slow, Dsag(wait=0.5, shift=SHIFT), Simulated(UNEVEN), W0, UPDATES)
    four = iterates(slow, Dsag(wait=4, shift=SHIFT), Simulated(UNEVEN), W0, UPDATES)
    all_of_them = iterates(slow, Dsag(wait=50, shift=SHIFT), Simulated(UNEVEN), W0, UPDATES)
    assert all(half[t].tobytes() == four[t].tobytes() for t in range(UPDATES))
    rounds = iterates(slow, Dsag(wait=7, shift=SHIFT), Serial(), W0, UPDATES)
    assert worst(all_of_them, rounds) <= 1e-10
    assert not np.allclose(half[5], all_of_them[5])


def time_to(problem, solver, service, distance):
    reached = []

    def watch(progress):
        if progress.vectors is None:
            return False
        if geodesic_distance(progress.vectors, problem.leading(3)) <= distance:
            reached.append(progress.time)
        return bool(reached) or progress.time > 2000.0

    run_quietly(problem, solver, backend=Simulated(service), tol=1e-11, callbacks=watch)
    return reached[0]


def test_dsag_does_not_wait_for_a_straggler():
    """One of eight workers is twenty times slower: time on the virtual clock, and work while it is out."""
    problem = heterogeneous(8, 30, 3, 3)
    service = Fixed([1.0] * 7 + [20.0])
    for distance in (1e-2, 1e-6):
        rest = time_to(problem, Dsag(wait=4), service, distance)
        assert rest <= 0.5 * time_to(problem, Dsag(wait=8), service, distance)
        assert rest <= 0.6 * time_to(problem, Orthogonal(), service, distance)

    versions = {}

    def watch(progress):
        versions[progress.time] = progress.version
        return progress.time >= 40.0

    run_quietly(problem, Dsag(wait=4), backend=Simulated(service), callbacks=watch, tol=1e-12)
    # The straggler is opened at 20 and gives its first product at 40: until then the others go on.
    assert max(version for time, version in versions.items() if time < 40.0) >= 18


@pytest.mark.parametrize("step", [0.9, 0.1])
def test_dsag_with_unlike_components_and_a_very_late_one_needs_a_shorter_step(step):
    problem = heterogeneous(7, 30, 3, 3, noise=3.0)
    backend = Simulated(Fixed([1.0] * 6 + [20.0]))
    result = run_quietly(problem, Dsag(wait=3, step=step), backend=backend, tol=1e-6, max_passes=2500)
    assert result.converged == (step == 0.1)
    close = geodesic_distance(result.vectors, problem.leading(3)) <= 1e-6
    assert close == result.converged


# -- what all of them do ------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_the_rate_is_linear_down_to_1e_10(solver):
    """The passes from 1e-2 to 1e-6 are as many as those from 1e-6 to 1e-10."""
    problem = heterogeneous(n=6, d=30, k=3, seed=4, gap=0.3)
    oracle = problem.leading(3)
    reached = {}

    def watch(progress):
        if progress.vectors is None:
            return False
        distance = geodesic_distance(progress.vectors, oracle)
        for level in (1e-2, 1e-6, 1e-10):
            if distance <= level:
                reached.setdefault(level, progress.passes)
        return 1e-10 in reached

    run_quietly(problem, solver, tol=1e-12, callbacks=watch)
    first, second = reached[1e-6] - reached[1e-2], reached[1e-10] - reached[1e-6]
    assert second / first == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: VrPca(step=0.0), "`step` must be a positive finite number; got 0.0"),
        (lambda: VrPca(step="theory"), "`step` must be a positive number or 'auto'; got 'theory'"),
        (lambda: VrPca(inner=0), "`inner` must be at least 1"),
        (lambda: VrPca(spread_steps=1.5), "`spread_steps` must be an integer"),
        (lambda: FedPower(local_steps=0), "`local_steps` must be at least 1"),
        (lambda: FedPower(decay=0), "`decay` must be at least 1"),
        (lambda: FedPower(reference="mean"), "`reference` must be 'iterate' or 'worker'; got 'mean'"),
        (lambda: FedPower(noise=-1.0), "`noise` must be a finite number, zero or more; got -1.0"),
        (lambda: FedPower(noise=np.inf), "`noise`"),
        (lambda: FedPower(shift="much"), "`shift`"),
        (lambda: Dsag(wait=0), "`wait` must be a number of components, at least 1"),
        (lambda: Dsag(wait=1.5), "`wait`.*got 1.5"),
        (lambda: Dsag(wait=True), "`wait`"),
        (lambda: Dsag(step=1.5), "`step` must be at most 1"),
        (lambda: Dsag(step=0.0), "`step` must be a positive finite number"),
        (lambda: Dsag(divisor="big"), "`divisor` must be a positive number or 'auto'"),
        (lambda: Dsag(divisor=-1.0), "`divisor` must be a positive finite number"),
        (lambda: Dsag(shift=np.nan), "`shift`"),
    ],
)
def test_bad_parameters_are_refused_with_their_rule(make, rule):
    with pytest.raises(InvalidInput, match=rule):
        make()
