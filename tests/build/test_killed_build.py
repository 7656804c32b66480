"""A build that is killed: the layout of before stays whole, and the next build makes the image as if nothing had been.

`LOCKSTEP_KILLS=50 pytest tests/build/test_killed_build.py` kills fifty; tests of push, .sqsh and mirror kill too.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import auditkit
import imagekit
import wheelkit
from lockstep.engine import ensure_engine

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "5"))
LONGEST = 5.0
"""Seconds after which a build is killed at the latest. One layer's install, its copy and the export take less."""


def whole(layout: Path) -> str:
    """Return the digest of a layout's image; every blob that it names must be there and be what its name says."""
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((layout / "blobs" / "sha256" / entry["digest"][7:]).read_text())
    for item in (entry, manifest["config"], *manifest["layers"]):
        data = (layout / "blobs" / "sha256" / item["digest"][7:]).read_bytes()
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == item["digest"]
    return str(entry["digest"])


def test_a_killed_build_leaves_the_last_image_and_the_next_one_succeeds(tmp_path: Path, uv_wheel: Path) -> None:
    ensure_engine()
    wheels = [
        auditkit.wheel(tmp_path / "w", "killed-package", f"{number}.0", {"killed_package.py": b"N = %d\n" % number})
        for number in range(KILLS + 1)
    ]
    chance = random.Random(20261130)
    with wheelkit.index([*wheels, uv_wheel]) as index:
        there = imagekit.tiny(tmp_path / "checkout", index.url, {"one": ["killed-package==0.0"]})
        there.ok("lock")
        there.ok("image", "tiny")
        last = whole(there.layout("tiny"))
        cut = 0
        for number in range(1, KILLS + 1):
            there.edit(f"killed-package=={number - 1}.0", f"killed-package=={number}.0")
            there.ok("lock")
            process = subprocess.Popen(
                [sys.executable, "-c", "from lockstep.cli import main; main()", "image", "tiny"],
                env=os.environ | there.env | {"LOCKSTEP_ROOT": str(there.root)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            time.sleep(chance.uniform(0.1, LONGEST))
            if process.poll() is None:
                cut += 1
                os.killpg(process.pid, signal.SIGKILL)  # not yet waited for, so its number is still its own
            process.wait()
            found = whole(there.layout("tiny"))
            there.ok("image", "tiny")
            made = whole(there.layout("tiny"))
            assert found in {last, made}
            assert made != last
            assert {path.name for path in there.layout("tiny").parent.iterdir()} <= {there.layout("tiny").name, ".pool"}
            last = made
    assert cut, "no build was killed before its end"
