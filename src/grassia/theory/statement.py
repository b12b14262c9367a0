"""The two sides of a statement, evaluated at an instance."""

from __future__ import annotations

from dataclasses import dataclass


def squared_distance_scale(size: float, delta: float) -> float:
    """The `scale` for a squared distance to a computed eigenspace of a matrix of this size and gap.

    The eigenspace is good to some units of rounding times `size / delta`; so is the distance to it.
    """
    off = 64.0 * 2.0**-52 * max(1.0, size / delta if delta > 0.0 else 1.0)
    return off**2 / 1e-12


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of an inequality `left <= right`, or of an identity.

    Attributes
    ----------
    label : str
        The result's name in the paper.
    left, right : float
        What the two sides are at the instance.
    scale : float
        Size of the numbers the sides were made of. Rounding is measured against it: a difference of two
        large objectives carries the error of the objectives.
    equal : bool
        Whether an identity is claimed rather than `left <= right`.
    """

    label: str
    left: float
    right: float
    scale: float = 0.0
    equal: bool = False

    @property
    def slack(self) -> float:
        """`right - left`: how much room there is; negative where the inequality fails."""
        return self.right - self.left

    def holds(self, tol: float = 1e-12) -> bool:
        """Whether the statement holds up to rounding of `tol` times the largest number involved.

        >>> Sides("two is at most three", 2.0, 3.0).holds()
        True
        >>> Sides("two is three", 2.0, 3.0, equal=True).holds()
        False
        """
        room = tol * max(abs(self.left), abs(self.right), self.scale)
        if self.equal:
            return abs(self.slack) <= room
        return self.slack >= -room
