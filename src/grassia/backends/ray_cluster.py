"""What the Ray back-end asks of a cluster, and what the cluster has."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grassia._checks import require_nonnegative
from grassia.errors import InvalidInput

STRATEGIES = ("DEFAULT", "SPREAD")
SLACK = 1e-9  # Ray keeps resources to four decimals


@dataclass(frozen=True)
class Request:
    """What one actor asks for.

    Parameters
    ----------
    num_cpus, num_gpus : float, optional
    resources : mapping of str to float, optional
        Custom resources.
    strategy : optional
        "DEFAULT", "SPREAD", or an object from `ray.util.scheduling_strategies`.

    Examples
    --------
    >>> Request(0.5, None, {"fast": 1.0}).wanted(2.0)
    {'CPU': 0.5, 'fast': 1.0}
    >>> Request(None, 1, None).wanted(2.0)
    {'CPU': 2.0, 'GPU': 1}
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] | None = None
    strategy: Any = None

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if value is not None:
                require_nonnegative(value, f"`{name}`")
        if self.num_gpus is not None and self.num_gpus > 1.0 and float(self.num_gpus) % 1.0:
            raise InvalidInput(f"`num_gpus` must be a whole number, or at most 1; got {self.num_gpus}")
        if self.resources is not None:
            self._check_resources(self.resources)
        self._check_strategy()

    def _check_resources(self, resources: Any) -> None:
        if not isinstance(resources, Mapping) or not all(isinstance(name, str) for name in resources):
            raise InvalidInput(f"`resources` must be a mapping of names to amounts; got {resources!r}")
        for name, amount in resources.items():
            real = isinstance(amount, numbers.Real) and not isinstance(amount, bool)
            if not real or not 0.0 < float(amount) < math.inf:
                raise InvalidInput(f"`resources[{name!r}]` must be a positive finite number; got {amount!r}")
            if name in ("CPU", "GPU"):
                option = f"num_{name.lower()}s"
                raise InvalidInput(f"`resources` must not name {name!r}: that is the option `{option}`")

    def _check_strategy(self) -> None:
        given = self.strategy
        if given is None or (isinstance(given, str) and given in STRATEGIES):
            return
        if type(given).__module__ != "ray.util.scheduling_strategies":
            raise InvalidInput(
                "`scheduling_strategy` must be 'DEFAULT', 'SPREAD' or an object from "
                f"ray.util.scheduling_strategies; got {given!r}"
            )

    @property
    def free(self) -> bool:
        """Whether the back-end may choose the node."""
        return self.strategy is None or isinstance(self.strategy, str)

    @property
    def grouped(self) -> bool:
        """Whether actors live in a placement group, which has resources of its own."""
        return hasattr(self.strategy, "placement_group")

    def wanted(self, share: float) -> dict[str, float]:
        """The amounts, where `num_cpus` is the share if nothing was said."""
        cpus = share if self.num_cpus is None else self.num_cpus
        found = {"CPU": cpus, "GPU": self.num_gpus or 0.0, **(self.resources or {})}
        return {name: amount for name, amount in found.items() if amount > 0.0}


def room(node: Mapping[str, Any], wanted: Mapping[str, float]) -> float:
    """How many actors a node could hold if it held nothing else.

    >>> room({"Resources": {"CPU": 4.0}}, {"CPU": 1.5}), room({"Resources": {"CPU": 4.0}}, {"GPU": 1})
    (2, 0)
    """
    has = node["Resources"]
    return min(
        (int(has.get(name, 0.0) / amount + SLACK) for name, amount in wanted.items()), default=math.inf
    )


def described(amounts: Mapping[str, float]) -> str:
    """Amounts of resources in words.

    >>> described({"CPU": 2.0, "GPU": 0.5}), described({})
    ('CPU 2, GPU 0.5', 'nothing')
    """
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items()) or "nothing"


def census(nodes: Sequence[Mapping[str, Any]], wanted: Mapping[str, float]) -> str:
    """What the nodes have of what matters, the same ones counted together."""
    kinds = Counter(
        described({name: node["Resources"].get(name, 0.0) for name in ("CPU", *wanted)}) for node in nodes
    )
    return "; ".join(f"{count} x ({kind})" for kind, count in kinds.most_common(8)) or "no node"


def moves(held: Mapping[str, int], newcomer: str, most: float) -> list[str]:
    """The nodes from which one worker each should go to a node that has joined, so that loads become even.

    A worker that moves reads its data anew, so one more here than there is let be.

    Parameters
    ----------
    held : mapping of str to int
        How many workers each node has.
    newcomer : str
    most : float
        How many it can take.

    Examples
    --------
    >>> moves({"a": 4, "b": 1}, "c", 8.0), moves({"a": 4, "b": 1}, "c", 1), moves({"a": 1}, "c", 8)
    (['a', 'a'], ['a'], [])
    """
    loads = dict(held)
    loads.setdefault(newcomer, 0)
    found: list[str] = []
    while True:
        fullest = max(loads, key=lambda node: loads[node])
        if loads[fullest] - loads[newcomer] < 2 or loads[newcomer] >= most:
            return found
        loads[fullest] -= 1
        loads[newcomer] += 1
        found.append(fullest)
