"""Instances for the paper's results: generic ones, and the families on which its bounds are attained."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from grassia import geometry, theory

laws = settings(max_examples=80, deadline=None, derandomize=True, database=None)
search = settings(laws, phases=[Phase.generate])  # no more examples than the tests themselves try

seeds = st.integers(0, 2**32 - 1)
angles = st.one_of(st.just(math.pi / 2), st.just(math.pi / 4), st.floats(0.0, math.pi / 2))


def near(problem, k, distance, seed=0):
    """A start so far from the target."""
    target = problem.leading(k)
    noise = np.random.default_rng(seed).standard_normal((len(target), k))
    away = geometry.orthonormalize(noise, against=target)
    angle = distance / math.sqrt(k)
    return math.cos(angle) * target + math.sin(angle) * away


def holds(statements):
    """Whether one statement, or each of several, holds to rounding."""
    several = [statements] if isinstance(statements, theory.Sides) else list(statements)
    assert several
    return all(statement.holds() for statement in several)


def counterexample(instances, statements):
    """An instance at which the statements fail, or None where the search finds none."""
    try:
        return find(instances, lambda instance: not holds(statements(instance)), settings=search)
    except NoSuchExample:
        return None


def symmetric(d, rng):
    M = rng.standard_normal((d, d))
    return (M + M.T) / 2.0


def with_spectrum(values, rng):
    """A symmetric matrix of this spectrum, and its frame."""
    frame = geometry.random_point(len(values), len(values), rng)
    A = (frame * values) @ frame.T
    return (A + A.T) / 2.0, frame


def turned(frame, k, by, rng):
    """The point at angles `by` from the span of the first k vectors of `frame`, in a random basis."""
    m = len(by)
    W = frame[:, :k].copy()
    W[:, k - m :] = W[:, k - m :] * np.cos(by) + frame[:, k : k + m] * np.sin(by)
    return W @ geometry.random_point(k, k, rng)


@dataclass(frozen=True)
class Point:
    A: np.ndarray
    W: np.ndarray
    seed: int

    @property
    def k(self):
        return self.W.shape[1]

    def another(self, count=1):
        """Points drawn near and far, by the seed of this instance."""
        rng = np.random.default_rng([self.seed, 1])
        found = []
        for _ in range(count):
            reach = 10.0 ** rng.uniform(-4.0, 0.0)
            xi = geometry.project(self.W, rng.standard_normal(self.W.shape))
            xi *= reach / np.linalg.norm(xi, 2)
            found.append(geometry.exp(self.W, xi))
        return found


@st.composite
def points(draw, max_d=7, case=None):
    """A matrix with an eigengap and a point: generic, or turned from the target by chosen angles."""
    d = draw(st.integers(2, max_d))
    fits = {None: (1, d - 1), "narrow": (1, d // 2), "wide": (d // 2 + 1, d - 1)}[case]
    if fits[0] > fits[1]:
        d, fits = 3, {"narrow": (1, 1), "wide": (2, 2)}[case]
    k = draw(st.integers(*fits))
    seed = draw(seeds)
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):
        values = np.r_[np.ones(k), np.zeros(d - k)]  # delta = nu: bounds by either are attained
    else:
        values = np.sort(rng.standard_normal(d))[::-1]
        values[:k] += draw(st.floats(0.01, 1.0))
    A, frame = with_spectrum(values, rng)
    if draw(st.booleans()):
        W = geometry.random_point(d, k, rng)
    else:
        m = min(k, d - k)
        by = draw(angles)
        W = turned(frame, k, np.full(m, by) if draw(st.booleans()) else by * rng.uniform(size=m), rng)
    return Point(A, W, seed)


@dataclass(frozen=True)
class Stale:
    """A point and an aggregate of gradients taken elsewhere, with a step as a part of 1 / nu_avg."""

    W: np.ndarray
    G: np.ndarray
    nu_avg: float
    part: float

    @property
    def eta(self):
        return self.part / self.nu_avg


@st.composite
def aggregates(draw, largest=0.5):
    """Aggregates as in the algorithm: each component's gradient at some other point.

    In the longest family every component is the projector on U and every gradient is taken at the point V
    half way to N: it is as long as can be, and W is turned from V towards or away from it. The attained ones
    among these are the worst there are: a right angle for Lemma 6, a sixth of pi for Lemma 7, about 1 for
    Lemma 3.
    """
    family = draw(st.sampled_from(["generic", "longest", "attained"]))
    k = 1 if family == "attained" else draw(st.integers(1, 3))
    part = largest if family == "attained" else draw(st.floats(1e-3, largest))
    seed = draw(seeds)
    rng = np.random.default_rng(seed)
    if family == "generic":
        d, n = draw(st.integers(k + 1, 7)), draw(st.integers(1, 4))
        components = [symmetric(d, rng) for _ in range(n)]
        weights = rng.uniform(0.1, 1.0, n)
        weights /= weights.sum()
        W = geometry.random_point(d, k, rng)
        near = Point(components[0], W, seed).another(n)
        G = sum(
            w * geometry.riemannian_gradient(V, A @ V)
            for w, A, V in zip(weights, components, near, strict=True)
        )
        nu_avg = theory.exact_constants(components, k, weights).nu_avg
        return Stale(W, G, nu_avg, part)
    frame = geometry.random_point(2 * k, 2 * k, rng)
    U, N = frame[:, :k], frame[:, k:]
    V, across = (U + N) / math.sqrt(2.0), (N - U) / math.sqrt(2.0)
    A = U @ U.T
    worst = st.sampled_from([math.pi / 2, math.pi / 6, 1.0])
    by = draw(worst if family == "attained" else st.floats(-math.pi / 2, math.pi / 2))
    W = V * math.cos(by) + across * math.sin(by)
    return Stale(W, geometry.riemannian_gradient(V, A @ V), theory.spread(A), part)


# --- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A problem, a start at a known distance, and a schedule of arrivals no older than `tau`."""

    components: list[np.ndarray]
    weights: np.ndarray
    W0: np.ndarray
    tau: int
    seed: int

    def constants(self):
        return theory.exact_constants(self.components, self.W0.shape[1], self.weights)

    def run(self, eta, updates=60):
        """Algorithm 1 with entries as old as `tau` allows: each is refreshed late, and by an old gradient."""
        rng = np.random.default_rng([self.seed, 2])
        entry = [0] * len(self.components)

        def arrivals(t):
            found = []
            for i in range(len(entry)):
                due = t - entry[i] > self.tau
                if due or rng.random() < 0.1:
                    oldest = max(entry[i], t - self.tau)
                    entry[i] = int(rng.integers(oldest, t + 1)) if rng.random() < 0.5 else oldest
                    found.append((i, entry[i]))
            return found

        return theory.follow(self.components, self.W0, eta, arrivals, updates, self.weights)

    def steps(self, of):
        c = self.constants()
        return of(c.k, c.nu, c.nu_avg, c.delta, self.tau)

    def descending(self, factor=1.0, updates=60):
        c = self.constants()
        return self.run(factor * theory.descent_step(c.k, c.nu, c.nu_avg), updates)

    def broad(self, factor=1.0, updates=60):
        return self.run(factor * self.steps(theory.broad_step), updates)

    def local(self, factor=1.0, updates=60):
        return self.run(factor * self.steps(theory.local_step), updates)


@st.composite
def settings_of(draw, reach, largest_tau=6):
    """Settings with a start at the edge of what is allowed; `reach(spectrum, by)` scales the angles there.

    In the plain family all components are one projector: delta = nu = nu_avg, where rates are slowest and
    bounds attained. In the other they differ and the sum has a spectrum of its own.
    """
    k = draw(st.integers(1, 3))
    d = k + draw(st.integers(1, 3))
    tau = draw(st.sampled_from([0, 1, largest_tau]))
    n = draw(st.integers(1, 4))
    seed = draw(seeds)
    rng = np.random.default_rng(seed)
    plain = draw(st.booleans())
    values = np.r_[np.ones(k), np.zeros(d - k)] if plain else np.sort(rng.uniform(size=d))[::-1]
    if not plain:
        values[:k] += 0.2
    A, frame = with_spectrum(values, rng)
    weights = rng.uniform(0.5, 1.5, n)
    weights /= weights.sum()
    noise = [0.0 if plain else 0.2 * symmetric(d, rng) for _ in range(n)]
    mean = sum(w * part for w, part in zip(weights, noise, strict=True))
    components = [A + part - mean for part in noise]
    m = min(k, d - k)
    by = np.ones(m) if plain else rng.uniform(0.1, 1.0, m)
    W0 = turned(frame, k, reach(values, k, by), rng)
    return Setting(components, weights, W0, tau, seed)


def within_zeta(values, k, by):
    return 0.999 * theory.ZETA * by / np.linalg.norm(by)


def within_the_local_gap(values, k, by):
    return at_gap(4.0 / 9.0, values, k, by)


def at_gap(part, values, k, by):
    """Angles whose objective gap is just below `part` of delta.

    A pair of eigenvalues a above the gap and b below it costs (a - b) times the squared sine.
    """
    m = len(by)
    costs = values[k - m : k] - values[k : k + m]
    share = by**2 / np.sum(by**2)
    return np.arcsin(np.sqrt(0.999 * part * (values[k - 1] - values[k]) * share / costs))


broad_settings = settings_of(within_zeta)
local_settings = settings_of(within_the_local_gap)
wider_settings = settings_of(functools.partial(at_gap, 0.75))
# One component whose gradient is of the start for very long: the iterate passes its target meanwhile.
overdue_settings = settings_of(within_zeta, largest_tau=120)
