"""What the paper ran, as data: methods, steps, ranges. And what is run beside it.

What the paper leaves open is fixed here: the ranges, and that the serial methods draw their batches at
random. With the batches in a circle GRASSIA's published steps are unstable; the figure "variants" shows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from grassia.experiments.curves import Method, Range, Task

GRASSIA = "GRASSIA"
SEEDS = (0, 1, 2)

SERIAL_GRID = (1e-3, 3e-3, 1e-2, 3e-2, 5e-2, 1e-1, 3e-1, 8e-1, 3.0)
CLUSTER_GRID = (1e-9, 2e-9, 5e-9, 1e-8, 2e-8, 5e-8, 1e-7, 2e-7)

# Block Oja, VR-PCA, RGD, IARG with deflation, GRASSIA: section 5.1 of the paper.
SERIAL_STEPS = {
    "a1a": (3e-2, 3e-2, 3e-1, 1e-2, 3e-2),
    "w1a": (3e-2, 5e-2, 8e-1, 1e-2, 3e-2),
    "made rows": (3e-2, 3e-2, 3e-1, 1e-2, 3e-2),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Methods on one data set: the lines of a panel."""

    data: str
    methods: tuple[Method, ...]
    range: Range

    def tasks(self, seeds: tuple[int, ...]) -> Iterator[Task]:
        """Every curve."""
        for method in self.methods:
            for seed in seeds:
                yield Task(self.data, method, seed, self.range)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one call of `reproduce` computes of curves.

    Attributes
    ----------
    serial, variants : tuple of Group
        Figure 1 and what became of it with other orders and steps, a group for each data set.
    cluster, delays : Group
        Figure 2, and the delay-model question.
    extended : dict from data to methods
        What `--extended` adds to the groups of figures 1 and 2.
    seeds : tuple of int
    """

    serial: tuple[Group, ...]
    variants: tuple[Group, ...]
    cluster: Group
    delays: Group
    extended: dict[str, tuple[Method, ...]]
    seeds: tuple[int, ...]

    def extend(self, group: Group) -> Group:
        """A group with what `--extended` adds."""
        return replace(group, methods=(*group.methods, *self.extended[group.data]))


def plan(data: Literal["real", "made"] = "real", quick: bool = False) -> Plan:
    """The paper's protocol; `quick`: two seeds and a tenth of the ranges."""
    passes = Range("samples", 20.0, 41) if quick else Range("samples", 200.0, 201)
    ticks = Range("time", 60.0, 31) if quick else Range("time", 600.0, 301)
    rows = ("a1a", "w1a") if data == "real" else ("made rows",)
    images = "cifar10" if data == "real" else "made images"
    serial = tuple(Group(name, serial_methods(name), passes) for name in rows)
    return Plan(
        serial=serial,
        variants=tuple(Group(name, variant_methods(name), passes) for name in rows),
        cluster=Group(images, cluster_methods(), ticks),
        delays=Group(images, delay_methods(), ticks),
        extended={
            **{name: beyond_the_paper(3 if data == "made" else 10, "samples") for name in rows},
            images: beyond_the_paper(3, "time"),
        },
        seeds=SEEDS[:2] if quick else SEEDS,
    )


def serial_methods(data: str) -> tuple[Method, ...]:
    """Figure 1. GRASSIA first; then in the order of the paper."""
    oja, vrpca, rgd, iarg, grassia = SERIAL_STEPS[data]
    return (
        _method(GRASSIA, "grassia", step=grassia, order="random"),
        _method("Block Oja", "oja", step=oja, order="random"),
        _method("VR-PCA", "vrpca", step=vrpca),
        _method("RGD", "rgd", step=rgd),
        _method("IARG with deflation", "iarg", step=iarg, deflation_tol=1e-6, order="random"),
    )


def variant_methods(data: str) -> tuple[Method, ...]:
    """GRASSIA with its batches in other orders; RGD and GRASSIA with steps below their limits."""
    _, _, rgd, _, grassia = SERIAL_STEPS[data]
    return (
        _method(f"{GRASSIA}, random order", "grassia", step=grassia, order="random"),
        _method(f"{GRASSIA}, new permutations", "grassia", step=grassia, order="shuffled"),
        _method(f"{GRASSIA}, in a circle", "grassia", step=grassia, order="cyclic"),
        _method(f"{GRASSIA}, in a circle, third of the step", "grassia", step=grassia / 3, order="cyclic"),
        _method("RGD", "rgd", step=rgd),
        _method("RGD, half of the step", "rgd", step=rgd / 2),
    )


def cluster_methods() -> tuple[Method, ...]:
    """Figure 2. Delayed-Oja alone has its answers computed where they were dispatched: that is its delay."""
    return (
        _method(GRASSIA, "grassia", step=1e-7),
        _method("Oja", "oja", step=1e-8),
        _method("Delayed-Oja", "delayed-oja", "dispatch", step=1e-8),
        _method("Distributed RGD", "rgd", step=1e-7),
        _method("IARG with deflation", "iarg", step=2e-8, deflation_tol=1e-6),
    )


def delay_methods() -> tuple[Method, ...]:
    """GRASSIA with gradients evaluated at return, as the paper has it, or at dispatch, as a cluster does."""
    return (
        _method("step 1e-7, evaluated at return", "grassia", step=1e-7),
        _method("step 1e-7, evaluated at dispatch", "grassia", "dispatch", step=1e-7),
        _method("step 5e-8, evaluated at return", "grassia", step=5e-8),
        _method("step 5e-8, evaluated at dispatch", "grassia", "dispatch", step=5e-8),
    )


def beyond_the_paper(k: int, axis: str) -> tuple[Method, ...]:
    """Methods the paper does not compare with, all with blocks of k columns, all evaluated at dispatch."""
    found = [
        _method("orthogonal iteration", "orthogonal", "dispatch"),
        _method("block Krylov", "krylov", "dispatch", width=k),
        _method("power", "power", "dispatch"),
        _method("nystrom", "nystrom", "dispatch", width=k),
        _method("DSAG", "dsag", "dispatch"),
        _method("FedPower", "fedpower", "dispatch"),
        _method("one-shot", "one-shot", "dispatch"),
    ]
    if axis == "samples":  # these are made for workers that are apart
        found = [method for method in found if method.solver not in ("dsag", "fedpower", "one-shot")]
    return tuple(found)


def _method(
    label: str, solver: str, evaluate: Literal["return", "dispatch"] = "return", **parameters: Any
) -> Method:
    return Method(label, solver, tuple(parameters.items()), evaluate)
