"""What the base system offers to the loader: libraries, their symbols and symbol versions.

An image brings its own base. For a venv alone there is a list made from Debian trixie, the embedded base.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

from lockstep.arch import Arch
from lockstep.audit.elf import Elf
from lockstep.audit.tree import Tree
from lockstep.errors import LockstepError


@dataclass(frozen=True)
class Base:
    """sonames: library names that a DT_NEEDED can mean. names: exported symbols. versions: per library, sorted."""

    sonames: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    versions: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def gives(self) -> dict[str, frozenset[str]]:
        """Return the symbol versions of each library that has any."""
        return {soname: frozenset(versions) for soname, versions in self.versions}


def base_of(objects: Iterable[tuple[str, Elf]]) -> Base:
    """Return what (path, tables) pairs of the base's files offer."""
    sonames: set[str] = set()
    names: set[str] = set()
    versions: dict[str, set[str]] = {}
    for path, elf in objects:
        if not elf.dynamic:
            continue
        own = {posixpath.basename(path), elf.soname} - {""}
        sonames |= own
        names |= elf.exports()
        for soname in own if elf.gives else ():
            versions.setdefault(soname, set()).update(elf.gives)
    listed = tuple(sorted((soname, tuple(sorted(found))) for soname, found in versions.items()))
    return Base(frozenset(sonames), frozenset(names), listed)


def base_of_tree(tree: Tree, outside: Iterable[str]) -> Base:
    """Return what a root file system offers outside the venvs (`outside`: their roots)."""
    roots = tuple(f"{root}/" for root in outside)
    base = base_of((path, elf) for path, elf in tree.elves.items() if not path.startswith(roots))
    # libfoo.so.1 is mostly a symlink to libfoo.so.1.2.3, and the soname need not be either's name.
    links = {
        posixpath.basename(path)
        for path, entry in tree.entries.items()
        if entry.kind == "symlink" and ".so" in path and not path.startswith(roots)
    }
    known = {link for link in links if any(link.startswith(name.partition(".so")[0]) for name in base.sonames)}
    return Base(base.sonames | known, base.names, base.versions)


def trixie(arch: Arch) -> Base:
    """Return the list for Debian trixie with python3.13, made by dump_base from the embedded base."""
    data = json.loads((resources.files("lockstep.audit") / "data" / "trixie.json").read_text("utf-8"))
    sonames: set[str] = set()
    names: set[str] = set()
    versions: list[tuple[str, tuple[str, ...]]] = []
    for soname, library in data["libraries"].items():
        own = f"{library.get('versions', '')} {library.get(f'versions {arch}', '')}".split()
        exports = f"{library.get('names', '')} {library.get(f'names {arch}', '')}".split()
        if own or exports:
            sonames.add(soname)
            names.update(exports)
            versions.append((soname, tuple(sorted(own))))
    return Base(frozenset(sonames), frozenset(names), tuple(item for item in versions if item[1]))


def dump_base(trees: Mapping[Arch, Tree], suite: str) -> str:
    """Return the JSON text of such a list: every library in python3.13's reach, and the C++ runtime.

    What both architectures have is written once; the rest under a key with the architecture's name.
    """
    found = {arch: _reach(tree) for arch, tree in trees.items()}
    libraries = {}
    for soname in sorted({name for reach in found.values() for name in reach}):
        library: dict[str, str] = {}
        for key in ("versions", "names"):
            sets = {arch: _offers(reach.get(soname), key) for arch, reach in found.items()}
            common = set.intersection(*sets.values())
            parts = {key: common} | {f"{key} {arch}": own - common for arch, own in sets.items()}
            library |= {part: " ".join(sorted(own)) for part, own in parts.items() if own}
        libraries[soname] = library
    return json.dumps({"suite": suite, "libraries": libraries}, indent=0) + "\n"


def _offers(elf: Elf | None, key: str) -> set[str]:
    if elf is None:
        return set()
    return set(elf.gives) if key == "versions" else elf.exports()


def _reach(tree: Tree) -> dict[str, Elf]:
    by_name = {posixpath.basename(path): elf for path, elf in tree.elves.items()}
    by_name |= {elf.soname: elf for elf in tree.elves.values() if elf.soname}
    if "python3.13" not in by_name:
        raise LockstepError("the root holds no python3.13", fix="make the root with python3.13 and libstdc++6")
    modules = [elf for path, elf in tree.elves.items() if "/lib-dynload/" in path]
    todo = ["python3.13", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"]
    todo += ["libutil.so.1", "libresolv.so.2", "libanl.so.1", "libmvec.so.1", "libnsl.so.1"]
    todo += [name for module in modules for name in module.needed]
    reach: dict[str, Elf] = {}
    while todo:
        name = todo.pop()
        if name in by_name and name not in reach:
            reach[name] = by_name[name]
            todo += by_name[name].needed
    return reach
