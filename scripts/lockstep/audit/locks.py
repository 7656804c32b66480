"""Audit a lock before anything of it is installed."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping
from pathlib import Path

from lockstep.arch import Arch
from lockstep.audit.finding import Finding
from lockstep.audit.run import Audit, Options, Wanted
from lockstep.audit.waivers import AuditRules, apply_rules
from lockstep.audit.wheel_abi import lock_abi
from lockstep.audit.wheels import check_cards, locked_cards
from lockstep.errors import LockstepError
from lockstep.lock import parse_lock

_LOCK = re.compile(r"^lock\.(?P<arch>x86_64|aarch64)\.txt$")


def is_lock(path: Path) -> bool:
    """Tell whether a path is named as a backend's lock is: BACKEND/lock.ARCH.txt."""
    return _LOCK.match(path.name) is not None


def audit_lock(path: Path, options: Options, rules: AuditRules, wanted: Mapping[str, Wanted]) -> Audit:
    """Audit a lock by the same rules as the venv that it gives: the checks overlap and metadata.

    With options.download, abi too: every wheel whose libraries are not known yet is then fetched once.
    """
    started = time.monotonic()
    match = _LOCK.match(path.name)
    if match is None or not path.is_file():
        raise LockstepError("is no lock", where=str(path), fix="name images/BACKEND/lock.ARCH.txt")
    arch, backend = Arch(match["arch"]), options.name or path.resolve().parent.name
    lock = parse_lock(path.read_text("utf-8"), backend, arch, str(path))
    possible = ("abi", "overlap", "metadata") if options.download else ("overlap", "metadata")
    checks = [name for name in possible if name in options.checks]
    about = wanted.get(backend)
    left_out = about.left_out if about else ()
    wheels = [wheel for wheel in lock.wheels if wheel.name not in left_out]
    cards = locked_cards(wheels)
    found: list[Finding] = []
    libraries = 0
    if "abi" in checks:
        found, libraries = lock_abi(wheels, arch, backend=backend, python=options.python)
    found += check_cards(cards, arch, options.python, backend=backend, wanted=about)
    found = [item for item in found if item.check in checks]
    today = options.today or datetime.date.today()
    lacking = [backend] if left_out else []
    ruled = apply_rules(found, rules, arch=arch, today=today, backends=[backend], checks=checks, lacking=lacking)
    return Audit(
        subject=str(path),
        arch=arch,
        venvs=(backend,),
        distributions=len(cards),
        libraries=libraries,
        files=sum(len(card.files) for card in cards),
        hashed=False,
        seconds=time.monotonic() - started,
        findings=tuple(ruled),
    )
