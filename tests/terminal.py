"""A command of grassia in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path


class Terminal:
    """A running command whose input and output are a terminal of so many columns.

    With `stdout_too=False` only its stderr is, as where a user sends the output to a file.
    """

    def __init__(
        self, *arguments: str, cwd: Path | None = None, columns: int = 80, stdout_too: bool = True
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grassia", *arguments],
            cwd=cwd,
            env={**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
            stdin=theirs,
            stdout=theirs if stdout_too else subprocess.PIPE,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._seen = b""

    @property
    def text(self) -> str:
        """What was shown so far."""
        return self._seen.decode("utf-8", errors="replace")

    def read(self, until: str | None = None, seconds: float = 60.0) -> str:
        """Read until a text was shown, or to the end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (until is None or until not in self.text):
            if not select.select([self._ours], [], [], 0.1)[0]:
                continue
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # the other end is closed: Linux says so with an error
                break
            if not chunk:
                break
            self._seen += chunk
        return self.text

    def close(self) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(timeout=30)
        finally:
            self.process.kill()
            os.close(self._ours)
