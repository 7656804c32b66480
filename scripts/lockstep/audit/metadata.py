"""What every installed distribution requires against what is installed, for the target's Python and architecture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lockstep.arch import Arch
from lockstep.audit.finding import Finding


@dataclass(frozen=True)
class Installed:
    """What the check needs of a distribution: canonical name, version, its Requires-Dist lines, where it lies."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    path: str = ""


@dataclass(frozen=True)
class Reasoned:
    """An override (`requirement`) or an exclusion (a bare name) of the matrix, with its why."""

    requirement: str
    why: str

    @property
    def name(self) -> str:
        """Return the canonical name of the package that it is about."""
        return canonicalize_name(Requirement(self.requirement).name)


def environment(arch: Arch, python: str) -> dict[str, str]:
    """Return the marker environment of the target (PEP 508): CPython on Linux, never this machine's own."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": arch.value,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def applies(requirement: Requirement, target: Mapping[str, str], extras: Iterable[str]) -> bool:
    """Tell whether a requirement's marker holds for the target, under any of the extras asked for."""
    if requirement.marker is None:
        return True
    try:
        return any(requirement.marker.evaluate({**target, "extra": extra}) for extra in ("", *extras))
    except UndefinedEnvironmentName:
        return False


def wanted_extras(
    installed: Sequence[Installed], roots: Iterable[str], target: Mapping[str, str]
) -> dict[str, set[str]]:
    """Return the extras asked of each distribution, by the roots and by one another, to the end of the chain."""
    extras: dict[str, set[str]] = {item.name: set() for item in installed}
    for text in roots:
        requirement = Requirement(text)
        extras.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    parsed = {item.name: _parsed(item) for item in installed}
    moved = True
    while moved:
        moved = False
        for name, requirements in parsed.items():
            for requirement in requirements:
                if not requirement.extras or not applies(requirement, target, extras[name]):
                    continue
                known = extras.setdefault(canonicalize_name(requirement.name), set())
                if not requirement.extras <= known:
                    known |= requirement.extras
                    moved = True
    return extras


def check_metadata(
    installed: Sequence[Installed],
    arch: Arch,
    python: str,
    *,
    venv: str = "",
    roots: Iterable[str] = (),
    overrides: Iterable[Reasoned] = (),
    excluded: Iterable[Reasoned] = (),
) -> list[Finding]:
    """Return the requirements that do not hold. roots are the requirements that the venv was resolved from.

    Kinds: missing, broken (a version out of bounds), malformed. One that an override or an exclusion accounts for has
    level "waived" and the override's why; an override accounts for a bound only where the installed version keeps it.
    """
    target = environment(arch, python)
    extras = wanted_extras(installed, roots, target)
    versions = {item.name: item.version for item in installed}
    override = {item.name: item for item in overrides}
    left_out = {item.name: item for item in excluded}
    findings = []
    for item in (*installed, Installed("versions.yaml", "", tuple(roots), "versions.yaml")):
        asked = extras.get(item.name, set())
        label = f"{item.name} {item.version}".strip()
        for text in item.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                what = f"{label} states a requirement that is none: {text}"
                findings.append(Finding("metadata", "malformed", venv, item.path, what, label))
                continue
            if not applies(requirement, target, asked):
                continue
            name = canonicalize_name(requirement.name)
            if name not in versions:
                what = f"{label} requires {_short(requirement)}: it is not installed"
                found = Finding("metadata", "missing", venv, item.path, what, label)
                reason = left_out.get(name)
            elif _holds(requirement, versions[name]):
                continue
            else:
                what = f"{label} requires {_short(requirement)}: {name} {versions[name]} is installed"
                found = Finding("metadata", "broken", venv, item.path, what, label)
                reason = override.get(name)
                if reason is not None and not _holds(Requirement(reason.requirement), versions[name]):
                    reason = None
            findings.append(found.waived(reason.why) if reason else found)
    return findings


def _parsed(item: Installed) -> list[Requirement]:
    requirements = []
    for text in item.requires:
        try:
            requirements.append(Requirement(text))
        except InvalidRequirement:
            continue
    return requirements


def _holds(requirement: Requirement, version: str) -> bool:
    """Tell whether a version is within the bounds. A pre-release that is installed is judged like any other version."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not requirement.specifier


def _short(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}" + (f" @ {requirement.url}" if requirement.url else "")
