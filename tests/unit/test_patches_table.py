"""The table that `make patches` prints, on files that are given; reading published wheels is in tests/network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep import patches
from lockstep.cli import build_app
from lockstep.errors import LockstepError
from patchkit import FIRST, TEXT, write_patch

REMOVAL = (
    '[[remove]]\nid = "demo-vendored"\nversions = ">=1,<2"\npath = "demo/vendored"\nneeds = ["aiohttp"]\nwhy = "old"\n'
)


class Files(patches.WheelFiles):
    """The files of a wheel that is not there."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read(self, path: str) -> str | None:
        return self._files.get(path)

    def count(self, folder: str) -> int:
        return sum(path.startswith(f"{folder}/") for path in self._files)

    @property
    def fetched(self) -> int:
        return 1_500_000

    @contextmanager
    def open(self) -> Iterator[patches.WheelFiles]:
        yield self


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A patches folder with one patch and one removal of the package `demo`."""
    made = write_patch(tmp_path / "patches", FIRST)
    (made / "demo" / "removals.toml").write_text(REMOVAL)
    monkeypatch.setattr(patches, "FOLDER", made)
    return made


@pytest.mark.parametrize(
    ("version", "text", "state", "stops"),
    [
        ("1.0", TEXT, "applies", False),
        ("0.9", TEXT, "not needed", False),
        ("2.0", TEXT, "undeclared", True),
        ("1.0", TEXT.replace("return 1", "return 7"), "broken", True),
        ("1.0", TEXT + TEXT, "broken", True),
    ],
)
def test_each_state_is_told(folder: Path, version: str, text: str, state: str, stops: bool) -> None:
    row = patches.judge_files("demo", version, Files({"demo/code.py": text}))[0]
    assert (row.id, row.state, row.stops) == ("demo-a", state, stops)


def test_inert_and_fixed_upstream_are_told(folder: Path) -> None:
    more = "Applied-Upstream: 1.1\nLockstep-Fixed-By: demo/code.py: return 7\nLockstep-Inert: DEMO=1\n"
    write_patch(folder, FIRST, more=more)
    row = patches.judge_files("demo", "1.0", Files({"demo/code.py": TEXT}))[0]
    assert (row.state, row.why) == ("applies, inert", "matters only under DEMO=1")
    row = patches.judge_files("demo", "1.1", Files({"demo/code.py": TEXT.replace("return 1", "return 7")}))[0]
    assert (row.state, row.why) == ("fixed upstream", "fixed upstream in 1.1")


@pytest.mark.parametrize(
    ("version", "names", "state"),
    [
        ("1.0", frozenset({"demo", "aiohttp"}), "removes 2"),
        ("1.0", None, "removes 2"),
        ("1.0", frozenset({"demo"}), "broken"),
        ("2.0", None, "undeclared"),
    ],
)
def test_C4_a_removal_needs_what_takes_its_place(
    folder: Path, version: str, names: frozenset[str] | None, state: str
) -> None:
    files = {"demo/code.py": TEXT, "demo/vendored/a.py": "", "demo/vendored/b.py": ""}
    row = patches.judge_files("demo", version, Files(files), names)[-1]
    assert (row.id, row.state, row.stops) == ("demo-vendored", state, not state.startswith("removes"))
    gone = patches.judge_files("demo", version, Files({"demo/code.py": TEXT}), names)[-1]
    assert (gone.state, gone.stops) == ("not there", False)


def test_a_malformed_patch_and_a_clash_are_one_sentence(folder: Path) -> None:
    write_patch(folder, FIRST, name="b")
    with pytest.raises(LockstepError, match=r"a\.patch and b\.patch both touch line 4 of demo/code\.py"):
        patches.judge_files("demo", "1.0", Files({"demo/code.py": TEXT}))
    (folder / "demo" / "b.patch").write_text("nothing\n")
    with pytest.raises(LockstepError, match=r"b\.patch: the header line"):
        patches.judge_files("demo", "1.0", Files({"demo/code.py": TEXT}))


def test_the_locked_versions_come_from_the_locks() -> None:
    (use,) = patches.locked("vllm")
    assert use.backends == ("vllm",)
    assert "torch" in use.names
    assert patches.locked("no-such-package") == []


@pytest.mark.parametrize(("text", "code"), [(TEXT, 0), ("nothing\n", 1)])
def test_the_command_fails_where_a_build_would_stop_and_a_forecast_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int
) -> None:
    files = {"demo/code.py": text, "demo/vendored/a.py": ""}
    monkeypatch.setattr(patches, "WheelFiles", lambda *_args: Files(files))
    use = patches.Use("demo", "1.0", ("backend",), frozenset({"demo", "aiohttp"}))
    monkeypatch.setattr(patches, "locked", lambda _package: [use])
    done = CliRunner().invoke(build_app(), ["patches"])
    assert done.exit_code == code
    assert "demo 1.0, locked for backend" in done.output
    if code:
        assert "a build would stop at 1 of them" in str(done.exception)
    forecast = CliRunner().invoke(build_app(), ["patches", "--version", "1.0", "--package", "demo"])
    assert forecast.exit_code == 0
