"""The hosts of hosts.py have addresses, latency and disks of their own, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import eventually, unavailable
from hosts import Host, hosts, why_not

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(150)]


@pytest.fixture
def machines() -> Iterator[list[Host]]:
    if (reason := why_not()) is not None:
        unavailable(reason)
    with hosts(2) as made:
        yield made


LISTEN = """
import socket
server = socket.create_server(("", 5000))
while True:
    peer, _ = server.accept()
    while word := peer.recv(1):
        peer.sendall(word)
"""
ASK = """
import socket, sys, time
started = time.monotonic()
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))
        break
    except ConnectionRefusedError:  # it does not listen yet
        time.sleep(0.02)
started = time.monotonic()
peer.sendall(b"?")
assert peer.recv(1) == b"?"
print(time.monotonic() - started)
"""


def test_what_is_sent_to_a_distant_host_takes_its_time_both_ways(machines: list[Host]) -> None:
    near, far = machines
    far.start([sys.executable, "-c", LISTEN])
    far.delay(50.0)
    assert float(near.run([sys.executable, "-c", ASK, far.address, "30"])) >= 0.1


def test_a_host_that_is_cut_off_cannot_be_reached_until_it_is_healed(machines: list[Host]) -> None:
    near, far = machines
    far.start([sys.executable, "-c", LISTEN])
    ask = [sys.executable, "-c", ASK, far.address]
    near.run([*ask, "30"])
    far.cut()
    with pytest.raises(AssertionError, match="TimeoutError"):
        near.run([*ask, "0.5"])
    assert far.dropped > 0
    far.heal()
    near.run([*ask, "30"])


def test_hosts_share_neither_loopback_nor_disk(machines: list[Host]) -> None:
    one, other = machines
    one.start([sys.executable, "-c", LISTEN])
    one.run([sys.executable, "-c", ASK, "127.0.0.1", "30"])
    with pytest.raises(AssertionError, match="does not end"):
        other.run([sys.executable, "-c", ASK, "127.0.0.1", "30"], timeout=1.0)
    one.run(["touch", one.disk / "mine"])
    one.run(["ls", one.disk / "mine"])
    with pytest.raises(AssertionError, match="No such file"):
        other.run(["ls", other.disk / "mine"])


def test_nothing_is_left_of_hosts_that_are_gone_also_after_an_error(machines: list[Host]) -> None:
    folder = machines[0].files.parent
    assert machines[0].pids() == []
    with pytest.raises(KeyError), hosts(2) as others:  # noqa: PT012
        # A process that would outlive its parent, as daemons do.
        others[0].run(["sh", "-c", "setsid sleep 600 &"])
        (daemon,) = others[0].pids()
        raise KeyError
    assert eventually(lambda: not Path(f"/proc/{daemon}").exists())
    assert not others[0].files.exists()
    assert folder.exists()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert others[0].name not in left
    assert machines[0].name in left
