"""Collect the licence texts of an image: what wheels and Debian packages carry, each text once.

Usage: licenses.py ROOT [OUT [NAME]]

ROOT is the root of the image's tree, or of what one layer adds to it. Written are OUT/NAME.json, which names for each
package its licence files, and OUT/texts/SHA256, the texts. OUT is ROOT/opt/lockstep/licenses and NAME is index where
they are not given; layers that each write their own NAME share the texts. The result depends on the tree alone: names
are sorted, and no time, owner or order of the disk gets into it. Needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from email.parser import HeaderParser
from pathlib import Path

# PEP 639 puts them into dist-info/licenses; wheels of before have them in dist-info itself, under these names.
LICENSE_FILE = re.compile(r"(?i)(licen[cs]e|copying|notice|copyright|authors|eula|third.?part)")
SITE = re.compile(r"opt/venvs/([^/]+)/lib/python3\.\d+/site-packages\Z")


@dataclass(frozen=True)
class Package:
    """One package and its licence files: paths below its dist-info, and the hash of each text."""

    kind: str
    name: str
    version: str
    license: str
    files: dict[str, str]


def python_packages(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (venv, dist-info folder) for every distribution in every venv, vendored ones too, in a fixed order."""
    for folder, names, _files in os.walk(root / "opt/venvs"):
        names.sort()
        site = Path(folder)
        for name in names:
            if name.endswith(".dist-info"):
                relative = site.relative_to(root).as_posix()
                match = SITE.match(relative.partition("/site-packages")[0] + "/site-packages")
                if match:
                    yield match[1], site / name


def license_files(info: Path) -> list[Path]:
    """Return the licence files of a dist-info folder, sorted."""
    inside = info / "licenses"
    found = [path for path in inside.rglob("*") if path.is_file()] if inside.is_dir() else []
    found += [path for path in info.iterdir() if path.is_file() and LICENSE_FILE.match(path.name)]
    return sorted(set(found))


def declared(info: Path) -> tuple[str, str, str]:
    """Return name, version and what METADATA says of the licence."""
    path = info / "METADATA"
    headers = HeaderParser().parsestr(path.read_text("utf-8", "replace") if path.is_file() else "")
    said = headers.get("License-Expression") or headers.get("License") or ""
    classifiers = [
        text.split(" :: ")[-1] for text in headers.get_all("Classifier", []) if text.startswith("License ::")
    ]
    # Some wheels put the whole text into the field; its first line says which it is.
    first = said.strip().splitlines()[0].strip() if said.strip() else "; ".join(sorted(classifiers))
    return headers.get("Name", info.name), headers.get("Version", ""), first


def collect(root: Path) -> tuple[list[dict[str, object]], dict[str, bytes]]:
    """Return the index and the texts by hash."""
    texts: dict[str, bytes] = {}

    def keep(path: Path) -> str:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        texts[digest] = data
        return digest

    found: dict[tuple[str, str, str, str], tuple[Package, set[str]]] = {}
    for venv, info in python_packages(root):
        name, version, said = declared(info)
        files = {path.relative_to(info).as_posix(): keep(path) for path in license_files(info)}
        key = ("python", name.lower().replace("_", "-"), version, json.dumps(files, sort_keys=True))
        found.setdefault(key, (Package("python", name, version, said, files), set()))[1].add(venv)
    for path in sorted((root / "usr/share/doc").glob("*/copyright")):
        # A documentation folder may be a link to another package's; the text is found through it all the same.
        target = Path(os.path.realpath(path)) if not path.is_symlink() else _inside(root, path)
        if target is not None and target.is_file():
            package = Package("debian", path.parent.name, "", "", {"copyright": keep(target)})
            found["debian", path.parent.name, "", ""] = (package, set())
    return [{**asdict(found[key][0]), "in": sorted(found[key][1])} for key in sorted(found)], texts


def _inside(root: Path, path: Path) -> Path | None:
    """Follow an absolute link as the image would, below `root`."""
    target = path.readlink()
    made = root / target.relative_to("/") if target.is_absolute() else path.parent / target
    return made if made.exists() else None


def main(arguments: list[str]) -> int:
    """Write the licence folder; return the exit code."""
    if not 1 <= len(arguments) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(arguments[0])
    out = Path(arguments[1]) if len(arguments) > 1 else root / "opt/lockstep/licenses"
    name = arguments[2] if len(arguments) > 2 else "index"
    packages, texts = collect(root)
    (out / "texts").mkdir(parents=True, exist_ok=True)
    for digest, data in texts.items():
        (out / "texts" / digest).write_bytes(data)
    index = json.dumps({"packages": packages}, indent=1, sort_keys=True, ensure_ascii=False)
    (out / f"{name}.json").write_text(index + "\n", "utf-8")
    without = sum(not each["files"] for each in packages)
    print(f"{len(packages)} packages, {len(texts)} licence texts, {without} packages without one")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
