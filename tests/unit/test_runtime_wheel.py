"""The wheel of the runtime package."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.runtime_wheel import SOURCE, build, members


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    one = build(tmp_path / "one")
    os.utime(SOURCE / "README.md")
    two = build(tmp_path / "two")
    assert one.name == two.name == "lockstep_runtime-1.0.0-py3-none-any.whl"
    assert one.read_bytes() == two.read_bytes()


def test_record_lists_every_member(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path)) as archive:
        record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
        rows = {row[0]: row for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(rows) == set(archive.namelist())
        for name in set(rows) - {record}:
            data = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert rows[name] == [name, f"sha256={digest}", str(len(data))]


def test_it_holds_what_hatchling_would_put_in(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=SOURCE, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        theirs = {name: archive.read(name) for name in archive.namelist()}
    ours = members(SOURCE)
    plain = {name for name in theirs if ".dist-info/" not in name}
    assert plain == {name for name in ours if ".dist-info/" not in name}
    assert all(ours[name] == theirs[name] for name in plain)
    fields = {line for line in ours["lockstep_runtime-1.0.0.dist-info/METADATA"].decode().splitlines() if ": " in line}
    known = set(theirs["lockstep_runtime-1.0.0.dist-info/METADATA"].decode().splitlines())
    # License-Expression came with metadata 2.4; hatchling may write a later one.
    assert {field for field in fields - known if not field.startswith("Metadata-Version: ")} == set()


def test_two_versions_that_disagree_are_refused(tmp_path: Path) -> None:
    for path in SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = tmp_path / path.relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "1.0.0"', 'version = "1.0.1"'))
    with pytest.raises(LockstepError, match=r"__version__ is not 1\.0\.1"):
        members(tmp_path)


def test_it_needs_nothing(tmp_path: Path) -> None:
    metadata = members(SOURCE)["lockstep_runtime-1.0.0.dist-info/METADATA"].decode()
    assert "Requires-Dist" not in metadata
