"""The report of a bump, as JSON holds it; report.py writes it as Markdown."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    """Base of all parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EditRow(Row):
    """A scalar of versions.yaml. hypothetical: only the what-if has it."""

    where: str
    before: str
    after: str
    why: str
    hypothetical: bool = False


class BlockRow(Row):
    """Something that keeps the bump from being locked: kind is line, hold, constraint, requires or resolve."""

    kind: str
    what: str
    why: str = ""
    fix: str = ""


class MoveRow(Row):
    """A package that moved in a backend's locks; sizes are compressed bytes on the first of `arches`."""

    backend: str
    arches: list[str]
    package: str
    before: str | None
    after: str | None
    kind: Literal["in", "out", "up", "down", "built"]
    declared: str = ""
    bytes_before: int = 0
    bytes_after: int = 0


class FollowRow(Row):
    """A backend that a moved line or pin concerns, and whether it still resolves."""

    backend: str
    line: str
    follows: bool
    what: str
    hypothetical: bool = False


class RuleRow(Row):
    """An override, cap, hold or exclusion after the bump. state: needed, needless, broken (it overrules a bound that
    it did not overrule before)."""

    backend: str
    kind: Literal["override", "constraint", "hold", "exclude"]
    rule: str
    state: Literal["needed", "needless", "broken"]
    was: Literal["needed", "needless", "broken"]
    what: str
    why: str


class FindingRow(Row):
    """A finding of the lock-time audit. known: it was there before the bump."""

    backend: str
    arches: list[str]
    check: str
    kind: str
    what: str
    why: str
    level: str
    known: bool


class PatchRow(Row):
    """A patch on the new version. stops: a build would end at it."""

    package: str
    version: str
    id: str
    file: str
    state: str
    stops: bool
    why: str


class SourceRow(Row):
    """A finding in a downstream tree."""

    tree: str
    package: str
    kind: str
    path: str
    line: int
    what: str
    fix: str
    note: bool = False


class LayerRow(Row):
    """A layer of an image that changes; bytes are compressed bytes of wheels, 0 where the layer is not there."""

    image: str
    arch: str
    layer: str
    bytes_before: int
    bytes_after: int
    packages: list[str]


class ApartRow(Row):
    """A wheel that backends of one image shared and that they now have in different versions: `extra` bytes more."""

    image: str
    arch: str
    package: str
    versions: dict[str, str]
    extra: int


class StageRow(Row):
    """A layer that will be built again. seconds: from the last build's record, None where it does not know."""

    image: str
    arch: str
    layer: str
    seconds: float | None
    basis: str


class CompileRow(Row):
    """A wheel that must be compiled again, and why."""

    package: str
    line: str
    arch: str
    why: str


class Sized(Row):
    """The whole of an image: compressed bytes of its wheels, layers in all and changed, before and after."""

    image: str
    arch: str
    bytes_before: int
    bytes_after: int
    layers: int
    changed: int
    export_seconds: float | None


class Cost(Row):
    """What the report itself took."""

    seconds: float
    fetched_bytes: int
    """Without what uv's resolver fetched, which it does not tell."""


class Report(Row):
    """One bump. locked: every touched backend has a lock for it; dry_run: nothing was written to the checkout.

    not_computed maps a section to why it is empty; coverage maps one to what it did not look at.
    """

    package: str
    before: str
    to: str
    backends: list[str]
    dry_run: bool
    locked: bool
    what_if: bool
    edits: list[EditRow]
    blocks: list[BlockRow]
    left: list[str]
    moves: list[MoveRow] = []
    follows: list[FollowRow] = []
    rules: list[RuleRow] = []
    findings: list[FindingRow] = []
    abi: list[FindingRow] = []
    patches: list[PatchRow] = []
    sources: list[SourceRow] = []
    layers: list[LayerRow] = []
    images: list[Sized] = []
    apart: list[ApartRow] = []
    stages: list[StageRow] = []
    compiles: list[CompileRow] = []
    not_computed: dict[str, str] = {}
    coverage: dict[str, str] = {}
    cost: Cost = Cost(seconds=0.0, fetched_bytes=0)

    @property
    def faults(self) -> list[str]:
        """Return what would stop a build, a probe or a review, one line each; what was there before is left out."""
        found = [row.what for row in self.blocks]
        found += [f"{row.package} is older than before in {row.backend}" for row in self.moves if _backwards(row)]
        found += [row.what for row in (*self.findings, *self.abi) if row.level == "fail" and not row.known]
        found += [f"patch {row.id} on {row.package} {row.version}: {row.state}" for row in self.patches if row.stops]
        found += [f"{row.tree.rstrip('/')}/{row.path}:{row.line}: {row.what}" for row in self.sources if not row.note]
        return found


def _backwards(row: MoveRow) -> bool:
    return row.kind == "down" and not row.declared
