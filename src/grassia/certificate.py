"""What is known about an answer, how far each number can be trusted, and how hard to try for it.

How certificates are made is in `grassia.certifying`.
"""

from __future__ import annotations

from dataclasses import dataclass

from grassia._checks import require_count
from grassia.errors import InvalidInput
from grassia.messages import Array

__all__ = ["Bound", "Certificate", "Certifier", "Outcome"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A number, and whether it is a theorem (`rigorous`) or holds with the stated confidence."""

    value: float
    rigorous: bool
    confidence: float = 1.0

    def __str__(self) -> str:
        how = "rigorous" if self.rigorous else f"confidence {self.confidence:g}"
        return f"{self.value:.3g} ({how})"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is known about an answer, from products of one and the same `W`.

    Attributes
    ----------
    tol : float
        The sine asked for.
    values : ndarray (k,)
        Ritz values, descending: rigorous lower bounds of the k leading eigenvalues, up to `rounding`.
    residual_norm : float
        Spectral norm of `AW - W(W'AW)`, plus the allowance for rounding. Rigorous, unless `claimed`.
    residuals : ndarray (k,)
        The same for each Ritz vector of W alone.
    eigenvalue_errors : ndarray (k,)
        Upper bounds on `lambda_i - values[i]`; as trustworthy as `next_value` is.
    captured : float
        `trace(W'AW)`: a rigorous lower bound of the best possible captured variance, up to k times
        `rounding`.
    total : float or None
        The exact trace of A; None where a component cannot tell.
    next_lower : float
        Rigorous lower bound of the largest eigenvalue outside `W`.
    next_value : Bound
        Upper bound of the eigenvalue after the cut, `lambda_{k+1}`.
    gap : Bound
        Lower bound of `lambda_k - lambda_{k+1}`; zero or less says nothing.
    sin_theta : Bound
        Upper bound of the sine of the largest principal angle to the leading eigenspace.
    sin_theta_rigorous : float
        The rigorous bound alone (1 when there is none).
    identified : int
        The largest j <= k for which the first j vectors are within `tol` of the leading-j eigenspace.
    sweeps : int
        Consistent sweeps it took.
    rounding : float
        The allowance for rounding errors contained in the residual and in the bounds.
    claimed : bool
        Whether the product `AW` is the solver's own and was not multiplied again but checked by the
        products of random vectors. What is rigorous otherwise then has the confidence of
        `sin_theta`, and `rounding` contains how far that product can be off.
    """

    tol: float
    values: Array
    residual_norm: float
    residuals: Array
    eigenvalue_errors: Array
    captured: float
    total: float | None
    next_lower: float
    next_value: Bound
    gap: Bound
    sin_theta: Bound
    sin_theta_rigorous: float
    identified: int
    sweeps: int
    rounding: float
    claimed: bool = False

    @property
    def converged(self) -> bool:
        """Whether the bound on the sine meets the tolerance."""
        return self.sin_theta.value <= self.tol

    @property
    def captured_ratio(self) -> float | None:
        """Captured over total variance, where the total is known and positive."""
        if self.total is None or self.total <= 0.0:
            return None
        return self.captured / self.total

    @property
    def optimistic_gap(self) -> float:
        """The gap can be no larger than about this: `values[k-1] - next_lower`."""
        return float(self.values[-1]) - self.next_lower

    def __str__(self) -> str:
        k = len(self.values)
        verdict = "certified" if self.converged else "NOT certified"
        how = f"confidence {self.sin_theta.confidence:g}" if self.claimed else "rigorous"
        lower = "lower" if self.claimed else "rigorous lower"
        lines = [
            f"{verdict}: sin(largest angle) <= {self.sin_theta}, asked {self.tol:.3g}",
            f"residual norm        {self.residual_norm:.3g} ({how})",
            f"gap after k = {k:<6d} >= {self.gap}",
            f"captured variance    {self.captured:.6g} ({lower} bound of the optimum)",
        ]
        ratio = self.captured_ratio
        if self.total is not None and ratio is not None:
            lines.append(f"total variance       {self.total:.6g} (exact), {100 * ratio:.2f} % captured")
        if not self.converged:
            lines.append(
                f"identified           the leading {self.identified} of {k} vectors"
                if self.identified
                else "identified           no leading block at this tolerance"
            )
        lines.append(f"consistent sweeps    {self.sweeps}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A certificate with what it was made from.

    `choice` says which candidate was best; `W` is it, turned to Ritz vectors; `answer` is what to give for
    it, a power step further where that is known to be nearer; `explored` is the best k-space inside
    everything the sweeps explored (an escape from a wrong invariant subspace; `W` itself where it is
    certified), with `explored_captured` its variance. `gap_upper` bounds the eigengap from above, as
    trustworthy as the certificate's `next_value` is.
    """

    certificate: Certificate
    choice: int
    W: Array
    answer: Array
    explored: Array
    explored_captured: float
    gap_upper: float


@dataclass(frozen=True, slots=True)
class Certifier:
    """How hard to try.

    Parameters
    ----------
    probes : int
        Random vectors that look for what the answer may have missed; default 16.
    max_sweeps : int
        Consistent sweeps at most; fewer are made when fewer do.
    confidence : float
        For the bounds that are not rigorous.
    rigorous : bool
        Whether the answer is to be multiplied once more by all components, even if the solver knows its
        product: that takes one more sweep, and residuals and Ritz values are rigorous.
    """

    probes: int = 16
    max_sweeps: int = 40
    confidence: float = 0.999
    rigorous: bool = False

    def __post_init__(self) -> None:
        require_count(self.probes, "`probes`")
        require_count(self.max_sweeps, "`max_sweeps`")
        if not 0.0 < float(self.confidence) < 1.0:
            raise InvalidInput(f"`confidence` must lie strictly between 0 and 1; got {self.confidence!r}.")

    def width(self, d: int, k: int) -> int:
        """Columns of the probing block."""
        return max(0, min(self.probes, d - k))
