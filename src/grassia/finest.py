"""Eigenspaces for callers who ask for all that double precision gives, and want pairs, not a status."""

from __future__ import annotations

import math
import numbers
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grassia import geometry
from grassia._checks import require_positive
from grassia.api import eigenspace
from grassia.backends.base import Backend
from grassia.certificate import Certifier
from grassia.data import as_components
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.result import Result, Status
from grassia.solvers import Solver

__all__ = ["FinestRun", "warn"]

# What `tol=0` asks for first, in sines.
FINEST = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-6}
# Most certificates take fewer sweeps. To go on with the solver costs less than a hundred in vain.
SWEEPS = 16
# A residual of so many times the rounding of a product can be reached.
UNITS = 3.0

Solvers = str | Solver[Any]
Seed = int | np.random.Generator | None


@dataclass
class FinestRun:
    """How to call `eigenspace`, and what to make of its outcome.

    With ``tol=0`` a first run asks for half of the digits, which most gaps allow to be certified. Some more
    passes bring the residual down to rounding then. Where the gap is too small for that, a second run
    asks for what rounding leaves of it.
    """

    dtype: np.dtype[Any]
    tol: float
    v0: Any
    maxiter: float | None
    rng: Seed
    solver: Solvers
    backend: str | Backend
    callbacks: Any
    time_limit: float | None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        real = isinstance(self.tol, numbers.Real) and not isinstance(self.tol, bool)
        if not (real and 0.0 <= float(self.tol) < 1.0):
            raise InvalidInput(f"`tol` must satisfy 0 <= tol < 1, 0 being the finest; got {self.tol!r}.")
        if self.maxiter is not None:
            require_positive(self.maxiter, "`maxiter`")
        # One stream for everything, or a second run would draw what the first one did.
        if not isinstance(self.rng, np.random.Generator):
            self.rng = np.random.default_rng(self.rng) if _is_seed(self.rng) else self.rng

    def __call__(self, components: Any, k: int) -> tuple[Result, str | None]:
        """The result, and what to say of it: None if it is good."""
        start = self._start(components, k)
        finest = FINEST[self.dtype]
        if self.tol > 0:
            result = self._eigenspace(components, k, float(self.tol), start)
        else:
            result = self._eigenspace(components, k, finest, start, certifier=Certifier(max_sweeps=SWEEPS))
        certificate = result.certificate
        at_the_limit = result.status in (Status.PRECISION, Status.GAP_TOO_SMALL)
        if self.tol > 0 or certificate is None or not (result.converged or at_the_limit):
            return result, None if result.converged else _advice(result)
        if result.converged:
            return self._polished(components, k, result), None
        gap = certificate.optimistic_gap
        within_reach = 3.0 * UNITS * certificate.rounding / gap if gap > 0.0 else 1.0
        if within_reach < 0.01:
            # From the same start: what a run has seen beside the k vectors is half of a certificate.
            looser = self._eigenspace(components, k, max(within_reach, finest), start)
            if looser.converged:
                return self._polished(components, k, looser), None
        return result, _advice(result)

    def _polished(self, components: Any, k: int, result: Result) -> Result:
        """The same eigenspace, which is certified already, after some more passes if its residual is rough.

        As many as it should take at the pace of the first run, and half as many again.
        """
        before = result.certificate
        assert before is not None
        if self.dtype != np.float64 or not before.residual_norm > 3.0 * UNITS * before.rounding > 0.0:
            return result
        size = float(np.max(np.abs(before.values)))
        digits = math.log(before.residual_norm / (UNITS * before.rounding))
        pace = math.log(max(size / before.residual_norm, 2.0)) / float(result.stats["passes"])
        more = 3.0 + 1.5 * digits / pace
        finer = self._eigenspace(
            components, k, 0.0, result.vectors, max_passes=more, certifier=Certifier(max_sweeps=1)
        )
        after = finer.certificate
        near = geometry.projection_distance(finer.vectors, result.vectors) <= 2.0 * before.sin_theta.value
        return finer if after is not None and near and after.residual_norm < before.residual_norm else result

    def _eigenspace(self, components: Any, k: int, tol: float, start: Array | None, **more: Any) -> Result:
        from sklearn.exceptions import ConvergenceWarning

        options = {"max_passes": 10_000 if self.maxiter is None else self.maxiter, **self.options, **more}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return eigenspace(
                components,
                k,
                solver=self.solver,
                backend=self.backend,
                tol=max(tol, 1e-15),
                v0=start,
                rng=self.rng,
                callbacks=self.callbacks,
                time_limit=self.time_limit,
                **options,
            )

    def _start(self, components: Any, k: int) -> Array | None:
        """`v0` with random columns beside it, where it has fewer than k."""
        if self.v0 is None:
            return None
        given = np.asarray(self.v0)
        block = given[:, None] if given.ndim == 1 else given
        d = as_components(components).n_features
        if block.ndim != 2 or block.dtype.kind not in "fiub" or (d is not None and len(block) != d):
            size = "n" if d is None else d
            raise InvalidInput(
                f"`v0` must be a real array of shape ({size},) or ({size}, b); got {given.dtype} of shape "
                f"{given.shape}."
            )
        missing = k - block.shape[1]
        if missing <= 0:
            return block
        assert isinstance(self.rng, np.random.Generator)
        beside = self.rng.standard_normal((len(block), missing)) * max(
            1.0, float(abs(block).max(initial=0.0))
        )
        return np.hstack([block, beside])


def warn(result: Result, text: str | None, stacklevel: int = 3) -> None:
    """Say that a result is not what was asked for."""
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(text or _advice(result), ConvergenceWarning, stacklevel=stacklevel)


def _advice(result: Result) -> str:
    sine = math.nan if result.certificate is None else result.certificate.sin_theta.value
    advice = result.status.advice.replace("`max_passes`", "`maxiter`")
    return f"{result.status.name} (sine bound {sine:.3g}): {advice}"


def _is_seed(rng: Any) -> bool:
    whole = isinstance(rng, numbers.Integral) and not isinstance(rng, bool)
    return rng is None or (whole and int(rng) >= 0)
