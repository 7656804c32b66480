"""The downstream code: a folder of Python files, found by path and by dotted name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.source.model import Module, parse

# Folders that hold other people's code or none at all.
_SKIPPED = {
    "__pycache__",
    "node_modules",
    "site-packages",
    ".git",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    ".mypy_cache",
    "build",
}
# A generated file of more bytes than this holds data, not calls; parsing one of 50 MB would take minutes.
_LARGEST = 4 << 20


@dataclass(eq=False)
class Tree:
    """Every .py file below a folder, or one file. Parsing waits until a file is asked for.

    packages: the import names of the package that is checked, each with the names directly in it, so that a folder
    which only bears such a name is told from a copy of the package.
    """

    root: Path
    broken: dict[Path, str] = field(default_factory=dict)
    large: list[Path] = field(default_factory=list)
    packages: dict[str, set[str]] = field(default_factory=dict)
    _parsed: dict[Path, Module | None] = field(default_factory=dict)
    _texts: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()
        if not self.root.exists():
            raise LockstepError("there is no such folder", where=str(self.root), fix="name the downstream tree")

    @cached_property
    def files(self) -> list[Path]:
        """The tree's Python files in a fixed order; hidden folders, virtual environments and build output left out."""
        if self.root.is_file():
            return [self.root]
        found: list[Path] = []
        for folder, folders, names in os.walk(self.root):
            here = Path(folder)
            folders[:] = sorted(
                name
                for name in folders
                if name not in _SKIPPED and not name.startswith(".") and not (here / name / "pyvenv.cfg").exists()
            )
            found += [here / name for name in sorted(names) if name.endswith(".py")]
        return found

    @cached_property
    def _by_last(self) -> dict[str, list[tuple[tuple[str, ...], Path]]]:
        found: dict[str, list[tuple[tuple[str, ...], Path]]] = {}
        for path in self.files:
            parts = path.relative_to(self.root.parent).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            if parts:
                found.setdefault(parts[-1], []).append((parts, path))
        return found

    @cached_property
    def tops(self) -> set[str]:
        """Every first part that a dotted name of the tree's modules may have: only such names are looked up."""
        found = {part for entries in self._by_last.values() for parts, _ in entries for part in parts}
        here = self.root if self.root.is_dir() else self.root.parent
        while (here / "__init__.py").is_file():  # the tree may be a part of a package
            found.add(here.name)
            here = here.parent
        return found

    def has_top(self, name: str) -> bool:
        """Whether a folder or file of that name stands at the tree's top or in its src folder."""
        return any((here / name).is_dir() or (here / f"{name}.py").is_file() for here in (self.root, self.root / "src"))

    def text(self, path: Path) -> bytes:
        """Return a file's bytes; nothing for one that cannot be read, which is then listed as broken."""
        if path not in self._texts:
            try:
                if path.stat().st_size > _LARGEST:
                    self.large.append(path)
                    self._texts[path] = b""
                else:
                    self._texts[path] = path.read_bytes()
            except OSError as error:
                self.broken[path] = f"cannot be read: {error.strerror}"
                self._texts[path] = b""
        return self._texts[path]

    def module(self, path: Path) -> Module | None:
        """Return a file's module, or None where it does not parse (then `broken` says why)."""
        if path not in self._parsed:
            self._parsed[path] = self._parse(path)
        return self._parsed[path]

    def _parse(self, path: Path) -> Module | None:
        text = self.text(path)
        if path in self.broken:
            return None
        try:
            tree = parse(text)
        except SyntaxError as error:
            self.broken[path] = f"line {error.lineno or 0}: {error.msg}"
            return None
        except (ValueError, RecursionError, MemoryError) as error:
            self.broken[path] = str(error) or type(error).__name__
            return None
        return Module(
            name=self.dotted(path),
            path=self.relative(path),
            is_package=path.name == "__init__.py",
            is_stub=False,
            owner="tree",
            text=text,
            tree=tree,
        )

    def relative(self, path: Path) -> str:
        """Return the path as messages name it: from the tree's root."""
        return path.name if path == self.root else str(path.relative_to(self.root))

    def dotted(self, path: Path) -> str:
        """Return the name that the file's module has: from the folder above its topmost package.

        A folder without `__init__.py` between two packages is a namespace package and belongs to the name.
        """
        top = self._top(path)
        parts = path.relative_to(top).with_suffix("").parts
        if parts[0] in self.packages and not self.is_copy(top / parts[0]):
            # A folder of the tree that is named like the package: its names begin at the tree's root.
            parts = path.relative_to(self.root if self.root in top.parents else top.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or path.parent.name

    def is_copy(self, folder: Path) -> bool:
        """Whether a folder with the package's name is the package: at least half of what is in it is in there too."""
        if not folder.is_dir():
            return False
        have = {item.name.split(".", 1)[0] for item in folder.iterdir() if item.suffix == ".py" or item.is_dir()}
        have -= {"__pycache__"}
        return len(have & self.packages[folder.name]) * 2 >= len(have)

    def vendored(self, path: Path) -> bool:
        """Whether a file belongs to a copy of the package that lies deeper in the tree than the tree's own code."""
        top = self._top(path)
        folder = top / path.relative_to(top).parts[0]
        if folder.name not in self.packages or not self.is_copy(folder):
            return False
        return self.root not in {folder, folder.parent} and folder not in self.root.parents

    def _top(self, path: Path) -> Path:
        """Return the folder above a file's topmost package."""
        top = path.parent
        here = path.parent
        while here != here.parent:
            if (here / "__init__.py").is_file():
                top = here.parent
            elif here == self.root or self.root not in here.parents:
                break
            here = here.parent
        return top

    def _inside_package(self, path: Path, depth: int) -> bool:
        """Whether the folder above a name's first part is itself a package: then the name begins higher up."""
        start = path.parent if path.name == "__init__.py" else path
        for _ in range(depth):
            start = start.parent
        return (start / "__init__.py").is_file()

    def find(self, name: str) -> Path | None:
        """Return the one file whose path ends in the dotted name, or None where there is none or more than one."""
        parts = tuple(name.split("."))
        same = self._by_last.get(parts[-1], [])
        exact = [path for _, path in same if self.dotted(path) == name]
        chosen = exact or [
            path for have, path in same if have[-len(parts) :] == parts and not self._inside_package(path, len(parts))
        ]
        return chosen[0] if len(chosen) == 1 else None
