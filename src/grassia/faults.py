"""The one injector of delays, stragglers, crashes and corrupt replies.

Every back-end takes an `Injector`; the virtual clock turns its delays into virtual time, the others
into real sleep. What happens to the m-th task of component i depends only on (seed, i, m), so a
fault scenario is the same on every back-end and across restarts of a worker.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grassia.errors import InvalidInput
from grassia.messages import Message, Reply, Task
from grassia.worker import Worker

KINDS = ("slow", "delay", "crash", "corrupt", "duplicate", "error")

_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "x": 1.0}
_UNITS_OF = {"slow": ("", "x"), "delay": ("", "s", "ms", "us")}
_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_RULE = re.compile(
    r"^(?P<kind>[a-z]+):(?P<target>\*|\d+(?:,\d+)*)"
    rf"(?::(?P<value>{_DECIMAL}(?:e[-+]?\d+)?)(?P<unit>x|s|ms|us)?)?"
    rf"(?:@(?P<when>{_DECIMAL}%|\d+(?:,\d+)*))?$",
    re.ASCII,
)


class Crash(BaseException):
    """Raised in place of a worker's death; the back-end does the dying."""


class InjectedError(RuntimeError):
    """What an injected `error` raises inside a worker."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule.

    Parameters
    ----------
    kind : {"slow", "delay", "crash", "corrupt", "duplicate", "error"}
        `slow` multiplies the time a task takes by `value`, not counting what it waits for a core (where the
        system tells); `delay` adds `value` seconds; `crash`
        kills the worker before it answers; `corrupt` damages the reply after its checksum was
        taken; `duplicate` sends the reply twice; `error` raises in the worker.
    components : tuple of int, or None
        Whose tasks; None means all.
    value : float
        The factor of `slow`, the seconds of `delay`.
    at : tuple of int, or None
        Which tasks of the component, counted from 0; None means every one.
    probability : float
        The chance that the rule acts on a task it matches.
    """

    kind: str
    components: tuple[int, ...] | None = None
    value: float = 0.0
    at: tuple[int, ...] | None = None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"a fault's kind must be one of {KINDS}; got {self.kind!r}.")
        if self.kind == "slow" and not 1.0 <= self.value < math.inf:
            raise InvalidInput(f"`slow` needs a finite factor of at least 1; got {self.value}.")
        if self.kind == "delay" and not 0.0 <= self.value < math.inf:
            raise InvalidInput(f"`delay` needs finite seconds >= 0; got {self.value}.")
        if not 0.0 <= self.probability <= 1.0:
            raise InvalidInput(f"a probability must lie in [0, 1]; got {self.probability}.")
        for name in ("components", "at"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read `KIND:COMPONENTS[:VALUE][@WHEN]`.

        >>> Fault.parse("slow:0:10x")
        Fault(kind='slow', components=(0,), value=10.0, at=None, probability=1.0)
        >>> Fault.parse("crash:1,2@5").at
        (5,)
        >>> Fault.parse("delay:*:50ms@10%").probability
        0.1
        """
        match = _RULE.match(text.strip())
        if match is None:
            raise InvalidInput(
                f"a fault is written KIND:COMPONENTS[:VALUE][@WHEN]; got {text!r}. "
                "Examples: slow:0:10x, delay:*:50ms, crash:2@5, corrupt:*@1%."
            )
        kind, target, value, when = match["kind"], match["target"], match["value"], match["when"]
        units = _UNITS_OF.get(kind, ())
        if kind in KINDS and ((value is not None) != bool(units)):
            wanted = "needs a value (slow:0:10x, delay:0:50ms)" if units else "takes no value"
            raise InvalidInput(f"`{kind}` {wanted}; got {text!r}.")
        if match["unit"] and units and match["unit"] not in units:
            raise InvalidInput(
                f"the value of `{kind}` is in {' or '.join(filter(None, units))}; got {text!r}."
            )
        components = None if target == "*" else tuple(int(part) for part in target.split(","))
        at: tuple[int, ...] | None = None
        probability = 1.0
        if when is not None and when.endswith("%"):
            probability = float(when[:-1]) / 100.0
        elif when is not None:
            at = tuple(int(part) for part in when.split(","))
        number = float(value) * _UNITS[match["unit"] or ""] if value is not None else 0.0
        return cls(kind, components, number, at, probability)

    def matches(self, component: int, ordinal: int) -> bool:
        """Whether the rule concerns this task (before its probability is drawn)."""
        return (self.components is None or component in self.components) and (
            self.at is None or ordinal in self.at
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to one task."""

    factor: float = 1.0
    delay: float = 0.0
    crash: bool = False
    corrupt: bool = False
    duplicate: bool = False
    error: bool = False


CALM = Plan()


@dataclass(frozen=True, slots=True)
class Injector:
    """A set of faults and a seed. Picklable; holds no state.

    >>> injector = Injector.parse(["slow:0:10x", "crash:1@3"])
    >>> injector.plan(0, 0).factor, injector.plan(1, 3).crash, injector.plan(1, 4).crash
    (10.0, True, False)
    """

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"an injector's seed must be an integer >= 0; got {self.seed!r}.")

    @classmethod
    def parse(cls, rules: str | Fault | Iterable[str | Fault], seed: int = 0) -> Injector:
        """Build an injector from rules in text form, see `Fault.parse`."""
        if isinstance(rules, Iterable):
            rules = [rules] if isinstance(rules, str) else list(rules)
        elif isinstance(rules, Fault):
            rules = [rules]
        if not isinstance(rules, list) or not all(isinstance(r, str | Fault) for r in rules):
            raise InvalidInput(
                f"`faults` must be an Injector, a rule such as 'slow:0:10x', or a list of rules; "
                f"got {rules!r}."
            )
        return cls(tuple(r if isinstance(r, Fault) else Fault.parse(r) for r in rules), seed)

    def check(self, n: int) -> None:
        """Refuse a rule for a component there is not: it would silently never act."""
        for fault in self.faults:
            absent = [i for i in fault.components or () if i >= n]
            if absent:
                raise InvalidInput(
                    f"a fault must name components from 0 to {n - 1}; a {fault.kind!r} names {absent[0]}."
                )

    def plan(self, component: int, ordinal: int) -> Plan:
        """What happens to the `ordinal`-th task of `component`."""
        plan = CALM
        for number, fault in enumerate(self.faults):
            if not fault.matches(component, ordinal):
                continue
            if fault.probability < 1.0:
                draw = np.random.default_rng([self.seed, number, component, ordinal]).random()
                if draw >= fault.probability:
                    continue
            if fault.kind == "slow":
                plan = replace(plan, factor=plan.factor * fault.value)
            elif fault.kind == "delay":
                plan = replace(plan, delay=plan.delay + fault.value)
            else:
                plan = replace(plan, **{fault.kind: True})
        return plan


def as_injector(faults: Injector | Fault | str | Sequence[str | Fault] | None) -> Injector:
    """Accept whatever a user may pass as `faults`."""
    if faults is None:
        return Injector()
    if isinstance(faults, Injector):
        return faults
    return Injector.parse(faults)


def _numbers(name: str, given: Iterable[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in found):
        raise InvalidInput(f"a fault's `{name}` must be integers >= 0; got {given!r}.")
    return found


def corrupted(reply: Reply) -> Reply:
    """The reply with one byte of its first array flipped, its checksum left as it was."""
    arrays = dict(reply.arrays)
    for name in sorted(arrays):
        if arrays[name].size:
            damaged = np.array(arrays[name], order="C")
            damaged.view(np.uint8).reshape(-1)[damaged.nbytes // 2] ^= 0x5A
            arrays[name] = damaged
            return replace(reply, arrays=arrays)
    return replace(reply, checksum=reply.checksum ^ 1)


def perform(
    worker: Worker, task: Task, plan: Plan, sleep: Callable[[float], object] = time.sleep
) -> list[Message]:
    """Run a task under a plan, with real delays. Raises `Crash` where the plan says so."""
    if plan.delay > 0.0:
        sleep(plan.delay)
    if plan.crash:
        raise Crash
    queued = _queued() if plan.factor > 1.0 else 0.0
    reply = answer(worker, task, plan)
    if plan.factor > 1.0:
        # A slow machine is slow at its work. That this one is crowded is not to be multiplied, too.
        more = (plan.factor - 1.0) * max(0.0, reply.elapsed - (_queued() - queued))
        sleep(more)
        reply = replace(reply, elapsed=reply.elapsed + more)
    return [reply, reply] if plan.duplicate else [reply]


def _queued() -> float:
    """Seconds that this thread has waited for a core so far; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return 1e-9 * float(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0


def answer(worker: Worker, task: Task, plan: Plan) -> Reply:
    """Run a task and damage or refuse its reply as planned; no delays, no crash."""
    if plan.error:
        raise InjectedError(f"injected error in component {task.component}")
    reply = worker.handle(task)
    return corrupted(reply) if plan.corrupt else reply
