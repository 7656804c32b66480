"""What an audit says: one finding per fault, and the names of the checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Level = Literal["fail", "waived", "note"]

CHECKS = ("abi", "overlap", "integrity", "vendored", "metadata", "duplicates", "residue", "layers")
"""The names that `--only` and a waiver's `check` take."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault, or one thing worth knowing.

    kind names the rule within the check. path is relative to the root of what was audited. wheel is the distribution
    that the path belongs to, as `name version`. symbols and libraries are what an abi finding is about, as the linker
    writes them. why is the most likely reason, or the matrix's own reason where it is waived or expected.
    """

    check: str
    kind: str
    venv: str
    path: str
    what: str
    wheel: str = ""
    symbols: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    why: str = ""
    level: Level = "fail"

    def waived(self, why: str) -> Finding:
        """Return the finding as one that the matrix accounts for."""
        return replace(self, level="waived", why=why)

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def failures(findings: Iterable[Finding]) -> list[Finding]:
    """Return those that make the audit fail."""
    return [item for item in findings if item.level == "fail"]
