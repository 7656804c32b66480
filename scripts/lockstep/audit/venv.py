"""The venvs of a tree, their installed distributions, and which distribution owns which path."""

from __future__ import annotations

import binascii
import csv
import io
import posixpath
import re
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from lockstep.audit.tree import Tree

_SITE = re.compile(r"^(?P<root>.*?)/?lib/python(?P<python>3\.\d+)/site-packages$")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A line of a RECORD: sha256 in hex ("" where the wheel states none) and size in bytes (-1 where unstated)."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Dist:
    """An installed distribution. folder is its *.dist-info, files the paths of its RECORD relative to the tree."""

    name: str
    version: str
    folder: str
    requires: tuple[str, ...] = ()
    files: dict[str, Recorded] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return `name version`, as findings write it."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Venv:
    """A venv: its name, its root and site-packages relative to the tree, its Python (3.13) and what is installed."""

    name: str
    root: str
    site: str
    python: str
    dists: tuple[Dist, ...]

    def owners(self) -> dict[str, Dist]:
        """Return the distribution of every path that a RECORD lists; of two, the first by name."""
        owned: dict[str, Dist] = {}
        for dist in self.dists:
            for path in dist.files:
                owned.setdefault(path, dist)
        return owned

    def version_of(self, name: str) -> str:
        """Return the installed version of a distribution, or ""."""
        return next((dist.version for dist in self.dists if dist.name == name), "")


def find_venvs(tree: Tree, *, name: str = "", python: str = "3.13") -> list[Venv]:
    """Return the venvs of a tree, by name. A folder that itself holds *.dist-info counts as one (pip's --target)."""
    sites: dict[str, list[str]] = {}
    for path, entry in tree.entries.items():
        if entry.kind == "dir" and path.endswith(".dist-info"):
            sites.setdefault(posixpath.dirname(path), []).append(path)
    for path in tree.entries:
        # A venv without any distribution is still one: it has nothing to find, and must not be taken for the base.
        if path == "pyvenv.cfg" or path.endswith("/pyvenv.cfg"):
            root = posixpath.dirname(path)
            prefix = f"{root}/lib/python" if root else "lib/python"
            if not any(site.startswith(prefix) for site in sites):
                sites.setdefault(posixpath.join(root, f"lib/python{python}/site-packages"), [])
    found = []
    for site, folders in sites.items():
        match = _SITE.match(site)
        # dist-info folders deeper than a site-packages are vendored copies, not venvs.
        if match is None and site != "":
            continue
        root = match["root"] if match else ""
        if any(other != site and root.startswith(f"{other}/") for other in sites if other):
            continue
        found.append(
            Venv(
                name=name or posixpath.basename(root) or "venv",
                root=root,
                site=site,
                python=match["python"] if match else python,
                dists=tuple(read_dist(tree, site, folder) for folder in sorted(folders)),
            )
        )
    return sorted(found, key=lambda venv: venv.root)


def read_dist(tree: Tree, site: str, folder: str) -> Dist:
    """Return the distribution of a *.dist-info folder; what is missing or malformed in it is listed in `faults`."""
    faults = []
    base = posixpath.basename(folder).removesuffix(".dist-info")
    name, _, version = base.partition("-")
    metadata = tree.text(f"{folder}/METADATA")
    requires: tuple[str, ...] = ()
    if metadata is None:
        faults.append("has no METADATA")
    else:
        fields = header_fields(metadata)
        name, version = fields.get("name", [name])[0], fields.get("version", [version])[0]
        requires = tuple(fields.get("requires-dist", ()))
    record = tree.text(f"{folder}/RECORD")
    files: dict[str, Recorded] = {}
    if record is None:
        faults.append("has no RECORD")
    else:
        try:
            files = parse_record(record, site)
        except (csv.Error, ValueError):
            faults.append("has a malformed RECORD")
    return Dist(canonicalize_name(name), version, folder, requires, files, tuple(faults))


def header_fields(text: str) -> dict[str, list[str]]:
    """Return the header of a METADATA file: values by lower-case field name. The description below it is not read."""
    fields: dict[str, list[str]] = {}
    last: list[str] | None = None
    # Split as RFC 5322 does: a licence folded into the header may hold form feeds, and lines of spaces alone.
    for line in text.replace("\r\n", "\n").split("\n"):
        if not line:
            break
        if line[0] in " \t" and last:
            last[-1] = f"{last[-1]} {line.strip()}"
            continue
        key, colon, value = line.partition(":")
        if colon:
            last = fields.setdefault(key.strip().lower(), [])
            last.append(value.strip())
    return fields


def parse_record(text: str, site: str) -> dict[str, Recorded]:
    """Return the files of a RECORD by path relative to the tree. ValueError or csv.Error where it is malformed."""
    files = {}
    for row in csv.reader(io.StringIO(text)):
        if not row or not row[0]:
            continue
        if len(row) < 3:
            raise ValueError(row[0])
        path = f"{site}/{row[0]}" if site else row[0]
        # Only scripts and data lie outside site-packages, and normalising all of 60,000 paths takes a second.
        if "./" in path or "//" in path:
            path = posixpath.normpath(path).lstrip("/")
        kind, _, digest = row[1].partition("=")
        files[path] = Recorded(_hex(digest) if kind == "sha256" else "", int(row[2]) if row[2].isdigit() else -1)
    return files


def _hex(digest: str) -> str:
    """Turn RECORD's URL-safe base64 without padding (PEP 376) into hex."""
    try:
        return binascii.a2b_base64(digest.replace("-", "+").replace("_", "/") + "=" * (-len(digest) % 4)).hex()
    except (binascii.Error, ValueError):
        raise ValueError(digest) from None
