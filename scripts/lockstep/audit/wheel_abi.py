"""The ABI of wheels that are not installed: does this extension fit that torch? (CASES A4)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.arch import Arch
from lockstep.audit.abi import Line, check_abi, lines_of
from lockstep.audit.base import trixie
from lockstep.audit.elf import MAGIC, Elf, ElfBuffer, ElfError
from lockstep.audit.finding import Finding
from lockstep.audit.layers import dump, load
from lockstep.audit.tree import TEXT, Tree
from lockstep.audit.wheels import DAMAGE, FIX, locate, stored_path, target
from lockstep.errors import LockstepError
from lockstep.files import replacing
from lockstep.index import RemoteWheel, open_wheel
from lockstep.lock import LockedWheel
from lockstep.mirror.fetch import download
from lockstep.paths import state_dir

_FORMAT = 1
_CHUNK = 1 << 20
# Downloads at a time: each waits for the network, and holds its wheel on disk.
_PARALLEL = 3


def wheel_elves(wheel: Path) -> Iterator[tuple[str, Elf | str]]:
    """Yield (path, tables or what is wrong) of every ELF file in a wheel on disk; LockstepError where it is damaged."""
    try:
        with open_wheel(wheel) as archive:
            for item in archive.infolist():
                if item.is_dir() or item.filename.endswith(TEXT):
                    continue
                with archive.open(item) as stream, ElfBuffer() as buffer:
                    piece = stream.read(_CHUNK)
                    if piece[:4] != MAGIC:
                        continue
                    while piece:
                        buffer.write(piece)
                        piece = stream.read(_CHUNK)
                    try:
                        yield target(item.filename), buffer.parse()
                    except ElfError as error:
                        yield target(item.filename), str(error)
    except DAMAGE as error:
        raise LockstepError(f"is not a sound wheel: {error}", where=wheel.name, fix=FIX) from None


def objects_of(wheel: RemoteWheel | Path) -> Tree:
    """Return the ELF files of a wheel (elves and broken). A remote one is downloaded once; its tables are kept."""
    if isinstance(wheel, Path):
        return _objects(wheel)
    known = _known(wheel.sha256)
    if known is not None:
        return known
    with TemporaryDirectory(dir="/var/tmp", prefix="lockstep-wheel-") as folder:
        part = Path(folder) / wheel.filename
        download(wheel, part, wheel.sha256)
        tree = _objects(part)
    if wheel.sha256:
        with replacing(_note(wheel.sha256)) as written:
            written.write_bytes(dump(tree))
    return tree


def _note(sha256: str) -> Path:
    return state_dir() / "wheel-index" / f"{sha256}.elf.v{_FORMAT}"


def _known(sha256: str) -> Tree | None:
    try:
        return load(_note(sha256).read_bytes()) if sha256 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _objects(wheel: Path) -> Tree:
    tree = Tree()
    for path, found in wheel_elves(wheel):
        if isinstance(found, Elf):
            tree.elves[path] = found
        else:
            tree.broken[path] = found
    return tree


def check_wheel_abi(
    wheel: RemoteWheel | Path,
    beside: Sequence[RemoteWheel | Path],
    arch: Arch,
    *,
    torch: str = "",
    others: Sequence[Line] = (),
) -> list[Finding]:
    """Return the abi findings of one wheel with only `beside` (its torch) installed next to it.

    Libraries of wheels that are not at hand are unknown, so a library that is not found is no finding here, and
    neither are the symbols that it may give; symbols of torch and Python are judged.
    """
    own = objects_of(wheel)
    objects = dict(own.elves)
    for item in beside:
        objects.update(objects_of(item).elves)
    label = "-".join((wheel.name if isinstance(wheel, Path) else wheel.filename).split("-")[:2])
    found = check_abi(objects, own.broken, trixie(arch), arch, owner=lambda path: label, torch=torch, others=others)
    return [item for item in found if item.path in own.elves.keys() | own.broken and item.kind in _JUDGED]


_JUDGED = ("damaged", "machine", "version", "undefined", "python")


def torch_line(wheel: RemoteWheel | Path, version: str) -> Line:
    """Return the symbols of a torch wheel, for the reason of another's findings."""
    return lines_of(objects_of(wheel).elves, f"torch {version}")


def _locked_objects(wheel: LockedWheel) -> Tree:
    known = _known(wheel.sha256)
    if known is not None:
        return known
    source = locate(wheel)
    return Tree() if source is None else objects_of(source)


def objects_at_hand(wheel: LockedWheel) -> Tree | None:
    """Return the ELF tables of a locked wheel where they are known or its file is here, else None; fetches nothing."""
    known = _known(wheel.sha256)
    if known is not None:
        return known
    path = stored_path(wheel)
    return _objects(path) if path else None


def lock_abi(
    wheels: Sequence[LockedWheel], arch: Arch, *, backend: str = "", python: str = "3.13"
) -> tuple[list[Finding], int]:
    """Return the abi findings that a lock's venv will have on the embedded base, and how many ELF files it holds.

    A wheel whose tables are not known yet is downloaded, one after another, and deleted again.
    """
    objects: dict[str, Elf] = {}
    broken: dict[str, str] = {}
    owners: dict[str, str] = {}
    with ThreadPoolExecutor(_PARALLEL) as pool:
        trees = list(pool.map(_locked_objects, wheels))
    for wheel, tree in zip(wheels, trees, strict=True):
        objects |= tree.elves
        broken |= tree.broken
        owners |= dict.fromkeys((*tree.elves, *tree.broken), f"{wheel.name} {wheel.version}")
    torch = next((wheel.version for wheel in wheels if wheel.name == "torch"), "")
    found = check_abi(
        objects, broken, trixie(arch), arch, venv=backend, owner=lambda path: owners[path], torch=torch, python=python
    )
    return found, len(objects) + len(broken)
