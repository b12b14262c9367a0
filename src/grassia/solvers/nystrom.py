"""nystrom: an asynchronous block-Davidson method on per-component Nystrom models.

Our own solver, with no step size and no basin. The server keeps a model of every component
(`grassia.solvers.surrogate`), takes the leading eigenvectors `E` of their sum, `W = E[:, :k]`, and asks each
worker that is free for the product with what its model does not contain of them yet, normalised:
`V = orth((I - Q_i Q_i') E[:, :width])`.

- `Ahat <= A`, so `trace(W' Ahat W)` never exceeds the best captured variance, and it never decreases.
- If `W` lies in every span(Q_i) the model is exact there and `W` is an eigenspace of `A`.
- The model of a lost worker stays: its data stays in the objective while it restarts.
- With one component it is thick-restarted block Krylov.

Cost of an arrival: O(d N width + d N m), N the columns of all models, m = k + extra; memory `2 N d` doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.blocks import DROP, spectral_norm
from grassia.components import Component
from grassia.errors import InvalidInput
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.prior import Prior
from grassia.solvers.surrogate import Surrogate
from grassia.spectrum import lanczos_spread
from grassia.worker import Answer, Cache, finite_product, procedure

SETTLED = 1e-10  # a residual this small beside the eigenvalues leaves the prior nothing but rounding to say
RISE = 1e-13  # a rise of the captured variance by less, relatively, is rounding
HEADSTART = 4  # answers of most others, after which a question asked before any came in is taken back
BESIDE = 8  # directions after the cut that a certificate looks into: more cost more than they spare
CROWD = 64  # up to twice as many components the iterate is made anew with every answer
IDLE = 0.005  # a model this much less wrong about W than the worst one is left alone for now
FEW = 4  # of so many others one need not be waited for before a straggler is asked again
UNHEARD = 0.002  # how wrong the others may be about one that has not answered yet, beside the eigenvalues


class State:
    """The server's side of a run; changed in place, for the models are too large to copy."""

    def __init__(
        self,
        problem: Problem,
        E: Array,
        surrogate: Surrogate,
        sizes: tuple[int, int, int],
        prior: Prior | None,
    ) -> None:
        n = problem.n
        self.sizes = sizes  # of `Nystrom.sizes`
        self.problem, self.E, self.surrogate, self.prior = problem, E, surrogate, prior
        self.plain = E  # the leading eigenvectors of the models alone
        self.version = 0
        self.values = np.zeros(problem.k)
        self.bound = math.nan  # the captured variance is at least this
        self.lifted, self.proved = 0.0, -math.inf  # the shift in it, and what was proved with a smaller one
        self.solved = False
        self.unsolved = 0  # answers that the iterate does not know of yet
        self.highest, self.stalled = -math.inf, 0  # captured by the models, and solutions since it rose
        self.pending: dict[int, Array] = {}
        self.blind: set[int] = set()  # asked about the start, before anything was known, and yet to answer
        self.answers = np.zeros(n, dtype=np.int64)
        self.error = np.full(n, math.inf)  # how wrong each model was at its last answer
        self.surprise = np.full(n, math.inf)  # the same with what was expected of it
        self.expecting = False  # whether the iterate was made with that
        self.latest = -1  # the straggler that has just answered ...
        self.first: set[int] = set()  # ... and who is to answer before it is asked again
        self.absent: set[int] = set()  # lost, and not asked again yet
        self.outside = np.ones(n)  # how much of W each model does not contain

    @property
    def W(self) -> Array:
        return self.E[:, : self.problem.k]


@dataclass(frozen=True)
class Nystrom(Solver[State]):
    """The flagship solver: no step size, no basin, stragglers welcome.

    Parameters
    ----------
    width : int, optional
        Columns of a query; default k, and 8 at least (but no more than k + extra). A product with fewer is
        bound by reading the data, so eight cost little more, and a straggler gives more with each of its
        rare answers. Where latency or reading is what takes time, 2k or 3k save further answers.
    extra : int, optional
        Directions followed beyond k; default 2 k, from 8 on k / 2 (but 8): more cost time and save none.
    memory : int, optional
        Columns kept for each component; default 12 k, less where `budget` forbids.
    budget : float
        Bytes the models may take on the server. A run that cannot do with them is refused before it
        starts; `grassia` and `power` need O(dk).
    prior : bool
        Whether a component that has not been asked yet is expected to be like the others
        (`grassia.solvers.prior`): right for shards of one data set, without effect on what is found. It is
        done without where `budget` has no room for it.
    spread_steps : int
        Lanczos steps by which a worker estimates its lowest eigenvalue, where its component is not known
        to be positive semidefinite: it is then shifted, which leaves the eigenspace as it is.
    """

    width: int | None = None
    extra: int | None = None
    memory: int | None = None
    budget: float = 4e9
    prior: bool = True
    spread_steps: int = 8

    name: ClassVar[str] = "nystrom"
    recalls: ClassVar[bool] = True
    vouches: ClassVar[bool] = True
    early: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("width", "memory"):
            if getattr(self, name) is not None:
                require_count(getattr(self, name), f"`{name}`")
        if self.extra is not None:
            require_count(self.extra, "`extra`", least=0)
        require_count(self.spread_steps, "`spread_steps`")
        require_positive(self.budget, "`budget`")

    def sizes(self, n: int, d: int, k: int) -> tuple[int, int, int]:
        """(query width, directions followed, columns kept for each component).

        >>> Nystrom().sizes(n=20, d=3072, k=3)
        (8, 9, 36)
        """
        extra = min(2 * k, max(8, k // 2)) if self.extra is None else self.extra
        width = min(d, max(k, min(8, k + extra)) if self.width is None else self.width)
        followed = min(d, max(k + extra, width))
        least = min(d, k + width)
        kept = min(d, max(least, 12 * k if self.memory is None else self.memory))
        while Surrogate.nbytes(n, d, min(d, kept + width)) > self.budget and kept > least:
            kept = max(least, (3 * kept) // 4)
        needed = Surrogate.nbytes(n, d, min(d, kept + width))
        if needed > self.budget:
            raise InvalidInput(
                f"the models of {n} components with {d} features need {needed:.3g} bytes on the server and "
                f"`budget` is {self.budget:.3g}. Raise it, or use the solver 'power' or 'grassia'."
            )
        return width, followed, kept

    def server_bytes(self, n: int, d: int, k: int) -> int:
        width, followed, kept = self.sizes(n, d, k)
        slot, rank = min(d, kept + width), self._prior_rank(n, d, k)
        models = Surrogate.nbytes(n, d, slot) + Prior.nbytes(n, d, slot, rank)
        return models + 8 * d * (2 * followed + n * width)

    def _prior_rank(self, n: int, d: int, k: int) -> int:
        """Columns of the prior; 0 where there are no others to learn from, or no room for it."""
        width, _, kept = self.sizes(n, d, k)
        slot, rank = min(d, kept + width), min(d, 3 * kept, prior_rank(k))
        room = self.budget - Surrogate.nbytes(n, d, slot)
        return rank if self.prior and n > 1 and Prior.nbytes(n, d, slot, rank) <= room else 0

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        n, d, k = problem.n, problem.d, problem.k
        width, followed, kept = self.sizes(n, d, k)
        surrogate = Surrogate(n, d, min(d, kept + width), problem.weights)
        E = W
        if problem.beyond is not None:
            E = np.hstack([W, geometry.orthonormalize(problem.beyond, against=W)])[:, :followed]
        if followed > E.shape[1]:
            # Only the start is random, and it must follow from W for a run to be repeatable.
            rng = np.random.default_rng(np.frombuffer(np.ascontiguousarray(W[:8]).tobytes(), np.uint32))
            more = rng.standard_normal((d, followed - E.shape[1]))
            E = np.hstack([E, geometry.orthonormalize(more, against=E)])
        rank = self._prior_rank(n, d, k)
        prior = Prior(n, d, rank) if rank else None
        return State(problem, np.ascontiguousarray(E), surrogate, (width, followed, kept), prior)

    def reposed(self, state: State, problem: Problem, moved: Callable[[int, Array], Array]) -> State:
        state.problem = problem
        state.surrogate.renew(problem.weights, moved)
        state.bound, state.proved, state.highest, state.stalled = math.nan, -math.inf, -math.inf, 0
        if state.prior is not None:
            state.prior.rest()
        if state.solved:
            self._solve(state, state.sizes[1])
            for i in range(problem.n):
                self._look(state, i)
        return state

    def ask(self, state: State, component: int) -> Query | None:
        state.absent.discard(component)
        if state.solved and not self._worth_asking(state)[component]:
            return None
        if self._others_first(state, component):
            return None
        V = self._directions(state, component)
        if V is None:
            state.first.discard(component)
            return None
        state.pending[component] = V
        if state.solved or not state.problem.cold:
            state.blind.discard(component)
        else:
            state.blind.add(component)
        if not state.problem.positive and state.surrogate.size[component] == 0:
            return Query("apply-spread", {"block": V}, {"spread_steps": self.spread_steps})
        return Query("apply", {"block": V})

    def outdated(self, state: State, component: int) -> bool:
        """A straggler that is still busy with a random block when the others have answered a few times.

        By then they know the leading directions well enough for its first answer to be worth waiting for;
        what it would say of a random block is worth little, and would take it as long.
        """
        return component in state.blind and state.solved and not self._few_answers(state, component)

    def premature(self, state: State, component: int) -> bool:
        """Where all others have answered before it could be asked at all, and will soon know much more."""
        others = np.delete(state.answers, component)
        if not state.solved or state.answers[component] > 0 or bool(np.any(others == 0)):
            return False
        learning = bool(np.any(np.delete(self._worth_asking(state), component)))
        return learning and self._few_answers(state, component)

    @staticmethod
    def _few_answers(state: State, component: int) -> bool:
        """Whether most others have not answered often enough to know the leading directions well."""
        return float(np.median(np.delete(state.answers, component))) < HEADSTART

    def _worth_asking(self, state: State) -> NDArray[np.bool_]:
        """Of each component, whether its model matters beside the worst one.

        While a straggler is out the others soon know all there is to know until it answers. Further queries
        of theirs would load machines and network, and the server, for next to nothing.
        """
        heard = np.isfinite(state.error)
        error = np.where(heard, state.error, UNHEARD * self.scale(state))
        wrong = state.problem.weights * error * state.outside
        return np.asarray(~heard | (wrong >= IDLE * wrong.max()))

    def _others_first(self, state: State, i: int) -> bool:
        """Whether a straggler should wait a moment: with what the quick ones say now it is asked better."""
        if i != state.latest:
            return False
        waiting = np.count_nonzero(self._worth_asking(state)[list(state.first)])
        return bool(waiting > (state.problem.n - 1) // FEW)

    def _let_others_go_first(self, state: State, arrived: set[int]) -> None:
        """Where one has answered that all others had to wait for: what it said is news to them.

        They are quick and it is slow, so the moment is well spent. Who is lost is not waited for.
        """
        state.first -= arrived
        if len(arrived) == 1 and not state.pending and state.solved:
            (state.latest,) = arrived
            state.first = set(range(state.problem.n)) - arrived - state.absent

    def _directions(self, state: State, i: int) -> Array | None:
        """What the model of a component lacks of the leading directions, normalised."""
        width, followed, _ = state.sizes
        Q = state.surrogate.basis(i)
        width = min(width, state.surrogate.slot - Q.shape[1])
        if width == 0:
            return None
        V = geometry.orthonormalize(state.E[:, :width], against=Q if Q.shape[1] else None, tol=DROP)
        if V.shape[1] < width < followed:
            more = geometry.orthonormalize(state.E[:, width:], against=np.hstack([Q, V]), tol=DROP)
            V = np.hstack([V, more[:, : width - V.shape[1]]])
        return np.ascontiguousarray(V) if V.shape[1] else None

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        surrogate = state.surrogate
        for arrival in arrivals:
            i = arrival.component
            V, P = state.pending.pop(i), arrival.arrays["product"]
            if "low" in arrival.scalars:
                low, high = float(arrival.scalars["low"] or 0.0), float(arrival.scalars["high"] or 0.0)
                surrogate.shift[i] = max(0.0, 0.05 * (high - low) - low)
            state.answers[i] += 1
            state.blind.discard(i)
            unknown = surrogate.add(i, V, P)
            state.error[i] = spectral_norm(unknown)
            if state.prior is not None:
                unknown = state.prior.learn(i, V, unknown, surrogate.basis(i))
            state.surprise[i] = spectral_norm(unknown)
        _, followed, _ = state.sizes
        state.unsolved += len(arrivals)
        # One among very many changes next to nothing: a few of them are taken together.
        taken = max(1, state.problem.n // CROWD)
        if surrogate.rank >= followed and state.unsolved >= taken:
            self._solve(state, followed)
        for arrival in arrivals:
            self._trim(state, arrival.component)
        if state.unsolved == 0 and state.version % max(1, state.problem.n // (8 * taken)) == 0:
            for i in range(state.problem.n):
                self._look(state, i)
        self._let_others_go_first(state, {arrival.component for arrival in arrivals})
        return state

    def lost(self, state: State, component: int) -> State:
        state.first.discard(component)
        state.absent.add(component)
        return state

    def refine(self, state: State) -> State:
        if state.solved:
            self._solve(state, state.E.shape[1], exactly=True)
            for i in range(state.problem.n):
                self._look(state, i)
        return state

    def _solve(self, state: State, followed: int, exactly: bool = False) -> None:
        k, surrogate, state.unsolved = state.problem.k, state.surrogate, 0
        accuracy = self.residual(state)
        tol = 1e-14
        if accuracy is not None and not exactly:
            # The small problem need be no better than what it is made of.
            tol = max(tol, min(1e-3, 1e-3 * accuracy / self.scale(state)))
        values, plain = surrogate.leading(followed, state.plain if state.solved else None, tol, k)
        state.plain, state.values, state.solved = plain, values, True
        captured = float(np.sum(values[:k]))
        if captured > state.highest + RISE * abs(captured):
            state.highest, state.stalled = captured, 0
        else:
            state.stalled += 1
        state.E = plain if exactly else self._expected(state, accuracy)
        state.expecting = state.E is not plain
        if state.problem.positive or np.isfinite(state.error).all():
            # Without the shift of every component the model need not be a minorant yet.
            shift = float(state.problem.weights @ surrogate.shift)
            if shift != state.lifted:
                # A larger shift may cost some of what was proved before; that stays proved.
                state.lifted, state.proved = shift, np.fmax(state.bound, -math.inf)
            state.bound = max(captured - k * shift, float(state.proved))
        state.version += 1

    def _expected(self, state: State, accuracy: float | None) -> Array:
        """The leading directions with what the prior expects, as long as that can bring anything.

        Not near the end, where it would only add rounding, nor when the models have learnt nothing for two
        sweeps: they converge without it, whatever the components and however little is remembered of them.
        """
        prior = state.prior
        if prior is None:
            return state.plain
        settled = accuracy is not None and accuracy < SETTLED * self.scale(state)
        if settled or state.stalled > 2 * state.problem.n:
            prior.rest()
            return state.plain
        prior.prepare(state.surrogate)
        return prior.correct(state.values, state.plain)

    def _trim(self, state: State, i: int) -> None:
        """Compress a model that has grown too large, keeping what matters to the iterate first."""
        width, _, kept = state.sizes
        surrogate = state.surrogate
        q = int(surrogate.size[i])
        if kept < q < state.problem.d:
            k = state.problem.k
            said = surrogate.fit(i, state.plain[:, :k])  # the lower bound is made of these
            seen = surrogate.fit(i, state.E[:, k:] if state.E is state.plain else state.E)
            latest_first = np.eye(q)[:, ::-1]
            order = [said, latest_first[:, :width], seen, latest_first[:, width:]]
            surrogate.compress(i, np.hstack(order), kept)
        self._look(state, i)

    def _look(self, state: State, i: int) -> None:
        Q = state.surrogate.basis(i)
        state.outside[i] = spectral_norm(state.W - Q @ (Q.T @ state.W))

    def residual(self, state: State) -> float | None:
        if not state.solved or not np.isfinite(state.error).all():
            return None
        wrong = state.surprise if state.expecting else state.error
        return float(state.problem.weights @ (wrong * state.outside))

    def scale(self, state: State) -> float:
        return max(float(np.max(np.abs(state.values))), float(np.finfo(np.float64).tiny))

    def gap(self, state: State) -> float | None:
        k = state.problem.k
        return float(state.values[k - 1] - state.values[k]) if len(state.values) > k else None

    def beside(self, state: State) -> Array | None:
        if self._knows(state):
            return None
        k = state.problem.k
        rest = state.E[:, k : k + BESIDE]
        return rest if rest.shape[1] else None

    def known(self, state: State) -> tuple[Array, Array] | None:
        if not self._knows(state):
            return None
        k = state.problem.k
        rest = state.E[:, k : k + BESIDE]
        return rest, self._modelled(state, rest)

    def claimed(self, state: State) -> Array | None:
        return self._modelled(state, state.W) if state.solved else None

    @staticmethod
    def _modelled(state: State, X: Array) -> Array:
        """The product with A, as far as the models know it, and as it is expected beyond that.

        A certificate finds out how far it is off, so it may well be a guess.
        """
        shift = float(state.problem.weights @ state.surrogate.shift)
        known = state.surrogate.apply(X) - shift * X
        return known + state.prior.together(X) if state.expecting and state.prior is not None else known

    @staticmethod
    def _knows(state: State) -> bool:
        """Whether the models know directions after the cut too, because queries are wider than k."""
        return state.sizes[0] >= state.problem.k + 3

    def lower_bound(self, state: State) -> float:
        return state.bound

    def anew(self, state: State, W: Array) -> State:
        begun = self.init(state.problem, W, None)
        begun.version = state.version + 1
        return begun

    def restart(self, state: State, W: Array) -> State:
        E = geometry.orthonormalize(np.hstack([W, state.E]))[:, : state.E.shape[1]]
        state.E = np.ascontiguousarray(np.hstack([W, geometry.orthonormalize(E, against=W)])[:, : E.shape[1]])
        state.plain, state.expecting = state.E, False
        state.version += 1
        return state


def prior_rank(k: int) -> int:
    """Columns by which the prior describes what components have in common.

    With more, no run over seeds took less virtual time; and the server works on all of them at every answer.

    >>> [prior_rank(k) for k in (3, 10, 20, 50, 100)]
    [108, 120, 240, 240, 400]
    """
    return max(108, min(12 * k, 240), 4 * k)


@procedure("apply-spread")
def apply_spread(component: Component, cache: Cache, query: Query) -> Answer:
    """The product with a block, and estimates of both ends of the component's spectrum."""
    product = finite_product(component, query.arrays["block"])
    low, high = lanczos_spread(
        component.apply,
        component.n_features,
        int(query.options["spread_steps"] or 1),
        np.random.default_rng(0),
    )
    return {"product": product}, {"low": low, "high": high}
