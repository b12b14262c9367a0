"""The Dask cluster of a run: the client, who is there, and since when nobody is."""

from __future__ import annotations

import os
import queue
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grassia._optional import require
from grassia.backends.dask_link import Known, News
from grassia.backends.dask_worker import anchor
from grassia.errors import InvalidInput

MOST_PROCESSES = 32
NOTICED = 5.0  # seconds in which a scheduler has noticed that a worker is dead

__all__ = ["Cluster"]


class Cluster:
    """A cluster, found or made.

    Parameters
    ----------
    given : distributed.Client or str, optional
        The client, or a scheduler's address; None: the program's current client, or a new local cluster.
    places : int
        So many workers are of use.
    patience : float
        Seconds to do without workers, or without the scheduler.
    local : distributed.LocalCluster, optional
        The one that was made for a run before, if one is needed.

    Attributes
    ----------
    known : dict
        The workers there are, by address.
    joined, seen : dict
        When they were first seen, and when they, or those that are gone, were seen last.
    out_of_reach : bool
        Whether the scheduler does not answer.
    """

    def __init__(self, given: Any, places: int, patience: float, local: Any = None) -> None:
        self.patience = patience
        self.known: dict[str, Known] = {}
        self.joined: dict[str, float] = {}
        self.seen: dict[str, float] = {}
        self.out_of_reach = False
        self._died: dict[str, float] = {}
        self._alone_since: float | None = None
        self._anchors: dict[str, Any] = {}
        self._distributed: Any = require("distributed", "dask")
        self._local: Any = local
        self.own = False
        self.client = self._connect(given, places)
        if getattr(self.client, "asynchronous", False):
            raise InvalidInput("the Dask client must not be asynchronous; make one with asynchronous=False.")

    def _connect(self, given: Any, places: int) -> Any:
        kind = self._distributed.Client
        if isinstance(given, kind):
            return given
        if given is not None and not isinstance(given, str):
            raise InvalidInput(f"`client` must be a distributed.Client or an address; got {given!r}.")
        if given is None:
            with suppress(ValueError):  # there is no current client
                return self._distributed.get_client()
            given = self._local = _local_cluster(self._distributed, min(places, MOST_PROCESSES), self._local)
        self.own = True
        return kind(given, set_as_default=False)

    def close(self, keep: bool = False) -> Any:
        """Let go of everything; end what was made here, or give the local cluster to whom it is to `keep`."""
        with suppress(Exception):  # the cluster may be gone
            for future in self._anchors.values():
                future.release()
        self._anchors.clear()
        if self.own:
            with suppress(Exception):
                self.client.close()
        if self._local is not None and not keep:
            self._local.close()
            self._local = None
        return self._local

    # -- who is there ---------------------------------------------------------------------------

    @property
    def usable(self) -> list[str]:
        """The workers there are, without those that are paused or about to close where there are others."""
        there = [address for address in self.known if self.alive(address)]
        return [address for address in there if self.known[address].usable] or there

    def died(self, address: str) -> None:
        """A worker does not answer any more; the scheduler may know it for a while."""
        self._died[address] = time.monotonic()

    def alive(self, address: str) -> bool:
        """Whether a worker is there as far as is known, and not only as far as the scheduler knows."""
        since = self._died.get(address)
        return since is None or self.joined[address] > since or time.monotonic() - since > NOTICED

    @property
    def closed(self) -> bool:
        return self.client.status in ("closing", "closed")

    def heard(self, workers: dict[str, Known] | None) -> bool:
        """Take note of who is there now; whether somebody is who was not before."""
        self.out_of_reach = workers is None
        if workers is None:
            return False
        newcomers = bool(self.known) and bool(workers.keys() - self.known.keys())
        now = time.monotonic()
        self.joined = {address: self.joined.get(address, now) for address in workers}
        self.seen.update(dict.fromkeys(workers, now))
        self.known = workers
        for address in self._anchors.keys() - workers.keys():
            self.let_go(address)
        return newcomers

    def wait(self, mail: queue.SimpleQueue[Any]) -> None:
        """Until there is a worker."""
        deadline = time.monotonic() + self.patience
        call = None
        while not self.usable:
            with suppress(queue.Empty):
                letter = mail.get(timeout=0.5)
                if isinstance(letter, News):
                    self.heard(letter.workers)
                    if call is None and letter.workers == {}:
                        # An adaptive cluster has no workers while nobody wants any.
                        call = self.client.submit(_nothing, key=f"grassia-call-{secrets.token_hex(8)}")
            if time.monotonic() > deadline:
                raise InvalidInput(
                    f"the Dask cluster must have workers; none came within {self.patience:g} s. Start some."
                )

    def given_up(self, wait_for_workers: bool) -> str | None:
        """Why it is of no use to wait any longer, if it is not."""
        if self.known and not self.out_of_reach and not self.closed:
            self._alone_since = None
            return None
        now = time.monotonic()
        since = self._alone_since = self._alone_since or now
        patient = now - since < self.patience or (wait_for_workers and not self.out_of_reach)
        if patient and not self.closed:
            return None
        if self.closed:
            return "the Dask scheduler cannot be reached, and the client is closed"
        if self.out_of_reach:
            return f"the Dask scheduler cannot be reached since {self.patience:g} s"
        return f"no Dask worker came for {self.patience:g} s"

    def first_homes(self, futures: Sequence[Sequence[Any]]) -> list[str]:
        """A worker for each place: where most of its futures are, else the one with the fewest places."""
        wanted = [one for several in futures for one in several]
        holders: dict[Any, Sequence[str]] = {}
        if wanted:
            with suppress(Exception):  # whatever became of them, opening will say so
                self._distributed.wait(wanted, timeout=self.patience)
            with suppress(Exception):
                holders = self.client.who_has(wanted)
        crowd = Counter(dict.fromkeys(sorted(self.usable), 0))
        homes = []
        for several in futures:
            there = Counter(at for one in several for at in holders.get(one.key, ()) if at in crowd)
            home = max(there or crowd, key=lambda at: (there[at], -crowd[at]))
            crowd[home] += 1
            homes.append(home)
        return homes

    # -- adaptive clusters ----------------------------------------------------------------------

    def hold(self, address: str, run: str) -> None:
        """Keep an adaptive cluster from closing a worker, of whose tasks its scheduler does not know."""
        if address in self._anchors or self._local is not None:
            return
        with suppress(Exception):
            self._anchors[address] = self.client.submit(
                anchor,
                run,
                key=f"grassia-{run}-{secrets.token_hex(4)}",
                workers=[address],
                allow_other_workers=False,
            )

    def let_go(self, address: str) -> None:
        """It may be closed."""
        with suppress(Exception):
            self._anchors.pop(address).release()


def _local_cluster(distributed: Any, workers: int, before: Any) -> Any:
    """Processes of this machine that do not import the program's script, so that it needs no guard.

    The cluster of a run before serves again if it was made with as many workers: some may be yet to come.
    """
    if before is not None:
        there = before.status.name == "running" and bool(before.scheduler_info["workers"])
        if there and len(before.worker_spec) >= workers:
            return before
        before.close()
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    if os.name != "posix":
        return distributed.LocalCluster(processes=True, **options)
    made = require("distributed.deploy.subprocess", "dask").SubprocessCluster
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        return made(**options)
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _nothing() -> None:
    pass
