"""One distribution in two versions, or two torches, in one venv (CASES A7)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from lockstep.audit.elf import Elf
from lockstep.audit.finding import Finding
from lockstep.audit.venv import Venv

# Loaded twice under one name, they hold two registries of operators; the second one's users crash or see nothing.
_ONCE = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")


def check_duplicates(venv: Venv, objects: Mapping[str, Elf]) -> list[Finding]:
    """Return the duplicates of a venv."""
    findings = []
    folders: dict[str, list[str]] = {}
    for dist in venv.dists:
        folders.setdefault(dist.name, []).append(dist.version)
    for name, versions in sorted(folders.items()):
        if len(versions) > 1:
            what = f"{name} is installed {len(versions)} times: {', '.join(sorted(versions))}"
            why = "a second installer wrote over the first"
            findings.append(Finding("duplicates", "distribution", venv.name, venv.site, what, name, why=why))
    for name in _ONCE:
        places = sorted(path for path in objects if posixpath.basename(path) == name)
        if len(places) > 1:
            what = f"two torches: {name} lies at {' and '.join(places)}"
            findings.append(Finding("duplicates", "torch", venv.name, places[1], what))
            break
    return findings
