"""Let this machine run the other architecture's programs, by emulation.

Needed to make that architecture's base (packages run scripts when they are installed) and to probe its images; the
assembling of images needs no emulation.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from lockstep.arch import Arch, host_arch
from lockstep.console import note
from lockstep.debian import is_debian_like
from lockstep.debs import apt_state, download_newest
from lockstep.errors import LockstepError
from lockstep.files import replacing
from lockstep.paths import state_dir
from lockstep.run import run

_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_SUITE = "trixie"  # its qemu-user holds static programs, which need nothing of the host


def ensure_binfmt(arch: Arch) -> None:
    """Have the kernel run programs of `arch` through qemu, in every root file system, until the next reboot.

    A registration that is there is used. Otherwise root on Debian or Ubuntu gets one with qemu from Debian's package,
    kept in state_dir()/emulator; no package is installed on the host. LockstepError where that cannot be.
    """
    if arch is host_arch() or is_registered(arch):
        return
    fix = f"register one (on Debian or Ubuntu: apt-get install qemu-user-static), or do this step on a {arch} machine"
    if os.geteuid() != 0 or not is_debian_like():
        raise LockstepError(f"this machine has no emulator for {arch} programs", fix=fix)
    program = state_dir() / "emulator" / f"qemu-{arch}"
    if not program.is_file():
        _fetch(arch, program)
    if not (_BINFMT / "register").exists():
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT], fix=fix)
        if is_registered(arch):
            return
    try:
        (_BINFMT / "register").write_bytes(registration(arch, program))
    except OSError as error:
        raise LockstepError(
            f"the kernel refused an emulator for {arch} ({error.strerror})", where=str(_BINFMT), fix=fix
        ) from None
    note(f"{arch} programs run through qemu on this machine until it is restarted")


def is_registered(arch: Arch) -> bool:
    """Return whether the kernel has an enabled interpreter for `arch` that works inside a chroot or container too."""
    if not _BINFMT.is_dir():
        return False
    for entry in _BINFMT.iterdir():
        if entry.name in ("register", "status"):
            continue
        try:
            words = dict(line.partition(" ")[::2] for line in entry.read_text().splitlines())
        except OSError:
            continue  # removed in the meantime
        # Flag F: the kernel opened the program when it was registered, so it need not lie in the root it is used in.
        if "enabled" in words and "F" in words.get("flags:", "") and words.get("magic", "") == _magic(arch).hex():
            return True
    return False


def _magic(arch: Arch) -> bytes:
    """Return the start of an ELF program: 64 bits, little-endian, e_type 2 (executable), and the machine (elf.h)."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + arch.elf_machine.to_bytes(2, "little")


def registration(arch: Arch, program: Path) -> bytes:
    """Return the line for the kernel's binfmt_misc (admin-guide/binfmt-misc.rst).

    The mask lets the OS ABI byte be anything and e_type be 2 or 3 (a position-independent executable). Flags: F opens
    the program now, C takes the credentials of the program that is run, so that setuid programs work.
    """
    mask = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    escaped = ["".join(f"\\x{byte:02x}" for byte in data) for data in (_magic(arch), mask)]
    return f":lockstep-{arch}:M::{escaped[0]}:{escaped[1]}:{program}:CF".encode()


def _fetch(arch: Arch, program: Path) -> None:
    began = time.monotonic()
    note(f"fetching qemu for {arch} programs (once, 71 MB)")
    with tempfile.TemporaryDirectory(prefix="lockstep-qemu-") as folder, apt_state(_SUITE, host_arch()) as state:
        package = download_newest("qemu-user", state, Path(folder))
        with replacing(program) as part, part.open("wb") as stream:
            unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
            pick = ["tar", "-x", "--to-stdout", f"./usr/bin/qemu-{arch}"]
            picked = subprocess.run(pick, stdin=unpack.stdout, stdout=stream, stderr=subprocess.DEVNULL, check=False)
            assert unpack.stdout is not None
            unpack.stdout.close()
            unpack.wait()
            if picked.returncode or not stream.tell():
                raise LockstepError(f"Debian's qemu-user holds no qemu-{arch}", where=package.name)
            part.chmod(0o755)
    note(f"fetched qemu in {time.monotonic() - began:.0f} s")
