"""Handing over file descriptors between sibling processes, with the rights of a default container and with less."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "docker" / "runtime" / "src"

# What a container runtime does by default: no CAP_SYS_PTRACE (19) in the bounding set, so none after the next exec.
DROP = """
libc.prctl(24, 19, 0, 0, 0)
"""

# A seccomp filter that answers pidfd_getfd (438) with EPERM, as the default profiles do without CAP_SYS_PTRACE.
FILTER = """
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]
code = (Instruction * 4)((0x20, 0, 0, 0), (0x15, 0, 1, 438), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
program = Program(4, code)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
"""


def _report(*limits: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m lockstep_runtime` under the given limits."""
    code = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n" + "".join(map(textwrap.dedent, limits))
    code += "os.execv(sys.executable, [sys.executable, '-m', 'lockstep_runtime'])\n"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env, timeout=120
    )


@pytest.mark.parametrize("limits", [(), (DROP,), (DROP, FILTER)], ids=["as we are", "default caps", "seccomp"])
def test_E5_siblings_exchange_a_descriptor_without_sys_ptrace(limits: tuple[str, ...]) -> None:
    done = _report(*limits)
    assert done.returncode == 0, done.stderr
    assert "SCM_RIGHTS over a Unix socket: works between sibling processes" in done.stdout


def test_E5_a_refused_pidfd_getfd_is_said_loudly_with_its_reason_and_the_way_out() -> None:
    done = _report(DROP, FILTER)
    assert "pidfd_getfd: refused (pidfd_getfd: Operation not permitted; " in done.stdout
    assert "a seccomp filter is active" in done.stdout
    assert "CAP_SYS_PTRACE" in done.stdout
    if os.geteuid() == 0:
        assert "no CAP_SYS_PTRACE, " in done.stdout
    assert done.returncode == 0
