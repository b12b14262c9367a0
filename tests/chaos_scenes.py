"""What is to happen in a chaos run, drawn from a number: problem, solver, policy, faults and violence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import grassia
from grassia import LossPolicy, Status

ENGINES = ("ray", "dask", "processes")
#: The solvers, and about how many passes over the components they take here at least.
SOLVERS = {"nystrom": 4.0, "krylov": 5.0, "power": 7.0, "orthogonal": 10.0, "grassia": 20.0}


@dataclass(frozen=True)
class Act:
    """Something done to the cluster.

    `kill`, `pause` and `stop` (for ever) are done to the process of a worker, `node` takes a whole node
    away and, if it is to be `back`, starts it again after some seconds, `join` adds one.
    """

    passes: float  # when so many passes are through
    kind: str
    seconds: float = 0.0
    back: bool = False


@dataclass(frozen=True)
class Scene:
    """All that is decided before a run begins."""

    engine: str
    seed: int
    solver: str
    n: int
    d: int
    k: int
    of_rows: bool
    workers: int
    policy: LossPolicy
    faults: tuple[str, ...]
    acts: tuple[Act, ...]
    ends_at: float | None = None  # the server itself ends when so many passes are through
    abruptly: bool = False  # without a last checkpoint
    goes_on: str = ""  # the engine on which the run is resumed

    @property
    def name(self) -> str:
        """In a few words."""
        what = "rows" if self.of_rows else "matrices"
        return f"{self.solver} on {self.n} {what} of {self.d}, k={self.k}, {self.workers} workers"

    @property
    def policy_name(self) -> str:
        times = {"timeout": self.policy.timeout, "hasten": self.policy.hasten}
        return "+".join([self.policy.action, *(name for name, given in times.items() if given)])

    @property
    def allowed(self) -> set[Status]:
        """The ends that the policy allows.

        Something is always spared, so with "reload" a run converges. A place that is gone, or stopped, may
        be waited for in vain; and who excludes what is lost may lose everything.
        """
        if self.policy.action == "reload":
            return {Status.CONVERGED}
        for_ever = any(act.kind in ("node", "stop") for act in self.acts)
        if self.policy.action == "exclude" or for_ever:
            return {Status.CONVERGED, Status.WORKER_LOST}
        return {Status.CONVERGED}


def scene(engine: str, seed: int) -> Scene:
    """The scene of this number."""
    rng = np.random.default_rng([seed, ENGINES.index(engine)])
    solver = str(rng.choice(list(SOLVERS)))
    n, workers = int(rng.integers(3, 9)), int(rng.integers(2, 5))
    workers = min(n, workers)
    policy = _policy(rng)
    acts = _acts(rng, policy, engine != "processes", SOLVERS[solver])
    ends_at, goes_on = None, ""
    if rng.random() < 0.3:
        ends_at = float(rng.uniform(2.0, SOLVERS[solver]))
        others = [one for one in ("ray", "dask") if one != engine] if engine != "processes" else []
        goes_on = str(rng.choice([*others, *others, "threads", "processes"]))
    return Scene(
        engine,
        seed,
        solver,
        n,
        d=int(rng.integers(20, 61)),
        k=int(rng.integers(1, 5)),
        of_rows=bool(rng.random() < 0.5),
        workers=workers,
        policy=policy,
        faults=_faults(rng, n, workers, policy, SOLVERS[solver]),
        acts=acts,
        ends_at=ends_at,
        abruptly=bool(rng.random() < 0.5),
        goes_on=goes_on,
    )


def _policy(rng: np.random.Generator) -> LossPolicy:
    action = str(rng.choice(["reload", "reload", "reload", "wait", "exclude"]))
    timeout = float(rng.uniform(4.0, 6.0)) if rng.random() < 0.6 else None
    if action == "reload":
        hasten = float(rng.uniform(3.0, 8.0)) if timeout is None or rng.random() < 0.5 else None
        return LossPolicy(action, timeout=timeout, hasten=hasten, hasten_after=float(rng.uniform(0.5, 2.0)))
    patience = float(rng.uniform(5.0, 9.0)) if action == "wait" or rng.random() < 0.5 else None
    return LossPolicy(action, patience=patience, timeout=timeout)


def _acts(rng: np.random.Generator, policy: LossPolicy, nodes: bool, within: float) -> tuple[Act, ...]:
    """Up to four. At most one node is lost, and one process stopped for ever, where that is noticed."""
    kinds = ["kill", "kill", "pause", "pause"]
    if policy.timeout is not None or (nodes and policy.hastens):  # without nodes there are no second copies
        kinds += ["stop", "stop"]
    if nodes:
        kinds += ["node", "node", "join"]
    drawn: list[str] = []
    for _ in range(int(rng.integers(1, 5))):
        kind = str(rng.choice(kinds))
        if kind in ("stop", "node", "join"):
            kinds = [one for one in kinds if one != kind]
        drawn.append(kind)
    acts = [
        Act(
            float(rng.uniform(0.0, within)),
            kind,
            seconds=float(rng.uniform(0.2, 3.0)),
            back=bool(rng.random() < 0.6),
        )
        for kind in drawn
    ]
    return tuple(sorted(acts, key=lambda act: act.passes))


def _faults(
    rng: np.random.Generator, n: int, workers: int, policy: LossPolicy, passes: float
) -> tuple[str, ...]:
    """Links that take their time, and some of the others."""
    rules = [f"delay:*:{rng.uniform(100.0, 200.0) / passes:.0f}ms"]
    one = ",".join(map(str, range(int(rng.integers(workers)), n, workers)))  # the components of one worker
    some = [
        f"delay:{one}:{rng.uniform(50.0, 150.0):.0f}ms@{300.0 / passes:.0f}%",
        f"slow:{int(rng.integers(n))}:5x",
        f"crash:*@{3.0 / passes:.1f}%",
        "corrupt:*@3%",
        "duplicate:*@20%",
        "error:*@2%",
    ]
    if policy.action == "exclude":  # one worker dies, and not one after the other
        some[2] = f"crash:{int(rng.integers(n))}@{int(rng.integers(1, 8))}"
    return tuple(rules + [rule for rule in some if rng.random() < 0.5])


# -- the problem, and what dense eigh says of it --------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Components, and their second moments."""

    components: Any
    weights: np.ndarray | None
    parts: list[np.ndarray]
    means: list[np.ndarray]
    shares: np.ndarray

    def leading(self, weights: np.ndarray, k: int) -> np.ndarray:
        """The leading space of the sum with these weights, about the mean where there is one."""
        A = sum(w * part for w, part in zip(weights, self.parts, strict=True))
        mean = sum(w * one for w, one in zip(weights, self.means, strict=True))
        values, vectors = np.linalg.eigh(A - np.outer(mean, mean))
        assert values[-k] - values[-k - 1] > 0.1, "the problem has no gap"
        return vectors[:, -k:]


def problem(of: Scene) -> Problem:
    """Any of its components alone has a gap after k, so any that are left have."""
    rng = np.random.default_rng([of.seed, 1])
    turn = np.linalg.qr(rng.standard_normal((of.d, of.d)))[0]
    if of.of_rows:
        scales = np.r_[np.linspace(5.0, 3.0, of.k), np.ones(of.d - of.k)]
        sizes = rng.integers(2 * of.d, 5 * of.d, of.n)
        offset = rng.standard_normal(of.d)
        shards = [rng.standard_normal((m, of.d)) * scales @ turn.T + offset for m in sizes]
        moments = [X.T @ X / len(X) for X in shards]
        means = [X.mean(axis=0) for X in shards]
        return Problem(grassia.from_rows(shards), None, moments, means, sizes / sizes.sum())
    values = np.r_[np.linspace(2.0, 1.5, of.k), np.linspace(0.8, -0.5, of.d - of.k)]
    noise = [rng.standard_normal((of.d, of.d)) * 0.15 / np.sqrt(of.d) for _ in range(of.n)]
    matrices = [(turn * values) @ turn.T + (E + E.T) / 2.0 for E in noise]
    weights = rng.uniform(0.5, 1.5, of.n)
    return Problem(matrices, weights, matrices, [np.zeros(of.d)] * of.n, weights / weights.sum())


def sine(found: np.ndarray, wanted: np.ndarray) -> float:
    """Of the largest angle between two spaces."""
    return float(np.linalg.norm(found - wanted @ (wanted.T @ found), 2))
