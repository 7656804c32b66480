"""The install helper's own steps, on small trees; the whole of it runs in tests/build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import install
import pyc
import pytest

EPOCH = 1767225600
PYC = Path(pyc.__file__)


def _tree(root: Path) -> Path:
    """Real files, because few show the effect: CPython 3.11 writes other bytes for ftplib after a copy of itself."""
    (root / "pkg").mkdir(parents=True, exist_ok=True)
    stdlib = Path(os.__file__).parent
    for name in ("abc", "ast", "cmd", "ftplib", "imaplib", "json/decoder"):
        shutil.copy(stdlib / f"{name}.py", root / "pkg")
    shutil.copy(stdlib / "ftplib.py", root / "pkg" / "aaa.py")
    (root / "pkg" / "broken.py").write_text("print 'python 2'\n")
    return root


def _compile(root: Path, workers: int) -> dict[str, bytes]:
    code = f"import pyc, pathlib; print(pyc.compile_tree(pathlib.Path({str(root)!r}), {workers}))"
    env = dict(os.environ, PYTHONHASHSEED="0", PYTHONPATH=str(PYC.parent))
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    sources = len(list(root.rglob("*.py")))
    assert done.stdout.strip() == f"({sources - 1}, 1)"
    return {path.name: path.read_bytes() for path in root.rglob("*.pyc")}


def _clear(root: Path) -> None:
    for path in root.rglob("*.pyc"):
        path.unlink()


def test_bytecode_is_the_same_alone_in_company_and_with_many_workers(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    first = _compile(root, 1)
    for workers in (2, 7):
        _clear(root)
        assert _compile(root, workers) == first
    _clear(root)
    for source in (root / "pkg").glob("*.py"):
        if source.name not in {"ftplib.py", "broken.py"}:
            source.unlink()
    for name, data in _compile(root, 1).items():
        assert data == first[name]


def test_bytecode_is_checked_by_hash_so_file_times_do_not_matter(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    for data in _compile(root, 1).values():
        assert int.from_bytes(data[4:8], "little") == 0b11  # PEP 552: hash-based, checked


def test_bytecode_refuses_a_random_hash_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(SystemExit, match="PYTHONHASHSEED=0"):
        pyc.compile_tree(tmp_path)


def test_equal_files_of_two_venvs_become_one_and_others_stay_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for venv in (one, two):
        (venv / "lib").mkdir(parents=True)
        (venv / "lib" / "same.py").write_text("x = 1\n")
        (venv / "lib" / "script").write_text(f"#!{venv}/bin/python\n")
    (one / "lib" / "copy.py").write_text("x = 1\n")
    assert install.link_equal([one, two]) == 6
    assert (one / "lib" / "same.py").samefile(two / "lib" / "same.py")
    assert not (one / "lib" / "script").samefile(two / "lib" / "script")
    assert (one / "lib" / "copy.py").stat().st_nlink == 1


def test_settle_fixes_modes_and_times_of_everything(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True, mode=0o700)
    (root / "d" / "plain").write_text("x")
    (root / "d" / "plain").chmod(0o600)
    (root / "d" / "tool").write_text("x")
    (root / "d" / "tool").chmod(0o700)
    (root / "d" / "link").symlink_to("plain")
    install.settle(root, EPOCH)
    assert (root / "d").stat().st_mode & 0o7777 == 0o755
    assert (root / "d" / "plain").stat().st_mode & 0o7777 == 0o644
    assert (root / "d" / "tool").stat().st_mode & 0o7777 == 0o755
    for path in (root, *root.rglob("*")):
        assert path.lstat().st_mtime == EPOCH, path


def test_D6_residue_goes_and_RECORD_says_so(tmp_path: Path) -> None:
    info = tmp_path / "lib" / "python3.13" / "site-packages" / "x-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: x\n")
    (info / "uv_cache.json").write_text('{"timestamp": 1}')
    (info / "RECORD").write_text("x-1.dist-info/uv_cache.json,sha256=a,16\nx-1.dist-info/METADATA,sha256=b,8\n")
    install.scrub(tmp_path, "3.13")
    assert not (info / "uv_cache.json").exists()
    assert (info / "RECORD").read_text() == "x-1.dist-info/METADATA,sha256=b,8\n"


def test_requirements_are_read_per_venv() -> None:
    text = "[one]\na==1 --hash=sha256:00\n\n[two]\nb==2 --hash=sha256:11\n"
    assert install.read_blocks(text) == {"one": ["a==1 --hash=sha256:00"], "two": ["b==2 --hash=sha256:11"]}
