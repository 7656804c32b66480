"""From layers to one tree, and what is wrong between them: bytes shipped twice, links, whiteouts (CASES F3, B10)."""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from typing import Any

from lockstep.audit.elf import MAGIC, Elf, ElfBuffer, ElfError
from lockstep.audit.finding import Finding
from lockstep.audit.oci import ImageSource, LayerBlob, check_size, layer_tar
from lockstep.audit.tree import Entry, Tree, keeps, not_elf
from lockstep.files import replacing
from lockstep.paths import state_dir

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
# Raised when what is kept of a layer changes, so that older notes are not read.
_FORMAT = 1
_CHUNK = 1 << 20
DUPLICATE = 1 << 20
"""Bytes from which a file that is shipped twice is a fault: below it, the layers' own overhead is as large."""


def scan_image(source: ImageSource, *, workers: int = 2, cache: bool = True) -> list[Tree]:
    """Return one tree per layer, bottom first. LockstepError where a layer is damaged."""
    jobs = [(source, layer, cache) for layer in source.layers]
    if workers < 2 or len(jobs) < 2:
        return [_scan(job) for job in jobs]
    # The largest first, so that the last worker does not start on it alone.
    order = sorted(range(len(jobs)), key=lambda number: -jobs[number][1].size)
    with ProcessPoolExecutor(workers) as pool:
        found = dict(zip(order, pool.map(_scan, [jobs[number] for number in order]), strict=True))
    return [found[number] for number in range(len(jobs))]


def _scan(job: tuple[ImageSource, LayerBlob, bool]) -> Tree:
    source, layer, cache = job
    note = state_dir() / "audit-cache" / f"{layer.digest.replace(':', '-')}.v{_FORMAT}"
    check_size(source, layer)
    if cache and note.is_file():
        try:
            return load(note.read_bytes())
        except (zlib.error, ValueError, KeyError, TypeError):
            note.unlink(missing_ok=True)
    with layer_tar(source, layer) as archive:
        tree = scan_tar(archive)
    if cache:
        with replacing(note) as part:
            part.write_bytes(dump(tree))
    return tree


def scan_tar(archive: tarfile.TarFile) -> Tree:
    """Return the tree of one layer's tar, every regular file hashed. Whiteouts are entries like any other."""
    tree = Tree()
    for member in archive:
        path = posixpath.normpath(member.name.lstrip("/"))
        if path in (".", ""):
            continue
        mode = member.mode & 0o7777
        if member.isdir():
            tree.entries[path] = Entry("dir", mode=mode)
        elif member.issym():
            tree.entries[path] = Entry("symlink", mode=mode, target=member.linkname)
        elif member.islnk():
            tree.entries[path] = Entry("hardlink", mode=mode, target=posixpath.normpath(member.linkname.lstrip("/")))
        elif member.isfile():
            _scan_member(archive, member, path, tree)
        else:
            tree.entries[path] = Entry("other", mode=mode)
    return tree


def _scan_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, tree: Tree) -> None:
    stream = archive.extractfile(member)
    assert stream is not None
    digest, kept, want = hashlib.sha256(), b"", keeps(path, member.mode)
    chunk = stream.read(_CHUNK)
    head = chunk[:4]
    with ElfBuffer() as buffer:
        while chunk:
            digest.update(chunk)
            if len(kept) < want:
                kept += chunk[: want - len(kept)]
            if head == MAGIC:
                buffer.write(chunk)
            chunk = stream.read(_CHUNK)
        if head == MAGIC:
            try:
                tree.elves[path] = buffer.parse()
            except ElfError as error:
                tree.broken[path] = str(error)
        elif fault := not_elf(posixpath.basename(path), head):
            tree.broken[path] = fault
    if want:
        tree.texts[path] = kept
    tree.entries[path] = Entry("file", member.size, member.mode & 0o7777, sha256=digest.hexdigest())


def merge(layers: Sequence[Tree]) -> Tree:
    """Return the tree that a container sees: upper names over lower ones, whiteouts applied (OCI image layers).

    A hard link takes over what is known of the file that it repeats.
    """
    whole = Tree()
    for number, layer in enumerate(layers):
        gone, opaque = _removed(layer)
        replaced = {
            path
            for path, entry in layer.entries.items()
            if entry.kind != "dir" and path in whole.entries and whole.entries[path].kind == "dir"
        }
        if gone or opaque or replaced:
            for path in _hit(whole, gone | replaced, opaque | replaced):
                _drop(whole, path)
        for path, entry in layer.entries.items():
            if posixpath.basename(path).startswith(_WHITEOUT):
                continue
            source, facts = path, entry
            if entry.kind == "hardlink":
                source = entry.target
                facts = layer.entries.get(source) or whole.entries.get(source) or entry
            _drop(whole, path)
            whole.entries[path] = Entry(entry.kind, facts.size, facts.mode, entry.target, facts.sha256, number)
            if source in layer.elves:
                whole.elves[path] = layer.elves[source]
            if source in layer.broken:
                whole.broken[path] = layer.broken[source]
            if source in layer.texts:
                whole.texts[path] = layer.texts[source]
    return whole


def _removed(layer: Tree) -> tuple[set[str], set[str]]:
    """Return the paths that a layer's whiteouts remove, and the folders whose lower content it hides."""
    gone, opaque = set(), set()
    for path in layer.entries:
        folder, name = posixpath.split(path)
        if name == _OPAQUE:
            opaque.add(folder)
        elif name.startswith(_WHITEOUT):
            gone.add(posixpath.join(folder, name.removeprefix(_WHITEOUT)))
    return gone, opaque


def _hit(tree: Tree, gone: set[str], opaque: set[str]) -> list[str]:
    """Return the paths of a tree that are in `gone`, or below one of them or of `opaque`."""
    found = []
    for path in tree.entries:
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if path in gone or any(folder in gone or folder in opaque for folder in above):
            found.append(path)
    return found


def _drop(tree: Tree, path: str) -> None:
    tree.entries.pop(path, None)
    tree.elves.pop(path, None)
    tree.broken.pop(path, None)
    tree.texts.pop(path, None)


def lint_layers(layers: Sequence[Tree], *, own_from: int = 0, threshold: int = DUPLICATE) -> list[Finding]:
    """Return what is wrong between layers; `own_from` is the first layer that is ours, below it lies a foreign base.

    Kinds: duplicate (a path with equal content in two layers, from `threshold` bytes), hardlink (to a file of another
    layer: enroot unpacks each alone), replaced (a folder that a link or file replaces), whiteout (a note, and a failure
    where it hides `threshold` bytes or more that the image still carries).
    """
    findings: list[Finding] = []
    twice: dict[tuple[int, int], list[tuple[int, str]]] = {}
    seen: dict[str, tuple[int, Entry]] = {}
    for number, layer in enumerate(layers):
        gone, opaque = _removed(layer)
        for path, entry in layer.entries.items():
            if posixpath.basename(path).startswith(_WHITEOUT):
                continue
            origin = layer.entries.get(entry.target) if entry.kind == "hardlink" else entry
            if number >= own_from:
                if entry.kind == "hardlink" and origin is None:
                    what = f"is a hard link to {entry.target} of another layer than its own ({number})"
                    why = "enroot and docker2aci unpack each layer by itself, and cannot make the link"
                    findings.append(Finding("layers", "hardlink", "", path, what, why=why))
                lower = seen.get(path)
                if lower and lower[1].kind == "dir" and entry.kind != "dir":
                    what = f"is a folder in layer {lower[0]} and a {entry.kind} in layer {number}"
                    why = "unpacking over the folder fails or loses what is in it"
                    findings.append(Finding("layers", "replaced", "", path, what, why=why))
                if lower and origin and lower[1].kind == "file" == origin.kind and origin.sha256 == lower[1].sha256:
                    twice.setdefault((lower[0], number), []).append((origin.size, path))
            if origin is not None:
                seen[path] = (number, origin)
        if number >= own_from:
            findings += _whiteouts(gone, opaque, seen, number, threshold)
    for (lower_number, upper), found in sorted(twice.items()):
        for size, path in sorted(found, reverse=True):
            if size < threshold:
                continue
            what = f"is in layers {lower_number} and {upper} with equal content, {size:,} bytes"
            why = "a chown, chmod or copy in a later step repeats the file: set owner and mode where it is first copied"
            findings.append(Finding("layers", "duplicate", "", path, what, why=why))
    return findings


def _whiteouts(
    gone: set[str], opaque: set[str], seen: dict[str, tuple[int, Entry]], number: int, threshold: int
) -> list[Finding]:
    if not gone and not opaque:
        return []
    hidden: dict[str, int] = dict.fromkeys((*gone, *opaque), 0)
    for path, (layer, entry) in seen.items():
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            above = "/".join(parts[:count])
            if layer < number and (above in gone or (above in opaque and count < len(parts))):
                hidden[above] += entry.size
                break
    findings = []
    for path, size in sorted(hidden.items()):
        what = f"is removed in layer {number}, and {size:,} bytes of it stay in the layers below"
        level = "fail" if size >= threshold else "note"
        findings.append(Finding("layers", "whiteout", "", path, what, level=level))  # type: ignore[arg-type]
    return findings


_ENTRY = tuple(item.name for item in fields(Entry))
_ELF = tuple(item.name for item in fields(Elf))


def dump(tree: Tree) -> bytes:
    """Return a tree as compressed JSON; `load` gives it back. What lies on disk is not in it."""
    data: dict[str, Any] = {
        "entries": {path: [getattr(entry, key) for key in _ENTRY] for path, entry in tree.entries.items()},
        "elves": {path: [getattr(elf, key) for key in _ELF] for path, elf in tree.elves.items()},
        "broken": tree.broken,
        "texts": {path: text.decode("latin-1") for path, text in tree.texts.items()},
    }
    return zlib.compress(json.dumps(data).encode("utf-8", "surrogatepass"), 1)


def load(data: bytes) -> Tree:
    """Return the tree of such notes; ValueError, KeyError or TypeError where they are damaged."""
    try:
        raw = json.loads(zlib.decompress(data))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return Tree(
        entries={path: Entry(*values) for path, values in raw["entries"].items()},
        elves={path: _elf(values) for path, values in raw["elves"].items()},
        broken=raw["broken"],
        texts={path: text.encode("latin-1") for path, text in raw["texts"].items()},
    )


def _elf(values: list[Any]) -> Elf:
    machine, dynamic, soname, interp, needed, runpath, undefined, defined, wants, gives = values
    return Elf(
        machine, dynamic, soname, interp, tuple(needed), runpath,
        tuple((name, version) for name, version in undefined), defined,
        tuple((file, version) for file, version in wants), tuple(gives),
    )  # fmt: skip
