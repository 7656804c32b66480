"""The workflow files: every action pinned by commit, every script sound."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github/workflows").glob("*.yml"))


def steps(path: Path) -> Iterator[dict[str, Any]]:
    data = YAML(typ="safe").load(path)
    for job in data["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_the_release_beside(path: Path) -> None:
    used = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    for line in used:
        assert re.search(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_time_limit_and_least_rights(path: Path) -> None:
    data = YAML(typ="safe").load(path)
    assert data["permissions"] == {"contents": "read"}
    for job in data["jobs"].values():
        assert job["timeout-minutes"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck_and_hold_no_expression(path: Path) -> None:
    shellcheck = Path(__file__).parents[2] / ".venv/bin/shellcheck"
    for step in steps(path):
        script = step.get("run", "")
        # An expression inside a script is pasted in as text: what a branch's name says would be run.
        assert "${{" not in script, step
        if script and shellcheck.exists():
            done = subprocess.run(
                [shellcheck, "-s", "bash", "-"], input=script, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(["actionlint", *WORKFLOWS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
