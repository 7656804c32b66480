"""The ABI of wheels that are not installed: does this extension fit that torch? (CASES A4)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.arch import Arch
from lockstep.audit.abi import Line, check_abi, lines_of
from lockstep.audit.base import trixie
from lockstep.audit.elf import MAGIC, Elf, ElfError, parse_elf
from lockstep.audit.finding import Finding
from lockstep.audit.layers import dump, load
from lockstep.audit.tree import Tree
from lockstep.audit.wheels import DAMAGE, FIX, target
from lockstep.errors import LockstepError
from lockstep.files import replacing
from lockstep.index import RemoteWheel, open_wheel
from lockstep.mirror.fetch import download
from lockstep.paths import state_dir

_FORMAT = 1


def wheel_elves(wheel: RemoteWheel | Path) -> Iterator[tuple[str, Elf | str]]:
    """Yield (path, tables, or what is wrong) of every ELF file in a wheel. Of a remote one, all of each is fetched.

    Each member is held in memory while it is parsed. LockstepError where the wheel is damaged.
    """
    filename = wheel.name if isinstance(wheel, Path) else wheel.filename
    try:
        with open_wheel(wheel) as archive:
            for item in archive.infolist():
                if item.is_dir() or not (".so" in item.filename or "." not in item.filename.rpartition("/")[2]):
                    continue
                data = archive.read(item)
                if data[:4] != MAGIC:
                    continue
                try:
                    yield target(item.filename), parse_elf(data)
                except ElfError as error:
                    yield target(item.filename), str(error)
    except DAMAGE as error:
        raise LockstepError(f"is not a sound wheel: {error}", where=filename, fix=FIX) from None


def objects_of(wheel: RemoteWheel | Path) -> Tree:
    """Return the ELF files of a wheel (elves and broken). A remote one is downloaded once; its tables are kept."""
    if isinstance(wheel, Path):
        return _objects(wheel)
    note = state_dir() / "wheel-index" / f"{wheel.sha256}.elf.v{_FORMAT}"
    if wheel.sha256 and note.is_file():
        try:
            return load(note.read_bytes())
        except ValueError:
            note.unlink(missing_ok=True)
    with TemporaryDirectory(dir="/var/tmp", prefix="lockstep-wheel-") as folder:
        part = Path(folder) / wheel.filename
        download(wheel, part, wheel.sha256)
        tree = _objects(part)
    if wheel.sha256:
        with replacing(note) as written:
            written.write_bytes(dump(tree))
    return tree


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
