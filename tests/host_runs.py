"""Whole runs on a cluster of hosts: the program that is run, the rows, and the right answer.

The server runs on the first host, in a process of its own; Ray's nodes or Dask's workers run on the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from conftest import eventually
from grassia import geometry
from host_clusters import Cluster

K, FEATURES, TOL = 4, 3200, 1e-7  # so a block is larger than what Ray sends within a call
SECONDS = 60.0  # the most a run may take


# --------------------------------------------------------------------------------------- the driver

DRIVER = '''
"""A user's program. It finds an eigenspace on the cluster, and stops where the test wants it to."""

import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

import grassia
from grassia.data import NpyRowsLoader

plan = json.loads(Path(sys.argv[1]).read_text())
folder = Path(sys.argv[1]).parent
heard = []


class Ear(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())


logging.getLogger("grassia").setLevel(logging.INFO)
logging.getLogger("grassia").addHandler(Ear())


def until(holds):
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def members(addresses):
    return sorted(addresses) == sorted(plan["members"])


moments = {
    "middle": lambda progress: progress.phase == "solving" and progress.passes >= 2.0,
    "loss": lambda progress: any(text.startswith("worker lost") for text in heard),
}


def pause(progress):
    if not any(text.startswith("worker lost") for text in heard):
        time.sleep(plan["slow"])
    for name in plan["pauses"]:
        if moments[name](progress) and not (folder / f"at {name}").exists():
            (folder / f"at {name}").touch()
            until((folder / f"after {name}").exists)


if plan["engine"] == "ray":
    import ray

    ray.init(address=plan["address"], log_to_driver=False)
    until(lambda: members(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
    backend = grassia.backends.Ray(**plan["options"])
else:
    from distributed import Client

    client = Client(plan["address"])
    workers = lambda: client.scheduler_info(n_workers=-1)["workers"].values()
    until(lambda: members(worker["host"] for worker in workers()))
    backend = grassia.backends.Dask(client=client, **plan["options"])

result = grassia.eigenspace(
    [NpyRowsLoader(path) for path in plan["paths"]],
    plan["k"],
    solver=plan["solver"],
    backend=backend,
    tol=plan["tol"],
    rng=0,
    callbacks=pause,
    time_limit=plan["seconds"],
    on_loss=grassia.LossPolicy(**plan["on_loss"]),
)
np.savez(folder / "answer.npz", vectors=result.vectors, values=result.values)
events = [[event.kind, event.component, event.text] for event in result.history.events]
(folder / "told.json").write_text(json.dumps({"status": result.status.name, "events": events}))
'''


class Run:
    """A driver that runs on the first host.

    Parameters
    ----------
    pauses : names of moments at which it stops and waits for the test
    slow : seconds that every turn of its loop takes longer until a worker is lost
    on_loss : the parameters of the `LossPolicy`
    ray, dask : options of the back-end, for the one that is used
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        paths: Sequence[Path],
        solver: str = "nystrom",
        pauses: Sequence[str] = (),
        slow: float = 0.0,
        on_loss: dict[str, Any] | None = None,
        **options: dict[str, Any],
    ) -> None:
        self._front, self._folder = cluster.front, folder
        plan = {
            **cluster.plan,
            "members": [host.address for host in cluster.nodes],
            "paths": [str(path) for path in paths],
            "k": K,
            "tol": TOL,
            "seconds": SECONDS,
            "solver": solver,
            "pauses": list(pauses),
            "slow": slow,
            "on_loss": on_loss or {},
            "options": options.get(cluster.plan["engine"], {}),
        }
        (folder / "driver.py").write_text(DRIVER)
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, str(folder / "driver.py"), str(folder / "plan.json")]
        self._process = self._front.start(command, cluster.settings)

    @contextmanager
    def at(self, moment: str) -> Iterator[None]:
        """While the driver waits at this moment of the run."""
        self._until((self._folder / f"at {moment}").exists, f"to get to the {moment}")
        yield
        (self._folder / f"after {moment}").touch()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self, oracle: Oracle, *kinds: str) -> str:
        """The run ends, certified, with the right answer, and had events of these kinds; their texts."""
        self._until(lambda: self.ended, "to end")
        assert self._process.returncode == 0, self._front.said(self._process)
        told = json.loads((self._folder / "told.json").read_text())
        assert told["status"] == "CONVERGED", told
        answer = np.load(self._folder / "answer.npz")
        assert oracle.sine(answer["vectors"]) <= TOL
        np.testing.assert_allclose(answer["values"], oracle.values, rtol=1e-10)
        assert set(kinds) <= {kind for kind, _, _ in told["events"]}, told
        return "\n".join(text for _, _, text in told["events"])

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        eventually(lambda: holds() or self.ended, SECONDS + 40.0)
        assert holds(), f"waited in vain for the driver {what}:\n{self._front.said(self._process)}"


# --------------------------------------------------------------------------------------- the problem


class Oracle:
    """The leading eigenspace of the covariance of all rows, by eigh, the smaller way round."""

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        rows = np.concatenate(shards)
        rows -= rows.mean(axis=0)
        values, left = np.linalg.eigh(rows @ rows.T / len(rows))
        self.values = values[::-1][:K]
        self.vectors = np.linalg.qr(rows.T @ left[:, ::-1][:, :K])[0]

    def sine(self, vectors: np.ndarray) -> float:
        return float(np.sin(geometry.principal_angles(vectors, self.vectors).max()))


def shards() -> list[np.ndarray]:
    """Rows for three workers. Each of them has a direction that the others know nothing of."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((FEATURES, K)))[0]
    scales = np.array([[4.0, 8.0, 0.0, 0.0], [4.0, 0.0, 7.0, 0.0], [4.0, 0.0, 0.0, 6.0]])
    return [
        (rng.standard_normal((200 + 40 * i, K)) * scale) @ directions.T
        + 0.3 * rng.standard_normal((200 + 40 * i, FEATURES))
        + 0.02 * i
        for i, scale in enumerate(scales)
    ]
