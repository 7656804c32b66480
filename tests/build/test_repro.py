"""`make repro` finds what makes an image irreproducible: a stand-in that writes the clock into a file."""

from __future__ import annotations

from pathlib import Path

import imagekit


def test_a_build_that_writes_the_clock_is_found_out(tmp_path: Path) -> None:
    made = imagekit.checkout(tmp_path / "checkout")
    script = made.root / "docker" / "build" / "files.py"
    text = script.read_text()
    anchor = "    settle(arguments.out, int("
    assert text.count(anchor) == 1
    clock = '    (target / "built-at").write_text(f"made at {__import__(\'time\').time_ns()}\\n")\n'
    script.write_text(text.replace(anchor, clock + anchor))
    done = made.run("repro", "smoke", "--load", "0")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stdout.splitlines()[-1]
    assert said.startswith("build 2 differs from build 1: layer ")
    assert "opt/lockstep/built-at: content: 28 bytes and 28 bytes, first in line 1: 'made at " in said
    assert said.endswith("(in all 1 by content)")
    assert list((made.root / "build").glob("lockstep-repro-*")) == []
