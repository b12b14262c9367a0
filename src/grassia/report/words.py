"""A certificate, a stretch of time and other numbers in words."""

from __future__ import annotations

import math

from grassia.certificate import Certificate

__all__ = ["duration", "in_words", "number"]


def in_words(certificate: Certificate | None, *, goes_on: bool = False) -> list[str]:
    """A certificate as sentences.

    >>> in_words(None, goes_on=True)
    ['None yet: it is made when the estimate has reached its target.']
    """
    if certificate is None and goes_on:
        return ["None yet: it is made when the estimate has reached its target."]
    if certificate is None:
        return ["None: the run ended before all workers had looked at the same iterate."]
    k = len(certificate.values)
    sine, gap = certificate.sin_theta, certificate.gap
    how = "a theorem" if sine.rigorous else f"confidence {sine.confidence:g}"
    if certificate.converged:
        said = [
            f"Certified: the answer is within a sine of {sine.value:.3g} of the leading {k}-space "
            f"(asked: {certificate.tol:g}; {how})."
        ]
    else:
        said = [
            f"Not certified: the bound on the sine is {sine.value:.3g}, asked: {certificate.tol:g}."
            f" The leading {certificate.identified} of {k} vectors are identified."
        ]
    residual_how = how if certificate.claimed else "rigorous"
    said.append(f"Residual norm {certificate.residual_norm:.3g}, {residual_how}.")
    if gap.value > 0.0:
        gap_how = "rigorous" if gap.rigorous else f"confidence {gap.confidence:g}"
        said.append(f"Eigengap after {k} at least {gap.value:.3g}, {gap_how}.")
    ratio = certificate.captured_ratio
    captured = f"Captured variance {certificate.captured:.6g}"
    if ratio is not None and certificate.total is not None:
        captured += f" of {certificate.total:.6g} ({100 * ratio:.2f} %)"
    said.append(f"{captured}; the best {k}-space captures no less.")
    if certificate.sweeps == 0:
        said.append("It took no sweep over the data of its own: what it needs was multiplied on the way.")
    else:
        sweeps = "one sweep" if certificate.sweeps == 1 else f"{certificate.sweeps} sweeps"
        said.append(f"It took {sweeps} over the data of all workers.")
    return said


def duration(seconds: float | None) -> str:
    """A stretch of time in two units at most.

    >>> duration(0.012), duration(75.2), duration(7300.0), duration(None)
    ('12 ms', '1 min 15 s', '2 h 1 min', 'unknown')
    """
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 1.0:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: float | None, form: str = ".3g") -> str:
    """A number, or a dash where there is none.

    >>> number(1234.5), number(float("nan"))
    ('1.23e+03', '–')
    """
    return "–" if value is None or not math.isfinite(value) else format(value, form)
