"""Runs in which everything goes wrong at random moments, and what became of them.

A run is decided by the name of an engine and a number (`chaos_scenes.py`): the problem, the solver, the
policy for losses, the faults that are injected, and what is really done to the workers' processes while it
goes on. When things happen depends on the machine; what is right does not: a run that says it has converged
has the answer that dense `eigh` gives for the problem it says it has solved, and the others have an end that
their policy allows.

Runs take place in a child process with clusters of its own. One that takes too long is ended there, with all
stacks written down; the next runs get another child.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

import grassia
from chaos_engines import KINDS, Cluster, of_token, signalled
from chaos_scenes import ENGINES, Act, Problem, Scene, problem, scene, sine
from conftest import segments
from grassia import Checkpoint, Injector, Status
from grassia.backends.base import cores

TOL = 1e-7
TIME_LIMIT = 60.0
HANG = 120.0  # seconds after which a run, with all that belongs to it, is called hung
MARK = "@@ "


# -- a run --------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of a run. `verdict` is "" if that was right."""

    seed: int
    engine: str
    scene: str
    policy: str
    faults: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    status: str = "-"
    sine: float = float("nan")
    seconds: float = 0.0
    left_out: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    why: str = ""
    verdict: str = ""

    @property
    def line(self) -> str:
        told = [f"{count} {kind}" for kind, count in self.counts.items() if count]
        if self.left_out:
            told.append(f"left out {self.left_out}")
        end = f"{self.verdict}: {self.why}" if self.verdict else "right"
        return (
            f"{self.engine:9} {self.seed:4} {self.status:11} {self.sine:7.1e} {self.seconds:5.1f} s  "
            f"{self.policy:21} {', '.join(self.done) or 'nothing':32} {self.scene:52} "
            f"{'; '.join(told)}  {end}"
        )


class ServerDied(Exception):
    """Raised in a callback in the place of the death of the server."""


class Violence(threading.Thread):
    """Does what the scene says, each thing when so many passes are through; `passes` is kept by the run."""

    def __init__(self, cluster: Cluster, acts: Sequence[Act], rng: np.random.Generator) -> None:
        super().__init__(daemon=True)
        self._cluster, self._acts, self._rng = cluster, acts, rng
        self._over = threading.Event()
        self.passes = -1.0
        self.done: list[str] = []
        self.error: str = ""

    def run(self) -> None:
        try:
            for act in self._acts:
                while self.passes < act.passes:
                    if self._over.wait(0.005):
                        return
                self._do(act)
        except Exception:
            self.error = traceback.format_exc()

    def end(self) -> None:
        self._over.set()
        if self.ident is not None:  # it was started
            self.join()

    def _do(self, act: Act) -> None:
        if act.kind == "node":
            address = self._cluster.lose_node()
            self.done.append("node lost")
            if act.back and not self._over.wait(act.seconds):
                self._cluster.add_node(address)
                self.done[-1] = "node lost and back"
        elif act.kind == "join":
            self._cluster.add_node()
            self.done.append("node joined")
        elif victim := self._victim():
            number = signal.SIGKILL if act.kind == "kill" else signal.SIGSTOP
            if signalled(victim, number):
                self.done.append({"kill": "killed", "pause": "paused", "stop": "stopped"}[act.kind])
            if act.kind == "pause":
                time.sleep(act.seconds)
                signalled(victim, signal.SIGCONT)
            elif act.kind == "stop":
                self._cluster.stopped.add(victim)

    def _victim(self) -> int | None:
        for _ in range(100):
            found = sorted(set(self._cluster.workers()) - self._cluster.stopped)
            if found:
                return int(self._rng.choice(found))
            if self._over.wait(0.02):
                break
        return None


class Stage:
    """The clusters of a child process; each is made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Cluster] = {}

    def get(self, name: str) -> Cluster:
        if name not in self._made:
            self._made[name] = KINDS[name]()
        return self._made[name]

    def close(self) -> None:
        for cluster in self._made.values():
            cluster.close()

    def mend(self) -> None:
        for cluster in self._made.values():
            cluster.mend()


def play(of: Scene, stage: Stage, slowness: float) -> Outcome:
    """Run a scene and judge it."""
    outcome = Outcome(of.seed, of.engine, of.name, of.policy_name, list(of.faults))
    violence = Violence(stage.get(of.engine), of.acts, np.random.default_rng([of.seed, 2]))
    began = time.monotonic()
    try:
        posed = problem(of)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of what is looked at below
            result = _solved(of, posed, stage, violence, slowness)
        _judge(of, posed, result, outcome)
    except grassia.GrassiaError as error:
        # Before there is anything to give back, a run cannot end but so.
        named = [status for status in of.allowed if f"({status.name})" in str(error)]
        outcome.status = named[0].name if named else "-"
        outcome.why = f"{type(error).__name__}: {error}"
        outcome.verdict = "" if named else "RAISED"
    except Exception:
        outcome.why, outcome.verdict = traceback.format_exc(), "RAISED"
    finally:
        violence.end()
    outcome.seconds = time.monotonic() - began
    outcome.done += violence.done
    if violence.error:
        outcome.why, outcome.verdict = violence.error, "RAISED"
    return outcome


def _solved(of: Scene, posed: Problem, stage: Stage, violence: Violence, slowness: float) -> grassia.Result:
    def watch(progress: grassia.Progress) -> bool:
        violence.passes = progress.passes
        due = of.ends_at is not None and progress.passes >= of.ends_at and progress.version > 0
        if due and of.abruptly and plan.there:
            raise ServerDied
        # While what is left is opened anew there may be nothing to give back.
        return due and not of.abruptly and progress.vectors is not None

    policy = of.policy
    times = {name: getattr(policy, name) for name in ("timeout", "hasten_after", "patience")}
    policy = replace(policy, **{name: slowness * one for name, one in times.items() if one is not None})
    faults = Injector.parse(of.faults, seed=of.seed)
    with tempfile.TemporaryDirectory() as folder:
        plan = Checkpoint(folder, every=None, updates=2)
        backend = stage.get(of.engine).backend(of.workers, faults)
        violence.start()
        result = None
        with suppress(ServerDied):
            result = grassia.eigenspace(
                posed.components,
                of.k,
                weights=posed.weights,
                solver=of.solver,
                backend=backend,
                tol=TOL,
                rng=of.seed,
                callbacks=watch,
                checkpoint=plan if of.ends_at is not None else None,
                time_limit=slowness * TIME_LIMIT,
                on_loss=policy,
            )
        if result is None or result.status is Status.INTERRUPTED:
            violence.end()
            violence.done.append(f"resumed on {of.goes_on}")
            backend = stage.get(of.goes_on).backend(3, faults)
            result = grassia.resume(plan, posed.components, backend=backend, time_limit=slowness * TIME_LIMIT)
    return result


def _judge(of: Scene, posed: Problem, result: grassia.Result, outcome: Outcome) -> None:
    stats, events = result.stats, result.history.events
    outcome.status, outcome.left_out = result.status.name, list(stats["excluded"])
    outcome.counts = {
        "lost": sum(event.kind == "worker lost" for event in events),
        "replaced": sum(event.kind == "worker replaced" for event in events),
        "failed": sum(event.kind == "task failed" for event in events),
        "rejected": stats["replies_rejected"],
        "ignored": stats["replies_ignored"],
        "hastened": stats["tasks_hastened"],
    }
    outcome.why = _explained(result)
    if result.status not in of.allowed:
        outcome.verdict = "UNDUE"
    elif outcome.left_out and of.policy.action != "exclude":
        outcome.verdict = "WRONG"
    elif result.status is not Status.CONVERGED:
        outcome.verdict = "" if outcome.why else "UNEXPLAINED"
    else:
        shares = posed.shares.copy()
        shares[outcome.left_out] = 0.0
        shares /= shares.sum()
        outcome.sine = sine(result.vectors, posed.leading(shares, of.k))
        same = np.allclose(stats["weights"], shares, rtol=1e-12, atol=0.0)
        outcome.verdict = "" if same and outcome.sine <= TOL else "WRONG"


def _explained(result: grassia.Result) -> str:
    """What the events say of an end that is none to be wished for."""
    if result.status is Status.CONVERGED:
        return ""
    kinds = {
        Status.WORKER_LOST: ("worker lost",),
        Status.COMPONENT_FAILED: ("component failed",),
    }.get(result.status, ("certificate refused", "worker lost"))
    told = [event for event in result.history.events if event.kind in kinds and event.text]
    return f"component {told[-1].component}: {told[-1].kind}, {told[-1].text}" if told else ""


# -- a campaign -----------------------------------------------------------------------------------------


def child(engine: str, seeds: Sequence[int], limit: float) -> None:
    """Play the scenes and print what became of each; started by `campaign`."""
    stage = Stage()
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        stage.get(engine)
        for seed in seeds:
            slowness = min(4.0, max(1.0, os.getloadavg()[0] / (2.0 * cores())))
            faulthandler.dump_traceback_later(slowness * HANG, exit=True)
            stage.mend()
            faulthandler.dump_traceback_later(slowness * limit, exit=True)
            outcome = play(scene(engine, seed), stage, slowness)
            print(MARK + json.dumps(asdict(outcome)), flush=True)
        faulthandler.dump_traceback_later(HANG, exit=True)
        stage.close()
    finally:
        faulthandler.cancel_dump_traceback_later()


def campaign(
    engine: str,
    seeds: Sequence[int],
    tell: Callable[[Outcome], object] = lambda outcome: None,
    limit: float = HANG,
) -> list[Outcome]:
    """What became of the scenes of these numbers on an engine, each told as it ends.

    A run that takes longer than the limit (longer on a machine that is busy) hangs.
    """
    outcomes: list[Outcome] = []
    while left := list(seeds)[len(outcomes) :]:
        for outcome in _of_a_child(engine, left, limit):
            outcomes.append(outcome)
            tell(outcome)
    return outcomes


def _of_a_child(engine: str, seeds: Sequence[int], limit: float) -> Iterator[Outcome]:
    token = f"GRASSIA_CHAOS={secrets.token_hex(8)}"
    name, _, word = token.partition("=")
    command = [sys.executable, __file__, "--engine", engine, "--limit", str(limit)]
    command += ["--seeds", *map(str, seeds)]
    heard = 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, name: word, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(MARK):
                    heard += 1
                    yield Outcome(**json.loads(line.removeprefix(MARK)))
            process.wait()
        finally:
            process.kill()
            process.wait()
            for pid in of_token(token):
                signalled(pid, signal.SIGKILL)
            for segment in segments(process.pid):  # one that was ended at once has not removed them
                Path("/dev/shm", segment).unlink(missing_ok=True)
        if heard < len(seeds):
            said.seek(0)
            words = said.read()
            hung = "Timeout (" in words
            of = scene(engine, seeds[heard])
            outcome = Outcome(of.seed, engine, of.name, of.policy_name, list(of.faults))
            outcome.verdict = "HANG" if hung else "DIED"
            outcome.why = words[words.find("Timeout (") :] if hung else words[-3000:]
            yield outcome


def main() -> None:
    parser = argparse.ArgumentParser(description="Play scenes; see benchmarks/chaos.py for a whole campaign.")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--limit", type=float, default=HANG)
    chosen = parser.parse_args()
    child(chosen.engine, chosen.seeds, chosen.limit)


if __name__ == "__main__":
    main()
