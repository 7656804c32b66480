"""The command line as a whole: which command is of which area, and that a plain line costs no rich."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from lockstep.cli import _QUICK, build_app


def test_the_quick_commands_are_those_of_their_area() -> None:
    everything = set(typer.main.get_command(build_app()).commands)  # type: ignore[attr-defined]
    for command in _QUICK:
        quick = set(typer.main.get_command(build_app(command)).commands)  # type: ignore[attr-defined]
        assert command in quick < everything


@pytest.mark.parametrize(("text", "loaded"), [("plain", "False"), ("[bold]marked[/bold]", "True")])
def test_a_plain_line_is_said_without_rich(text: str, loaded: str) -> None:
    code = f"import sys; from lockstep import console; console.note({text!r}); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded
    assert done.stderr == f"{text.replace('[bold]', '').replace('[/bold]', '')}\n"


def test_an_image_is_not_compared_with_itself() -> None:
    from lockstep.errors import LockstepError

    with pytest.raises(LockstepError, match="nothing to compare it with"):
        build_app()(["diff", "smoke"], standalone_mode=False)
