"""Is each override, cap, hold and exclusion still needed? Judged from what the locked wheels themselves declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lockstep.arch import Arch
from lockstep.audit.metadata import Installed, applies, environment, wanted_extras
from lockstep.bump.model import RuleRow
from lockstep.explain import newest_release
from lockstep.matrix import Matrix

State = Literal["needed", "needless", "broken"]
Versions = Callable[[str], Sequence[str]]
"""Gives the versions of a package that have a wheel for the platform."""


@dataclass(frozen=True)
class Bound:
    """What a locked package says about another."""

    said_by: str
    requirement: Requirement

    def allows(self, version: str) -> bool:
        """Tell whether a version is within it."""
        return _within(self.requirement, version)

    @property
    def text(self) -> str:
        """Return it for a sentence."""
        specifier = str(self.requirement.specifier)
        return f"{self.said_by} requires {canonicalize_name(self.requirement.name)}{specifier}"


@dataclass(frozen=True)
class Side:
    """One state of a backend: what versions.yaml says, and what its lock holds with each wheel's requirements."""

    matrix: Matrix
    backend: str
    arch: Arch
    installed: Sequence[Installed]

    def bounds(self, package: str) -> list[Bound]:
        """Return what the locked packages require of one package."""
        target = environment(self.arch, self.matrix.python)
        extras = wanted_extras(self.installed, self.matrix.backends[self.backend].requires, target)
        found = []
        for item in self.installed:
            for text in item.requires:
                try:
                    requirement = Requirement(text)
                except InvalidRequirement:
                    continue
                if canonicalize_name(requirement.name) != package:
                    continue
                if applies(requirement, target, extras.get(item.name, set())):
                    found.append(Bound(f"{item.name} {item.version}", requirement))
        return found

    def version(self, package: str) -> str:
        """Return the locked version, empty where there is none."""
        return next((item.version for item in self.installed if item.name == package), "")


@dataclass(frozen=True)
class _Judged:
    key: tuple[str, str]
    kind: Literal["override", "constraint", "hold", "exclude"]
    rule: str
    why: str
    state: State
    what: str


def judge_rules(before: Side, after: Side, versions: Versions) -> list[RuleRow]:
    """Return every rule of the backend with its state after and before the bump."""
    was = {item.key: item.state for item in _judge(before, versions)}
    broken = {bound.text for bound in _broken(before)}
    rows = []
    for item in _judge(after, versions):
        state, what = item.state, item.what
        if item.kind == "override":
            package = canonicalize_name(Requirement(item.rule).name)
            fresh = [bound for bound in _broken(after) if bound.text not in broken and _about(bound, package)]
            if fresh:
                state = "broken"
                what = f"it now overrules {', '.join(bound.text for bound in fresh)}"
        rows.append(
            RuleRow(
                backend=after.backend,
                kind=item.kind,
                rule=item.rule,
                state=state,
                was=was.get(item.key, state),
                what=what,
                why=item.why,
            )
        )
    return rows


def _about(bound: Bound, package: str) -> bool:
    return canonicalize_name(bound.requirement.name) == package


def _broken(side: Side) -> list[Bound]:
    names = {
        canonicalize_name(Requirement(item.requirement).name) for item in side.matrix.backends[side.backend].overrides
    }
    return [
        bound for name in sorted(names) for bound in side.bounds(name)
        if side.version(name) and not bound.allows(side.version(name))
    ]  # fmt: skip


def _judge(side: Side, versions: Versions) -> Iterator[_Judged]:
    backend = side.matrix.backends[side.backend]
    for item in backend.overrides:
        state, what = _replaced(side, Requirement(item.requirement), versions)
        yield _Judged(("override", item.requirement), "override", item.requirement, item.why, state, what)
    for cap in backend.constraints:
        state, what = _capped(side, Requirement(cap.requirement), versions)
        yield _Judged(("constraint", cap.requirement), "constraint", cap.requirement, cap.why, state, what)
    for hold in backend.holds:
        rule = f"{hold.package}=={hold.version}" if hold.version else f"{hold.package}<={hold.not_past}"
        state, what = _capped(side, Requirement(rule), versions)
        yield _Judged(("hold", hold.package), "hold", rule, hold.why, state, what)
    for left in backend.exclude:
        if left.arch not in (None, side.arch.value):
            continue
        askers = [bound.said_by for bound in side.bounds(left.package)]
        rule = left.package + (f" on {left.arch}" if left.arch else "")
        what = f"required by {', '.join(askers)}" if askers else "nothing requires it"
        yield _Judged(("exclude", rule), "exclude", rule, left.why, "needed" if askers else "needless", what)


def _replaced(side: Side, rule: Requirement, versions: Versions) -> tuple[State, str]:
    """Judge an override: it is needless where the wheels' own bounds would lead to the same version."""
    package = canonicalize_name(rule.name)
    locked, bounds = side.version(package), side.bounds(package)
    if not locked:
        return "needless", "nothing in the lock requires the package"
    overruled = [bound for bound in bounds if not bound.allows(locked)]
    if overruled:
        return "needed", f"it overrules {', '.join(bound.text for bound in overruled)}"
    free = _newest(versions(package), [bound.requirement for bound in bounds])
    held = _newest(versions(package), [rule])
    if free and free != held:
        return "needed", f"without it {package} {free} would be allowed"
    newest = _newest(versions(package), [])
    deciding = [bound.text for bound in bounds if newest and not bound.allows(newest)]
    return "needless", f"without it {held} is the newest allowed too" + (f": {', '.join(deciding)}" if deciding else "")


def _capped(side: Side, rule: Requirement, versions: Versions) -> tuple[State, str]:
    """Judge a cap or hold: it is needless where the other bounds keep the same versions out."""
    package = canonicalize_name(rule.name)
    if not side.version(package):
        return "needless", "the package is not in the lock"
    bounds = [bound.requirement for bound in side.bounds(package)]
    free = _newest(versions(package), bounds)
    held = _newest(versions(package), [*bounds, rule])
    if free == held:
        newest = _newest(versions(package), [])
        deciding = [bound.text for bound in side.bounds(package) if newest and not bound.allows(newest)]
        return "needless", f"without it {held} is the newest allowed too" + (
            f": {', '.join(deciding)}" if deciding else ""
        )
    return "needed", f"without it {package} {free} would be allowed"


def _newest(versions: Sequence[str], rules: Sequence[Requirement]) -> str:
    return newest_release(version for version in versions if all(_within(rule, version) for rule in rules))


def _within(rule: Requirement, version: str) -> bool:
    try:
        return rule.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
