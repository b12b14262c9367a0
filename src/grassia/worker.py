"""What runs beside the data: open the components, run procedures on them, keep their caches.

A *procedure* is a named function `(component, cache, query) -> (arrays, scalars)`. Solvers register
theirs with `@procedure("name")` in the module that defines them; a name of the form
`"package.module:function"` is imported, so that a solver outside this package needs no registration
in the worker. A procedure must be safe to run twice on the same task: engines repeat work.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from grassia.components import Component, Moments
from grassia.errors import InvalidComponent, InvalidInput
from grassia.interruption import Withdrawn
from grassia.messages import Array, Query, Reply, Scalar, Task, checksum

Cache = dict[str, Any]
Answer = tuple[Mapping[str, Array], Mapping[str, Scalar]]
Procedure = Callable[[Component, Cache, Query], Answer]

_PROCEDURES: dict[str, Procedure] = {}


class Loader(Protocol):
    """A small picklable value that opens one component where the worker runs."""

    def open(self) -> Component: ...


def procedure(name: str) -> Callable[[Procedure], Procedure]:
    """Register a procedure under `name`."""

    def register(function: Procedure) -> Procedure:
        _PROCEDURES[name] = function
        return function

    return register


def find_procedure(name: str) -> Procedure:
    """Return the procedure called `name`, importing it when the name is `module:function`."""
    if name in _PROCEDURES:
        return _PROCEDURES[name]
    if ":" in name:
        module, _, function = name.partition(":")
        found: Procedure = getattr(importlib.import_module(module), function)
        return found
    import grassia.solvers  # noqa: F401  (registers the procedures of every solver)

    if name in _PROCEDURES:
        return _PROCEDURES[name]
    raise InvalidInput(f"unknown procedure {name!r}; known ones: {sorted(_PROCEDURES)}.")


class Worker:
    """The components pinned to one worker. Components are opened at their first task.

    Parameters
    ----------
    loaders : mapping of int to Loader
        The components this worker holds, by number.
    """

    def __init__(self, loaders: Mapping[int, Loader]) -> None:
        self._loaders = dict(loaders)
        self._components: dict[int, Component] = {}
        self._caches: dict[int, Cache] = {}

    def handle(self, task: Task) -> Reply:
        """Run a task. Errors propagate; the back-end turns them into a `Failure`."""
        started = time.perf_counter()
        try:
            arrays, scalars = self._run(task)
        except (Exception, KeyboardInterrupt, Withdrawn):
            raise
        except BaseException as error:  # sys.exit() and the like must not end a worker unheard
            raise RuntimeError(f"the component's code raised {error!r}") from error
        elapsed = time.perf_counter() - started
        return Reply(task.id, task.component, task.version, arrays, scalars, checksum(arrays), elapsed)

    def _run(self, task: Task) -> Answer:
        component = self._component(task.component)
        query = task.query
        if "mean" in query.arrays:
            component.recenter(query.arrays["mean"])
        if query.options.get("single"):
            component = InSingle(component)
        return find_procedure(query.procedure)(component, self._caches[task.component], query)

    def _component(self, index: int) -> Component:
        if index not in self._components:
            opened = self._loaders[index].open()
            if not isinstance(opened, Component):
                raise InvalidComponent(
                    f"a loader's open() must return a grassia.Component; it returned {type(opened).__name__}"
                )
            self._components[index] = opened
            self._caches[index] = {}
        return self._components[index]


class InSingle(Component):
    """A component that multiplies in single precision where it can; procedures need not know."""

    def __init__(self, whole: Component) -> None:
        super().__init__(whole.n_features)
        self._whole = whole

    def _measure(self) -> Moments:
        return self._whole.moments()

    def _product(self, V: Array) -> Array:
        return self._whole.apply(V, single=True)

    def _dense(self) -> Array:
        return self._whole.dense(single=True)


@procedure("open")
def open_component(component: Component, cache: Cache, query: Query) -> Answer:
    """Check the data and report its moments, in one read; where it is asked for, a sketch in one more."""
    moments = component.moments()
    arrays: dict[str, Array] = {}
    if moments.mean is not None:
        arrays["mean"] = np.ascontiguousarray(moments.mean, dtype=np.float64)
    scalars: dict[str, Scalar] = {
        "n_features": int(moments.n_features),
        "count": None if moments.count is None else float(moments.count),
        "trace": None if moments.trace is None else float(moments.trace),
        "positive": bool(moments.positive),
        "noise": float(moments.noise),
        "single": bool(moments.single),
    }
    wanted = query.options.get("sketch")
    if wanted:
        scalars.update(sketch_of(component, moments, multiply=wanted == "product"))
    return arrays, scalars


def sketch_of(component: Component, moments: Moments, multiply: bool) -> dict[str, Scalar]:
    """A few numbers by which a component can be told from another: how it sees one fixed random vector.

    Its mean is known; the product takes one more read.
    """
    g = np.random.default_rng(0).standard_normal((moments.n_features, 1))
    g /= np.linalg.norm(g)
    found: dict[str, Scalar] = {}
    if moments.mean is not None:
        component.recenter(moments.mean)  # it may have been told another one in an earlier run
        found["sketch_mean"], found["sketch_aside"] = _seen_along(g, np.reshape(moments.mean, (-1, 1)))
    if multiply:
        found["sketch_length"], found["sketch_along"] = _seen_along(g, finite_product(component, g))
    return found


def _seen_along(g: Array, vector: Array) -> tuple[float, float]:
    """The length of a vector, and the cosine of its angle with the unit vector g."""
    length = float(np.linalg.norm(vector))
    return length, float(np.sum(g * vector)) / length if length > 0.0 else 0.0


@procedure("apply")
def apply_component(component: Component, cache: Cache, query: Query) -> Answer:
    """The product of the component with a block."""
    return {"product": finite_product(component, query.arrays["block"])}, {}


def finite_product(component: Component, block: Array) -> Array:
    """`component.apply(block)`, refusing a result that is not finite."""
    product = component.apply(block)
    if not np.isfinite(product).all():
        raise InvalidComponent(
            "its product with a finite block has NaN or infinite entries; "
            "check the operator or the data for overflow."
        )
    return product
