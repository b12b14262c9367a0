"""When to propose an iterate for certification, and what to make of the answer.

A solver's own residual is formed from stale replies and proves nothing; it only says when asking is worth a
sweep. This policy holds the target it must fall below, notices when it has stopped falling, and reads
the certificates that come back.
"""

from __future__ import annotations

import math

import numpy as np

from grassia.certificate import Outcome
from grassia.result import Status


class Proposals:
    """The policy of one run.

    Parameters
    ----------
    tol : float
        Wanted sine.
    n : int
        Components; answers are counted in passes over them.
    stall_passes : float
        So many passes without a tenth of progress count as a stall; the second one ends the run.
    """

    def __init__(self, tol: float, n: int, stall_passes: float) -> None:
        self.tol, self.n, self.stall_passes = tol, n, stall_passes
        #: The residual estimate at which the iterate is proposed next; NaN before the first.
        self.target = math.nan
        self._refreshed: set[int] = set()
        self._mark = (math.inf, 0)  # the best residual that counted as progress, and when
        self._stalls = 0
        self._refused = False

    def heard(self, component: int) -> None:
        """A component has answered at an iterate of the current stretch."""
        self._refreshed.add(component)

    def due(
        self, residual: float, scale: float, gap: float | None, replies: int, patience: float | None = None
    ) -> bool:
        """Whether to certify now: every component was heard, and the estimate is small or stuck.

        `patience` takes the place of `stall_passes` where a residual must be expected to get stuck, in single
        precision: then that is no sign of trouble.
        """
        if not self._refused:  # both are known better and better; a certificate knows the gap
            # A gap that seems to be nothing is for the certificate to judge, too.
            height = scale if gap is None else min(scale, max(0.7 * gap, 1e-3 * scale))
            self.target = self.tol * height
        if residual < 0.9 * self._mark[0]:
            self._mark = (residual, replies)
        allowed = self.stall_passes if patience is None else patience
        stalled = replies - self._mark[1] > allowed * self.n
        if len(self._refreshed) < self.n or not (residual <= self.target or stalled):
            return False
        if stalled:
            self._stalls += patience is None
            self._mark = (residual, replies)
        return True

    def nothing_left(self) -> None:
        """The solver has no question left: this is as good as it gets, now and the next time."""
        self._stalls += 1

    def verdict(self, outcome: Outcome) -> Status | None:
        """Whether to give up after a refused certificate, and why; None: there is hope."""
        if self.wrong_space(outcome) and self._stalls < 2:
            return None  # there is better to be had, also where the gap of it is too small
        certificate = outcome.certificate
        least = 2.0 * certificate.rounding  # no residual can be brought below this
        at_floor = certificate.residual_norm <= 5.0 * least
        optimistic = certificate.optimistic_gap
        if optimistic > 0.0 and certificate.residual_norm <= 0.25 * self.tol * optimistic:
            return Status.GAP_TOO_SMALL  # good enough, but the sweeps could not certify the gap
        # Either no residual there can be would do, or this one is as small as it gets.
        hopeless = self.tol * outcome.gap_upper <= least
        hopeless |= at_floor and not self.wrong_space(outcome) and least > self.tol * optimistic
        if not hopeless and self._stalls < 2:
            return None
        scale = float(np.max(np.abs(certificate.values)))
        if abs(optimistic) <= 1e-3 * scale:
            return Status.GAP_TOO_SMALL
        if not at_floor and self._stalls < 2:
            return None  # what was asked for is out of reach, but there is better to be had than this
        return Status.PRECISION if at_floor or hopeless else Status.STALLED

    def wrong_space(self, outcome: Outcome) -> bool:
        """Whether a direction outside the iterate was found that carries more than one inside."""
        certificate = outcome.certificate
        ahead = certificate.next_lower - float(certificate.values[-1])
        gained = outcome.explored_captured - certificate.captured
        return ahead > 10.0 * certificate.residual_norm and gained > 100.0 * certificate.rounding

    def go_on(self, outcome: Outcome, replies: int) -> None:
        """Aim lower after a refused certificate, by what it says of the gap."""
        self._refused = True
        certificate = outcome.certificate
        gap = max(certificate.gap.value, 0.25 * certificate.optimistic_gap)
        wanted = 0.5 * self.tol * gap if gap > 0.0 else 0.1 * self.target
        # Below the rounding of a product no residual can be told from none.
        self.target = max(min(wanted, 0.5 * self.target), certificate.rounding)
        self._mark = (math.inf, replies)
        self._refreshed.clear()


def better(new: Outcome, old: Outcome | None) -> bool:
    """Whether an outcome is to be preferred: certified, or more variance, or a smaller residual."""
    if old is None or new.certificate.converged:
        return True
    margin = max(new.certificate.rounding, old.certificate.rounding)
    if abs(new.certificate.captured - old.certificate.captured) <= margin:
        return new.certificate.residual_norm <= old.certificate.residual_norm
    return new.certificate.captured > old.certificate.captured
