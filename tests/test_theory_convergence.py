"""The paper's results on runs: descent, basin, recursion, the two theorems, and their mutations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grassia import geometry, theory
from grassia.backends import Serial, Simulated
from grassia.backends.service import Fixed, LogNormal
from grassia.errors import InvalidInput
from grassia.solvers import Grassia
from problems import Dense, heterogeneous, iterates, recorded_sets, trajectory
from theory_instances import (
    Setting,
    broad_settings,
    counterexample,
    holds,
    laws,
    local_settings,
    overdue_settings,
    turned,
    wider_settings,
    with_spectrum,
    within_the_local_gap,
    within_zeta,
)

# Each result as a function of a setting, the paper's constants as keywords.


def one_step_descent(setting, factor=1.0, **changed):
    return theory.one_step_descent(setting.descending(factor, updates=150), **changed)


def staleness(setting, **changed):
    return theory.staleness_error(setting.descending(updates=150), **changed)


def basin_invariance(setting, factor=1.0, alpha=theory.ALPHA):
    """After the start, which is where it was put."""
    return theory.basin_invariance(setting.broad(factor), alpha)[1:]


def basin_compatibility(setting, factor=1.0):
    """At the compatibility step itself."""
    eta = factor * setting.steps(theory.compatibility_step)
    return theory.basin_compatibility(setting.constants(), setting.tau, eta)


def lyapunov(setting, **changed):
    """After the start, at which there is nothing to show."""
    return theory.lyapunov(setting.broad(), **changed)[1:]


def broad_convergence(setting, factor=1.0, **changed):
    return theory.broad_convergence(setting.broad(factor), **changed)


def local_convergence(setting, factor=1.0, **changed):
    return theory.local_convergence(setting.local(factor), **changed)


@pytest.mark.parametrize(
    ("updates", "arrivals", "text"),
    [
        (0, lambda t: [(0, t)], "`updates` must be at least 1"),
        (3, lambda t: [(0, t + 1)], "up to 1; got version 2"),
    ],
)
def test_runs_that_cannot_be_are_refused(updates, arrivals, text):
    with pytest.raises(InvalidInput, match=text):
        theory.follow([np.diag([1.0, 0.0])], np.eye(2)[:, :1], 0.1, arrivals, updates)


# --- section 3.2: one-step descent ----------------------------------------------------------------


@laws
@given(broad_settings)
def test_proposition_2_the_one_step_descent_under_staleness(setting):
    run = setting.descending()
    assert run.tau <= setting.tau
    assert holds(theory.one_step_descent(run))
    assert holds(theory.staleness_error(run))


@pytest.mark.parametrize("period", [36, 45, 80])
def test_proposition_2_the_one_step_descent_where_staleness_makes_the_objective_rise(period):
    """A gradient as old as this carries the iterate past its target; the penalty alone covers that.

    The second component has nothing to say, and says it at every update.
    """
    rng = np.random.default_rng(0)
    A, frame = with_spectrum(np.array([1.0, 0.0]), rng)
    W0 = turned(frame, 1, np.array([0.1]), rng)
    components = [2.0 * A, np.zeros((2, 2))]
    c = theory.exact_constants(components, 1)
    eta = theory.descent_step(1, c.nu, c.nu_avg)
    run = theory.follow(components, W0, eta, lambda t: [(1, t), (0, t)] if t % period == 0 else [(1, t)], 150)
    assert run.tau == period - 1
    assert np.any(np.diff(run.gaps) > 1e-6)
    assert holds(theory.one_step_descent(run))


# --- section 3.3: the basin -----------------------------------------------------------------------


@laws
@given(broad_settings)
def test_proposition_3_the_basin_invariance(setting):
    run = setting.run(setting.steps(theory.basin_step))
    assert run.distances[0] <= theory.ZETA
    assert holds(theory.basin_invariance(run))
    assert holds(theory.lyapunov(run))


@laws
@given(broad_settings)
def test_proposition_3_the_compatibility_step_is_what_the_start_and_the_basin_allow(setting):
    """With equality: the step is the largest for which (1 + nu gamma) zeta^2 <= alpha^2."""
    sides = basin_compatibility(setting)
    assert sides.holds()
    assert sides.slack <= 1e-9


def test_proposition_3_a_start_at_the_target_allows_any_compatible_step():
    assert theory.compatibility_step(2, 1.0, 1.0, 0.1, 3, zeta=0.0) == math.inf


@laws
@given(st.integers(1, 20), st.floats(0.01, 10.0), st.floats(1.0, 10.0), st.integers(0, 30))
def test_the_steps_of_the_theorems_are_the_papers_formulas(k, nu, more, tau):
    """As printed; alpha = pi/3 makes 4 delta cos^2(alpha) the delta of the local theorem."""
    nu_avg, delta = more * nu, 0.1 * nu
    C = (2.0 + 4.0 / 3.0 * k**0.5) * k**0.5
    eta_0 = min(1.0 / (2.0 * nu_avg), 1.0 / (8.0 * nu * (C + 4.0)))
    shared = min(eta_0, 1.0 / (24.0 * nu_avg * (tau + 1)))
    basin = min(shared, 1.0 / (4.0 * nu_avg * C), theory.compatibility_step(k, nu, nu_avg, delta, tau))
    assert theory.descent_step(k, nu, nu_avg) == pytest.approx(eta_0, rel=1e-12)
    assert theory.basin_step(k, nu, nu_avg, delta, tau) == pytest.approx(basin, rel=1e-12)
    assert theory.broad_step(k, nu, nu_avg, delta, tau) == pytest.approx(
        min(basin, 1.0 / (delta * (tau + 1))), rel=1e-12
    )
    assert theory.local_step(k, nu, nu_avg, delta, tau) == pytest.approx(
        min(shared, 1.0 / (delta * (tau + 1))), rel=1e-12
    )


# --- section 3.4: the recursion and the theorems --------------------------------------------------


@dataclass(frozen=True)
class Recursion:
    """Coefficients on the edge of Lemma 10's condition, and sequences with its recursion."""

    a: float
    b: float
    T0: int
    draws: tuple[float, ...]

    def sequences(self, factor):
        """V and W, with `c` at `factor` times what the condition allows; and that c.

        Each W_t takes a drawn part of what leaves V non-negative, the first as a rule most.
        """
        a, b, T0 = self.a, self.b, self.T0
        c = factor * b * a**T0 / sum(a**j for j in range(T0 + 1))
        V, W = [1.0], []
        for t, part in enumerate(self.draws):
            known = a * V[t] + c * math.fsum(W[max(0, t - T0) :])
            W.append(part * known / (b - c) if b > c else part)
            V.append(max(known - (b - c) * W[t], 0.0))
        return V, W, c


@st.composite
def recursions(draw):
    T0 = draw(st.integers(1, 5))
    late = draw(st.lists(st.sampled_from([0.0, 0.0, 0.3, 1.0]), min_size=T0 + 1, max_size=12))
    return Recursion(
        draw(st.floats(0.5, 0.99)), draw(st.floats(0.1, 2.0)), T0, (draw(st.floats(0.1, 0.9)), *late)
    )


def delayed_recursion(recursion, factor=1.0):
    V, _, _ = recursion.sequences(factor)
    return [theory.Sides("delayed recursion", V[t], recursion.a**t * V[0], 1.0) for t in range(len(V))]


@laws
@given(recursions())
def test_lemma_10_the_delayed_recursion(recursion):
    V, W, c = recursion.sequences(1.0)
    assert min(V) >= 0.0
    assert min(W) >= 0.0
    assert theory.recursion_condition(recursion.a, recursion.b, c, recursion.T0).holds()
    assert holds(theory.delayed_recursion(V, W, recursion.a, recursion.b, c, recursion.T0))
    assert holds(delayed_recursion(recursion))


@laws
@given(
    st.floats(1e-6, 1.0),
    st.floats(1.0, 100.0),
    st.floats(1.0, 10.0),
    st.integers(1, 50),
    st.sampled_from(["broad", "local"]),
)
def test_the_theorems_steps_meet_the_condition_of_lemma_10(delta, nu, more, tau, theorem):
    nu_avg = more * nu
    of = {"broad": theory.broad_step, "local": theory.local_step}[theorem]
    rate = {"broad": theory.broad_rate, "local": theory.local_rate}[theorem]
    eta = of(2, nu, nu_avg, delta, tau)
    c = 144.0 * nu_avg**2 * tau * eta**3
    assert theory.recursion_condition(rate(delta, eta), eta / 2.0, c, tau).holds()


@laws
@given(broad_settings)
def test_theorem_1_the_broad_basin_envelope(setting):
    run = setting.broad()
    assert run.tau <= setting.tau
    assert holds(theory.broad_convergence(run))


@laws
@given(local_settings)
def test_theorem_2_the_local_envelope(setting):
    run = setting.local()
    assert run.gaps[0] <= 4.0 * run.constants.delta / 9.0
    assert holds(theory.local_convergence(run))
    assert holds(theory.basin_invariance(run, math.pi / 3.0))


@laws
@given(wider_settings)
def test_theorem_2_holds_from_a_gap_of_three_quarters_of_delta_and_with_a_lower_envelope(setting):
    """A gap is at least delta sin^2 of the largest angle: 3 delta / 4 already means an angle of pi/3.

    The iterates being there, the envelope may start where that of Theorem 1 does, at 16/27 of this one.
    """
    run = setting.local()
    assert run.gaps[0] > 4.0 * run.constants.delta / 9.0
    assert holds(theory.local_convergence(run, height=16.0 / 27.0))
    largest = [geometry.principal_angles(run.spectrum.target, W)[-1] for W in run.iterates]
    assert max(largest) <= math.pi / 3.0


def test_remark_1_the_envelope_at_the_concrete_radii():
    found = theory.broad_envelope(7, 0.3, 0.2, 0.01)
    assert found == pytest.approx(
        (1.0 - 0.2 * 0.01 / 4.0) ** 7 * 4.0 * math.pi**2 / (27.0 * 0.2) * 0.3, rel=1e-13
    )


@laws
@given(st.floats(1e-8, 1.0), st.floats(1e-3, 0.1), st.floats(1e-3, 1.0), st.sampled_from(["broad", "local"]))
def test_corollaries_the_iteration_count_is_the_first_at_which_the_envelope_suffices(
    epsilon, eta, delta, theorem
):
    count = {"broad": theory.broad_iterations, "local": theory.local_iterations}[theorem]
    envelope = {"broad": theory.broad_envelope, "local": theory.local_envelope}[theorem]
    t = count(epsilon, 0.4 * delta, delta, eta)
    assert envelope(t, 0.4 * delta, delta, eta) <= epsilon * (1.0 + 1e-9)
    assert t == 0 or envelope(t - 1, 0.4 * delta, delta, eta) > epsilon * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("tau", "power"),
    [(0, -1.0), (1, -1.5), (20, -1.5)],
)
def test_corollary_1_the_broad_count_grows_with_this_power_of_the_gap(tau, power):
    """With the logarithm divided out; the fixed gap of the start makes it log(1 / (delta epsilon))."""

    def count(delta):
        eta = theory.broad_step(2, 1.0, 1.0, delta, tau)
        return theory.broad_iterations(1e-6, 0.5, delta, eta) / math.log(1.0 / (delta * 1e-6))

    assert math.log10(count(1e-8) / count(1e-6)) / -2.0 == pytest.approx(power, abs=0.03)


@pytest.mark.parametrize("tau", [0, 1, 20])
def test_corollary_2_the_local_count_grows_with_the_inverse_gap_and_with_the_delay(tau):
    def count(delta, tau):
        eta = theory.local_step(2, 1.0, 1.0, delta, tau)
        return theory.local_iterations(1e-6, 4.0 * delta / 9.0, delta, eta)

    assert count(1e-8, tau) / count(1e-6, tau) == pytest.approx(100.0, rel=1e-3)
    assert count(1e-3, 200) / count(1e-3, 100) == pytest.approx(201.0 / 101.0, rel=1e-3)


@pytest.mark.parametrize(("epsilon", "eta", "text"), [(0.0, 0.1, "`epsilon`"), (1e-3, 0.0, "the rate")])
def test_counts_of_what_never_comes_are_refused(epsilon, eta, text):
    with pytest.raises(InvalidInput, match=text):
        theory.local_iterations(epsilon, 0.1, 0.5, eta)


# --- recorded runs --------------------------------------------------------------------------------

UPDATES = 120
LONG = 1500  # updates, until envelopes have come down
BACKENDS = {
    "serial": Serial,
    "fixed": lambda: Simulated(Fixed([1, 2, 3, 5, 2])),
    "at return": lambda: Simulated(Fixed([1, 2, 3, 5, 2]), evaluate="return"),
    "lognormal": lambda: Simulated(LogNormal(), seed=11, workers=3),
}


def recorded(problem, W0, eta, backend, log):
    """The library's own asynchronous run, replayed as Algorithm 1 from the arrivals in its log."""
    solver = Grassia(step=eta)
    found = iterates(problem, solver, backend, W0, UPDATES, record=log)
    sets = recorded_sets(log, len(problem.components))
    run = theory.follow(
        problem.components, W0, eta, lambda t: sets.get(t, []), UPDATES, weights=problem.weights
    )
    assert max(np.abs(found[t] - run.iterates[t]).max() for t in range(1, UPDATES + 1)) <= 1e-11
    return run


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("theorem", ["broad", "local"])
def test_theorems_1_and_2_hold_on_recorded_asynchronous_runs(name, theorem, tmp_path):
    k, n = 2, 5
    problem = heterogeneous(n=n, d=8, k=k, seed=3)
    values, frame = problem.spectrum()
    place = {"broad": within_zeta, "local": within_the_local_gap}[theorem]
    W0 = turned(frame, k, place(values, k, np.array([0.5, 1.0])), np.random.default_rng(0))
    c = theory.exact_constants(problem.components, k, problem.weights)
    of = {"broad": theory.broad_step, "local": theory.local_step}[theorem]
    allowed = 60
    run = recorded(
        problem, W0, of(k, c.nu, c.nu_avg, c.delta, allowed), BACKENDS[name](), tmp_path / "run.jsonl"
    )
    assert 0 < run.tau <= allowed
    assert run.distances[-1] < run.distances[0]
    assert holds(theory.one_step_descent(run))
    assert holds(theory.staleness_error(run))
    envelope = {"broad": theory.broad_convergence, "local": theory.local_convergence}[theorem]
    assert holds(envelope(run))
    assert holds(theory.basin_invariance(run))


@pytest.mark.parametrize("name", ["serial", "fixed", "lognormal"])
@pytest.mark.parametrize("theorem", [1, 2])
def test_theorems_1_and_2_hold_on_runs_long_enough_to_refute_them(name, theorem):
    """With the staleness there is and delta = nu the envelopes fall fast enough for a wrong rate to show."""
    k, n, values = 1, 5, np.array([1.0, 0.0, 0.0])
    rng = np.random.default_rng(0)
    A, frame = with_spectrum(values, rng)
    problem, oracle = Dense([A] * n, np.full(n, 1.0 / n)), theory.Oracle.of([A] * n, k)
    place = within_zeta if theorem == 1 else within_the_local_gap
    W0 = turned(frame, k, place(values, k, np.ones(1)), rng)

    def watched(eta):
        monitor = theory.Monitor(oracle)
        solver = Grassia(step=eta)
        trajectory(problem, solver, BACKENDS[name](), W0, LONG, callbacks=[monitor])
        return monitor

    # Who arrives when does not depend on the step.
    tau = watched(1e-3).report().tau
    eta = (theory.broad_step if theorem == 1 else theory.local_step)(k, 1.0, 1.0, 1.0, tau)
    monitor = watched(eta)
    report = monitor.report()
    assert 0 < report.tau == tau
    assert report["one-step descent"].verdict == "holds"
    envelope = report[f"envelope of Theorem {theorem}"]
    assert envelope.verdict == "holds"
    assert envelope.sides[-1].right < 0.8 * envelope.sides[0].right
    faster = 1.0 - 24.0 * (1.0 - envelope.sides[1].right / envelope.sides[0].right)
    assert monitor.distances[-1] ** 2 > envelope.sides[0].right * faster**LONG


@laws
@given(broad_settings)
def test_shift_invariance_of_whole_runs(setting):
    shifts = np.random.default_rng([setting.seed, 3]).uniform(-5.0, 5.0, len(setting.components))
    moved = [A + c * np.eye(len(A)) for A, c in zip(setting.components, shifts, strict=True)]
    other = Setting(moved, setting.weights, setting.W0, setting.tau, setting.seed)
    plain, shifted = setting.broad(updates=20), other.broad(updates=20)
    assert shifted.eta == pytest.approx(plain.eta, rel=1e-9)
    assert max(np.abs(a - b).max() for a, b in zip(plain.iterates, shifted.iterates, strict=True)) <= 1e-10
    np.testing.assert_allclose(shifted.distances, plain.distances, atol=1e-10)


# --- mutations ------------------------------------------------------------------------------------

# The same laws at the same number of instances, with one constant or sign changed. Sharp ones (Lemma 10, the
# compatibility step, the Lyapunov function) notice one per cent. Others are loose: runs are some sixteen
# times faster than the theorems' rates, the penalty of Proposition 2 would do with 2 in the place of 144 on
# these instances, and steps have to be twenty to eighty times those allowed before a statement fails.
MUTATIONS = [
    ("Proposition 2, gradient", broad_settings, one_step_descent, {"gradient_part": 0.51}),
    ("Proposition 2, aggregate", broad_settings, one_step_descent, {"aggregate_part": 0.76}),
    ("Proposition 2, penalty", overdue_settings, one_step_descent, {"staleness_part": 1.0}),
    ("Proposition 2, sign of the penalty", broad_settings, one_step_descent, {"staleness_part": -144.0}),
    ("Proposition 2, step", broad_settings, one_step_descent, {"factor": 24.0}),
    ("Proposition 2, staleness", broad_settings, staleness, {"constant": 3.0}),
    ("Proposition 3, radius", broad_settings, basin_invariance, {"alpha": 0.99 * theory.ZETA}),
    ("Proposition 3, step", broad_settings, basin_invariance, {"factor": 100.0}),
    ("Proposition 3, compatibility", broad_settings, basin_compatibility, {"factor": 1.01}),
    ("Proposition 3, Lyapunov", broad_settings, lyapunov, {"factor": 0.99}),
    ("Lemma 10", recursions(), delayed_recursion, {"factor": 1.01}),
    ("Theorem 1, rate", broad_settings, broad_convergence, {"speed": 20.0}),
    ("Theorem 1, step", broad_settings, broad_convergence, {"factor": 60.0}),
    ("Theorem 1, height", broad_settings, broad_convergence, {"height": 0.82}),
    ("Theorem 2, rate", local_settings, local_convergence, {"speed": 24.0}),
    ("Theorem 2, step", local_settings, local_convergence, {"factor": 60.0}),
    ("Theorem 2, height", local_settings, local_convergence, {"height": 0.48}),
]


@pytest.mark.parametrize(
    ("instances", "law", "changed"),
    [row[1:] for row in MUTATIONS],
    ids=[row[0] for row in MUTATIONS],
)
def test_a_changed_constant_is_found_out(instances, law, changed):
    assert counterexample(instances, lambda instance: law(instance, **changed)) is not None
