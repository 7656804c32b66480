"""What an image holds, read from its layers: Python packages by venv, what is vendored inside them, Debian packages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from lockstep.ship.flatten import flatten
from lockstep.ship.source import Source
from lockstep.ship.tarstream import LINK, REGULAR, Entry, Writer

_METADATA = re.compile(rb"opt/venvs/([^/]+)/lib/python3\.\d+/site-packages/(?:(.+)/)?([^/]+\.dist-info)/METADATA\Z")
_LIBRARY = re.compile(rb"opt/venvs/([^/]+)/lib/python3\.\d+/site-packages/([^/]+\.libs)/([^/]+\.so[^/]*)\Z")
"""Where auditwheel puts the shared libraries that a wheel carries along (its `repair` command, WHEEL.libs)."""
_DPKG = re.compile(rb"var/lib/dpkg/(?:status\Z|status\.d/[^/]+\Z)")


@dataclass(frozen=True, order=True)
class PythonPackage:
    """An installed distribution, as its METADATA says. folder is where it is vendored, empty for an ordinary one."""

    venv: str
    name: str
    version: str
    folder: str = ""
    license: str = ""


@dataclass(frozen=True, order=True)
class DebianPackage:
    """An installed Debian package, as dpkg's status says."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True, order=True)
class VendoredLibrary:
    """A shared library that a wheel carries along, with the folder that it lies in."""

    venv: str
    folder: str
    file: str


@dataclass(frozen=True)
class Contents:
    """Everything found, each sorted."""

    python: list[PythonPackage]
    vendored: list[PythonPackage]
    debian: list[DebianPackage]
    libraries: list[VendoredLibrary]


@dataclass
class _Collector(Writer):
    """Takes the place of an archive: keeps the bytes of the members that were let through."""

    held: dict[bytes, list[bytes]] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)
    _open: list[bytes] = field(default_factory=list)

    def header(self, entry: Entry) -> None:
        self._open = []
        if entry.kind == LINK:
            self.held[entry.path] = self.held.get(entry.link, [])
            self.sizes[entry.path] = self.sizes.get(entry.link, 0)
        elif entry.kind == REGULAR:
            self.held[entry.path] = self._open
            self.sizes[entry.path] = entry.size

    def raw(self, data: bytes) -> None:
        self._open.append(data)

    def splice(self, source: int, count: int) -> int:
        return 0

    def finish(self) -> None:
        return None

    def body(self, path: bytes) -> str:
        return b"".join(self.held[path])[: self.sizes[path]].decode("utf-8", "replace")


def read(source: Source) -> Contents:
    """Read the layers of an image once and return what is installed in it."""
    collector = _Collector()
    libraries: set[VendoredLibrary] = set()

    def wanted(entry: Entry) -> bool:
        path = entry.path
        if path.endswith(b"/METADATA"):
            return _METADATA.match(path) is not None
        if b".libs/" in path and (match := _LIBRARY.match(path)) and entry.kind in {REGULAR, LINK}:
            libraries.add(VendoredLibrary(*(part.decode("utf-8", "replace") for part in match.groups())))
        return _DPKG.match(path) is not None

    flatten(source.layers, lambda: collector, change=wanted)
    python: list[PythonPackage] = []
    vendored: list[PythonPackage] = []
    debian: list[DebianPackage] = []
    for path in collector.held:
        match = _METADATA.match(path)
        if match is None:
            debian += _debian(collector.body(path))
            continue
        venv, folder = match[1].decode(), (match[2] or b"").decode("utf-8", "replace")
        package = _python(collector.body(path), venv, folder)
        (vendored if folder else python).append(package)
    return Contents(sorted(python), sorted(vendored), sorted(debian), sorted(libraries))


def _python(text: str, venv: str, folder: str) -> PythonPackage:
    headers = HeaderParser().parsestr(text)
    name = re.sub(r"[-_.]+", "-", str(headers.get("Name", ""))).lower()
    spdx = str(headers.get("License-Expression", "")).strip()
    return PythonPackage(venv, name, str(headers.get("Version", "")), folder, spdx)


def _debian(text: str) -> list[DebianPackage]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", block, re.MULTILINE))
        # A package that was removed keeps its record ("deinstall ok config-files"); status.d files have no Status.
        if "Package" in fields and fields.get("Status", "install ok installed").endswith(" installed"):
            found.append(DebianPackage(fields["Package"], fields["Version"], fields["Architecture"]))
    return found


def wheel_name(path: Path) -> str:
    """Return a wheel's distribution name from its file name, normalised."""
    return re.sub(r"[-_.]+", "-", path.name.partition("-")[0]).lower()
