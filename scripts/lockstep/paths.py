"""Where things lie: in the checkout, in the build folder, and in the machine's own state folder."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(os.environ.get("LOCKSTEP_ROOT", Path(__file__).resolve().parents[2]))
"""The checkout: the folder that holds versions.yaml. LOCKSTEP_ROOT names another (tests do)."""

VERSIONS = ROOT / "versions.yaml"
IMAGES = ROOT / "images"
STAGES = ROOT / "stages"
DOCKER = ROOT / "docker"
BUILD = ROOT / "build"
"""Everything a build leaves in the checkout and may be deleted: OCI layouts, records, logs. Never committed."""

WHEELS = ROOT / "wheels"
"""Content-addressed store of compiled and mirrored wheels. Never committed."""


def state_dir() -> Path:
    """Return the folder for what outlives a checkout: the private engine, downloaded packages, caches.

    LOCKSTEP_STATE overrides; root gets /var/lib/lockstep (FHS 3.0, 5.8), others $XDG_STATE_HOME/lockstep.
    """
    override = os.environ.get("LOCKSTEP_STATE")
    if override:
        return Path(override)
    if os.geteuid() == 0:
        return Path("/var/lib/lockstep")
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "lockstep"
