"""Runs on processes: rows and their eigenspace, and a callback that kills a worker."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import grassia
from grassia import geometry

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")

#: The marks of every module of tests of processes.
LINUX_AND_NOTHING_LEFT = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc"),
    pytest.mark.usefixtures("nothing_is_left"),
]

D, K = 12, 3


def some_rows():
    rng = np.random.default_rng(11)
    return rng.standard_normal((240, D)) * np.r_[6.0, 5.0, 4.0, np.linspace(1.5, 0.5, D - K)]


def leading(rows):
    return np.linalg.eigh(np.cov(rows.T))[1][:, -K:]


def sine(vectors, truth):
    return float(np.sin(geometry.principal_angles(vectors, truth).max()))


class Killer:
    """A callback that kills a worker, as an out-of-memory killer would, at a chosen moment."""

    def __init__(self, backend, moment, times=1, worker=1):
        self.backend, self.moment, self.left, self.worker = backend, moment, times, worker
        self.killed = []

    def __call__(self, progress):
        pid = self.backend.pids[self.worker]
        if self.left and pid not in self.killed and self.moment(progress):
            self.left -= 1
            self.killed.append(pid)
            os.kill(pid, signal.SIGKILL)


MOMENTS = {
    "opening": lambda progress: progress.phase == "opening",
    "solving": lambda progress: progress.version >= 10,
    "certifying": lambda progress: progress.phase == "certifying",
}
