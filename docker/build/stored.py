"""Wheels that no index serves: install them from the folders that the stage binds, and keep the mirrored ones.

install.py calls this for lines of another kind than a requirement:

    store:KEY       a compiled wheel, the only one in /lockstep/wheels/KEY
    mirror:SHA256   a mirrored wheel; the image keeps it in /opt/trtllm_wheels/SHA256 and it is installed from there
    missing:NAME    a wheel that nobody has mirrored yet: the stage ends here

Only stages that need it get this file, so that a change in it rebuilds no other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BOUND = Path("/lockstep/wheels")
KEPT = Path("/opt/trtllm_wheels")


def the_wheel(folder: Path) -> Path:
    """Return the one wheel in a folder; end with one sentence where there is not exactly one."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"error: {folder} holds {len(wheels)} wheels where one is wanted: `make image` checks that beforehand")
    return wheels[0]


def keep(sha256: str, bound: Path = BOUND, kept: Path = KEPT) -> bool:
    """Copy a mirrored wheel to where the image keeps it, unless the stage inherits it; return whether it was copied."""
    if (kept / sha256).is_dir():
        return False
    wheel = the_wheel(bound / sha256)
    (kept / sha256).mkdir(parents=True)
    shutil.copyfile(wheel, kept / sha256 / wheel.name)
    return True


def requirement(line: str, bound: Path = BOUND, kept: Path = KEPT) -> tuple[list[str], str]:
    """Return uv's options for a line and the requirement that names the wheel's file (PEP 508, direct reference)."""
    kind, _, name = line.partition(":")
    if kind == "missing":
        sys.exit(f"error: the wheel of {name} is not mirrored: run `make mirror` where its index can be reached")
    wheel = the_wheel((kept if kind == "mirror" else bound) / name)
    direct = f"{wheel.name.split('-')[0]} @ {wheel.as_uri()}"
    # A mirrored wheel is known by its hash. A compiled one by its key: `make image` has compared it with its record.
    return (["--require-hashes"], f"{direct} --hash=sha256:{name}") if kind == "mirror" else ([], direct)


def install(venv: Path, lines: list[str], platform: str, env: Mapping[str, str]) -> bool:
    """Install the wheels of one venv; return whether KEPT holds wheels that this stage has put there."""
    copied = [keep(line.partition(":")[2]) for line in lines if line.startswith("mirror:")]
    for line in lines:
        options, text = requirement(line)
        words = ["/opt/uv/bin/uv", "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "--no-deps"]
        words += ["--no-index", "--python-platform", platform, *options, "-r", "/dev/stdin"]
        if subprocess.run(words, input=text, env=env, text=True, check=False).returncode:
            sys.exit(f"error: uv could not install {text.split()[0]} into {venv}; the lines above say why")
    return any(copied)
