"""The command line. One file for each command; this one gathers them and maps errors to exit codes.

Exit codes: 0 certified, 1 not certified or not true, 2 bad usage or bad input, 3 a worker was lost or a
component failed, 130 interrupted; see `grassia.cli._outcome`. To add a command, write `cli/NAME.py` with a
function that returns one of these codes, and register it in `build`. The library never imports this package.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

__all__ = ["main"]

_ONCE_MORE = "give the same command again"
# Numbers of which the first is negative: a sample, not an option.
_SAMPLE = re.compile(r"-[0-9.][-+0-9.eE]*(,.*)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    try:
        with _all_as_ctrl_c():
            return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # so early that not even all was imported
        print(f"grassia: interrupted; {_ONCE_MORE}", file=sys.stderr)
        return 130


@contextmanager
def _all_as_ctrl_c() -> Iterator[None]:
    """Inside `with`, a terminal that is closed and whoever ends a job by SIGTERM leave what Ctrl-C leaves."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)  # which may wait until the end of a step
        if callable(handler):
            handler(number, frame)

    def ignore_ctrl_c(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            raise KeyboardInterrupt

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        others = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {one: signal.getsignal(one) for one in others if signal.getsignal(one) == signal.SIG_DFL}
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background
            before[signal.SIGINT] = signal.SIG_IGN
    try:
        for one in before:
            signal.signal(one, ignore_ctrl_c if one == signal.SIGINT else interrupt)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _run(arguments: list[str]) -> int:
    import typer

    from grassia.cli._kept import Stopped
    from grassia.cli._outcome import CUT_OFF, INTERRUPTED, OK, explain, with_value

    if arguments[:1] == ["project"]:
        arguments = [f" {one}" if _SAMPLE.fullmatch(one) else one for one in arguments]
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # without Unicode: "?" instead of an error
            stream.reconfigure(errors="replace")
    if not debug:  # what is worth saying is said here, once
        logging.getLogger("grassia").addHandler(logging.NullHandler())
    how_to_go_on = _ONCE_MORE
    try:
        code = build()(arguments or ["--help"], prog_name="grassia", standalone_mode=False)
    except Stopped as stopped:
        code, how_to_go_on = INTERRUPTED, str(stopped)
    except (KeyboardInterrupt, typer.Abort):  # whoever has kept something says so by `Stopped`
        code = INTERRUPTED
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise  # by completion; for a broken pipe that is how rich takes it
        sys.stdout = None  # whoever read us has left: say no more
        return CUT_OFF
    except Exception as error:
        if debug:
            raise
        found = explain(error)
        if found is None:
            raise
        code, text = found[0], with_value(found[1], error, arguments)
        print(f"grassia: {' '.join(text.split())}", file=sys.stderr)
    if code == INTERRUPTED:
        print(f"grassia: interrupted; {how_to_go_on}", file=sys.stderr)
    return int(code or OK)


def build() -> typer.Typer:
    """The application with all its commands."""
    import typer

    import grassia
    from grassia.cli.bench import bench
    from grassia.cli.check import check
    from grassia.cli.demo import demo
    from grassia.cli.pca import pca
    from grassia.cli.plan import plan
    from grassia.cli.project import project
    from grassia.cli.report import report
    from grassia.cli.reproduce import reproduce
    from grassia.cli.resume import resume
    from grassia.cli.simulate import simulate

    app = typer.Typer(
        help=f"""{grassia.__doc__}

        Begin with grassia pca FILE -k 5, or see it work with grassia demo.

        Exit codes: 0 certified; 1 not certified, or not true; 2 bad input or usage;
        3 a worker was lost or a component failed; 130 interrupted.
        """,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"grassia {grassia.__version__}")
            raise typer.Exit

    shown = typer.Option(
        False, "--version", callback=show_version, is_eager=True, help="Show the version and exit."
    )

    # A callback of its own keeps `grassia COMMAND` the form even while there is one command only.
    @app.callback()
    def options_of_all(version: bool = shown) -> None:
        pass

    for command in (pca, resume, project, check, report, plan, bench, simulate, demo, reproduce):
        app.command()(command)
    return app
