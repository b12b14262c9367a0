"""The inequalities at a point, or between points: both sides of each.

Each function takes the paper's constant as a keyword, so that a sharper or a wrong one can be tried.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grassia import geometry
from grassia.messages import Array
from grassia.theory.constants import polar_constant, spread
from grassia.theory.identities import Spectrum, gradient, objective
from grassia.theory.statement import Sides


def dominance_coefficient(delta: float, theta: float, power: float = 2.0) -> float:
    """`2 delta cos^2(theta)`, the tight coefficient of the gradient dominance (Proposition 1)."""
    return 2.0 * delta * math.pow(math.cos(theta), power)


def gradient_dominance(A: Any, W: Array, *, factor: float = 1.0, power: float = 2.0) -> Sides:
    """Tight angle-dependent gradient dominance (Proposition 1, equation "localPL").

    The coefficient times the objective gap is at most half of `||grad F||^2`.

    Parameters
    ----------
    A, W : array, shapes (d, d) and (d, k)
        The matrix and a point.
    factor, power : float
        Multiplies the paper's coefficient; its power of the cosine.
    """
    spectrum = Spectrum.of(A, W.shape[1])
    theta = float(geometry.principal_angles(spectrum.target, W)[-1])
    gap = objective(A, W) - spectrum.optimum
    left = factor * dominance_coefficient(spectrum.delta, theta, power) * gap
    right = 0.5 * float(np.sum(gradient(A, W) ** 2))
    scale = spectrum.scale * float(np.abs(spectrum.values).max())
    return Sides("tight gradient dominance", left, right, scale)


def objective_gap_bounds(
    A: Any, W: Array, *, lower: float = 4.0 / math.pi**2, upper: float = 1.0
) -> tuple[Sides, Sides]:
    """Objective-gap bounds (Lemma 8, equation "gap-geodesic"), the lower one first.

    `lower delta dist^2 <= F(W) - F* <= upper nu dist^2`; also where an angle is pi/2.
    """
    spectrum = Spectrum.of(A, W.shape[1])
    squared = geometry.geodesic_distance(spectrum.target, W) ** 2
    gap, scale = objective(A, W) - spectrum.optimum, spectrum.scale
    return (
        Sides("objective-gap lower bound", lower * spectrum.delta * squared, gap, scale),
        Sides("objective-gap upper bound", gap, upper * spectrum.nu * squared, scale),
    )


def chordal_gap_bounds(A: Any, W: Array, *, lower: float = 1.0, upper: float = 1.0) -> tuple[Sides, Sides]:
    """The bounds by sines, `delta sum sin^2 <= F(W) - F* <= nu sum sin^2` (equation "gap-chordal")."""
    spectrum = Spectrum.of(A, W.shape[1])
    squared = geometry.chordal_distance(spectrum.target, W) ** 2
    gap, scale = objective(A, W) - spectrum.optimum, spectrum.scale
    return (
        Sides("chordal lower bound", lower * spectrum.delta * squared, gap, scale),
        Sides("chordal upper bound", gap, upper * spectrum.nu * squared, scale),
    )


def weak_quasi_convexity(A: Any, W: Array, *, factor: float = 1.0) -> Sides:
    """Weak quasi-convexity, which the proof of Proposition 3 takes from the literature.

    `2 theta_k / tan(theta_k) (F(W) - F*) <= -<grad F(W), Log_W(W*)>` wherever `theta_k < pi/2`.
    """
    spectrum = Spectrum.of(A, W.shape[1])
    theta = float(geometry.principal_angles(spectrum.target, W)[-1])
    ratio = theta / math.tan(theta) if theta > 0.0 else 1.0
    left = factor * 2.0 * ratio * (objective(A, W) - spectrum.optimum)
    right = -float(np.sum(gradient(A, W) * geometry.log(W, spectrum.target)))
    return Sides("weak quasi-convexity", left, right, spectrum.scale)


def gradient_lipschitz(A: Any, W: Array, V: Array, *, constant: float = 6.0) -> Sides:
    """Gradient Lipschitzness (Lemma 4): `||grad F(W) - grad F(V)|| <= 6 nu ||W - V||`, in any bases."""
    left = float(np.linalg.norm(gradient(A, W) - gradient(A, V)))
    right = constant * spread(A) * float(np.linalg.norm(W - V))
    return Sides("gradient Lipschitzness", left, right, float(np.linalg.norm(A)))


def aggregate_norms(
    G: Array, nu_avg: float, *, spectral: float = 1.0, frobenius: float = 1.0
) -> tuple[Sides, Sides]:
    """Aggregated gradient norm bound (Lemma 5): `||G||_2 <= nu_avg`, `||G||_F <= sqrt(k) nu_avg`."""
    root = math.sqrt(G.shape[1])
    return (
        Sides("aggregate, spectral norm", float(np.linalg.norm(G, 2)), spectral * nu_avg, nu_avg),
        Sides("aggregate, Frobenius norm", float(np.linalg.norm(G)), frobenius * root * nu_avg, nu_avg),
    )


def polar_injectivity(W: Array, G: Array, eta: float, nu_avg: float, *, factor: float = 1.0) -> Sides:
    """Injectivity of the polar step (Lemma 6), with the margin its proof gives.

    `1 - eta nu_avg` is at most the least singular value of `W'(W - eta G)`. While the former is
    positive, the step has full rank and no principal angle to `W` is pi/2: polar factor and logarithm
    are unique.
    """
    inner = np.eye(W.shape[1]) - eta * (W.T @ G)
    least = float(np.linalg.svd(inner, compute_uv=False)[-1])
    return Sides("injectivity of the polar step", 1.0 - factor * eta * nu_avg, least, 1.0)


def geodesic_step(W: Array, G: Array, eta: float, *, constant: float = 2.0) -> Sides:
    """Upper bound on the geodesic distance of a polar step (Lemma 7): `dist <= 2 eta ||G||_F`."""
    left = geometry.geodesic_distance(geometry.polar(W - eta * G), W)
    return Sides("geodesic step", left, constant * eta * float(np.linalg.norm(G)), 1.0)


def log_decomposition(
    W: Array, G: Array, eta: float, *, constant: float | None = None, sign: float = -1.0
) -> Sides:
    """Decomposition of the logarithm map (Lemma 3, equation "log-decomp").

    The logarithm of a polar step is `-eta (I - WW') G` up to `C_po eta^2 ||G||_F^2`.

    Parameters
    ----------
    W, G : array, shape (d, k)
        Point and aggregate.
    eta : float
        The step, at most `1 / (2 nu_avg)`.
    constant : float, optional
        In the place of `C_po`.
    sign : float
        The paper's sign of the first-order term.
    """
    bound = polar_constant(W.shape[1]) if constant is None else constant
    moved = geometry.log(W, geometry.polar(W - eta * G))
    left = float(np.linalg.norm(moved - sign * eta * geometry.project(W, G)))
    return Sides("logarithm decomposition", left, bound * (eta * float(np.linalg.norm(G))) ** 2, 1.0)


def cosine_law(X: Array, Y: Array, Z: Array, *, inner: float = 2.0) -> Sides:
    """Cosine-law inequality on Gr(d, k) (Lemma 9), in the corner at `X`.

    `dist^2(Z, Y) <= |Log_X Y|^2 + |Log_X Z|^2 - 2 <Log_X Z, Log_X Y>` where both logarithms are unique.
    """
    to_y, to_z = geometry.log(X, Y), geometry.log(X, Z)
    squares = float(np.sum(to_y**2) + np.sum(to_z**2))
    right = squares - inner * float(np.sum(to_y * to_z))
    return Sides("cosine law", geometry.geodesic_distance(Z, Y) ** 2, right, max(squares, 1.0))
