"""Stand-ins for wheels that no index serves, so that the resolver sees what they require before they exist.

A stand-in holds metadata and nothing else, lies in the resolver's temporary folder and is named by its address, so
that no index can put another file in its place. Nothing ever installs it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from lockstep.lock import LockedWheel


def write_stub(wheel: LockedWheel, requires: Iterable[str], folder: Path) -> str:
    """Write the stand-in of a wheel; return the requirement that names it by its address (PEP 508)."""
    name = wheel.name.replace("-", "_")
    info = f"{name}-{wheel.version}.dist-info"
    path = folder / f"{name}-{wheel.version}-py3-none-any.whl"
    metadata = ["Metadata-Version: 2.1", f"Name: {wheel.name}", f"Version: {wheel.version}"]
    metadata += [f"Requires-Dist: {text}" for text in requires]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "".join(f"{line}\n" for line in metadata))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{wheel.name} @ {path.as_uri()}"
