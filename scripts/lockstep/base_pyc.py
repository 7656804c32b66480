"""Bytecode of the base's standard library: an image is used read-only, so what is not compiled here is compiled anew by
every process that starts.

Debian compiles it when the package is installed, into bytes that differ from run to run; docker/build/pyc.py, which
also compiles the venvs, writes the same bytes every time. Bytecode does not depend on the processor, so the other
architecture's is compiled by this one's Python, at full speed.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from lockstep.arch import host_arch
from lockstep.errors import LockstepError
from lockstep.paths import DOCKER
from lockstep.run import run

COMPILER = DOCKER / "build" / "pyc.py"


def compile_stdlib(root_tar: Path, native_tar: Path, python: str, folder: Path) -> dict[str, bytes]:
    """Compile the standard library in `root_tar`; return the .pyc files by their path in the root.

    native_tar is a root of this machine's architecture with the same Python, which does the compiling; it may be
    root_tar itself. python is "3.13". folder is an empty folder to work in.
    """
    library = f"usr/lib/python{python}"
    # The compiler's Python runs from a root of its own, with the sources to compile at their final path, because the
    # path is in the bytecode. Of its own library the compiler uses what all architectures have alike.
    _extract(native_tar, folder, (f"usr/bin/python{python}", "usr/lib64", f"usr/lib/{host_arch().multiarch}"))
    _extract(root_tar, folder, (library,))
    (folder / "compile.py").write_bytes(COMPILER.read_bytes())
    become_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    run(
        [*become_root, "chroot", folder, f"/usr/bin/python{python}", "-B", "-s", "/compile.py", f"/{library}"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
    )
    made = {str(path.relative_to(folder)): path.read_bytes() for path in (folder / library).rglob("*.pyc")}
    if not made:
        raise LockstepError(f"no bytecode was made for /{library}")
    return made


def _extract(archive: Path, folder: Path, parts: tuple[str, ...]) -> None:
    """Extract the named files and folders, the links in the root that lead to them, and no bytecode."""
    with tarfile.open(archive) as stream:
        for member in stream:
            path = member.name.removeprefix("./")
            inside = path in parts or path.startswith(tuple(f"{part}/" for part in parts))
            if (inside or (member.issym() and "/" not in path)) and not path.endswith(".pyc"):
                member.name = path
                stream.extract(member, folder, filter="fully_trusted")
