"""The README names every target, in the Makefile's own words."""

from __future__ import annotations

import re

from lockstep.paths import ROOT


def test_the_table_of_targets_is_complete() -> None:
    targets = re.findall(r"^([a-z-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert len(targets) > 40
    for name, text in targets:
        words = text.replace("$$", "$").replace("|", "&#124;")
        assert f"| `make {name}` | {words} |" in readme, f"write the row of `make {name}` in README.md"
