"""The helper that patches the packages of a venv in a build stage."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from patchkit import FIRST, SECOND, TEXT, apply, install, integrity, write_patch


def _code(site: Path) -> str:
    return (site / "demo" / "code.py").read_text()


def _rows(report: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(report.read_text())["patches"]
    return rows


def _files(site: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in site.rglob("*") if path.is_file()}


def _compiled(source: Path) -> Path:
    py_compile.compile(str(source), doraise=True)
    return Path(cache_from_source(str(source)))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site-packages of a venv at tmp_path/venv that holds demo 1.0."""
    return install(tmp_path / "venv", "demo", "1.0", {"demo/code.py": TEXT, "demo/other.py": "x = 1\n"})


@pytest.mark.parametrize(("copies", "builds"), [(1, True), (0, False), (2, False)])
def test_A1_only_the_package_whose_anchor_occurs_once_builds(tmp_path: Path, copies: int, builds: bool) -> None:
    text = "import os\n\n\n" + "def first():\n    return 1\n\n\n" * copies
    site = install(tmp_path / "venv", "demo", "1.0", {"demo/code.py": text})
    done = apply(tmp_path / "venv", write_patch(tmp_path / "patches", FIRST), "--report", tmp_path / "report.json")
    assert (done.returncode == 0) is builds
    if builds:
        assert "return 10" in _code(site)
        assert _rows(tmp_path / "report.json")[0]["status"] == "applied"
    else:
        assert _code(site) == text
        assert not (tmp_path / "report.json").exists()
        assert done.stderr.startswith("error: demo 1.0: a.patch does not fit: the anchor at line 4 of demo/code.py ")
        assert done.stderr.count("\n") == 1


def test_a_second_run_changes_nothing_and_says_so(site: Path, tmp_path: Path) -> None:
    patches = write_patch(write_patch(tmp_path / "patches", FIRST), SECOND, name="b")
    first = apply(tmp_path / "venv", patches, "--report", tmp_path / "one.json")
    after = _files(site)
    second = apply(tmp_path / "venv", patches, "--report", tmp_path / "two.json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "1 files changed" in first.stdout
    assert "nothing to change" in second.stdout
    assert _files(site) == after
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert "return 10" in _code(site)
    assert "return two" in _code(site)


def test_a_patch_that_comes_later_is_added_to_one_that_is_applied(site: Path, tmp_path: Path) -> None:
    patches = write_patch(tmp_path / "patches", FIRST)
    apply(tmp_path / "venv", patches)
    done = apply(tmp_path / "venv", write_patch(patches, SECOND, name="b"), "--report", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    assert "return two" in _code(site)
    assert integrity(site) == []
    assert len({row["sha256_before"] for row in _rows(tmp_path / "report.json")}) == 1


def test_other_hard_links_of_the_file_and_of_record_keep_their_content(site: Path, tmp_path: Path) -> None:
    record = site / "demo-1.0.dist-info" / "RECORD"
    before = record.read_bytes()
    os.link(site / "demo" / "code.py", tmp_path / "code.py")
    os.link(record, tmp_path / "RECORD")
    assert apply(tmp_path / "venv", write_patch(tmp_path / "patches", FIRST)).returncode == 0
    assert (tmp_path / "code.py").read_text() == TEXT
    assert (tmp_path / "RECORD").read_bytes() == before
    assert (site / "demo" / "code.py").stat().st_nlink == 1


def test_record_fits_afterwards_and_permissions_stay(site: Path, tmp_path: Path) -> None:
    (site / "demo" / "code.py").chmod(0o755)
    assert apply(tmp_path / "venv", write_patch(tmp_path / "patches", FIRST)).returncode == 0
    assert integrity(site) == []
    assert (site / "demo" / "code.py").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("compile_it", [False, True])
def test_stale_bytecode_is_removed_or_replaced(site: Path, tmp_path: Path, compile_it: bool) -> None:
    stale, other = (_compiled(site / "demo" / name) for name in ("code.py", "other.py"))
    old = stale.read_bytes()
    options = ["--compile"] if compile_it else []
    assert apply(tmp_path / "venv", write_patch(tmp_path / "patches", FIRST), *options).returncode == 0
    assert stale.exists() is compile_it
    assert other.exists()
    if compile_it:
        assert stale.read_bytes() != old
        # PEP 552: flags 1 are an unchecked hash, so the file's time does not matter.
        assert stale.read_bytes()[4:8] == b"\x01\0\0\0"


def test_two_patches_of_one_line_are_refused(site: Path, tmp_path: Path) -> None:
    patches = write_patch(tmp_path / "patches", FIRST)
    done = apply(tmp_path / "venv", write_patch(patches, FIRST.replace("return 10", "return 11"), name="b"))
    assert done.returncode == 1
    assert "a.patch and b.patch both touch line 4 of demo/code.py" in done.stderr
    assert _code(site) == TEXT


def test_nothing_is_written_where_one_of_several_patches_does_not_fit(site: Path, tmp_path: Path) -> None:
    before = _files(site)
    patches = write_patch(tmp_path / "patches", FIRST)
    done = apply(tmp_path / "venv", write_patch(patches, SECOND.replace("return 2", "return 3"), name="b"))
    assert done.returncode == 1
    assert _files(site) == before


def test_half_a_patch_stops_the_build(site: Path, tmp_path: Path) -> None:
    both = FIRST + SECOND.split("\n", 2)[2]
    half = install(tmp_path / "half", "demo", "1.0", {"demo/code.py": TEXT.replace("return 1", "return 10")})
    done = apply(tmp_path / "half", write_patch(tmp_path / "patches", both))
    assert done.returncode == 1
    assert "only some of its hunks are applied" in done.stderr
    assert "return 2" in _code(half)


@pytest.mark.parametrize(
    ("versions", "status"), [(">=1,<2", "applied"), (">=1.1,<2", "skipped"), (">=0.5,<1", None), ("==1.0.0", "applied")]
)
def test_a_patch_is_for_the_versions_that_it_declares(
    site: Path, tmp_path: Path, versions: str, status: str | None
) -> None:
    patches = write_patch(tmp_path / "patches", FIRST, versions=versions)
    done = apply(tmp_path / "venv", patches, "--report", tmp_path / "report.json")
    if status is None:
        assert done.returncode == 1
        assert "a.patch is declared for >=0.5,<1 only; its anchors match; widen" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert _rows(tmp_path / "report.json")[0]["status"] == status
    assert ("return 10" in _code(site)) is (status == "applied")


@pytest.mark.parametrize("versions", [">=1,<2", ">=0.5,<1"])
def test_an_upstream_fix_is_recognised_and_nothing_is_changed(site: Path, tmp_path: Path, versions: str) -> None:
    more = "Applied-Upstream: 1.0\nLockstep-Fixed-By: demo/code.py: def first.*\\n    return 1\n"
    # The anchor is that of older versions; here it is gone.
    patches = write_patch(tmp_path / "patches", FIRST.replace("return 1\n", "return 7\n"), versions=versions, more=more)
    done = apply(tmp_path / "venv", patches, "--report", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    (row,) = _rows(tmp_path / "report.json")
    assert (row["status"], row["why"]) == ("fixed-upstream", "fixed upstream in 1.0")
    assert row["sha256_before"] == row["sha256_after"]
    assert "fixed-upstream" in done.stdout
    assert _code(site) == TEXT


def test_an_inert_patch_is_applied_and_names_its_setting(site: Path, tmp_path: Path) -> None:
    patches = write_patch(tmp_path / "patches", FIRST, more="Lockstep-Inert: DEMO=1\n")
    assert apply(tmp_path / "venv", patches, "--report", tmp_path / "report.json").returncode == 0
    (row,) = _rows(tmp_path / "report.json")
    assert (row["status"], row["why"]) == ("inert", "matters only under DEMO=1")
    assert "return 10" in _code(site)


def test_a_file_that_differs_from_its_record_is_not_patched(site: Path, tmp_path: Path) -> None:
    (site / "demo" / "code.py").write_text(TEXT + "# edited\n")
    done = apply(tmp_path / "venv", write_patch(tmp_path / "patches", FIRST))
    assert done.returncode == 1
    assert "demo/code.py is not the file that RECORD lists" in done.stderr


def test_a_run_that_was_cut_short_before_record_is_mended(site: Path, tmp_path: Path) -> None:
    (site / "demo" / "code.py").write_text(TEXT.replace("return 1", "return 10"))
    done = apply(tmp_path / "venv", write_patch(tmp_path / "patches", FIRST))
    assert done.returncode == 0, done.stderr
    assert integrity(site) == []


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_either_tool_does_it_and_without_one_the_build_stops(site: Path, tmp_path: Path, tool: str) -> None:
    (tmp_path / "bin").mkdir()
    patches = write_patch(write_patch(tmp_path / "patches", FIRST), SECOND, name="b")
    none = apply(tmp_path / "venv", patches, path=str(tmp_path / "bin"))
    assert none.returncode == 1
    assert "neither patch nor git is installed" in none.stderr
    found = shutil.which(tool)
    assert found is not None
    (tmp_path / "bin" / tool).symlink_to(found)
    done = apply(tmp_path / "venv", patches, path=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert "return 10" in _code(site)
    assert "return two" in _code(site)


def test_a_named_package_must_be_installed(site: Path, tmp_path: Path) -> None:
    patches = write_patch(tmp_path / "patches", FIRST)
    (patches / "absent").mkdir()
    assert apply(tmp_path / "venv", patches).returncode == 0
    done = apply(tmp_path / "venv", patches, "--package", "absent")
    assert done.returncode == 1
    assert "absent is not installed" in done.stderr


def test_reports_of_several_layers_are_joined(tmp_path: Path) -> None:
    patches = write_patch(tmp_path / "patches", FIRST)
    for name in ("b", "a"):
        install(tmp_path / name, "demo", "1.0", {"demo/code.py": TEXT})
        assert apply(tmp_path / name, patches, "--report", tmp_path / f"{name}.json").returncode == 0
    assert apply(tmp_path / "a", patches, "--report-dir", tmp_path / "each").returncode == 0
    assert (tmp_path / "each" / "a.demo.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    reports = [tmp_path / "b.json", tmp_path / "a.json"]
    done = apply(tmp_path, patches, "--report", tmp_path / "all.json", "--merge", *reports)
    assert done.returncode == 0, done.stderr
    assert [Path(row["venv"]).name for row in _rows(tmp_path / "all.json")] == ["a", "b"]


REMOVAL = '[[remove]]\nid = "demo-vendored"\nversions = ">=1,<2"\npath = "demo/vendored"\nwhy = "old"\n'


def _vendored(venv: Path, version: str = "1.0") -> tuple[Path, Path]:
    files = {
        "demo/code.py": TEXT,
        "demo/vendored/a.py": "a\n",
        "demo/vendored/b/c.py": "c\n",
        "demo/vendored2.py": "d\n",
    }
    site = install(venv, "demo", version, files)
    patches = venv.parent / "patches"
    (patches / "demo").mkdir(parents=True)
    (patches / "demo" / "removals.toml").write_text(REMOVAL)
    return site, patches


def test_C4_a_declared_path_is_removed_and_record_says_so(tmp_path: Path) -> None:
    site, patches = _vendored(tmp_path / "venv")
    first = apply(tmp_path / "venv", patches, "--report", tmp_path / "report.json")
    assert first.returncode == 0, first.stderr
    assert not (site / "demo" / "vendored").exists()
    assert (site / "demo" / "vendored2.py").exists()
    record = (site / "demo-1.0.dist-info" / "RECORD").read_text()
    assert "demo/vendored/" not in record
    assert "demo/vendored2.py" in record
    assert integrity(site) == []
    (row,) = _rows(tmp_path / "report.json")
    assert (row["status"], row["file"], row["why"]) == ("removed", "demo/vendored", "old")
    second = apply(tmp_path / "venv", patches)
    assert second.returncode == 0
    assert "nothing to change" in second.stdout


def test_a_removal_outside_its_versions_stops_while_the_path_is_there(tmp_path: Path) -> None:
    site, patches = _vendored(tmp_path / "venv", "2.0")
    done = apply(tmp_path / "venv", patches)
    assert done.returncode == 1
    assert "look whether it is still unwanted" in done.stderr
    assert (site / "demo" / "vendored").exists()


def test_a_removal_may_not_leave_the_package(tmp_path: Path) -> None:
    _, patches = _vendored(tmp_path / "venv")
    (patches / "demo" / "removals.toml").write_text(REMOVAL.replace("demo/vendored", "../../etc"))
    done = apply(tmp_path / "venv", patches)
    assert done.returncode == 1
    assert "does not lie inside the package" in done.stderr
