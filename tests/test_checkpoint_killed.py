"""Runs that are killed or interrupted, and go on from their checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import grassia
from conftest import ENGINES, dask_client, eventually, ray_cluster
from grassia import Checkpoint, Status, eigenspace, resume
from grassia.checkpoint import latest
from grassia.geometry import projection_distance
from interrupted_runs import five_components
from problems import gaussian_rows, leading_of_rows

SCRIPT = """
import sys
import numpy as np, grassia
rows, folder, engine, address = sys.argv[1:]
faults = "delay:*:0.01"
if engine == "processes":
    backend = grassia.backends.Processes(faults=faults)
elif engine == "ray":
    import ray
    from grassia.backends.ray import Ray
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    backend = Ray(num_cpus=0.5, faults=faults)
else:
    from grassia.backends.dask import Dask
    backend = Dask(client=address, faults=faults)
shards = grassia.from_rows(np.load(rows), n_components=4)
plan = grassia.Checkpoint(folder, every=0.1)
grassia.eigenspace(shards, 3, solver="power", backend=backend, checkpoint=plan, tol=1e-12, rng=0)
"""


@pytest.fixture
def problem():
    return five_components()


def killed(rows: Path, folder: Path, engine: str, address: str, after: float) -> None:
    """Run the script, and kill it some time after its first checkpoint."""
    server = subprocess.Popen([sys.executable, "-c", SCRIPT, str(rows), str(folder), engine, address])
    assert eventually(lambda: Checkpoint(folder).there, 60.0)
    time.sleep(after)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()


@pytest.mark.parametrize("after", [0.0, 0.35, 0.8])
def test_a_server_killed_at_any_moment_is_resumed_elsewhere(tmp_path, after):
    X = gaussian_rows(400, 30, 3, seed=5)
    np.save(tmp_path / "X.npy", X)
    killed(tmp_path / "X.npy", tmp_path / "run", "processes", "", after)
    found = latest(tmp_path / "run")
    result = resume(tmp_path / "run", grassia.from_rows(X, n_components=4), backend="threads", tol=1e-8)
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-8
    assert result.stats["seconds"] > found.header["seconds"] > 0.0


@pytest.mark.engines
@pytest.mark.parametrize("after", [0.0, 0.4])
@pytest.mark.parametrize(("first", "second"), [("ray", "dask"), ("dask", "ray")])
def test_a_server_killed_on_one_engine_is_resumed_on_the_other(tmp_path, first, second, after):
    X = gaussian_rows(400, 30, 3, seed=5)
    np.save(tmp_path / "X.npy", X)
    where = {
        "ray": lambda: ray_cluster().get_runtime_context().gcs_address,
        "dask": lambda: dask_client().scheduler.address,
    }
    killed(tmp_path / "X.npy", tmp_path / "run", first, where[first](), after)
    found = latest(tmp_path / "run")
    backend = ENGINES[second]()
    result = resume(tmp_path / "run", grassia.from_rows(X, n_components=4), backend=backend, tol=1e-8)
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-8
    assert result.stats["seconds"] > found.header["seconds"] > 0.0


def test_an_interrupt_leaves_a_checkpoint_though_none_was_due(problem, tmp_path):
    def ctrl_c(progress):
        if progress.passes > 3:
            raise KeyboardInterrupt

    part = eigenspace(
        problem.components, 3, solver="power", checkpoint=tmp_path, callbacks=ctrl_c, weights=problem.weights
    )
    assert part.status is Status.INTERRUPTED
    assert part.stats["checkpoint"]["written"] == 1
    assert resume(tmp_path, problem.components).converged
