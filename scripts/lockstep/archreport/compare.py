"""Compare the architectures and judge: each difference is declared in versions.yaml, or is a fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.archreport.facts import SEEN, Seen, Side, Thing
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix
from lockstep.matrix.models import ArchDifference

_NOUNS = {"source": "source of", "script": "console script", "setting": "setting", "deb": "Debian package"}


@dataclass(frozen=True, order=True)
class Difference:
    """One thing that is not the same. values: what it is on each architecture, "" where it is not there.

    seen: where it shows, in the plan, in the images or in both. why: the reason that versions.yaml gives, or "".
    """

    thing: Thing
    values: tuple[tuple[str, str], ...]
    seen: tuple[str, ...]
    why: str = ""

    @property
    def only_on(self) -> str | None:
        """The one architecture that has it, or None where both have it."""
        there = [arch for arch, value in self.values if value]
        return there[0] if len(there) == 1 else None

    def sentence(self) -> str:
        """Return the fault in one sentence."""
        (one, before), (two, after) = self.values
        where = f" of {self.thing.venv}" if self.thing.venv else ""
        what = f"the {_NOUNS.get(self.thing.what, self.thing.what)} {self.thing.name}{where}"
        if self.only_on:
            return f"{what} is on {self.only_on} only, undeclared"
        return f"{what} is {before} on {one} and {after} on {two}, undeclared"

    def entry(self) -> str:
        """Return the line of versions.yaml that declares it, the reason left open."""
        backends = f", backends: [{self.thing.venv}]" if self.thing.venv else ""
        only = f", only_on: {self.only_on}" if self.only_on else ""
        return f'{{what: {self.thing.what}, name: "{self.thing.name}"{backends}{only}, why: …}}'


@dataclass(frozen=True)
class ArchReport:
    """The report on one image. counts: how many things of each kind each architecture has, by what was looked at.

    unused: declarations that match nothing, in one sentence each. notes: what could not be compared, and why.
    """

    image: str
    arches: tuple[str, ...]
    seen: tuple[Seen, ...]
    counts: dict[str, dict[str, int]]
    differences: tuple[Difference, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def undeclared(self) -> list[Difference]:
        """The differences that nothing declares."""
        return [item for item in self.differences if not item.why]

    @property
    def ok(self) -> bool:
        """Whether every difference is declared and every declaration is needed."""
        return not self.undeclared and not self.unused

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "image": self.image,
            "arches": list(self.arches),
            "ok": self.ok,
            "seen": list(self.seen),
            "counts": self.counts,
            "differences": [
                {
                    "what": item.thing.what,
                    "venv": item.thing.venv,
                    "name": item.thing.name,
                    **dict(item.values),
                    "seen": list(item.seen),
                    "declared": bool(item.why),
                    "why": item.why,
                }
                for item in self.differences
            ],
            "faults": [*(item.sentence() for item in self.undeclared), *self.unused],
            "notes": list(self.notes),
        }


def differences(sides: Sequence[Side]) -> list[Difference]:
    """Return what is not the same between the sides of one kind, two of each, sorted.

    Scripts, patches and sources of a package that only one architecture has are not told again.
    """
    found: dict[Thing, Difference] = {}
    for seen in SEEN:
        pair = [side for side in sides if side.seen == seen]
        if len(pair) != 2:
            continue
        for thing in sorted(set(pair[0].facts) ^ set(pair[1].facts) | _changed(*pair)):
            if _follows(thing, pair):
                continue
            values = tuple((side.arch.value, side.facts.get(thing, "")) for side in pair)
            known = found.get(thing)
            found[thing] = replace(known, seen=(*known.seen, seen)) if known else Difference(thing, values, (seen,))
    return [found[thing] for thing in sorted(found)]


def _changed(one: Side, two: Side) -> set[Thing]:
    return {thing for thing, value in one.facts.items() if two.facts.get(thing, value) != value}


def _follows(thing: Thing, pair: Sequence[Side]) -> bool:
    owner = next((side.owners[thing] for side in pair if thing in side.owners), "")
    held = [Thing("package", thing.venv, owner) in side.facts for side in pair]
    return bool(owner) and held[0] != held[1]


def judge(matrix: Matrix, image: str, sides: Sequence[Side], notes: Sequence[str] = ()) -> ArchReport:
    """Return the report on an image. LockstepError where versions.yaml names fewer than two architectures."""
    if len(matrix.arches) != 2:
        raise LockstepError("there is one architecture, so nothing to compare", where="versions.yaml arches")
    declared = list(_declared(matrix, image))
    used: set[int] = set()
    judged = []
    for item in differences(sides):
        fits = [number for number, (entry, venv) in enumerate(declared) if _matches(item, entry, venv)]
        used.update(fits)
        judged.append(replace(item, why=declared[fits[0]][0].why) if fits else item)
    compared: list[Seen] = [seen for seen in SEEN if sum(side.seen == seen for side in sides) == 2]
    covers = frozenset().union(*(side.covers for side in sides if side.seen in compared))
    return ArchReport(
        image=image,
        arches=tuple(matrix.arches),
        seen=tuple(compared),
        counts=_counts(sides),
        differences=tuple(judged),
        unused=tuple(
            _unused(entry, venv)
            for number, (entry, venv) in enumerate(declared)
            if number not in used and entry.what in covers and _carried(matrix, image, entry, venv)
        ),
        notes=tuple(notes),
    )


def _declared(matrix: Matrix, image: str) -> Iterator[tuple[ArchDifference, str]]:
    """Yield each declaration with each venv of the image that it is about ("" for the whole image).

    An exclusion on one architecture, with its why, declares that the package is on the other only.
    """
    venvs = matrix.images[image].backends
    for item in matrix.arch_differences:
        yield from ((item, venv) for venv in item.backends or [""] if venv in venvs or not venv)
    for venv in venvs:
        excluded = matrix.backends[venv].exclude
        for entry in excluded:
            others = [arch for arch in matrix.arches if arch != entry.arch]
            both = any(other.package == entry.package and other.arch in (None, *others) for other in excluded)
            if entry.arch is not None and not both:
                implied = ArchDifference.model_construct(
                    what="package", name=entry.package, backends=[venv], only_on=others[0], why=entry.why
                )
                yield implied, venv


def _matches(item: Difference, entry: ArchDifference, venv: str) -> bool:
    return (entry.what, venv, entry.name, entry.only_on) == (
        item.thing.what, item.thing.venv, item.thing.name, item.only_on,
    )  # fmt: skip


def _carried(matrix: Matrix, image: str, entry: ArchDifference, venv: str) -> bool:
    """Tell whether the image carries what a declaration is about; of an optional package that it lacks, nothing is."""
    if not venv:
        return True
    lacking = matrix.images[image].not_carried(matrix.backends[venv])
    return entry.name not in lacking if entry.what in ("package", "source") else not lacking


def _unused(entry: ArchDifference, venv: str) -> str:
    where = f" of {venv}" if venv else ""
    only = f" on {entry.only_on} only" if entry.only_on else ""
    what = f"the {_NOUNS.get(entry.what, entry.what)} {entry.name}{where}"
    return (
        f"{what} is declared to differ{only and f', as being{only}'}, and does not: remove or correct the declaration"
    )


def _counts(sides: Sequence[Side]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for side in sides:
        for thing in side.facts:
            row = counts.setdefault(f"{thing.what} ({side.seen})", {arch.arch.value: 0 for arch in sides})
            row[side.arch.value] += 1
    return counts
