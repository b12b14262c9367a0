"""How a command ends: its exit code, and an error as one line in the words of the command line."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from grassia.errors import GrassiaError, InvalidInput, MissingExtra
from grassia.result import Status
from grassia.server import ComponentFailed

__all__ = [
    "CUT_OFF",
    "FAILED",
    "INTERRUPTED",
    "LOST",
    "OK",
    "USAGE",
    "code_of",
    "explain",
    "one_of",
    "with_value",
]

OK, FAILED, USAGE, LOST, INTERRUPTED = 0, 1, 2, 3, 130
CUT_OFF = 141  # whoever read the output has left; as a shell says of a program that ends by SIGPIPE

_CODES = {
    Status.CONVERGED: OK,
    Status.INTERRUPTED: INTERRUPTED,
    Status.WORKER_LOST: LOST,
    Status.COMPONENT_FAILED: LOST,
}

# What the library says of its arguments, as it is said here.
_WORDS = (
    (
        re.compile(r"from_rows\(\.\.\., options=\{'drop': \[(.+?)\]\}\)"),
        lambda found: _once_for_each(found[1]),
    ),
    (
        re.compile(r"; give several as a list: drop=\[(.+?)\]"),
        lambda found: f"; give --drop once for each column: {_once_for_each(found[1])}",
    ),
    (
        re.compile(r", or turn (it|them) into numbers first"),
        r", or turn \1 into numbers first; grassia pca writes a column of names beside the scores with "
        "--id or --label",
    ),
    (
        re.compile(r"give from_rows\(path, options=\{'(\w+)': '(\w+)'\}\) instead of the path"),
        r"give --option \1=\2",
    ),
    (re.compile(r"options=\{'(\w+)': ('?)(\w+)\2\}"), r"--option \1=\3"),
    (re.compile(r"with options columns"), "with --columns"),
    (re.compile(r"`options` must be"), "--option must name"),
    (
        re.compile(r"^\.npy files have no options; got (.+) for (.+)$"),
        r".npy files have nothing to choose from (\1); got \2",
    ),
    (re.compile(r"; call `?from_rows`? again"), "; start again"),
    (re.compile(r", since `from_rows` looked at it"), ""),
    (re.compile(r", or load it in a callable"), ""),
    (re.compile(r"^n_components must"), "--workers (or --shards) must"),
    (re.compile(r"`k` must satisfy"), "-k must satisfy"),
    (re.compile(r"`(columns|drop|workers|tol|solver|backend|dataset|precision)` "), r"--\1 "),
    (re.compile(r"`time_limit` \(in seconds\)"), "--time-limit"),
    (re.compile(r", or pass the answer as `v0`\."), "."),
    (re.compile(r" Pass the answer as `v0` to go on from it\."), ""),
    (re.compile(r"`certificate\.identified` says"), "The certificate says"),
    (re.compile(r" See `history\.events`; t"), " T"),
    (re.compile(r"The last of `history\.events` says how; t"), "T"),
    (re.compile(r"`(time_limit|max_passes)`"), lambda found: f"--{found[1].replace('_', '-')}"),
    (
        re.compile(r"name the folder that a run was given as `checkpoint`"),
        "name the folder of --checkpoint, or NAME.checkpoint of a run with -o NAME",
    ),
    (re.compile(r"`tol`"), "--tol"),
    (re.compile(r"`rng`"), "--seed"),
)


def _once_for_each(columns: str) -> str:
    return "--drop " + re.sub(r"(?<=['\"\d]), (?=['\"\d])", " --drop ", columns)


def code_of(status: Status) -> int:
    """The exit code of a run that ended so; whatever is not certified, and has no code of its own, is 1.

    >>> code_of(Status.CONVERGED), code_of(Status.TIME_LIMIT), code_of(Status.WORKER_LOST)
    (0, 1, 3)
    """
    return _CODES.get(status, FAILED)


def explain(error: Exception) -> tuple[int, str] | None:
    """Exit code and text of an error that is no fault of the program; None for one that is."""
    if isinstance(error, InvalidInput | MissingExtra):
        return USAGE, spoken(str(error))
    if isinstance(error, GrassiaError):
        lost = isinstance(error, ComponentFailed) or Status.WORKER_LOST.name in str(error)
        return LOST if lost else FAILED, spoken(str(error))
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        if error.errno == errno.ENOSPC:
            return USAGE, (
                f"there is no space left to write{where}; free some, and give the same command again, with "
                "--resume if it was interrupted before."
            )
        return USAGE, f"cannot use{where}: {error.strerror or error}"
    usage: Any = error  # typer brings its own click or the real one: know its errors by their shape
    if hasattr(usage, "format_message") and hasattr(usage, "exit_code"):
        return int(usage.exit_code), str(usage.format_message())
    return None


def with_value(text: str, error: Exception, arguments: Sequence[str]) -> str:
    """The text of an error about an option's value, with the value where it does not have it."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for i, argument in enumerate(arguments):
        for name in names:
            value = None
            if argument == name:
                value = next(iter(arguments[i + 1 :]), None)
            elif argument.startswith(f"{name}="):
                value = argument.removeprefix(f"{name}=")
            elif not name.startswith("--") and argument.startswith(name):
                value = argument.removeprefix(name)
            if value is not None and value not in text:
                return f"{text.rstrip('.')}; got {value!r}."
    return text


def spoken(text: str) -> str:
    """A text of the library in the words of the command line, on one line.

    >>> spoken("leave it out with from_rows(..., options={'drop': ['name']})")
    "leave it out with --drop 'name'"
    """
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return " ".join(text.split())


def one_of(value: str, known: list[str], option: str) -> str:
    """The value, if it is known; otherwise an error with what was probably meant.

    >>> one_of("nystrm", ["krylov", "nystrom"], "--solver")
    Traceback (most recent call last):
    grassia.errors.InvalidInput: --solver must be one of krylov, nystrom; got 'nystrm'. Did you mean nystrom?
    """
    if value in known:
        return value
    near = get_close_matches(value.lower(), known, 1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise InvalidInput(f"{option} must be one of {', '.join(known)}; got {value!r}.{meant}")
