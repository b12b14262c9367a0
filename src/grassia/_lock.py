"""One writer at a time: a file that whoever writes keeps locked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from grassia.errors import InvalidInput


def locked(path: Path, refusal: str) -> IO[bytes] | None:
    """Lock a file until what this returns is closed; None where the system or the file system cannot.

    Whoever comes second is told `refusal`, an `InvalidInput`.
    """
    if os.name != "posix":
        return None
    import fcntl

    while True:
        file = path.open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InvalidInput(refusal) from error
        except OSError:  # a file system without locks
            file.close()
            return None
        if _is_still(path, file):
            return file
        file.close()  # the one before has removed it meanwhile: others would lock another file


def _is_still(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
