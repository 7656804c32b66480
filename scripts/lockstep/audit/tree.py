"""The files of what is audited, whether they lie in a folder or in an image's layers: names, hashes, ELF tables."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from lockstep.audit.elf import MAGIC, Elf, ElfError, parse_elf, read_elf
from lockstep.errors import LockstepError

Kind = Literal["file", "dir", "symlink", "hardlink", "other"]

TEXT = (".py", ".pyc", ".pyi", ".h", ".hpp", ".cuh", ".inc", ".txt", ".json", ".md", ".html", ".js", ".css", ".cu")
"""Never an ELF file, and most of a venv's files: not opened unless they are hashed."""

_KEPT = {"RECORD", "METADATA", "PKG-INFO", "pyvenv.cfg", "uv_cache.json", "direct_url.json", "os-release", "status"}
# A longer script is read no further than its first line needs.
_HEAD = 512
_KEPT_LIMIT = 16 << 20
_NOT_FILES = {"proc", "sys", "dev", "run"}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One name. size is in bytes; target is a symlink's text or the path that a hard link repeats; sha256 is in hex,
    empty where nobody asked for it; layer counts from 0 at the bottom, and is 0 outside images."""

    kind: Kind
    size: int = 0
    mode: int = 0
    target: str = ""
    sha256: str = ""
    layer: int = 0


@dataclass
class Tree:
    """Files by their path relative to the root, without a leading slash.

    elves holds what parsed, broken what did not with the reason. texts holds the few files whose content a check
    needs; of a folder on disk (`disk`), text() reads others as they are asked for.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    elves: dict[str, Elf] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    disk: Path | None = None

    def text(self, path: str) -> str | None:
        """Return a file's text, or None where there is none or it was not kept."""
        data = self.texts.get(path)
        if data is None and self.disk is not None and path in self.entries:
            try:
                data = (self.disk / path).read_bytes()
            except OSError:
                return None
        return None if data is None else data.decode("utf-8", "replace")

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths inside a folder; "" is the root."""
        prefix = f"{folder}/" if folder else ""
        return (path for path in self.entries if path.startswith(prefix))


def keeps(path: str, mode: int) -> int:
    """Return how many bytes of a file the checks may need (0 for none), by its path and mode."""
    pure = PurePosixPath(path)
    if path.startswith("opt/lockstep/") or (pure.name in _KEPT and (pure.name != "status" or "dpkg" in pure.parts)):
        return _KEPT_LIMIT
    return _HEAD if pure.parent.name == "bin" and mode & 0o111 else 0


# A file's name for open(), its path in the tree, its size, and whether to hash it.
_Job = tuple[str, str, int, bool]


def scan_folder(root: Path, *, hashed: Callable[[str], bool], workers: int = 2) -> Tree:
    """Return the tree of a folder. `hashed` says, by path, which files need a SHA-256.

    Nothing is executed and no symlink is followed. LockstepError where the folder cannot be read.
    """
    if not root.is_dir():
        raise LockstepError("is no folder", where=str(root), fix="name a venv, a root file system or an OCI layout")
    tree = Tree(disk=root)
    small: list[_Job] = []
    with ProcessPoolExecutor(workers) as pool:
        results = []
        for path, entry in _walk(root):
            tree.entries[path] = entry
            if entry.kind != "file":
                continue
            want = hashed(path)
            if not want and path.endswith(TEXT):
                continue
            job = (f"{root}/{path}", path, entry.size, want)
            # Big files go out alone and at once, while the walk goes on: one library may hold a sixth of a venv.
            if entry.size >= _CHUNK:
                results.append(pool.submit(_read_files, [job]))
            else:
                small.append(job)
        step = len(small) // (workers * 8) + 1
        if workers > 1 and len(small) > 200:
            small.sort(key=lambda job: -job[2])
            results += [pool.submit(_read_files, small[at : at + step]) for at in range(0, len(small), step)]
            small = []
        found = [_read_files(small), *(result.result() for result in results)]
    for path, sha256, elf, fault in (item for chunk in found for item in chunk):
        if sha256:
            entry = tree.entries[path]
            tree.entries[path] = Entry(entry.kind, entry.size, entry.mode, entry.target, sha256)
        if elf is not None:
            tree.elves[path] = elf
        if fault:
            tree.broken[path] = fault
    return tree


def _walk(root: Path) -> Iterator[tuple[str, Entry]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            found = sorted(_entries(root, folder), key=lambda pair: pair[0])
        except FileNotFoundError:
            raise LockstepError(
                "changes while it is read", where=str(root / folder), fix="wait until nothing writes to it"
            ) from None
        except OSError as error:
            raise LockstepError(
                f"cannot be read ({error.strerror})", where=str(root / folder), fix="audit it as its owner"
            ) from None
        for path, entry in found:
            yield path, entry
            if entry.kind == "dir" and path not in _NOT_FILES:
                folders.append(path)


def _entries(root: Path, folder: str) -> Iterator[tuple[str, Entry]]:
    for item in os.scandir(root / folder):
        path = f"{folder}/{item.name}" if folder else item.name
        facts = item.stat(follow_symlinks=False)
        mode = facts.st_mode & 0o7777
        if item.is_symlink():
            yield path, Entry("symlink", mode=mode, target=str(Path(item.path).readlink()))
        elif item.is_dir(follow_symlinks=False):
            yield path, Entry("dir", mode=mode)
        elif stat.S_ISREG(facts.st_mode):
            yield path, Entry("file", facts.st_size, mode)
        else:
            yield path, Entry("other", mode=mode)


def _read_files(jobs: list[_Job]) -> list[tuple[str, str, Elf | None, str]]:
    return [(path, *_read_file(Path(name), size, hashed)) for name, path, size, hashed in jobs]


def _read_file(file: Path, size: int, hashed: bool) -> tuple[str, Elf | None, str]:
    """Return (sha256 or "", ELF tables or None, what is wrong with it or "")."""
    try:
        with file.open("rb", buffering=0) as stream:
            if not hashed:
                head, sha256, whole = stream.read(4), "", b""
            elif size < _CHUNK:
                whole = stream.read()
                head, sha256 = whole[:4], hashlib.sha256(whole).hexdigest()
            else:
                head, whole = stream.read(4), b""
                stream.seek(0)
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        if head != MAGIC:
            return sha256, None, not_elf(file.name, head)
        return sha256, parse_elf(whole) if whole else read_elf(file), ""
    except ElfError as error:
        return sha256, None, str(error)
    except OSError as error:
        return "", None, f"cannot be read ({error.strerror})"


def not_elf(name: str, head: bytes) -> str:
    """Return what is wrong with a file that is no ELF although its name is a shared library's, else "".

    A linker script (`/* GNU ld script */`, `INPUT(…)`) may be called .so, and is text.
    """
    if name.endswith(".so") and not (head[:2] in (b"/*", b"IN", b"GR", b"OU", b"#!") or head.startswith(b"!<ar")):
        return "is called a shared library and is no ELF file" if head else "is an empty shared library"
    return ""
