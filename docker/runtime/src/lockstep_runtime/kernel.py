"""How two processes may hand each other a file descriptor here.

Expandable segments, NVSHMEM and others share memory as file descriptors. The exporter can send one over a Unix socket
(SCM_RIGHTS, unix(7)), which needs no privilege, or the importer can take it with pidfd_getfd(2), which needs the right
to trace the exporter (ptrace(2), "Ptrace access mode checking"): Yama and a container's seccomp profile often refuse.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PIDFD_GETFD = 438  # the same number on every architecture since Linux 5.6
_TOKEN = b"lockstep"
_CAP_SYS_PTRACE = 19  # linux/capability.h


@dataclass(frozen=True)
class Exchange:
    """Whether one way of handing over a descriptor works between sibling processes, and what the kernel said."""

    way: str
    works: bool
    said: str


def _read(descriptor: int) -> str:
    data = os.pread(descriptor, len(_TOKEN), 0)
    os.close(descriptor)
    return "" if data == _TOKEN else f"the descriptor holds {data!r}"


def _by_socket(channel: socket.socket, _exporter: int, _number: int) -> str:
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    return _read(descriptors[0]) if descriptors else "no descriptor arrived"


def _by_pidfd(_channel: socket.socket, exporter: int, number: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(exporter)
    taken = libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if taken < 0:
        return f"pidfd_getfd: {os.strerror(ctypes.get_errno())}"
    return _read(taken)


def _child(work: Callable[[], str], out: int) -> int:
    """Fork, run `work`, write what it says to `out` and end; return the child's process id."""
    child = os.fork()
    if child:
        return child
    try:
        said = work()
    except OSError as error:
        said = f"{error.strerror}"
    os.write(out, f"{said}\n".encode())
    os._exit(0)


def _between_siblings(take: Callable[[socket.socket, int, int], str]) -> str:
    """Have one child make a memory file and its sibling take it; return "" or why that failed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    answer, out = os.pipe()

    def export() -> str:
        number = os.memfd_create("lockstep")
        os.pwrite(number, _TOKEN, 0)
        ours.send(number.to_bytes(4, "little"))
        socket.send_fds(ours, [b"."], [number])
        ours.recv(1)  # until the sibling is done: a process that ended has no descriptors to take
        return ""

    exporter = _child(export, os.open(os.devnull, os.O_WRONLY))

    def receive() -> str:
        number = int.from_bytes(theirs.recv(4), "little")
        try:
            return take(theirs, exporter, number)
        finally:
            theirs.send(b".")

    importer = _child(receive, out)
    os.waitpid(importer, 0)
    ours.close()
    theirs.close()
    os.waitpid(exporter, 0)
    os.close(out)
    with os.fdopen(answer) as stream:
        return stream.readline().strip()


def exchanges() -> list[Exchange]:
    """Try both ways between two siblings of this process's children, as two ranks of one node would."""
    ways = (("SCM_RIGHTS over a Unix socket", _by_socket), ("pidfd_getfd", _by_pidfd))
    return [Exchange(way, not said, said) for way, said in ((way, _between_siblings(take)) for way, take in ways)]


def reasons() -> list[str]:
    """Return what this process can see of why the kernel may refuse pidfd_getfd."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    found = []
    if not int(status.get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1:
        found.append("no CAP_SYS_PTRACE")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.is_file() and scope.read_text().strip() != "0":
        found.append(f"kernel.yama.ptrace_scope={scope.read_text().strip()}")
    if status.get("Seccomp", "0").strip() == "2":
        found.append("a seccomp filter is active")
    return found
