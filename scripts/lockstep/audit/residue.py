"""What a build leaves behind and an image must not carry (CASES D6, F2, C5)."""

from __future__ import annotations

import posixpath
import re

from lockstep.audit.finding import Finding
from lockstep.audit.tree import Tree
from lockstep.audit.venv import Venv

# D6: uv_cache.json and direct_url.json of a local wheel hold a time or a path of the machine that built it.
_NAMES = {
    "uv_cache.json": "uv's note about a local wheel, with a time in it",
    "uv_build.json": "uv's note about a build, with a path in it",
    ".rustc_info.json": "Rust build residue",
}
_FOLDERS = re.compile(r"(?:^|/)(?:\.cache/(?:pip|uv)|pip-ephem-wheel-cache-[^/]*|root/\.cache|\.uv_cache)/")
_INTERPRETER = re.compile(r"(?:^|/)bin/python[\d.]*$")


def check_residue(tree: Tree, venv: Venv, *, prefix: str = "/") -> list[Finding]:
    """Return residue inside a venv: installers' notes, caches, links out of it, scripts with a dead interpreter line.

    prefix is where the tree will be mounted, as an absolute path: "/" for a root file system or an image.
    """
    findings = []
    home = posixpath.join(prefix, venv.root).rstrip("/") or "/"
    scripts = posixpath.join(venv.root, "bin/")
    for path in tree.below(venv.root):
        entry = tree.entries[path]
        name = path.rpartition("/")[2]
        if entry.kind == "file" and name in _NAMES:
            findings.append(Finding("residue", "note", venv.name, path, f"is {_NAMES[name]}"))
        if "cache" in path and entry.kind == "file" and _FOLDERS.search(path):
            findings.append(Finding("residue", "cache", venv.name, path, "belongs to an installer's cache"))
        if entry.kind == "symlink" and not _INTERPRETER.search(path):
            target = posixpath.normpath(posixpath.join(prefix, posixpath.dirname(path), entry.target))
            if target != home and not target.startswith(f"{home}/"):
                what = f"links to {entry.target}, outside the venv"
                findings.append(Finding("residue", "link", venv.name, path, what, why="it dangles in the image"))
            elif target[len(posixpath.join(prefix, "")) :] not in tree.entries:
                findings.append(Finding("residue", "link", venv.name, path, f"links to {entry.target}: nothing there"))
        if path.startswith(scripts) and entry.kind in ("file", "hardlink"):
            findings += _shebang(tree, venv, path, home)
    return findings


def check_caches(tree: Tree) -> list[Finding]:
    """Return installers' caches anywhere in an image, one finding per cache folder."""
    found: dict[str, int] = {}
    for path, entry in tree.entries.items():
        match = _FOLDERS.search(path)
        if match and entry.kind == "file":
            found[path[: match.end() - 1]] = found.get(path[: match.end() - 1], 0) + entry.size
    return [
        Finding("residue", "cache", "", folder, f"is an installer's cache of {size:,} bytes")
        for folder, size in sorted(found.items())
    ]


def _shebang(tree: Tree, venv: Venv, path: str, home: str) -> list[Finding]:
    data = tree.texts.get(path)
    if data is None and tree.disk is not None:
        try:
            with (tree.disk / path).open("rb") as stream:
                data = stream.read(512)
        except OSError:
            data = None
    if not data or not data.startswith(b"#!"):
        return []
    words = data[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split()
    if not words or "python" not in words[0]:
        return []
    # A path too long for the kernel is written as `#!/bin/sh` + exec; that case starts with /bin/sh and ends above.
    inside = words[0].startswith(f"{home}/bin/python")
    moved = re.match(r"^/opt/venvs/[^/]+/bin/python", words[0]) and posixpath.basename(home) in words[0].split("/")
    if inside or moved or words[0] == "/usr/bin/env":
        return []
    what = f"starts with {words[0]}, which is not the venv's interpreter"
    return [
        Finding("residue", "shebang", venv.name, path, what, why="the venv was moved after its scripts were written")
    ]
