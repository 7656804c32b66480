"""Compare what every library of a venv wants from the loader with what the venv, the base and the driver offer.

Scope, as ld.so builds it (ld.so(8); Python opens extension modules with RTLD_LOCAL, dlopen(3)): a library sees what it
needs, what those need, and, where it is itself loaded as a need of another, what that one sees; besides, the
interpreter and its libraries. A symbol that some unrelated library of the venv defines is out of reach.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.arch import Arch
from lockstep.audit.base import Base
from lockstep.audit.driver import is_driver_library, is_driver_symbol
from lockstep.audit.elf import EM_CUDA, Elf
from lockstep.audit.finding import Finding

# torch/__init__.py opens this one with RTLD_GLOBAL, so what it needs is visible to all that is loaded after torch.
_GLOBAL = "libtorch_global_deps.so"
_MACHINES = {3: "32-bit x86", 40: "32-bit ARM", 62: "x86_64", 183: "aarch64", 21: "ppc64", 22: "s390", 243: "RISC-V"}
_TAGGED = re.compile(r"^(?P<stem>.+)\.cpython-3(?P<minor>\d+)t?-[^/]*\.so$")
_PYTHON = re.compile(r"^_?Py[A-Z_]")
_TORCH = re.compile(r"^_ZN?[A-Z]*\d*(?:3c10|2at|5torch|6caffe2)|^THP|^aoti_torch")


@dataclass(frozen=True)
class Line:
    """Another place where a missing symbol may be: `label` names it (`torch 2.11.0 of venv sglang`)."""

    label: str
    names: frozenset[str]


def check_abi(
    objects: Mapping[str, Elf],
    broken: Mapping[str, str],
    base: Base,
    arch: Arch,
    *,
    venv: str = "",
    owner: Callable[[str], str] = lambda path: "",
    torch: str = "",
    python: str = "3.13",
    others: Sequence[Line] = (),
) -> list[Finding]:
    """Return the abi findings of one venv, sorted by path.

    objects and broken are the venv's ELF files by path; owner gives `name version` of a path; torch is the venv's own
    version of it. Kinds: damaged, machine, needed (a library that nothing provides, with the symbols lost through it),
    version (a symbol version that the provider lacks), undefined (a symbol that nothing provides), unlinked (one that
    only a library out of reach provides), python (an extension for another Python, without one for this), and the notes
    needs-driver and other-python.
    """
    scope = _Scope(objects, base)
    findings = [Finding("abi", "damaged", venv, path, fault, owner(path)) for path, fault in broken.items()]
    for path, elf in objects.items():
        wheel = owner(path)
        if elf.machine == EM_CUDA:
            continue
        if elf.machine != arch.elf_machine:
            name = _MACHINES.get(elf.machine, f"machine {elf.machine}")
            findings.append(
                Finding(
                    "abi",
                    "machine",
                    venv,
                    path,
                    f"is built for {name}, not for {arch}",
                    wheel,
                    why="the wheel, or this file of it, is for another machine",
                )
            )
            continue
        other = other_python(path, objects, python)
        # The import system looks at the tag first, so this one is never loaded, whatever it would need.
        findings += [replace(other, venv=venv, wheel=wheel)] if other else []
        if other is None:
            findings += _check_object(path, elf, scope, venv, wheel, torch, others)
    return sorted(findings, key=lambda item: (item.path, item.kind))


def other_python(path: str, objects: Container[str], python: str) -> Finding | None:
    """Return a finding for an extension module tagged for another CPython than `python`, or None.

    It is a note where the same module is there for this one too, under its tag, as abi3 or untagged (importlib's
    EXTENSION_SUFFIXES), and a failure where it is not: the import would end in ModuleNotFoundError.
    """
    match = _TAGGED.match(path)
    minor = python.partition(".")[2]
    if match is None or match["minor"] == minor:
        return None
    own = path.replace(f".cpython-3{match['minor']}", f".cpython-3{minor}", 1)
    built = f"is an extension for CPython 3.{match['minor']}"
    if any(name in objects for name in (own, f"{match['stem']}.abi3.so", f"{match['stem']}.so")):
        return Finding("abi", "other-python", "", path, f"{built}; {python} has its own", level="note")
    return Finding("abi", "python", "", path, f"{built}, and there is none for {python}", why="the module cannot load")


def _check_object(
    path: str, elf: Elf, scope: _Scope, venv: str, wheel: str, torch: str, others: Sequence[Line]
) -> list[Finding]:
    findings = []
    missing = tuple(name for name in elf.needed if not scope.has(name) and not is_driver_library(name))
    driver = tuple(name for name in elf.needed if not scope.has(name) and is_driver_library(name))
    lacking = tuple((file, version) for file, version in elf.wants if scope.lacks_version(file, version))
    undefined, unlinked = scope.unresolved(path, elf, {version for _, version in lacking})
    if missing:
        # What a missing library would have given goes with it; what it cannot have given is a finding of its own.
        lost = [name for name in undefined + unlinked if not _known_home(name, others)]
        undefined = [name for name in undefined if name not in set(lost)]
        unlinked = [name for name in unlinked if name not in set(lost)]
        what = f"needs {', '.join(missing)}, which nothing in the venv or the base provides"
        findings.append(Finding("abi", "needed", venv, path, what, wheel, tuple(lost), missing))
    if driver:
        what = f"needs {', '.join(driver)} of the host's driver"
        findings.append(Finding("abi", "needs-driver", venv, path, what, wheel, libraries=driver, level="note"))
    if lacking:
        what = f"wants {', '.join(f'{version} of {file}' for file, version in lacking)}, which is not there"
        files = tuple(sorted({file for file, _ in lacking}))
        why = "built on a newer system than the base"
        findings.append(
            Finding("abi", "version", venv, path, what, wheel, tuple(version for _, version in lacking), files, why)
        )
    if undefined:
        what = f"{_count(undefined)} that nothing in the venv, the base or the driver provides"
        why = likely_reason(undefined, torch, others)
        findings.append(Finding("abi", "undefined", venv, path, what, wheel, tuple(undefined), why=why))
    if unlinked:
        homes = sorted({posixpath.basename(home) for name in unlinked for home in scope.providers[name]})
        what = f"{_count(unlinked)} only in libraries that it does not load ({', '.join(homes[:4])})"
        why = "it works only where another library was made global first, or was built against other files"
        findings.append(Finding("abi", "unlinked", venv, path, what, wheel, tuple(unlinked), why=why))
    return findings


def _count(names: Sequence[str]) -> str:
    return "1 undefined symbol" if len(names) == 1 else f"{len(names)} undefined symbols"


def _known_home(name: str, others: Sequence[Line]) -> bool:
    """Tell whether a symbol belongs to torch or Python, so that no other library's absence explains it."""
    return bool(_TORCH.match(name) or _PYTHON.match(name)) or any(name in line.names for line in others)


class _Scope:
    """Who provides what to whom in one venv."""

    def __init__(self, objects: Mapping[str, Elf], base: Base) -> None:
        self.base = base
        self.base_versions = base.gives()
        self.all_versions = frozenset(version for versions in self.base_versions.values() for version in versions)
        self.objects = objects
        self.by_name: dict[str, list[str]] = {}
        for path, elf in objects.items():
            for name in {elf.soname, posixpath.basename(path)} - {""} if elf.dynamic else ():
                self.by_name.setdefault(name, []).append(path)
        wanted = {name for elf in objects.values() for name, _ in elf.undefined}
        self.providers: dict[str, list[str]] = {}
        for path, elf in objects.items():
            # A program exports nothing to anybody but its own libraries.
            if elf.interp and not elf.soname:
                continue
            for name in elf.exports() & wanted:
                self.providers.setdefault(name, []).append(path)
        self._parents: dict[str, set[str]] = {}
        for path, elf in objects.items():
            for name in elf.needed:
                for child in self.by_name.get(name, ()):
                    self._parents.setdefault(child, set()).add(path)
        self._reach: dict[str, frozenset[str]] = {}
        self._global = self._walk(set(self.by_name.get(_GLOBAL, ())), self._children)

    def has(self, name: str) -> bool:
        """Tell whether a DT_NEEDED name is in the venv or the base."""
        return name in self.by_name or name in self.base.sonames

    def base_gives(self, name: str, version: str) -> bool:
        """Tell whether the base defines a symbol; a version that it has stands for every symbol of that version."""
        return name in self.base.names or (version != "" and version in self.all_versions)

    def lacks_version(self, file: str, version: str) -> bool:
        """Tell whether all providers of a library have symbol versions and none of them this one."""
        if file in self.by_name:
            given = [self.objects[path].gives for path in self.by_name[file]]
            return all(given) and not any(version in versions for versions in given)
        versions = self.base_versions.get(file)
        return bool(versions) and version not in (versions or ())

    def unresolved(self, path: str, elf: Elf, unfit: set[str]) -> tuple[list[str], list[str]]:
        """Return the symbols that nothing provides, and those that only something out of reach provides.

        Symbols of the versions in `unfit` are left out: those versions are a finding already.
        """
        undefined, unlinked = [], []
        for name, version in elf.undefined:
            if version in unfit or is_driver_symbol(name) or self.base_gives(name, version):
                continue
            providers = self.providers.get(name)
            if not providers:
                undefined.append(name)
            elif not self.reaches(path, providers):
                unlinked.append(name)
        return undefined, unlinked

    def reaches(self, path: str, providers: Iterable[str]) -> bool:
        """Tell whether one of the providers is in the scope in which `path` is resolved."""
        if path not in self._reach:
            tops = self._walk({path}, lambda item: self._parents.get(item, ()))
            self._reach[path] = frozenset(self._walk(tops, self._children) | self._global)
        return not self._reach[path].isdisjoint(providers)

    def _children(self, path: str) -> Iterable[str]:
        return (child for name in self.objects[path].needed for child in self.by_name.get(name, ()))

    @staticmethod
    def _walk(start: set[str], following: Callable[[str], Iterable[str]]) -> set[str]:
        seen, todo = set(start), list(start)
        while todo:
            for item in following(todo.pop()):
                if item not in seen:
                    seen.add(item)
                    todo.append(item)
        return seen


def likely_reason(names: Sequence[str], torch: str, others: Sequence[Line]) -> str:
    """Return the most likely reason why symbols are undefined, as one clause.

    others are looked through first: a symbol that another torch has tells which torch the library was built for.
    """
    for line in others:
        held = [name for name in names if name in line.names]
        if held:
            count = "the symbol is" if len(names) == 1 else f"{len(held)} of the {len(names)} symbols are"
            against = f", not in torch {torch}" if torch else ""
            return f"built for another torch: {count} in {line.label}{against}"
    if any(_TORCH.match(name) for name in names):
        return f"built for another torch than {torch}" if torch else "built for torch, which is not installed"
    if any(_PYTHON.match(name) for name in names):
        return "built for another Python"
    return "the library that defines it is not installed, or it is loaded by a program that defines it"


def lines_of(objects: Mapping[str, Elf], label: str) -> Line:
    """Return the symbols of a torch installation (libtorch*.so and libc10*.so) as a Line."""
    names: set[str] = set()
    for path, elf in objects.items():
        if posixpath.basename(path).startswith(("libtorch", "libc10")):
            names |= elf.exports()
    return Line(label, frozenset(names))


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Return C++ names as a person writes them; one that is not mangled, or that LIEF cannot read, stays as it is."""
    import lief

    symbol = lief.ELF.Symbol()
    readable = {}
    for name in names:
        readable[name] = name
        if name.startswith("_Z"):
            symbol.name = name
            readable[name] = str(symbol.demangled_name) or name
    return readable
