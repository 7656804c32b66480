"""What a new version asks for that versions.yaml says otherwise: pins that move with it, and promises that it breaks.

A wheel's own exact pins are known before anything is resolved. A pin in `requires` has no reason of its own, so it
follows. A line, a hold, a cap and an override were declared by somebody with a reason: they are named, never moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lockstep.arch import Arch
from lockstep.audit.metadata import applies, environment
from lockstep.audit.wheels import Card, card_of
from lockstep.bump.edit import Edit, Pin, edits_for, exact_version, pins_of
from lockstep.bump.model import BlockRow
from lockstep.errors import LockstepError
from lockstep.explain import newest_release
from lockstep.index import best_wheel, files_of, find_wheel
from lockstep.matrix import Backend, Matrix


@dataclass
class Plan:
    """What a bump edits. blocks: what the new versions contradict; what_if: edits of a line that would take that away.

    backends: whose pins it moves, the whole line's where a line is what moves. pinned: whether anything pins the
    package at all; if not, the lock alone moves.
    """

    package: str
    to: str
    before: str
    backends: tuple[str, ...]
    edits: list[Edit] = field(default_factory=list)
    blocks: list[BlockRow] = field(default_factory=list)
    what_if: list[Edit] = field(default_factory=list)
    left: list[Pin] = field(default_factory=list)
    pinned: bool = True


def plan(matrix: Matrix, package: str, to: str, backend: str, locked: dict[str, str]) -> Plan:
    """Return what moving `package` to a version means for versions.yaml.

    backend: move it there alone (a line or a compiled wheel moves for all that share it); empty for all that pin it.
    locked: the version that each backend's lock holds. LockstepError where the package is nowhere, or the version does
    not exist.
    """
    having = [name for name in matrix.backends if name in locked or pins_of(matrix, package, [name])]
    chosen = [backend] if backend else having
    if not chosen or (backend and backend not in having):
        raise LockstepError(
            f"{backend or 'no backend'} {'neither pins nor locks' if backend else 'pins or locks'} {package}",
            where="versions.yaml",
            fix=f"name one of {', '.join(having)} with BACKEND=" if having else "add it to the requires of a backend",
        )
    pins = pins_of(matrix, package, chosen)
    if not backend and len({pin.key for pin in pins if pin.key[0] == "lines"}) > 1:
        lines = ", ".join(str(pin.key[1]) for pin in pins if pin.key[0] == "lines")
        raise LockstepError(
            f"{package} is pinned by several lines ({lines})", where="versions.yaml", fix="say which with BACKEND="
        )
    _require_exists(package, to, matrix)
    shared = [pin for pin in pins if not pin.backend]
    touched = [name for name in matrix.backends if any(_looks_at(matrix, name, pin) for pin in shared)]
    names = tuple(dict.fromkeys([*chosen, *touched]))
    before = pins[0].version if pins else locked.get(chosen[0], "")
    made = Plan(package, to, before, names, pinned=bool(pins))
    for pin in pins:
        made.edits += edits_for(matrix, pin, to, "asked for")
    made.left = [pin for name in having if name not in names for pin in pins_of(matrix, package, [name]) if pin.backend]
    _Follower(matrix, made).run()
    return made


def _looks_at(matrix: Matrix, name: str, pin: Pin) -> bool:
    return any(item.key == pin.key for item in pins_of(matrix, pin.package, [name]))


def _require_exists(package: str, to: str, matrix: Matrix) -> None:
    if package in matrix.mirror:
        raise LockstepError(
            f"{package} is mirrored: its version comes with addresses and hashes",
            where=f"versions.yaml mirror.{package}",
            fix="write the new version there, then `make mirror PACKAGE=…` and `make lock`",
        )
    if package in matrix.compile:
        files_of(package, to)
    else:
        find_wheel(package, to, matrix.targets()[0], matrix.python)


class _Follower:
    """Walks from the package to what its new version pins, and on from there."""

    def __init__(self, matrix: Matrix, made: Plan) -> None:
        self._matrix = matrix
        self._plan = made
        self._targets = [environment(arch, matrix.python) for arch in matrix.targets()]
        self._moved: dict[tuple[str, str], str] = {}
        """(backend, package) to the version that its pin in `requires` gets."""
        self._lines: dict[tuple[str, str], str] = {}
        """(line, package) to the version that the line would have."""
        self._said: set[str] = set()

    def run(self) -> None:
        """Fill in the plan."""
        made = self._plan
        for edit in made.edits:
            if edit.key[0] == "lines":
                self._lines[str(edit.key[1]), made.package] = made.to
        queue = [(name, made.package, made.to) for name in made.backends]
        seen = set(queue)
        while queue:
            name, package, version = queue.pop(0)
            card = self._card(package, version)
            for requirement in self._requirements(card, name) if card else ():
                moved = self._consider(name, f"{package} {version}", requirement)
                if moved and moved not in seen:
                    seen.add(moved)
                    queue.append(moved)

    def _card(self, package: str, version: str) -> Card | None:
        if package in self._matrix.compile:
            return None
        arch: Arch = self._matrix.targets()[0]
        return card_of(find_wheel(package, version, arch, self._matrix.python))

    def _requirements(self, card: Card, name: str) -> Iterable[Requirement]:
        extras = {
            extra
            for text in self._matrix.backends[name].requires
            if canonicalize_name(Requirement(text).name) == card.name
            for extra in Requirement(text).extras
        }
        for text in card.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if any(applies(requirement, target, extras) for target in self._targets):
                yield requirement

    def _consider(self, name: str, said_by: str, requirement: Requirement) -> tuple[str, str, str] | None:
        """Judge one requirement; return (backend, package, version) where a pin moves to it."""
        backend = self._matrix.backends[name]
        package = canonicalize_name(requirement.name)
        if any(canonicalize_name(Requirement(item.requirement).name) == package for item in backend.overrides):
            return None  # an override replaces the bound; the report tells which bounds it breaks
        text = f"{package}{requirement.specifier}"
        self._check_reasons(name, backend, said_by, package, requirement)
        pin = self._matrix.lines[backend.line].get(package)
        if pin is not None:
            pin = self._lines.get((backend.line, package), pin)
            if not requirement.specifier.contains(pin, prereleases=True):
                return self._line(name, backend, said_by, package, pin, requirement)
            return None
        for number, line in enumerate(backend.requires):
            version = exact_version(line)
            if version is None or canonicalize_name(Requirement(line).name) != package:
                continue
            now = self._moved.get((name, package), version)
            if requirement.specifier.contains(now, prereleases=True):
                return None
            to = self._version_for(package, requirement)
            if to is None or (name, package) in self._moved or package == self._plan.package:
                self._block(
                    "requires",
                    f"{said_by} requires {text}, and backends.{name} requires {package}=={now}",
                    fix="choose versions that agree",
                )
                return None
            self._moved[name, package] = to
            why = f"{said_by} requires {text}"
            self._plan.edits.append(Edit(("backends", name, "requires", number), version, to, why))
            return (name, package, to)
        return None

    def _check_reasons(self, name: str, backend: Backend, said_by: str, package: str, requirement: Requirement) -> None:
        """Name the holds and caps that the requirement leaves no room for."""
        text = f"{package}{requirement.specifier}"
        held = {edit.key for edit in self._plan.edits}
        for number, hold in enumerate(backend.holds):
            key = ("backends", name, "holds", number, "version")
            if hold.package != package or not hold.version or key in held:
                continue
            if not requirement.specifier.contains(hold.version, prereleases=True):
                what = f"{said_by} requires {text}, and backends.{name} holds {package} at {hold.version}"
                self._block("hold", what, hold.why, "move the hold, or choose another version")
        version = exact_version(text)
        for cap in backend.constraints:
            limit = Requirement(cap.requirement)
            if canonicalize_name(limit.name) != package or not version:
                continue
            if not limit.specifier.contains(version, prereleases=True):
                what = f"{said_by} requires {text}, and backends.{name} caps it: {cap.requirement}"
                self._block("constraint", what, cap.why, "lift the cap, or choose another version")

    def _line(
        self, name: str, backend: Backend, said_by: str, package: str, pin: str, requirement: Requirement
    ) -> tuple[str, str, str] | None:
        text = f"{package}{requirement.specifier}"
        mates = [mate for mate, other in self._matrix.backends.items() if other.line == backend.line and mate != name]
        riders = f", on which {', '.join(mates)} rides too" if mates else ""
        self._block(
            "line",
            f"{said_by} requires {text}, and line {backend.line}{riders}, pins {package} {pin}",
            fix="move the whole line, or put the backend on a line of its own",
        )
        to = self._version_for(package, requirement)
        if to is None or (backend.line, package) in self._lines:
            return None
        self._lines[backend.line, package] = to
        old = self._matrix.lines[backend.line][package]
        key = ("lines", backend.line, package)
        self._plan.what_if.append(Edit(key, old, to, f"{said_by} requires {text}"))
        return (name, package, to)

    def _version_for(self, package: str, requirement: Requirement) -> str | None:
        """Return the version that a requirement pins, or the newest that it allows and that has a wheel."""
        if version := exact_version(f"{package}{requirement.specifier}"):
            return version
        fitting = [
            item for item in versions_with_wheel(package, self._matrix.targets()[0], self._matrix.python)
            if requirement.specifier.contains(item)
        ]  # fmt: skip
        return newest_release(fitting) or None

    def _block(self, kind: str, what: str, why: str = "", fix: str = "") -> None:
        if what not in self._said:
            self._said.add(what)
            self._plan.blocks.append(BlockRow(kind=kind, what=what, why=why, fix=fix))


def versions_with_wheel(package: str, arch: Arch, python: str) -> Sequence[str]:
    """Return the versions of a package that have a wheel for the platform; none where the index has no such package."""
    names: dict[str, list[str]] = {}
    try:
        for item in files_of(package):
            names.setdefault(item.version, []).append(item.filename)
    except LockstepError:
        return ()
    return [version for version, files in names.items() if best_wheel(files, arch, python)]
