"""Why a package is at its version in a backend: who requires it, and which bound, override or cap decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lockstep.arch import Arch
from lockstep.audit.metadata import Installed, applies, environment, wanted_extras
from lockstep.matrix import Backend


@dataclass(frozen=True)
class Bound:
    """One bound on the package. source is a package `name version`, or a place in versions.yaml; kind is requirement,
    override, constraint, hold, line, requires or exclude. in_force: False where an override replaces it. allows tells
    whether the locked version keeps it, newest whether the newest release would (None where that is not known)."""

    source: str
    kind: str
    text: str
    why: str = ""
    in_force: bool = True
    allows: bool = True
    newest: bool | None = None


@dataclass(frozen=True)
class Explanation:
    """The answer for one backend and architecture. version is "" where the package is not locked; newest is the newest
    release on the index, "" where it was not asked."""

    package: str
    backend: str
    arch: Arch
    version: str
    newest: str
    bounds: tuple[Bound, ...]

    @property
    def deciding(self) -> tuple[Bound, ...]:
        """Return the bounds in force that keep the newest release out."""
        return tuple(bound for bound in self.bounds if bound.in_force and bound.newest is False)

    def verdict(self) -> str:
        """Return one sentence that says what decides."""
        if not self.version:
            excluded = [bound for bound in self.bounds if bound.kind == "exclude"]
            if excluded:
                return f"{self.package} is left out: {excluded[0].why}"
            if self.bounds:
                return f"{self.package} is required and not locked: run `make lock`"
            return f"nothing in {self.backend} requires {self.package}"
        if self.version == self.newest:
            return "it is the newest release that the index has"
        if self.deciding:
            held = "; ".join(_reason(bound) for bound in self.deciding)
            return f"the newest release is {self.newest}, and is kept out by {held}"
        if self.newest:
            return (
                f"the newest release is {self.newest}, and no bound keeps it out: UPGRADE={self.package} would take it"
            )
        return "the index was not asked for newer releases"


def _reason(bound: Bound) -> str:
    text = f"{bound.source} ({bound.text})"
    return f"{text}: {bound.why}" if bound.why else text


def explain(
    package: str,
    installed: Sequence[Installed],
    backend: Backend,
    pins: Mapping[str, str],
    *,
    name: str,
    arch: Arch,
    python: str,
    newest: str = "",
    without: Collection[str] = (),
) -> Explanation:
    """Return who requires a package with which bounds, and what the matrix says about it.

    installed is the lock with each wheel's own requirements; pins is the backend's line. without: packages of the lock
    that an image leaves out (WITHOUT=). Pure.
    """
    package = canonicalize_name(package)
    installed = [item for item in installed if item.name not in without]
    versions = {item.name: item.version for item in installed}
    version = versions.get(package, "")
    target = environment(arch, python)
    extras = wanted_extras(installed, backend.requires, target)
    overridden = {canonicalize_name(Requirement(item.requirement).name) for item in backend.overrides}
    bounds: list[Bound] = []

    def add(source: str, kind: str, specifier: str, why: str = "", in_force: bool = True) -> None:
        requirement = Requirement(f"{package}{specifier}")
        bounds.append(
            Bound(
                source, kind, specifier or "any version", why, in_force,
                _keeps(requirement, version) is not False, _keeps(requirement, newest),
            )
        )  # fmt: skip

    for item in backend.overrides:
        requirement = Requirement(item.requirement)
        if canonicalize_name(requirement.name) == package:
            add("override in versions.yaml", "override", str(requirement.specifier), item.why)
    for cap in backend.constraints:
        requirement = Requirement(cap.requirement)
        if canonicalize_name(requirement.name) == package:
            add("constraint in versions.yaml", "constraint", str(requirement.specifier), cap.why)
    if package in pins:
        add(f"line {backend.line} in versions.yaml", "line", f"=={pins[package]}")
    for hold in backend.holds:
        if hold.package == package:
            specifier = f"=={hold.version}" if hold.version else f"<={hold.not_past}"
            add("hold in versions.yaml", "hold", specifier, hold.why)
    for excluded in backend.exclude:
        if excluded.package == package and excluded.arch in (None, arch.value):
            bounds.append(Bound("exclusion in versions.yaml", "exclude", "left out", excluded.why))
    if package in without:
        bounds.append(Bound("WITHOUT=", "exclude", "left out", "WITHOUT= names it"))
    for requirement in _about(package, backend.requires):
        add("requires in versions.yaml", "requires", str(requirement.specifier), in_force=package not in overridden)
    for dist in sorted(installed, key=lambda found: found.name):
        for requirement in _about(package, dist.requires):
            if applies(requirement, target, extras.get(dist.name, set())):
                label = f"{dist.name} {dist.version}"
                add(label, "requirement", str(requirement.specifier), in_force=package not in overridden)
    return Explanation(package, name, arch, version, newest, tuple(bounds))


def _about(package: str, lines: Iterable[str]) -> Iterable[Requirement]:
    for text in lines:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == package:
            yield requirement


def _keeps(requirement: Requirement, version: str) -> bool | None:
    if not version:
        return None
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def newest_release(versions: Iterable[str]) -> str:
    """Return the highest final release among versions; a pre-release only where there is nothing else; "" of none."""
    parsed = []
    for text in versions:
        try:
            parsed.append(Version(text))
        except InvalidVersion:
            continue
    finals = [version for version in parsed if not version.is_prerelease]
    return str(max(finals or parsed)) if parsed else ""
