"""Compile a venv's bytecode, taking from earlier builds what they compiled of the same sources.

Compiling is the longest work of a stage and its result depends on nothing but sources, paths and compiler, so it is
kept in a cache mount beside the wheels. A pack holds the bytecode of one top folder of site-packages; its name is a
hash of what went in: compiler, interpreter, and path and content of each source. Names of wheels or versions are no
part of it, so patched and compiled wheels are served like any other, and a changed file can never meet old bytecode.

Nothing here decides what the bytes are, that is pyc.py's. `make repro` builds with the secret FRESH, which is no part
of a layer's cache key: then packs are neither read nor written.
"""

from __future__ import annotations

import _imp
import hashlib
import importlib._bootstrap_external as external
import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyc

PACKS = Path("/var/cache/bytecode")
FRESH = Path("/run/secrets/fresh-bytecode")
_UNUSED_DAYS = 30
_OURS = ("pyc", "bytecode", "install", "licenses", "stored")
# What a .pyc starts with, before the hash of its source: the magic number and the flags "by hash" and "checked".
_HEAD = importlib.util.MAGIC_NUMBER + b"\3\0\0\0"


@dataclass(frozen=True)
class _Group:
    """Sources that lack bytecode, the name of their pack, and of each source the hash that a .pyc holds (PEP 552)."""

    name: str
    sources: tuple[str, ...]
    hashes: tuple[bytes, ...]


def compile_tree(root: Path, packs: Path = PACKS) -> tuple[int, int]:
    """Give every .py below `root` its .pyc; return how many packs were used and how many were made.

    packs: the folder of packs; where it is not there, or FRESH is, everything is compiled. A pack that is damaged or
    half-written is removed and made again; one that cannot be written is done without.
    """
    if FRESH.exists() or not packs.is_dir():
        pyc.compile_tree(root)
        return 0, 0
    groups = _groups(root)
    missing = [group for group in groups if not _unpack(packs / group.name, group)]
    if missing:
        pyc.compile_tree(root)
        for group in missing:
            _pack(packs / group.name, group)
        _prune(packs)
    return len(groups) - len(missing), len(missing)


def _groups(root: Path) -> list[_Group]:
    """Return the sources that have no .pyc by their top folder of site-packages, in a fixed order."""
    tops: dict[str, list[str]] = {}
    for folder, names, files in os.walk(root):
        names.sort()
        tail = folder.partition("/site-packages/")[2]
        for name in sorted(files):
            path = f"{folder}/{name}"
            if name.endswith(".py") and not os.path.islink(path) and not _exists(_target(path)):  # noqa: PTH114
                tops.setdefault(tail.partition("/")[0] or name, []).append(path)
    compiler = _compiler()
    groups = []
    for sources in tops.values():
        key = hashlib.sha256(compiler)
        hashes = []
        for source in sources:
            with open(source, "rb") as stream:  # noqa: PTH123 - several times faster over tens of thousands of files
                data = stream.read()
            key.update(f"{source}\0{hashlib.sha256(data).hexdigest()}\n".encode())
            hashes.append(_imp.source_hash(external._RAW_MAGIC_NUMBER, data))
        groups.append(_Group(key.hexdigest(), tuple(sources), tuple(hashes)))
    return groups


def _compiler() -> bytes:
    """Return a hash of all that decides what a source's bytecode is, but for the source: this program and Python."""
    whole = hashlib.sha256(sys.version.encode())
    # Whatever install.py imports, too: what the compiling process holds can show in the bytes (pyc.py).
    for path in (Path(sys.executable), *(Path(__file__).with_name(f"{name}.py") for name in _OURS)):
        if path.is_file():  # stored.py is there in stages that need it
            whole.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.digest()


def _unpack(pack: Path, group: _Group) -> bool:
    """Write a group's .pyc from its pack; return False where there is none that is whole and of these sources."""
    try:
        os.utime(pack)  # a pack that is used is kept; first, since another stage may remove it as old meanwhile
        data = memoryview(pack.read_bytes())
    except OSError:
        return False
    try:
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            raise ValueError("damaged")
        length = int.from_bytes(data[32:40], "little")
        sizes = json.loads(bytes(data[40 : 40 + length]))
        start, parts = 40 + length, []
        for source, hashed, size in zip(group.sources, group.hashes, sizes, strict=True):
            part = data[start : start + size]
            if size and part[:16] != _HEAD + hashed:
                raise ValueError(f"not the bytecode of {source}")
            start += size
            parts.append(part)
    except (ValueError, TypeError):
        pack.unlink(missing_ok=True)
        return False
    for source, part in zip(group.sources, parts, strict=True):
        target = _target(source)
        _folder(target)  # pyc.py makes it for every source, also where none of a folder's parses
        if part:  # what does not parse has none
            with open(target, "wb") as stream:  # noqa: PTH123
                stream.write(part)
    return True


def _pack(pack: Path, group: _Group) -> None:
    """Write a group's pack under a temporary name and rename it; a cache that is full loses no image."""
    made = [_read(_target(source)) for source in group.sources]
    index = json.dumps([len(data) for data in made]).encode()
    body = b"".join((len(index).to_bytes(8, "little"), index, *made))
    part = pack.with_name(f".{pack.name}.{os.urandom(8).hex()}.part")  # process ids repeat from stage to stage
    try:
        with part.open("wb") as stream:
            stream.write(hashlib.sha256(body).digest())
            stream.write(body)
        part.rename(pack)
    except OSError as error:
        part.unlink(missing_ok=True)
        print(f"note: bytecode is not kept for the next build: {error}", file=sys.stderr)


def _prune(packs: Path) -> None:
    """Remove what no build has used for a month, and what a killed one left half-written."""
    now = time.time()
    with os.scandir(packs) as entries:
        for entry in entries:
            days = 1 if entry.name.endswith(".part") else _UNUSED_DAYS
            try:
                if now - entry.stat().st_mtime > days * 86400:
                    os.unlink(entry)  # noqa: PTH108
            except OSError:  # another stage was first, or it cannot be removed: it is only a cache
                continue


def _target(source: str) -> str:
    return importlib.util.cache_from_source(source)


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def _folder(target: str) -> None:
    try:
        os.mkdir(target.rpartition("/")[0])  # noqa: PTH102
    except FileExistsError:
        return


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            return stream.read()
    except FileNotFoundError:
        return b""
