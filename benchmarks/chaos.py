"""Runs in which workers are killed and stopped, nodes come and go, links are slow and replies repeated.

Each run is decided by an engine and a number (see `tests/chaos.py`): a small problem with a dense oracle, a
solver, a policy for losses, injected faults, and what is really done to the processes of the cluster that the
campaign has started; in some runs the server ends as well, and the run is resumed on another engine. A run is
right if it converged and its answer is that of dense `eigh` for the problem it says it has solved, or if it
has another end that its policy allows, with the reason among its events. A run that does not end is ended,
and its stacks are printed. The exit code is 1 if any run was not right.

    python benchmarks/chaos.py [--engine ray|dask|processes] [--runs 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chaos import ENGINES, TOL, Outcome, campaign


def table(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Print what became of the runs, by policy, and what was done to them."""
    print(f"\n{'policy':10}  runs  converged  other end  not right  sine at most")
    actions = [outcome.policy.partition("+")[0] for outcome in outcomes]
    for action in (*sorted(set(actions)), "all"):
        some = [one for one, its in zip(outcomes, actions, strict=True) if action in (its, "all")]
        converged = [one for one in some if one.status == "CONVERGED"]
        wrong = sum(bool(one.verdict) for one in some)
        other = sum(not one.verdict for one in some if one.status != "CONVERGED")
        worst = max((one.sine for one in converged), default=float("nan"))
        print(f"{action:10} {len(some):5} {len(converged):10} {other:10} {wrong:10} {worst:13.1e}")
    done = Counter(what for one in outcomes for what in one.done)
    print("done:    ", ", ".join(f"{count} {what}" for what, count in done.most_common()))
    injected = Counter(rule.partition(":")[0] for one in outcomes for rule in one.faults)
    print("injected:", ", ".join(f"{kind} in {count}" for kind, count in injected.most_common()))
    happened: Counter[str] = Counter()
    for one in outcomes:
        happened.update(one.counts)
    print("events:  ", ", ".join(f"{count} {what}" for what, count in happened.items()))
    for one in outcomes:
        if one.status != "CONVERGED" and not one.verdict:
            print(f"run {one.seed}, {one.policy}: {one.status}; {one.why}")
    verdicts = Counter(one.verdict for one in outcomes if one.verdict)
    hangs = verdicts.get("HANG", 0)
    longest = max((one.seconds for one in outcomes), default=0.0)
    print(
        f"{len(outcomes)} runs in {seconds:.0f} s, the longest {longest:.1f} s; {hangs} hung; "
        f"{len(outcomes) - sum(verdicts.values())} right, {sum(verdicts.values())} not"
        + (f" ({dict(verdicts)})" if verdicts else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, nargs="+", default=list(ENGINES))
    parser.add_argument("--runs", type=int, default=50, help="on each engine")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first")
    chosen = parser.parse_args()
    right = True
    for engine in chosen.engine:
        package = {"ray": "ray", "dask": "distributed"}.get(engine, "grassia")
        if importlib.util.find_spec(package) is None:
            print(f"\n{engine}: not installed, skipped")
            continue
        print(
            f"\n{engine}: {chosen.runs} runs to a sine of {TOL:g}, from number {chosen.seed} on", flush=True
        )
        began = time.monotonic()
        seeds = range(chosen.seed, chosen.seed + chosen.runs)
        outcomes = campaign(engine, seeds, lambda outcome: print(outcome.line, flush=True))
        table(outcomes, time.monotonic() - began)
        right &= not any(outcome.verdict for outcome in outcomes)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
