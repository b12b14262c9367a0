"""FedPower: several power steps in each worker, then an average of aligned results.

Guo, Li, Chang, Wang, Zhang 2024, "FedPower: privacy-preserving distributed eigenspace estimation" (and Li,
Wang, Chen, Zhang 2021, "Communication-efficient distributed SVD via local power iterations"). In a round
every worker begins at the common `W` and makes p power steps on its *own* component,

    Z <- orth(A_i Z)  (p - 1 times),    Y_i = A_i Z_i D_i,    D_i = argmin |Z_i D - Z_ref| over orthogonal D,

and `W <- orth(sum w_i Y_i)`. The alignment D_i makes bases summable that have turned apart. `Z_ref` is `W`
itself (each worker aligns its own result; one message) or, as published, the basis of one worker (then the
server aligns, and Z_i travels, too).

With p = 1 it is orthogonal iteration and converges to the leading eigenspace, linearly, with the ratio
lambda_{k+1} / lambda_k a round. With p > 1 a round does the work of up to p, but the fixed point is off by a
distance that grows with the unlikeness of the components and with p: a floor. So the authors let p decay to
one; `decay` does it. Without that the run ends with the floor reached, as STALLED and not as converged.

The optional noise is Gaussian, on every matrix uploaded for an update. (The paper adds it at each local
step, too.) It gives a floor of its own, proportional to `noise`. It is here to study what privacy costs and
does not make a run private: the products of a certificate are exact.

Needs: a round of all components for each update. Components that are not known to be positive semidefinite
are shifted in their worker by a multiple of the identity, which changes no eigenspace of the sum.

Cost of an update: p products of each component with d x k; a message of d x k each way (d x 2k back with
reference="worker"); O(d k^2) on the server. Memory of the server: 4 d k numbers, with reference="worker" 2 n
d k more. The simulated clock charges a task like any other, however many local steps it makes.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count
from grassia.components import Component
from grassia.errors import InvalidInput
from grassia.messages import Array, Query, Scalar
from grassia.solvers.aggregate import put
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.power import check_shift, next_basis
from grassia.solvers.synchronous import State, Synchronous
from grassia.spectrum import lanczos_spread
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True, slots=True)
class Averaging:
    """What is remembered beside the iterate.

    `shifts` are those the workers took, `stretch` by how much they are multiplied; `parts` are (component,
    Y_i, Z_i) of this round where the server aligns. `bias` is by how much the true residual was above the
    one seen here, when a sweep last told.
    """

    shifts: Any
    stretch: float = 1.0
    parts: tuple[tuple[int, Array, Array], ...] = ()
    bias: float = 0.0
    exact: bool = False  # whether the last update was from p = 1 steps, without noise


@dataclass(frozen=True)
class FedPower(Synchronous[Averaging]):
    """FedPower: local power steps and Procrustes alignment.

    Parameters
    ----------
    local_steps : int
        Power steps a worker makes in a round (p of the paper), at first.
    decay : int or None
        After every so many rounds p is halved, until it is one. None: it stays.
    reference : {"iterate", "worker"}
        What the results are aligned with: the common iterate, or the basis of the component of the largest
        weight.
    noise : float
        Standard deviation of the Gaussian noise on uploaded matrices, drawn from the seed of the run, the
        round and the component.
    shift : float or "auto"
        The multiple of the identity added to each component; "auto": none where A is known to be positive
        semidefinite, else each worker's own, from a Lanczos estimate.
    spread_steps : int
        Lanczos steps a worker makes for that, once.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.fedpower import FedPower
    >>> parts = [np.diag([5.0, 3.0, 1.0, 0.0]), np.diag([3.0, 5.0, 1.0, 0.0])]
    >>> result = grassia.eigenspace(parts, 2, solver=FedPower(), rng=0)
    >>> result.values.round(6)
    array([4., 4.])
    """

    local_steps: int = 4
    decay: int | None = 5
    reference: str = "iterate"
    noise: float = 0.0
    shift: float | str = "auto"
    spread_steps: int = 8

    name: ClassVar[str] = "fedpower"

    def __post_init__(self) -> None:
        require_count(self.local_steps, "`local_steps`")
        if self.decay is not None:
            require_count(self.decay, "`decay`")
        if self.reference not in ("iterate", "worker"):
            raise InvalidInput(f"`reference` must be 'iterate' or 'worker'; got {self.reference!r}.")
        real = isinstance(self.noise, numbers.Real) and not isinstance(self.noise, bool)
        if not (real and 0.0 <= float(self.noise) < math.inf):
            raise InvalidInput(f"`noise` must be a finite number, zero or more; got {self.noise!r}.")
        check_shift(self.shift)
        require_count(self.spread_steps, "`spread_steps`")

    def server_bytes(self, n: int, d: int, k: int) -> int:
        return 8 * (8 + (2 * n if self.reference == "worker" else 0)) * d * k

    # -- what the server calls ------------------------------------------------------------------

    def ask(self, state: State[Averaging], component: int) -> Query:
        shift: Scalar = self.shift
        if shift == "auto" and state.problem.positive:
            shift = 0.0
        return Query(
            "local-power",
            {"iterate": state.W},
            {
                "steps": self._steps(state.version),
                "shift": shift,
                "stretch": state.method.stretch,
                "spread_steps": self.spread_steps,
                "align": self.reference == "iterate",
                "noise": float(self.noise),
                "seed": state.seed,
                "number": state.round.number,
                "component": component,
            },
        )

    def tell(self, state: State[Averaging], arrivals: Sequence[Arrival]) -> State[Averaging]:
        shifts, parts = state.method.shifts, state.method.parts
        for arrival in arrivals:
            i = arrival.component
            shifts = put(shifts, i, float(arrival.scalars["shift"] or 0.0))
            if self.reference == "worker":
                parts = (*parts, (i, arrival.arrays["product"], arrival.arrays["basis"]))
        state = replace(state, method=replace(state.method, shifts=shifts, parts=parts))
        if self.reference == "iterate":
            return super().tell(state, arrivals)
        if len(parts) < state.problem.n:
            return state
        return self._complete(state, _aligned_sum(parts, state.problem.weights))

    def lower_bound(self, state: State[Averaging]) -> float:
        return super().lower_bound(state) if state.method.exact else math.nan

    def sweep_done(self, state: State[Averaging], product: Array) -> State[Averaging]:
        truth = float(np.linalg.norm(geometry.project(state.W, product), 2))
        seen = 0.0 if state.residual is None else state.residual - state.method.bias
        method = replace(state.method, bias=max(0.0, truth - seen), parts=())
        return super().sweep_done(replace(state, method=method), product)

    def restart(self, state: State[Averaging], W: Array) -> State[Averaging]:
        # Maybe the shifts were too small, and this the wrong end.
        stretch = 2.0 * state.method.stretch
        begun = super().restart(state, W)
        return replace(begun, method=replace(begun.method, stretch=stretch))

    # -- the algorithm --------------------------------------------------------------------------

    def _steps(self, rounds: int) -> int:
        return self.local_steps if self.decay is None else max(1, self.local_steps >> (rounds // self.decay))

    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, Averaging]:
        return W, Averaging(np.zeros(problem.n))

    def _advance(self, state: State[Averaging], product: Array) -> tuple[State[Averaging], Array]:
        W, method = state.W, state.method
        single = self._steps(state.version) == 1
        bias = 0.0 if single else method.bias
        residual = float(np.linalg.norm(geometry.project(W, product), 2)) + bias
        shift = float(state.problem.weights @ method.shifts)
        values, _ = geometry.ritz(W, product - shift * W)
        moved = next_basis(product, W)
        method = replace(method, parts=(), bias=bias, exact=single and self.noise == 0.0)
        return replace(state, W=moved, residual=residual, values=values, method=method), moved


def _aligned_sum(parts: Sequence[tuple[int, Array, Array]], weights: Array) -> Array:
    """The weighted sum of the parts, each turned onto the basis of the heaviest component."""
    _, _, reference = max(parts, key=lambda part: (float(weights[part[0]]), -part[0]))
    turned = [weights[i] * (Y @ geometry.procrustes(Z, reference)) for i, Y, Z in parts]
    return np.asarray(np.sum(turned, axis=0))


# -- what the workers do ------------------------------------------------------------------------


@procedure("local-power")
def local_power(component: Component, cache: Cache, query: Query) -> Answer:
    """Power steps on the component from the common iterate; the last one is not orthonormalised."""
    W, options = query.arrays["iterate"], query.options
    shift = _shift_of(component, cache, query)
    Z = W
    for _ in range(int(options["steps"] or 1) - 1):
        Z = next_basis(finite_product(component, Z) + shift * Z, Z)
    Y = finite_product(component, Z) + shift * Z
    arrays: dict[str, Array] = {}
    if options["align"]:
        Y = Y @ geometry.procrustes(Z, W)
    else:
        arrays["basis"] = np.ascontiguousarray(Z)
    noise = float(options["noise"] or 0.0)
    if noise > 0.0:
        key = [int(options[name] or 0) for name in ("seed", "number", "component")]
        Y = Y + noise * np.random.default_rng(key).standard_normal(Y.shape)
    arrays["product"] = np.ascontiguousarray(Y)
    return arrays, {"shift": shift}


def _shift_of(component: Component, cache: Cache, query: Query) -> float:
    options = query.options
    if options["shift"] != "auto":
        return float(options["shift"] or 0.0)
    if "lowest" not in cache:
        steps, rng = int(options["spread_steps"] or 1), np.random.default_rng(0)
        cache["lowest"], _ = lanczos_spread(component.apply, component.n_features, steps, rng)
    return float(options["stretch"] or 1.0) * max(0.0, -float(cache["lowest"]))
