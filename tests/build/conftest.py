"""What several files of build tests use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.paths import ROOT
from lockstep.render import uv_requirement


@pytest.fixture(scope="session")
def uv_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned uv, to be served by the tests' own index, since a cold build installs it."""
    folder = tmp_path_factory.mktemp("uv")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", str(folder)]
    pins = folder / "pins.txt"
    pins.write_text(uv_requirement(ROOT) + "\n")
    subprocess.run([*words, "-r", str(pins)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
