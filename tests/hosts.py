"""Hosts on one machine: network namespaces with addresses of their own, and the wire between them.

Every host has one network device, a TUN, whose packets a thread of this process carries to the host they are
addressed to. So the wire can do what wires do: take its time, and lose everything to and from one host until
it is healed. (A bridge with `tc ... netem` would do the same, but only in a kernel that was built with it;
many are not, and TUN is in nearly all of them.) A host also has a disk of its own: the same path in each of
them, and other files behind it.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 9000
PREFIX = "grassia"  # of the names of the namespaces, before the process that made them
_numbers = itertools.count(1)


class Host:
    """One of them. Made by `hosts`."""

    def __init__(self, name: str, address: str, files: Path, disk: Path, device: int) -> None:
        self.name, self.address, self.device = name, address, device
        self.files = files  #: where the files of its disk are, seen from outside
        self.disk = disk  #: where its own processes see them
        self.seconds, self.is_cut, self.dropped = 0.0, False, 0
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the host; `said` has what it prints."""
        # `ip netns exec` gives the process mounts of its own: only it and its children see the host's disk.
        inside = [
            "ip",
            "netns",
            "exec",
            self.name,
            "sh",
            "-c",
            'mount --bind "$0" "$1" && shift && exec "$@"',
        ]
        number = len(self._started)
        with open(self._log(number), "wb") as log:
            process = subprocess.Popen(
                [*inside, self.files, self.disk, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _log(self, number: int) -> Path:
        return self.files.with_name(f"{self.files.name}.{number}.log")

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What a process printed so far, and what it left behind it."""
        return self._log(self._started.index(process)).read_text(errors="replace")

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        environment: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Run a process in the host to its end, which must be a good one; what it printed."""
        process = self.start(command, environment)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{command} does not end on {self.name}:\n{self.said(process)}") from None
        assert code == 0, f"{command} ended with {code} on {self.name}:\n{self.said(process)}"
        return self.said(process)

    def pids(self) -> list[int]:
        """The processes that run in it now."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """End every process of the host at once, as a power cut would."""
        deadline = time.monotonic() + 30.0
        while found := self.pids():
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            assert time.monotonic() < deadline, f"{found} on {self.name} cannot be killed"
            time.sleep(0.02)
        for process in self._started:
            process.wait(10.0)

    def delay(self, milliseconds: float) -> None:
        """Every packet to it and from it takes so much longer."""
        self.seconds = milliseconds / 1000.0

    def cut(self) -> None:
        """Nothing gets to it or from it any more, and nobody is told."""
        self.is_cut = True

    def heal(self) -> None:
        """The end of `cut`."""
        self.is_cut = False


class _Wire(threading.Thread):
    """Carries packets, each after the delays of both ends."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__(name="wire", daemon=True)
        self._at = {host.device: host for host in hosts}
        self._to = {socket.inet_aton(host.address): host for host in hosts}
        self._under_way: list[tuple[float, int, Host, Host, bytes]] = []
        self._count = itertools.count()
        self._ears, self._mouth = os.pipe()

    def run(self) -> None:
        while True:
            wait = max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None
            ready, _, _ = select.select([self._ears, *self._at], [], [], wait)
            if self._ears in ready:
                return
            for device in ready:
                self._take(self._at[device])
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, source, target, packet = heapq.heappop(self._under_way)
                self._give(source, target, packet)

    def _take(self, source: Host) -> None:
        for _ in range(64):  # then it is another's turn
            try:
                packet = os.read(source.device, MTU + 64)
            except OSError:
                return
            target = self._to.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is None:
                continue
            pause = source.seconds + target.seconds
            if pause:
                heapq.heappush(
                    self._under_way, (time.monotonic() + pause, next(self._count), source, target, packet)
                )
            else:
                self._give(source, target, packet)

    @staticmethod
    def _give(source: Host, target: Host, packet: bytes) -> None:
        if source.is_cut or target.is_cut:
            source.dropped += 1
            target.dropped += 1
            return
        with suppress(OSError):  # a full queue loses a packet, as elsewhere
            os.write(target.device, packet)

    def end(self) -> None:
        os.write(self._mouth, b"!")
        self.join()
        os.close(self._ears)
        os.close(self._mouth)


def _ip(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _tun(name: str) -> int:
    """A new network device; it lives as long as its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


@cache
def why_not() -> str | None:
    """What is in the way of making hosts here; None if nothing is."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    if shutil.which("ip") is None:
        return "the command `ip` is missing (Debian's package iproute2)"
    try:
        with hosts(2):
            return None
    except (OSError, AssertionError) as error:
        return f"no hosts can be made from network namespaces here (root is needed): {error}"


def _remove(name: str) -> None:
    """A namespace and all that runs in it."""
    with suppress(OSError):
        for pid in _ip("netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", name, check=False)


def _remove_what_others_left() -> None:
    """Namespaces of test runs that were killed before they could clean up."""
    for line in _ip("netns", "list", check=False).splitlines():
        made = re.match(rf"({PREFIX}-(\d+)-\d+)\b", line)
        if made and not Path(f"/proc/{made[2]}").exists():
            _remove(made[1])


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts, that reach one another and nothing else; nothing is left of them afterwards."""
    _remove_what_others_left()
    made: list[Host] = []
    wire: _Wire | None = None
    # Short, since the paths of sockets are limited to about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="hosts", dir="/tmp"))
    disk = folder / "disk"
    disk.mkdir()
    me = os.getpid()
    try:
        for place in range(1, count + 1):
            number = next(_numbers)
            name, label = f"{PREFIX}-{me}-{number}", f"g{me}n{number}"
            address = f"10.77.{me % 256}.{place}"
            files = folder / str(place)
            files.mkdir()
            made.append(Host(name, address, files, disk, _tun(label)))
            _ip("netns", "add", name)
            _ip("link", "set", label, "netns", name, "name", "eth0")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "mtu", str(MTU), "up")
        wire = _Wire(made)
        wire.start()
        made[0].run(["true"], timeout=10.0)  # mounts may not be allowed
        yield made
    finally:
        for host in made:
            with suppress(OSError):
                host.kill()
            _remove(host.name)
        if wire is not None:
            wire.end()
        for host in made:
            os.close(host.device)
        shutil.rmtree(folder, ignore_errors=True)
