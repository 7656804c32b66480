"""What the tests of locks, layers and rendering share: small matrices, small locks, and one index for them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import auditkit
from lockstep.arch import Arch
from lockstep.lock import Lock, LockedWheel
from lockstep.matrix import Matrix, parse

MATRIX = """
schema: 1
epoch: 1767225600
python: "3.13"
arches: [x86_64, aarch64]
bases:
  bootstrap: {suite: trixie, packages: [python3.13]}
lines:
  plain: {}
  pinned: {x: "1.0"}
"""


def matrix(backends: str, more: str = "", images: str = "  all: {backends: [a]}") -> Matrix:
    """Return a matrix with these backends and images (YAML below the keys) and `more` whole top-level keys."""
    return parse(f"{MATRIX}{more}\nbackends:\n{backends}\nimages:\n{images}\n", "versions.yaml")


def wheel(folder: Path, name: str, version: str, requires: Iterable[str] = (), tag: str = "py3-none-any") -> Path:
    """Build a wheel of a package that is nothing but its metadata and an empty module."""
    module = name.replace("-", "_")
    made = auditkit.wheel(folder, name, version, {f"{module}.py": b""}, list(requires))
    return made.rename(made.with_name(f"{module}-{version}-{tag}.whl"))


def locked(
    name: str, version: str = "1.0", size: int = 1000, origin: str = "index", built_for: str = ""
) -> LockedWheel:
    """Return a wheel as a lock has it; its hash follows from name and version."""
    if origin == "compile":
        return LockedWheel(name, version, "", "", 0, origin, built_for or "plain")
    digest = sha256(f"{name} {version}".encode()).hexdigest()
    return LockedWheel(name, version, f"{name.replace('-', '_')}-{version}-py3-none-any.whl", digest, size, origin)


def lock(backend: str, *wheels: LockedWheel, arch: Arch = Arch.X86_64, inputs: str = "0" * 16) -> Lock:
    """Return a lock of these wheels."""
    return Lock(backend, arch, inputs, tuple(sorted(wheels)))
