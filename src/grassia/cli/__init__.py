"""The command line. One file for each command; this one gathers them and maps errors to exit codes.

Exit codes: 0 converged, 1 not converged or failed, 2 bad usage or bad input, 130 interrupted.
To add a command, write `cli/NAME.py` with a function that returns one of these codes, and register
it in `build`. The library never imports this package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import grassia
from grassia.errors import GrassiaError, InvalidInput, MissingExtra

__all__ = ["main"]

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # without Unicode: "?" instead of an error
            stream.reconfigure(errors="replace")
    try:
        code = build()(arguments or ["--help"], prog_name="grassia", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # whoever read us has left: say no more
        return FAILED
    except Exception as error:
        if debug:
            raise
        found = _explain(error)
        if found is None:
            raise
        code, text = found
        print(f"grassia: {' '.join(text.split())}", file=sys.stderr)
    if code == INTERRUPTED:
        print("grassia: interrupted", file=sys.stderr)
    return int(code or OK)


def build() -> typer.Typer:
    """The application with all its commands."""
    from grassia.cli.demo import demo
    from grassia.cli.reproduce import reproduce

    app = typer.Typer(
        help=grassia.__doc__,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    app.command()(demo)
    app.command()(reproduce)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"grassia {grassia.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    # A callback of its own keeps `grassia COMMAND` the form even while there is one command only.
    pass


def _explain(error: Exception) -> tuple[int, str] | None:
    """Exit code and text of an error that is no fault of the program; None for one that is."""
    if isinstance(error, InvalidInput | MissingExtra):
        return USAGE, str(error)
    if isinstance(error, GrassiaError):
        return FAILED, str(error)
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return USAGE, f"cannot use{where}: {error.strerror or error}"
    usage: Any = error  # typer brings its own click or the real one: know its errors by their shape
    if hasattr(usage, "format_message") and hasattr(usage, "exit_code"):
        return int(usage.exit_code), str(usage.format_message())
    return None
