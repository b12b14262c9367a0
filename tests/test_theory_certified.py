"""Certified bounds of the constants, the step that follows from them, and when it may grow."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

import grassia
from grassia import geometry, theory
from grassia.backends import Simulated, Threads
from grassia.backends.service import Fixed
from grassia.ends import Ends, Interval, spread_of
from grassia.errors import GrassiaError, InvalidInput
from grassia.solvers import Grassia
from grassia.solvers.base import Problem
from grassia.solvers.guaranteed import REMEMBERED, Guarantee
from grassia.solvers.survey import survey
from problems import gaussian_rows, heterogeneous
from theory_instances import near


def diagonal(values):
    return lambda V: np.asarray(values)[:, None] * V


def surveyed(values, k, *, seed=0, positive=False, confidence=0.999, **options):
    """The survey of a diagonal matrix, in a frame of its own eigenvectors."""
    values = np.asarray(values, dtype=float)
    problem = Problem(1, len(values), k, np.ones(1), float(values.sum()), positive)
    steps = survey(problem, np.random.default_rng(seed), lambda: 0.0, confidence=confidence, **options)
    block = next(steps)
    while True:
        try:
            block = steps.send(diagonal(values)(block))
        except StopIteration as end:
            return end.value


SPECTRA = {
    "uniform": np.linspace(-1.0, 2.0, 200),
    "one far out": np.concatenate([np.zeros(199), [50.0]]),
    "both ends far out": np.concatenate([[-30.0], np.linspace(0.0, 1.0, 198), [10.0]]),
    "negative": -np.geomspace(1e-6, 1.0, 120),
    "clustered ends": np.concatenate([np.full(50, -2.0), np.full(100, 1.0)]),
    "small": np.array([3.0, 1.0]),
    "one": np.array([5.0]),
    "zero": np.zeros(30),
}


@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize("seed", range(3))
def test_the_spread_lies_between_its_bounds_which_are_tight(values, seed):
    found = spread_of(diagonal(values), len(values), np.random.default_rng(seed))
    true = values.max() - values.min()
    assert true in found
    assert found.high - found.low <= 0.05 * found.high + 1e-12


def test_bounds_stay_tight_once_all_there_is_was_explored():
    """Of the last polynomial only rounding is left then, which took a few in a hundred to infinity."""
    for seed in range(400):
        rng = np.random.default_rng(seed)
        A = np.cov((rng.standard_normal((100, 6)) * [6.0, 5.5, 1.2, 1.1, 1.0, 0.9]).T)
        found = spread_of(lambda V, A=A: A @ V, 6, rng)
        values = np.linalg.eigvalsh(A)
        assert values[-1] - values[0] in found
        assert found.high - found.low <= 0.05 * found.high


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_the_bounds_of_the_ends_fail_no_more_often_than_their_confidence_allows(confidence):
    """With few steps the bounds are anything but safe, so that the confidence is put to the test."""
    rng, trials, failures = np.random.default_rng(0), 400, 0
    for _ in range(trials):
        values = np.sort(rng.standard_normal(60))
        ends = Ends(60, rng, width=2)
        for _ in range(6):
            ends.take(diagonal(values)(ends.block))
        low, high = ends.bounds(confidence)
        failures += values[0] not in low or values[-1] not in high
    allowed = (1.0 - confidence) * trials
    assert failures <= allowed + 3.0 * math.sqrt(allowed)


def test_a_bound_that_trusts_a_lucky_start_more_than_it_may_would_fail_often():
    """The mutation of the test above: with a tenth of the doubt the bounds no longer hold as often."""
    rng, trials, failures = np.random.default_rng(0), 400, 0
    for _ in range(trials):
        values = np.sort(rng.standard_normal(60))
        ends = Ends(60, rng, width=2)
        ends._lengths = ends._lengths / 30.0
        for _ in range(6):
            ends.take(diagonal(values)(ends.block))
        low, high = ends.bounds(0.9)
        failures += values[0] not in low or values[-1] not in high
    assert failures > 0.1 * trials + 3.0 * math.sqrt(0.1 * trials)


CUTS = {
    "wide gap": (np.concatenate([[3.0, 2.5], np.linspace(1.0, 0.0, 80)]), 2, True),
    "narrow gap": (np.concatenate([[3.0, 2.5, 1.01], np.linspace(1.0, 0.0, 80)]), 3, True),
    "indefinite": (np.concatenate([[3.0], np.linspace(1.0, -4.0, 80)]), 1, False),
    "far from zero": (100.0 + np.concatenate([[3.0, 2.5], np.linspace(1.0, 0.0, 80)]), 2, True),
    "multiple below the cut": (np.concatenate([[3.0, 2.5], np.ones(80)]), 2, True),
    "k beyond half": (np.array([5.0, 4.0, 3.0, 1.0]), 3, True),
    "low rank": (np.concatenate([[3.0, 2.0], np.zeros(60)]), 2, True),
}


@pytest.mark.parametrize(("values", "k", "positive"), CUTS.values(), ids=CUTS.keys())
def test_gap_spread_and_optimum_lie_between_their_bounds(values, k, positive):
    ordered = np.sort(values)[::-1]
    found = surveyed(values, k, positive=positive)
    assert ordered[k - 1] - ordered[k] in found.delta
    assert ordered[0] - ordered[-1] in found.nu
    assert ordered[:k].sum() in found.optimum
    gap = ordered[k - 1] - ordered[k]
    assert found.delta.low >= 0.75 * gap
    assert found.optimum.high - found.optimum.low <= 0.1 * gap


@pytest.mark.parametrize("shift", [10.0, 1e3, 1e6, -1e4])
@pytest.mark.parametrize("d", [40, 300])
def test_a_large_multiple_of_the_identity_does_not_spoil_the_bounds(d, shift):
    """What is subtracted on the way is then far larger than what is left."""
    values = np.sort(np.random.default_rng(1).uniform(0.0, 1.0, d))[::-1].copy()
    values[:2] += 0.02
    for seed in range(3):
        found = surveyed(values + shift, 2, seed=seed, positive=shift > 0)
        moved = np.sort(values + shift)[::-1]
        assert moved[1] - moved[2] in found.delta
        assert moved[0] - moved[-1] in found.nu
        assert found.nu.high <= 1.5 * (moved[0] - moved[-1])
        assert moved[:2].sum() in found.optimum


def test_a_wide_cut_and_few_sweeps_leave_bounds_that_hold():
    values = np.linspace(1.0, 0.0, 120)
    values[:30] += 0.5
    found = surveyed(values, 30, max_sweeps=4)
    assert values[29] - values[30] in found.delta
    assert values[0] - values[-1] in found.nu
    assert values[:30].sum() in found.optimum


@pytest.mark.parametrize("c", [0.0, 1.0, -3.0, 1e8])
def test_a_multiple_of_the_identity_has_neither_gap_nor_spread(c):
    found = theory.certified_constants([c * np.eye(25)], 20, rng=0)
    assert found.nu.low == 0.0
    assert found.delta.low == 0.0
    assert found.nu_avg.high <= 1e-10 * max(abs(c), 1e-290)
    assert 20 * c in found.optimum


def test_components_that_cancel_do_not_spoil_the_bounds():
    """Products of the sum are then off by the rounding of its parts."""
    big = 2.0**34
    values = np.concatenate([[3.0, 2.0], np.linspace(1.0, 0.0, 30)])
    for seed in range(10):
        frame = geometry.random_point(32, 32, np.random.default_rng(seed))
        A = (frame * values) @ frame.T
        A = (A + A.T) / 2.0
        parts = [A + big * np.eye(32), A - big * np.eye(32)]
        total = (parts[0] + parts[1]) / 2.0
        true = np.linalg.eigvalsh(total)[::-1]
        found = theory.certified_constants(parts, 2, rng=seed)
        assert true[1] - true[2] in found.delta
        assert true[:2].sum() in found.optimum
        assert true[0] - true[-1] in found.nu


def test_without_a_gap_the_survey_claims_none():
    values = np.concatenate([[3.0, 1.0, 1.0], np.linspace(0.5, 0.0, 50)])
    assert surveyed(values, 2, positive=True).delta.low <= 1e-12


@pytest.mark.parametrize("backend", ["serial", Threads])
@pytest.mark.parametrize(("n", "d", "k"), [(6, 25, 3), (3, 60, 1), (4, 8, 7)])
def test_certified_constants_contain_those_of_dense_eigenvalues(n, d, k, backend):
    problem = heterogeneous(n, d, k, seed=1)
    exact = theory.exact_constants(problem.components, k, problem.weights)
    engine = backend if isinstance(backend, str) else backend()
    found = theory.certified_constants(problem.components, k, weights=problem.weights, backend=engine, rng=0)
    for name in ("delta", "nu", "nu_avg"):
        assert getattr(exact, name) in getattr(found, name), name
    assert all(value in bounds for value, bounds in zip(exact.nu_i, found.nu_i, strict=True))
    safe = found.guaranteed
    for tau in (0, 3):
        assert theory.broad_step(k, safe.nu, safe.nu_avg, safe.delta, tau) <= theory.broad_step(
            k, exact.nu, exact.nu_avg, exact.delta, tau
        ) * (1 + 1e-9)
        assert theory.local_step(k, safe.nu, safe.nu_avg, safe.delta, tau) <= theory.local_step(
            k, exact.nu, exact.nu_avg, exact.delta, tau
        ) * (1 + 1e-9)
    assert "confidence 0.999" in str(found)


def test_certified_constants_of_operators_too_large_for_a_matrix():
    d, k = 100_000, 2
    spectra = [np.concatenate([[5.0 + i, 4.0], np.linspace(1.0, 0.0, d - 2)]) for i in range(2)]
    operators = [
        LinearOperator((d, d), matvec=lambda v, s=s: s * v.ravel(), matmat=diagonal(s), dtype=float)
        for s in spectra
    ]
    found = theory.certified_constants(operators, k, rng=0)
    assert 3.0 in found.delta
    assert found.delta.low >= 2.3
    assert 5.5 in found.nu
    assert 5.5 in found.nu_avg
    assert found.nu_avg.high <= 5.9


def test_centred_rows_have_the_constants_of_their_covariance():
    X = gaussian_rows(400, 12, 2, seed=3)
    parts = np.array_split(X, 3)
    mean = X.mean(axis=0)
    dense = [(part - mean).T @ (part - mean) / len(part) for part in parts]
    exact = theory.exact_constants(dense, 2, [len(part) for part in parts])
    found = theory.certified_constants(grassia.from_rows(parts), 2, rng=0)
    assert exact.delta in found.delta
    assert exact.nu_avg in found.nu_avg


def test_the_same_seed_gives_the_same_constants():
    problem = heterogeneous(4, 20, 2, seed=0)
    both = [theory.certified_constants(problem.components, 2, rng=7) for _ in range(2)]
    assert both[0] == both[1]


# -- step="theory" --------------------------------------------------------------------------------


def backends():
    return {
        "serial": lambda: "serial",
        "stale": lambda: Simulated(Fixed([1, 1, 2, 5])),
        "synchronous": lambda: Simulated(Fixed([1, 1, 1, 1])),
    }


@pytest.mark.parametrize("backend", backends().values(), ids=backends().keys())
def test_the_local_step_is_taken_only_where_the_objective_gap_allows_it(backend):
    problem = heterogeneous(4, 12, 2, seed=0)
    exact = theory.exact_constants(problem.components, 2, problem.weights)
    oracle = theory.Oracle.of(problem.components, 2, problem.weights)
    seen = []

    def watch(progress):
        if progress.vectors is not None and progress.version > 0:
            captured = float(np.sum(progress.vectors * oracle.apply(progress.vectors)))
            seen.append((oracle.optimum - captured, progress.report["theory"]))

    result = grassia.eigenspace(
        problem.components,
        2,
        weights=problem.weights,
        solver=Grassia(step="theory"),
        backend=backend(),
        v0=near(problem, 2, 1.0),
        tol=1e-3,
        rng=0,
        callbacks=[watch],
    )
    assert result.converged
    story = result.stats["theory"]
    assert story["theorem"] == "local"
    assert story["local_since"] > 0
    for gap, report in seen:
        if report["theorem"] == "broad":
            assert report["objective_gap"] >= gap - 1e-9
        else:
            assert gap <= 4.0 * exact.delta / 9.0
    assert story["objective_gap"] <= 4.0 * exact.delta / 9.0


def test_a_run_under_the_local_theorem_takes_fewer_updates_than_one_that_may_not_switch():
    problem = heterogeneous(4, 12, 2, seed=0)
    exact = theory.exact_constants(problem.components, 2, problem.weights)
    runs = [
        grassia.eigenspace(
            problem.components,
            2,
            weights=problem.weights,
            solver=Grassia(step="theory", delta=delta),
            backend=Simulated(Fixed([1, 1, 2, 5])),
            v0=near(problem, 2, 0.7),
            tol=1e-3,
            rng=0,
        )
        for delta in (None, exact.delta)
    ]
    assert all(run.converged for run in runs)
    assert runs[1].stats["theory"]["theorem"] == "broad"
    assert runs[0].stats["updates"] < 0.8 * runs[1].stats["updates"]


def guarantee(delta=1.0, nu=2.0, optimum=5.0, n=2):
    one = Interval(nu, nu)
    constants = theory.CertifiedConstants(
        1, Interval(delta, delta), one, (one,) * n, one, Interval(optimum, optimum), 0.999, 0
    )
    return Guarantee.of(constants)


def test_what_a_component_may_lose_on_the_way_grows_with_the_root_of_k():
    one = Interval(2.0, 2.0)
    constants = theory.CertifiedConstants(
        4, Interval(1.0, 1.0), one, (one,), one, Interval(5.0, 5.0), 0.999, 0
    )
    moved = Guarantee.of(constants).moved(0, 0.1, np.ones((1, 1)))
    late = moved.looked(1, np.ones(1), np.array([4.8]), np.array([0]), 1)
    assert late.gap == pytest.approx(0.2 + 2.0 * 2.0 * 0.2)


def test_no_component_loses_more_on_the_way_than_is_charged():
    """The bound itself: `trace(W'AW)` against the length of a geodesic, over random points."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        d = int(rng.integers(2, 8))
        k = int(rng.integers(1, d))
        A = rng.standard_normal((d, d))
        A = A + A.T
        V, W = geometry.random_point(d, k, rng), geometry.random_point(d, k, rng)
        way = geometry.geodesic_distance(V, W)
        lost = float(np.sum(V * (A @ V)) - np.sum(W * (A @ W)))
        worst = max(worst, lost / (math.sqrt(k) * theory.spread(A) * way))
    assert 0.3 < worst <= 1.0


def test_more_staleness_than_the_switch_was_found_for_ends_the_local_theorem():
    arguments = (np.full(2, 0.5), np.array([4.8, 4.8]))
    local = guarantee().looked(0, *arguments, np.array([0, 0]), 0)
    assert local.local
    same = local.looked(1, *arguments, np.array([1, 1]), 0)
    assert same.since == 0
    loud = local.moved(0, 0.4, np.ones((1, 1)))
    assert not loud.looked(1, *arguments, np.array([1, 1]), 50).local


def test_the_way_since_an_answer_is_charged_to_the_objective_gap():
    fresh = guarantee().looked(0, np.full(2, 0.5), np.array([4.8, 4.8]), np.array([0, 0]), 0)
    assert fresh.since == 0
    assert fresh.gap == pytest.approx(0.2)
    # One update of length 2 * 0.1 * 1 between the answer of the second component and now.
    moved = guarantee().moved(0, 0.1, np.ones((1, 1)))
    late = moved.looked(1, np.full(2, 0.5), np.array([4.8, 4.8]), np.array([1, 0]), 1)
    assert late.gap == pytest.approx(0.2 + 0.5 * 2.0 * 0.2)


def test_history_before_the_switch_can_forbid_it():
    quiet = guarantee().moved(0, 1e-9, np.full((1, 1), 1e3))
    loud = guarantee().moved(0, 0.4, np.full((1, 1), 1.0))
    arguments = (1, np.full(2, 0.5), np.array([4.8, 4.8]), np.array([1, 1]), 1)
    assert quiet.looked(*arguments).since == 1
    assert loud.looked(*arguments).since is None


def test_the_charge_for_history_is_what_it_adds_to_the_descent_inequalities():
    """Summed up literally: each of the last updates enters up to tau inequalities after the switch."""
    rng = np.random.default_rng(0)
    nu_avg, tau, eta = 2.0, 5, 0.003
    taken, sizes = rng.uniform(0.001, 0.02, tau), rng.uniform(0.0, 1.0, tau)
    added = 0.0
    for t in range(tau):  # updates after the switch, and what of the history is not older than tau
        history = np.arange(t, tau)
        added += 144.0 * nu_avg**2 * tau * eta * float(np.sum(taken[history] ** 2 * sizes[history]))
    charge = theory.switch_charge(nu_avg, tau, eta, float(np.sum(taken**2 * sizes)))
    assert added <= charge <= 6.0 * added


def test_a_component_away_for_longer_than_is_remembered_certifies_nothing():
    start = guarantee()
    late = start.looked(REMEMBERED, np.full(2, 0.5), np.full(2, 5.0), np.array([0, REMEMBERED]), 1)
    assert not late.local
    assert late.gap == math.inf


def test_the_guarantee_begins_anew_after_a_restart():
    local = guarantee().looked(0, np.full(2, 0.5), np.array([4.8, 4.8]), np.array([0, 0]), 0)
    assert local.local
    assert not local.anew().local


# -- plan -----------------------------------------------------------------------------------------


def test_a_plan_states_the_steps_rates_and_counts_of_the_theorems():
    c = theory.Constants(k=2, delta=0.5, nu=2.0, nu_i=(2.0, 3.0), nu_avg=2.5)
    found = theory.plan(c, tau=3, epsilon=1e-6)
    broad, local = found.promises
    assert broad.step == theory.broad_step(2, 2.0, 2.5, 0.5, 3)
    assert local.step == theory.local_step(2, 2.0, 2.5, 0.5, 3)
    assert broad.rate == theory.broad_rate(0.5, broad.step)
    assert local.rate == theory.local_rate(0.5, local.step)
    for one, envelope, gap in (
        (broad, theory.broad_envelope, 2.0 * theory.ZETA**2),
        (local, theory.local_envelope, 4.0 * 0.5 / 9.0),
    ):
        assert envelope(one.iterations, gap, 0.5, one.step) <= 1e-6
        assert envelope(one.iterations - 1, gap, 0.5, one.step) > 1e-6
    text = str(found)
    assert "Theorem 1, broad basin" in text
    assert f"{local.iterations:,}" in text


@pytest.mark.parametrize("tau", [0, 5])
def test_what_is_observed_keeps_every_promise(tau):
    problem = heterogeneous(6, 15, 2, seed=0)
    found = theory.plan(problem.components, tau, 1e-6, k=2, weights=problem.weights, observe=200)
    for one in found.promises[:2]:
        assert one.observed.rate <= one.rate
        assert one.observed.iterations <= one.iterations
        assert tau - 1 <= one.observed.staleness <= tau
        assert one.observed.step == pytest.approx(one.step)
    auto = found.promises[2].observed
    assert auto.reached
    assert auto.iterations < found.promises[1].observed.iterations
    assert [row["theorem"] for row in found.to_dict()] == [one.name for one in found.promises]
    assert str(found).count("~") >= 2


def test_a_plan_for_rows_finds_its_constants_itself():
    X = gaussian_rows(300, 8, 2, seed=0)
    found = theory.plan(grassia.from_rows(X, 3), 2, 1e-4, k=2, observe=0)
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    assert values[1] - values[2] in found.certified.delta
    assert all(one.observed is None for one in found.promises)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": -1, "epsilon": 1e-3}, "`tau`"),
        ({"tau": 1, "epsilon": 0.0}, "`epsilon`"),
        ({"tau": 1, "epsilon": 1e-3, "problem": [np.eye(3)]}, "`k` must be given"),
        ({"tau": 1, "epsilon": 1e-3, "problem": [np.eye(3)], "k": 1}, "gap after k=1 must be positive"),
        ({"tau": 1, "epsilon": 1e-3, "problem": [np.eye(3)], "k": 3}, "1 <= k < n_features"),
        ({"tau": 1, "epsilon": 1e-3, "k": 2}, "that of the constants, 1; got 2"),
        ({"tau": 1, "epsilon": math.inf}, "`epsilon`"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(arguments, message):
    c = theory.Constants(k=1, delta=0.5, nu=2.0, nu_i=(2.0,), nu_avg=2.0)
    with pytest.raises(InvalidInput, match=message):
        theory.plan(**{"problem": c, **arguments})


def test_a_plan_for_a_gap_near_rounding_has_a_finite_count():
    c = theory.Constants(k=1, delta=1e-15, nu=1.0, nu_i=(1.0,), nu_avg=1.0)
    found = theory.plan(c, tau=2, epsilon=1e-300)
    assert all(one.iterations > 1e15 for one in found.promises)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.Constants(1, 3.0, 2.0, (2.0,), 2.0), "delta <= nu"),
        (lambda: theory.exact_constants([np.array([[1.0, 2.0], [0.0, 1.0]])], 1), "symmetric"),
        (lambda: theory.exact_constants([np.array([[np.nan, 0.0], [0.0, 1.0]])], 1), "finite"),
        (lambda: theory.exact_constants([np.eye(3)], 1.5), "`k`"),
        (lambda: theory.exact_constants([np.eye(3)], 3), "1 <= k < d"),
        (lambda: theory.broad_step(1, 1.0, 1.0, 0.1, -1), "`tau` at least 0"),
        (lambda: theory.local_step(0, 1.0, 1.0, 0.1, 1), "`k` must be at least 1"),
        (lambda: theory.compatibility_step(1, 1.0, 1.0, 0.1, 1, zeta=1.2, alpha=1.0), "radii"),
        (lambda: theory.certified_constants([np.eye(2)], 2, rng=0), "1 <= k < n_features"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


def test_constants_of_sparse_matrices_are_those_of_dense_ones():
    matrices = [np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 0.0])]
    sparse = [sp.csr_array(A) for A in matrices]
    assert theory.exact_constants(sparse, 1) == theory.exact_constants(matrices, 1)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_an_operator_beyond_double_precision_is_refused_and_does_not_hang():
    operator = LinearOperator((20, 20), matvec=lambda v: 1e160 * v, matmat=lambda V: 1e160 * V, dtype=float)
    with pytest.raises(GrassiaError, match=r"scale the data|double precision"):
        theory.certified_constants([operator], 2, rng=0)
