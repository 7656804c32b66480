"""Files that are whole or not there, and locks that end with their holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.files import held_lock, replacing

HOLDER = """
import sys, time
from pathlib import Path
from lockstep.files import held_lock
with held_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(lock: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that holds `lock` for `seconds`; return it once it does."""
    words = [sys.executable, "-c", HOLDER, str(lock), str(seconds)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_says_that_it_waits_and_then_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = holder(tmp_path / "new" / "lock", 0.3)
    with held_lock(tmp_path / "new" / "lock", "waiting for the other"):
        assert first.wait() == 0
    assert capsys.readouterr().err.count("waiting for the other") == 1


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = holder(tmp_path / "lock", 60)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with held_lock(tmp_path / "lock", "waiting for the other"):
        pass
    assert "waiting" not in capsys.readouterr().err


def test_an_error_while_replacing_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("before")

    def halfway() -> None:
        with replacing(kept) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        halfway()
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert kept.read_text() == "before"
