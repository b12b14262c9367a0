"""The errors grassia raises on purpose. Each states the rule, the value and the remedy."""

from __future__ import annotations


class GrassiaError(Exception):
    """Base of every error raised on purpose by this package."""


class InvalidInput(GrassiaError, ValueError):
    """An argument breaks a stated rule."""


class InvalidComponent(InvalidInput):
    """One component (shard) breaks a stated rule; `component` says which, where it is known."""

    def __init__(self, rule: str, component: int | None = None) -> None:
        self.rule = rule
        self.component = component
        super().__init__(rule if component is None else f"component {component}: {rule}")

    def __reduce__(self) -> tuple[type[InvalidComponent], tuple[str, int | None]]:
        return type(self), (self.rule, self.component)


class MissingExtra(GrassiaError, ImportError):
    """An optional dependency is not installed; the text names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"this needs the package `{package}`, which is not installed; "
            f"install it with: pip install 'grassia[{extra}]'"
        )

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self.package, self.extra)


class ReplayMismatch(GrassiaError):
    """A replayed run did not reproduce the recorded one."""


class CheckpointWarning(UserWarning):
    """A checkpoint was damaged, or could not be written; the text says what was done instead."""


class ExclusionWarning(UserWarning):
    """Components were left out: the answer is that of the others."""
