"""Were two builds of one wheel the same, and if not, what differed: kept beside the wheel, so that nobody guesses."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Annotated

import lief
from pydantic import BaseModel, ConfigDict, Field

from lockstep.files import sha256_file, write_text

LEDGER = "ledger.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ObjectRecord(_Model):
    """One shared object of a wheel: the hash of its bytes and of each ELF section."""

    sha256: str
    sections: dict[str, str]


class BuildRecord(_Model):
    """One build of a wheel."""

    wheel: str
    sha256: str
    members: Annotated[dict[str, str], Field(description="SHA-256 of every member that is not a shared object")]
    objects: dict[str, ObjectRecord]


class Difference(_Model):
    """A member that differs between two builds; `sections` names the ELF sections of a shared object."""

    member: str
    sections: list[str] = []


class Ledger(_Model):
    """The last build of a key and the one before it, from cold, with what differed between the two."""

    builds: list[BuildRecord]
    equal: bool | None
    differences: list[Difference]


def record(wheel: Path) -> BuildRecord:
    """Hash a wheel, its members, and the sections of its shared objects."""
    members: dict[str, str] = {}
    objects: dict[str, ObjectRecord] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            data = archive.read(name)
            if data[:4] == b"\x7fELF":
                objects[name] = ObjectRecord(sha256=hashlib.sha256(data).hexdigest(), sections=_sections(data))
            else:
                members[name] = hashlib.sha256(data).hexdigest()
    return BuildRecord(wheel=wheel.name, sha256=sha256_file(wheel), members=members, objects=objects)


def _sections(data: bytes) -> dict[str, str]:
    binary = lief.ELF.parse(list(data))
    if binary is None:
        return {}
    return {
        str(section.name): hashlib.sha256(bytes(section.content)).hexdigest()
        for section in binary.sections
        if section.name
    }


def compare(first: BuildRecord, second: BuildRecord) -> list[Difference]:
    """Return what differs between two builds, by member; RECORD is left out where anything else differs."""
    found = []
    for name in sorted({*first.objects, *second.objects}):
        one, two = first.objects.get(name), second.objects.get(name)
        if one is None or two is None:
            found.append(Difference(member=name))
        elif one.sha256 != two.sha256:
            names = {*one.sections, *two.sections}
            different = sorted(item for item in names if one.sections.get(item) != two.sections.get(item))
            found.append(Difference(member=name, sections=different or ["(outside of sections)"]))
    for name in sorted({*first.members, *second.members}):
        if first.members.get(name) != second.members.get(name):
            found.append(Difference(member=name))
    real = [item for item in found if not item.member.endswith(".dist-info/RECORD")]
    if not real and first.sha256 != second.sha256 and not found:
        return [Difference(member="(the archive itself)")]
    return real or found


def enter(folder: Path, wheel: Path, before: BuildRecord | None) -> Ledger:
    """Write the ledger of a build into its folder; `before` is an earlier build of the same key, if there was one."""
    now = record(wheel)
    differences = compare(before, now) if before else []
    ledger = Ledger(
        builds=[before, now] if before else [now], equal=(not differences) if before else None, differences=differences
    )
    write_text(folder / LEDGER, ledger.model_dump_json(indent=1) + "\n")
    return ledger


def read(folder: Path) -> Ledger | None:
    """Return the ledger of a folder, or None where there is none."""
    path = folder / LEDGER
    return Ledger.model_validate_json(path.read_text()) if path.is_file() else None


def sentence(ledger: Ledger) -> str:
    """Return what a ledger says in one line."""
    if ledger.equal is None:
        return "built once; nothing to compare with"
    if ledger.equal:
        return f"two builds, equal bytes ({len(ledger.builds[-1].objects)} shared objects)"
    parts = [
        f"{item.member} ({', '.join(item.sections)})" if item.sections else item.member for item in ledger.differences
    ]
    return f"two builds differ in {'; '.join(parts[:5])}"
