"""Completion of commands, options and values: what the program answers, and what shells make of it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import unavailable
from grassia import solvers
from grassia.cli import build

SHELLS = ["bash", "zsh", "fish"]
COMMANDS = {info.callback.__name__ for info in build().registered_commands}


@pytest.fixture
def home(tmp_path) -> dict[str, str]:
    """An environment with a home that is empty and `grassia` on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "grassia"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom grassia.cli import main\nsys.exit(main())\n", encoding="utf-8"
    )
    program.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("_TYPER", "_GRASSIA", "COMP_", "XDG_"))}
    return {
        **kept,
        "HOME": str(tmp_path),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "TERM": "dumb",
    }


def ask(home: dict[str, str], *command: str, **settings: str) -> str:
    done = subprocess.run(
        command, cwd=home["HOME"], env={**home, **settings}, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def script(home: dict[str, str], shell: str) -> Path:
    """What a shell is to read."""
    path = Path(home["HOME"], f"completion.{shell}")
    path.write_text(ask(home, "grassia", _GRASSIA_COMPLETE=f"source_{shell}"), encoding="utf-8")
    return path


def names(home: dict[str, str], shell: str, line: str) -> set[str]:
    """What the program answers to a shell that asks how a line may go on."""
    settings = {"_GRASSIA_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        settings |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        settings |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    answer = ask(home, "grassia", **settings)
    if shell == "zsh":
        return set(re.findall(r'^(?:_arguments .*\(\()?"([^"]+)"', answer, re.M))
    return {entry.split("\t")[0] for entry in answer.splitlines() if entry}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_program_names_what_may_come_next(shell, home):
    assert names(home, shell, "grassia ") == COMMANDS
    assert names(home, shell, "grassia re") == {"resume", "report", "reproduce"}
    assert names(home, shell, "grassia pca --sol") == {"--solver"}
    assert names(home, shell, "grassia pca --solver n") == {"nystrom"}
    assert names(home, shell, "grassia bench --solver ") == {"auto", *solvers.names()}
    assert names(home, shell, "grassia pca --backend p") == {"processes"}


@pytest.mark.parametrize(
    ("line", "code"), [("grassia simu", 0), ("grassia pca --solver n", 0), ("grassia zz", 1)]
)
def test_a_shell_is_told_by_the_exit_code_whether_there_is_anything(line, code, home):
    asked = {"_GRASSIA_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    done = subprocess.run(["grassia"], env={**home, **asked, "_TYPER_COMPLETE_ARGS": line}, timeout=60)
    assert done.returncode == code


def test_every_option_of_the_help_is_completed(home):
    shown = ask(home, "grassia", "pca", "--help", COLUMNS="200")
    listed = set(re.findall(r"^\W*(?:-\w,? +)?(--[a-z][a-z-]+)", shown, re.M))
    assert len(listed) > 20
    assert listed <= names(home, "bash", "grassia pca --")


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        unavailable(f"there is no {shell}")


class Typing:
    """An interactive shell in a terminal, and somebody who types."""

    def __init__(self, command: list[str], home: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=home["HOME"], env=home,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._seen = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, pattern: str, seconds: float = 60.0) -> str:
        """What is shown from now on, until a pattern is found in it; the first group of that."""
        start, deadline = len(self._seen), time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(pattern, self._seen[start:])
            if found:
                return found[1]
            if select.select([self._ours], [], [], 0.1)[0]:
                self._seen += os.read(self._ours, 65536).decode(errors="replace")
        raise AssertionError(f"{pattern!r} was not shown: {self._seen!r}")

    def complete(self, line: str, expected: str) -> str:
        """The line as it is after TAB. It is not run, but given to `echo`."""
        self.type(f"{line}\t")
        self.until(f"({expected} ?)")  # it is drawn when the program has answered
        self.type("\x01echo got: \n")  # to the beginning of the line
        return self.until(r"[\r\n]got: ([^\r\n]*)").rstrip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


def started(shell: str, home: dict[str, str]) -> Typing:
    """A shell that reads no settings and knows how to complete."""
    path = script(home, shell)
    if shell == "bash":
        typing = Typing(["bash", "--noprofile", "--norc", "-i"], home)
    else:
        typing = Typing(["zsh", "-f", "-i"], home)
        typing.type("unsetopt prompt_cr prompt_sp; autoload -U compinit; compinit -u -D\n")
    typing.type(f"source {path}; echo rea''dy\n")
    typing.until("(ready)")
    return typing


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes_commands_options_and_files(shell, home):
    needs(shell)
    Path(home["HOME"], "measurements.csv").touch()
    typing = started(shell, home)
    try:
        assert typing.complete("grassia simu", "late") == "grassia simulate"
        assert typing.complete("grassia pca --time", "-limit") == "grassia pca --time-limit"
        assert typing.complete("grassia pca --solver nys", "trom") == "grassia pca --solver nystrom"
        assert typing.complete("grassia pca meas", "urements.csv") == "grassia pca measurements.csv"
    finally:
        typing.close()


def test_fish_completes_commands_options_and_files(home):
    needs("fish")
    Path(home["HOME"], "measurements.csv").touch()
    path = script(home, "fish")

    def offered(line: str) -> list[str]:
        answer = ask(home, "fish", "--no-config", "-c", f"source {path}; complete -C '{line}'")
        return [entry.split("\t")[0] for entry in answer.splitlines()]

    assert offered("grassia simu") == ["simulate"]
    assert offered("grassia pca --time") == ["--time-limit"]
    assert offered("grassia pca --solver nys") == ["nystrom"]
    assert offered("grassia pca meas") == ["measurements.csv"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_one_is_in_is_recognised(shell, home):
    needs(shell)
    # The shell must be the parent of the program, so the program is not the last command.
    shown = ask(home, shell, "-c", "grassia --show-completion; true")
    assert shown.strip() == script(home, shell).read_text(encoding="utf-8").strip()


def test_completion_can_be_installed(home):
    told = ask(home, "bash", "-c", "grassia --install-completion; true")
    assert "installed" in told
    typing = Typing(["bash", "--noprofile", "-i"], home)  # reads the .bashrc that was written
    try:
        typing.type("echo rea''dy\n")
        typing.until("(ready)")
        assert typing.complete("grassia simu", "late") == "grassia simulate"
    finally:
        typing.close()
