"""What a check hands back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

KINDS = (
    "syntax",
    "import",
    "attribute",
    "call",
    "collision",
    "proxy",
    "abstract",
    "override",
    "mirror",
    "default",
    "field",
    "config",
)
"""Every kind of finding, in the order in which a report lists them."""


@dataclass(frozen=True)
class Finding:
    """One thing that the new version breaks or changes.

    path and line: where in the downstream tree (or in the configuration). symbol: the thing of the package, as the
    downstream code names it. what: what is wrong; fix: what to do. detail: more for who wants it (a diff).
    note: worth a look, but no failure: it neither fails the check nor has to be accepted.
    """

    kind: str
    path: str
    line: int
    symbol: str
    what: str
    fix: str = ""
    detail: str = ""
    note: bool = False

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes two findings the same one at two versions."""
        return (self.kind, self.path, self.line, self.symbol)


@dataclass
class Collected:
    """Findings of one run at one version, and what was left out, by reason."""

    findings: list[Finding] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
