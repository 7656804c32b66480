"""What is on disk against what the RECORDs say; files of nobody; distributions inside distributions (CASES A3, C4)."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator

from lockstep.audit.finding import Finding
from lockstep.audit.tree import Tree
from lockstep.audit.venv import Dist, Venv, header_fields

# What makes a venv rather than comes out of a wheel (venv of CPython 3.13, uv venv), relative to its root.
_VENV_FILES = re.compile(
    r"^(?:pyvenv\.cfg|\.gitignore|\.lock|CACHEDIR\.TAG|lib64"
    r"|bin/(?:activate(?:\.\w+|_this\.py)?|Activate\.ps1|deactivate\.bat|pydoc\.bat|python[\d.]*)"
    r"|lib/python3\.\d+/site-packages/(?:_virtualenv\.(?:py|pth)|__pycache__/_virtualenv\.[\w.-]+))$"
)
# Written by an installer after the wheel's RECORD was made, or left out of it (PEP 376, PEP 610).
_INSTALLER = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "RECORD.jws", "RECORD.p7s"}
_PYC = re.compile(r"^(?P<folder>.*?)__pycache__/(?P<stem>[^/]+?)\.cpython-3\d+(?:\.opt-\d)?\.pyc$")
_NESTED = re.compile(r"(?:^|/)(?P<name>[^/]+?)(?:\.dist-info|\.egg-info)(?:$|/)")
PATCHES = "opt/lockstep/patches.json"
"""The record that the patch step leaves in an image: what it changed, where, and the hash afterwards."""


def check_integrity(tree: Tree, venv: Venv, *, hashed: bool = True) -> list[Finding]:
    """Return missing, changed and unowned files of a venv. hashed=False compares sizes only."""
    findings: list[Finding] = []
    patched = patched_files(tree)
    for dist in venv.dists:
        findings += [
            Finding("integrity", "damaged", venv.name, dist.folder, fault, dist.label) for fault in dist.faults
        ]
        findings += _against_record(tree, venv, dist, patched, hashed)
    owned = venv.owners()
    unowned: dict[str, list[str]] = {}
    for path in tree.below(venv.root):
        entry = tree.entries[path]
        if entry.kind == "dir" or path in owned or _expected(path, venv, tree, owned):
            continue
        unowned.setdefault(posixpath.dirname(path), []).append(path)
    for folder, paths in sorted(unowned.items()):
        what = f"{len(paths)} files that no wheel owns" if len(paths) > 1 else "belongs to no wheel"
        where = folder if len(paths) > 1 else paths[0]
        findings.append(Finding("integrity", "unowned", venv.name, where, what, why="left by a build step or by hand"))
    return findings


def _against_record(tree: Tree, venv: Venv, dist: Dist, patched: dict[str, str], hashed: bool) -> Iterator[Finding]:
    for path, recorded in dist.files.items():
        entry = tree.entries.get(path)
        if entry is None:
            if not path.endswith(".pyc"):
                yield Finding("integrity", "missing", venv.name, path, "is in the RECORD and not on disk", dist.label)
            continue
        if path.endswith(".pyc") or entry.kind not in ("file", "hardlink"):
            continue
        if hashed and entry.sha256 and recorded.sha256:
            differs = entry.sha256 != recorded.sha256
        else:
            differs = recorded.size >= 0 and entry.size != recorded.size
        if not differs:
            continue
        if patched.get(path, "-") in (entry.sha256, ""):
            what = "differs from the RECORD, as patched"
            yield Finding("integrity", "patched", venv.name, path, what, dist.label, level="note")
        else:
            why = "another wheel or a build step wrote over it"
            yield Finding("integrity", "changed", venv.name, path, "differs from the RECORD", dist.label, why=why)


def _expected(path: str, venv: Venv, tree: Tree, owned: dict[str, Dist]) -> bool:
    """Tell whether a path needs no owner: the venv's own files, bytecode of an owned source, an installer's notes."""
    inside = path[len(venv.root) + 1 :] if venv.root else path
    if _VENV_FILES.match(inside):
        return True
    folder, name = posixpath.split(path)
    if name in _INSTALLER and folder.endswith(".dist-info"):
        return True
    match = _PYC.match(path)
    return match is not None and f"{match['folder']}{match['stem']}.py" in owned


def patched_files(tree: Tree) -> dict[str, str]:
    """Return {path: sha256 after patching, "" where unknown} from the image's own record; empty where there is none."""
    text = tree.text(PATCHES)
    if text is None:
        return {}
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return {}
    found: dict[str, str] = {}
    todo = [data]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            path = item.get("path") or item.get("file")
            if isinstance(path, str):
                digest = item.get("sha256_after") or item.get("after") or item.get("sha256") or ""
                found[path.lstrip("/")] = digest if isinstance(digest, str) else ""
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return found


def check_vendored(tree: Tree, venv: Venv) -> list[Finding]:
    """Return every distribution that lies inside another one's package, with name and version.

    A scanner counts them as installed, and no resolver ever moves them, so each needs a waiver that names its path.
    """
    owned = venv.owners()
    findings: dict[str, Finding] = {}
    for path in tree.below(venv.site):
        inside = path[len(venv.site) + 1 :] if venv.site else path
        match = _NESTED.search(inside) if "-info" in inside else None
        if match is None or "/" not in inside[: match.end("name")]:
            continue
        end = len(path) - len(inside) + match.end("name")
        folder = path[: path.index("-info", end) + len("-info")]
        if folder in findings:
            continue
        fields = header_fields(tree.text(f"{folder}/METADATA") or tree.text(f"{folder}/PKG-INFO") or "")
        name, _, version = match["name"].partition("-")
        name, version = fields.get("name", [name])[0], fields.get("version", [version or "of unknown version"])[0]
        dist = owned.get(f"{folder}/METADATA") or owned.get(f"{folder}/PKG-INFO") or owned.get(path)
        what = f"vendors {name} {version}"
        findings[folder] = Finding(
            "vendored", "vendored", venv.name, folder, what, dist.label if dist else "", why="no lock moves it"
        )
    return [findings[folder] for folder in sorted(findings)]
