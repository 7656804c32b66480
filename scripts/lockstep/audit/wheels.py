"""What a wheel would install and what it requires, read from where it lies; and from that, faults of a whole lock.

A wheel's central directory and METADATA lie at its end, so a card of a 500 MB wheel costs two range requests. Cards are
kept by the wheel's sha256 in the state folder, as a wheel never changes.
"""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from lockstep.arch import Arch
from lockstep.audit.finding import Finding
from lockstep.audit.metadata import Installed, check_metadata
from lockstep.audit.overlap import Overlap, check_overlap, overlaps
from lockstep.audit.run import Wanted
from lockstep.audit.venv import header_fields
from lockstep.errors import LockstepError
from lockstep.files import replacing, sha256_file
from lockstep.index import RemoteWheel, files_of, open_wheel
from lockstep.lock import LockedWheel
from lockstep.matrix import load
from lockstep.paths import WHEELS, state_dir

# What zipfile raises over damage: its own error, and those of an impossible offset, name, method or flag.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError, struct.error,
    OverflowError, lzma.LZMAError,
)  # fmt: skip
_FORMAT = 2
FIX = "download it again, or choose another version"
# Requests in flight: an index answers in tens of milliseconds, and a lock names some 200 wheels.
_PARALLEL = 12


@dataclass(frozen=True)
class Card:
    """A wheel in short. files maps the path it installs to `crc:size`; requires are its Requires-Dist lines."""

    name: str
    version: str
    files: Mapping[str, str]
    requires: tuple[str, ...]
    extras: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return `name version`."""
        return f"{self.name} {self.version}"

    def installed(self) -> Installed:
        """Return it as the metadata check takes it."""
        return Installed(self.name, self.version, self.requires)


def card_of(wheel: RemoteWheel | Path) -> Card:
    """Read a wheel's card from the wheel itself. LockstepError where it is no wheel."""
    filename = wheel.name if isinstance(wheel, Path) else wheel.filename
    try:
        with open_wheel(wheel) as archive:
            members = archive.infolist()
            text = _metadata(archive, filename)
    except DAMAGE as error:
        raise LockstepError(f"is not a sound wheel: {error}", where=filename, fix=FIX) from None
    fields = header_fields(text)
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except ValueError as error:
        raise LockstepError(f"is not a wheel: {error}", where=filename, fix=FIX) from None
    files = {
        target(item.filename): f"{item.CRC:08x}:{item.file_size}"
        for item in members
        if not item.is_dir() and not item.filename.split("/", 1)[0].endswith(".dist-info")
    }
    extras = tuple(sorted(canonicalize_name(extra) for extra in fields.get("provides-extra", ())))
    return Card(canonicalize_name(name), str(version), files, tuple(fields.get("requires-dist", ())), extras)


def _metadata(archive: zipfile.ZipFile, filename: str) -> str:
    names = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA")]
    if len(names) != 1:
        raise LockstepError(f"is not a wheel: it holds {len(names)} METADATA files", where=filename, fix=FIX)
    return archive.read(names[0]).decode("utf-8", "replace")


def target(member: str) -> str:
    """Return where a member is installed, relative to site-packages (wheel format: the .data folder is spread out)."""
    top, _, rest = member.partition("/")
    if not top.endswith(".data"):
        return member
    key, _, path = rest.partition("/")
    return (
        path
        if key in ("purelib", "platlib")
        else {"scripts": "../../../bin/", "data": "../../../"}.get(key, f"{key}/") + path
    )


def stored_path(wheel: LockedWheel) -> Path | None:
    """Return a locked wheel's file in the store of compiled and mirrored wheels, or None."""
    if wheel.filename and WHEELS.is_dir():
        for path in sorted(WHEELS.rglob(wheel.filename)):
            if not wheel.sha256 or sha256_file(path) == wheel.sha256:
                return path
    return None


def locate(wheel: LockedWheel) -> RemoteWheel | Path | None:
    """Return where a locked wheel can be read: in the store of compiled and mirrored wheels, or on the index.

    None of one that is not at hand: compiled or mirrored, and not made yet on this machine.
    """
    if path := stored_path(wheel):
        return path
    if wheel.origin != "index":
        return None
    for item in files_of(wheel.name, wheel.version):
        if item.filename == wheel.filename:
            if item.sha256 and item.sha256 != wheel.sha256:
                raise LockstepError(
                    "the index has other bytes under this name than the lock",
                    where=wheel.filename,
                    fix="run `make lock`",
                )
            return item
    raise LockstepError("is no longer on the index", where=wheel.filename, fix="mirror it, or lock another version")


def locked_cards(wheels: Sequence[LockedWheel]) -> list[Card]:
    """Return the cards of a lock's wheels, in their order; those not yet known are fetched, several at a time.

    One that is not at hand has an empty card: it counts as installed, and nothing is known about it.
    """
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(_locked_card, wheels))


def _locked_card(wheel: LockedWheel) -> Card:
    if not wheel.sha256:
        return _declared_card(wheel)
    note = state_dir() / "wheel-index" / f"{wheel.sha256}.v{_FORMAT}.json"
    try:
        data = json.loads(note.read_text("utf-8"))
        return Card(data["name"], data["version"], data["files"], tuple(data["requires"]), tuple(data["extras"]))
    except (OSError, ValueError, KeyError, TypeError):
        source = locate(wheel)
    if source is None:
        return Card(wheel.name, wheel.version, {}, ())
    card = card_of(source)
    if wheel.sha256:
        with replacing(note) as part:
            body = {"name": card.name, "version": card.version, "files": dict(card.files), "requires": card.requires}
            part.write_text(json.dumps({**body, "extras": card.extras}), encoding="utf-8")
    return card


def _declared_card(wheel: LockedWheel) -> Card:
    """Return what versions.yaml declares of a wheel that is compiled, or not mirrored yet: no files are known."""
    matrix = load()
    spec = matrix.compile.get(wheel.name) or matrix.mirror.get(wheel.name)
    return Card(wheel.name, wheel.version, {}, tuple(spec.requires) if spec else (), ())


def overlap_of_lock(wheels: Sequence[LockedWheel]) -> list[Overlap]:
    """Return the paths that two of the wheels write, from their central directories: equal CRC and size mean equal."""
    return overlaps((card.label, card.files) for card in locked_cards(wheels))


def check_lock(
    wheels: Sequence[LockedWheel], arch: Arch, python: str, *, backend: str = "", wanted: Wanted | None = None
) -> list[Finding]:
    """Return what is wrong with a lock before anything is downloaded: overlaps, and requirements that do not hold."""
    return check_cards(locked_cards(wheels), arch, python, backend=backend, wanted=wanted)


def check_cards(
    cards: Iterable[Card], arch: Arch, python: str, *, backend: str = "", wanted: Wanted | None = None
) -> list[Finding]:
    """Like check_lock, over cards."""
    known = list(cards)
    wanted = wanted or Wanted()
    installed = [card.installed() for card in known]
    return check_overlap([(card.label, card.files) for card in known], backend) + check_metadata(
        installed,
        arch,
        python,
        venv=backend,
        roots=wanted.requires,
        overrides=wanted.overrides,
        excluded=wanted.excluded,
    )
