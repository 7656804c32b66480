"""Turn the archive that mmdebstrap writes into the base: nothing of the machine or the moment in it.

What is left is decided here alone, on tar members, so it is the same for every host and can be tested with small
archives. The result is written by this program, not by the host's tar, whose versions differ in their output.
"""

from __future__ import annotations

import copy
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError

# Paths are without the leading "./". Each rule says why what it matches cannot stay.
_DROP = re.compile(
    r"""
      (dev|proc|sys|run|tmp|var/tmp)/.+                  # made anew by every runtime
    | var/log/.+ | var/cache/.+                          # logs with dates; ld.so's aux-cache holds inode numbers
    | var/lib/apt/(lists|periodic|mirrors)/.+            # what the archive said at the time
    | var/lib/dpkg/(available|lock.*|triggers/Lock|.+-old|arch|updates/.+)
    | var/lib/dbus/machine-id | etc/hostname | etc/resolv\.conf | etc/\.pwd\.lock
    | etc/(passwd|group|shadow|gshadow|subuid|subgid)-   # shadow's backup copies
    | etc/apt/sources\.list | etc/apt/sources\.list\.d/.+ # the local repository of the locked packages
    | etc/(apt/apt\.conf\.d|dpkg/dpkg\.cfg\.d)/99mmdebstrap
    | (.*/)?__pycache__(/.*)? | .*\.pyc                  # bytes depend on what was compiled before it
    | usr/share/(man|info|locale|lintian|bug|doc-base|help|pixmaps|applications|menu)/.+
    | usr/bin/[^/]*lto-dump(-[0-9]+)?                    # 33 MB: shows gcc developers what an .lto file holds
    | usr/lib/python3[^/]*/config-[^/]+/[^/]+\.a         # 25 MB: static libpython, twice; programs link the shared one
    """,
    re.VERBOSE,
)
# Of a package's documentation only its licence stays: it is what lets the image be passed on.
_DOC = re.compile(r"usr/share/doc/[^/]+/(?!copyright$).+")


@dataclass(frozen=True)
class Installed:
    """A package that the archive's dpkg database calls installed."""

    name: str
    version: str
    arch: str


def kept(path: str) -> bool:
    """Return whether a path (without leading "./") stays in the base."""
    return not _DROP.fullmatch(path) and not _DOC.fullmatch(path)


def normalise(source: Path, target: Path, epoch: int, extra: Mapping[str, bytes] | None = None) -> list[Installed]:
    """Write `source`'s members to `target` without residue, sorted, with no time after `epoch` (seconds since 1970).

    extra holds files to add by their path; their folders are made too. Owners are numbers, names are left out; hard
    links stay hard links and file capabilities stay. Return what its dpkg database says is installed. LockstepError
    where a file that stays is a link to one that does not.
    """
    with tarfile.open(source) as archive, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as made:
        members = {_path(member.name): member for member in archive}
        members = {path: member for path, member in members.items() if kept(path)}
        for path, content in {**_written(archive), **(extra or {})}.items():
            members[path] = _file(path, content)
            parent = path.rpartition("/")[0]
            if parent not in members:
                members[parent] = _folder(parent)
        # By folder, so that a folder comes before what is in it whatever characters follow its name.
        for path in sorted(members, key=lambda path: path.split("/")):
            member = _clean(members[path], path, epoch)
            if member.islnk() and member.linkname not in members:
                raise LockstepError(f"{path} is a hard link to {member.linkname}, which does not stay in the base")
            if not member.isreg():
                made.addfile(member)
            elif isinstance(members[path], _Made):
                made.addfile(member, io.BytesIO(members[path].content))  # type: ignore[attr-defined]
            else:
                made.addfile(member, archive.extractfile(members[path]))
        return _installed(archive, members)


class _Made(tarfile.TarInfo):
    """A member that does not come from the archive."""

    content: bytes = b""


def _file(path: str, content: bytes) -> _Made:
    member = _Made(path)
    member.size = len(content)
    member.content = content
    return member


def _folder(path: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type = tarfile.DIRTYPE
    member.mode = 0o755
    return member


def _written(archive: tarfile.TarFile) -> dict[str, bytes]:
    # An empty machine-id is set at first boot or left alone (machine-id(5)); a missing one makes some programs fail.
    files = {"etc/machine-id": b""}
    # Debian's own example of its archive's addresses, from the locked apt package: where an image built FROM this one
    # gets packages. Taken from there so that it is neither the builder's mirror nor an address kept here.
    try:
        example = archive.extractfile("./usr/share/doc/apt/examples/debian.sources")
    except KeyError:
        return files  # a base without apt
    if example:
        files["etc/apt/sources.list.d/debian.sources"] = example.read()
    return files


def _path(name: str) -> str:
    return name.removeprefix("./").rstrip("/") or "."


def _clean(member: tarfile.TarInfo, path: str, epoch: int) -> tarfile.TarInfo:
    made = copy.copy(member)
    made.name = path
    made.uname = made.gname = ""
    made.mtime = min(int(member.mtime), epoch) if member.mtime else epoch
    if made.islnk():
        made.linkname = _path(member.linkname)
    # Of the extended headers only file capabilities and the like are content; times and sizes are written again.
    made.pax_headers = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
    return made


def _installed(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> list[Installed]:
    status = archive.extractfile(members["var/lib/dpkg/status"]) if "var/lib/dpkg/status" in members else None
    if status is None:
        raise LockstepError("mmdebstrap's archive holds no package database", where="var/lib/dpkg/status")
    found = []
    for stanza in status.read().decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] not in " \t")
        if fields.get("Status") == "install ok installed":
            found.append(Installed(fields["Package"], fields["Version"], fields["Architecture"]))
    return found
