"""Bytecode from earlier builds is used where it is whole and of these very sources, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bytecode
import pytest

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    """An empty folder of packs."""
    folder = tmp_path / "packs"
    folder.mkdir()
    return folder


def _venv(root: Path) -> Path:
    site = root / SITE
    (site / "one" / "sub").mkdir(parents=True)
    (site / "one" / "__init__.py").write_text("A = 'one'\n\ndef f():\n    return A\n")
    (site / "one" / "sub" / "a.b.py").write_text("B = 2\n")
    (site / "one" / "template.py").write_text("print 'python 2'\n")
    (site / "one" / "templates").mkdir()
    (site / "one" / "templates" / "old.py").write_text("print 'none of this folder parses'\n")
    (site / "single.py").write_text("C = 3\n")
    (root / "share").mkdir()
    (root / "share" / "example.py").write_text("D = 4\n")
    return root


def _compile(root: Path, packs: Path, *, fresh: str = "/nonexistent", more: str = "") -> tuple[int, int]:
    """Run compile_tree as a stage does, in a process of its own; `more` is run before it."""
    code = f"import bytecode; from pathlib import Path; bytecode.FRESH = Path({fresh!r})\n{more}\n"
    code += f"print(*bytecode.compile_tree(Path({str(root)!r}), Path({str(packs)!r})))"
    env = dict(os.environ, PYTHONHASHSEED="0", PYTHONPATH=str(Path(bytecode.__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    used, made = done.stdout.split()
    return int(used), int(made)


def _take(root: Path) -> dict[str, bytes]:
    """Remove the bytecode of a tree and return it, with the folders that it lay in, empty ones too."""
    found = {}
    for folder in sorted(root.rglob("__pycache__")):
        found[str(folder.relative_to(root))] = b""
        for path in sorted(folder.iterdir()):
            found[str(path.relative_to(root))] = path.read_bytes()
            path.unlink()
        folder.rmdir()
    return found


# A stage that compiles although it must not: every fork is a fault.
NO_COMPILER = "import os, pyc; pyc._fork_all = lambda todo, workers: os.abort()"


def test_what_was_compiled_is_used_again_and_is_the_same(tmp_path: Path, packs: Path) -> None:
    root = _venv(tmp_path / "venv")
    assert _compile(root, packs) == (0, 3)
    first = _take(root)
    assert len([name for name in first if name.endswith(".pyc")]) == 4
    assert f"{SITE}/one/templates/__pycache__" in first
    assert _compile(root, packs, more=NO_COMPILER) == (3, 0)
    assert _take(root) == first
    assert _compile(root, tmp_path / "no packs") == (0, 0)
    assert _take(root) == first


def test_a_changed_source_compiles_its_own_folder_and_no_other(tmp_path: Path, packs: Path) -> None:
    root = _venv(tmp_path / "venv")
    _compile(root, packs)
    _take(root)
    (root / SITE / "single.py").write_text("C = 4\n")
    assert _compile(root, packs) == (2, 1)
    changed = _take(root)
    assert _compile(root, tmp_path / "no packs") == (0, 0)
    assert _take(root) == changed


def test_another_venv_has_bytecode_of_its_own(tmp_path: Path, packs: Path) -> None:
    """The path is in the bytecode, and a traceback must name the venv's own file."""
    one, two = _venv(tmp_path / "one"), _venv(tmp_path / "two")
    _compile(one, packs)
    assert _compile(two, packs) == (0, 3)
    assert str(two).encode() in _take(two)[f"{SITE}/__pycache__/single.{sys.implementation.cache_tag}.pyc"]


@pytest.mark.parametrize("harm", ["a bit", "cut", "empty", "of other sources"])
def test_a_damaged_pack_is_made_again(tmp_path: Path, packs: Path, harm: str) -> None:
    root = _venv(tmp_path / "venv")
    _compile(root, packs)
    first = _take(root)
    for pack in packs.iterdir():
        data = pack.read_bytes()
        bad = bytearray(data)
        bad[-3] ^= 1
        other = min(path for path in packs.iterdir() if path != pack).read_bytes()
        pack.write_bytes({"a bit": bytes(bad), "cut": data[:-10], "empty": b"", "of other sources": other}[harm])
    used, made = _compile(root, packs)
    assert used + made == 3
    assert made >= 2  # the last of three holds what it should where each got the one before
    assert _take(root) == first
    assert _compile(root, packs, more=NO_COMPILER) == (3, 0)


def test_a_build_that_is_killed_while_it_writes_leaves_nothing_that_is_used(tmp_path: Path, packs: Path) -> None:
    root = _venv(tmp_path / "venv")
    kill = "import os; Path.rename = lambda *_: os.kill(os.getpid(), 9)"
    with pytest.raises(subprocess.CalledProcessError):
        _compile(root, packs, more=kill)
    _take(root)
    (left,) = packs.iterdir()
    assert left.name.endswith(".part")
    assert _compile(root, packs) == (0, 3)
    os.utime(left, (1, 1))
    _take(root)
    (root / SITE / "single.py").write_text("C = 5\n")
    _compile(root, packs)
    assert not left.exists()


def test_packs_that_no_build_uses_go_and_those_in_use_stay(tmp_path: Path, packs: Path) -> None:
    root = _venv(tmp_path / "venv")
    _compile(root, packs)
    _take(root)
    unused = packs / "unused"
    unused.write_bytes(b"")
    for pack in packs.iterdir():
        os.utime(pack, (1, 1))
    (root / SITE / "single.py").write_text("C = 5\n")
    assert _compile(root, packs) == (2, 1)
    assert not unused.exists()
    assert len(list(packs.iterdir())) == 3


def test_a_folder_that_cannot_be_written_loses_no_bytecode(tmp_path: Path, packs: Path) -> None:
    root = _venv(tmp_path / "venv")
    full = "def full(*_): raise OSError(28, 'No space left on device')\nPath.rename = full"
    _compile(root, packs, more=full)
    assert len([name for name in _take(root) if name.endswith(".pyc")]) == 4
    assert not list(packs.iterdir())


def test_D2_a_proof_compiles_anew_and_leaves_the_packs_alone(tmp_path: Path, packs: Path) -> None:
    root = _venv(tmp_path / "venv")
    _compile(root, packs)
    first = _take(root)
    before = {path.name: path.stat().st_mtime_ns for path in packs.iterdir()}
    asked = tmp_path / "fresh-bytecode"
    asked.touch()
    with pytest.raises(subprocess.CalledProcessError):
        _compile(root, packs, fresh=str(asked), more=NO_COMPILER)
    assert _compile(root, packs, fresh=str(asked)) == (0, 0)
    assert _take(root) == first
    assert {path.name: path.stat().st_mtime_ns for path in packs.iterdir()} == before


def test_a_pack_is_known_by_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = bytecode._compiler()
    assert ours == bytecode._compiler()
    monkeypatch.setattr(sys, "version", "3.13.99")
    assert bytecode._compiler() != ours
