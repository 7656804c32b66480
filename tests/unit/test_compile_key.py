"""What a compiled wheel is kept under, and what may be declared."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import auditkit
from lockstep.compile import ledger, store
from lockstep.compile.spec import CacheKey, CompileSpec
from lockstep.errors import LockstepError

FIELDS: dict[str, Any] = {
    "package": "flash-attn",
    "version": "2.8.1",
    "source": "sdist:" + "0" * 64,
    "directory": "",
    "line": "torch-2.13",
    "torch": "2.13.0",
    "cuda": "13.0",
    "cuda_arches": ["9.0"],
    "gencode": "check",
    "arch": "x86_64",
    "python": "3.13",
    "compiler": "g++ 14.2.0, nvcc 13.0.88",
    "base": "b",
    "requirements": "r",
    "environment": {"FLAG": "0"},
    "epoch": 1,
    "build_script": "s",
}
OTHER: dict[str, Any] = {"cuda_arches": ["10.0"], "environment": {"FLAG": "1"}, "epoch": 2}


def key(**changed: Any) -> CacheKey:
    return CacheKey(**{**FIELDS, **changed})


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("package", "version")])
def test_A12_everything_that_decides_a_wheel_is_in_its_key(name: str) -> None:
    changed = key(**{name: OTHER.get(name, FIELDS[name] + "x" if isinstance(FIELDS[name], str) else None)})
    assert changed.digest() != key().digest()


def test_the_key_is_the_hash_of_the_text_beside_the_wheel() -> None:
    assert key().digest() == hashlib.sha256(key().text().encode()).hexdigest()
    assert key(environment={"B": "1", "A": "2"}).text() == key(environment={"A": "2", "B": "1"}).text()


def test_ccache_keeps_apart_what_its_preprocessor_does_not_see() -> None:
    """It preprocesses for one GPU: code inside `#if __CUDA_ARCH__ == …` of another is not in its hash."""
    assert key(source="sdist:" + "1" * 64).cache_namespace() != key().cache_namespace()
    assert key(cuda_arches=["9.0", "10.0"]).cache_namespace() != key().cache_namespace()
    assert key(build_script="another").cache_namespace() == key().cache_namespace()


def test_A12_another_flag_is_another_wheel_in_the_store(tmp_path: Path) -> None:
    wheels = {}
    for flag in ("0", "1"):
        made = auditkit.wheel(tmp_path / flag, "flash-attn", "2.8.1", {"flag.py": f"FLAG = {flag}\n".encode()})
        assert store.find(key(environment={"FLAG": flag}), tmp_path / "wheels") is None
        wheels[flag], _ = store.enter(key(environment={"FLAG": flag}), made, tmp_path / "wheels")
    assert wheels["0"].path != wheels["1"].path
    for flag in ("0", "1"):
        found = store.find(key(environment={"FLAG": flag}), tmp_path / "wheels")
        assert found == wheels[flag]
        assert (found.path.parent / "key.json").read_text() == key(environment={"FLAG": flag}).text()


def test_a_wheel_that_was_exchanged_by_hand_is_refused(tmp_path: Path) -> None:
    made = auditkit.wheel(tmp_path, "flash-attn", "2.8.1", {"a.py": b""})
    stored, _ = store.enter(key(), made, tmp_path / "wheels")
    stored.path.write_bytes(stored.path.read_bytes() + b" ")
    with pytest.raises(LockstepError, match="is not what was built under this key"):
        store.find(key(), tmp_path / "wheels")
    stored.path.unlink()
    with pytest.raises(LockstepError, match="not a whole entry"):
        store.find(key(), tmp_path / "wheels")


def test_the_ledger_names_what_differs(tmp_path: Path) -> None:
    first = auditkit.library(tmp_path / "a.so", "int answer(void) { return 41; }")
    second = auditkit.library(tmp_path / "b.so", "int answer(void) { return 42; }")
    wheels = [
        auditkit.wheel(tmp_path / str(number), "flash-attn", "2.8.1", {"x.so": path.read_bytes(), "a.py": text})
        for number, (path, text) in enumerate([(first, b"1"), (first, b"1"), (second, b"2")])
    ]
    _, book = store.enter(key(), wheels[0], tmp_path / "wheels")
    assert ledger.sentence(book) == "built once; nothing to compare with"
    _, book = store.enter(key(), wheels[1], tmp_path / "wheels")
    assert ledger.sentence(book) == "two builds, equal bytes (1 shared objects)"
    _, book = store.enter(key(), wheels[2], tmp_path / "wheels")
    assert book.equal is False
    assert [item.member for item in book.differences] == ["x.so", "a.py"]
    assert ".text" in book.differences[0].sections
    assert ".dynsym" not in book.differences[0].sections
    assert ledger.sentence(book).startswith("two builds differ in x.so (")


def spec(**changed: Any) -> CompileSpec:
    fields: dict[str, Any] = {
        "version": "1.0",
        "why": "there is no wheel",
        "source": {"sdist_sha256": "0" * 64},
        "cuda_arches": ["9.0"],
        "imports": ["a"],
    }
    return CompileSpec.model_validate({**fields, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"env": {"MAX_JOBS": "64"}}, "MAX_JOBS is set by Lockstep"),
        ({"env": {"TORCH_CUDA_ARCH_LIST": "7.0"}}, "TORCH_CUDA_ARCH_LIST is set by Lockstep"),
        ({"env": {"A B": ""}}, "not the name of an environment variable"),
        ({"cuda_arches": ["9.0", "9.0"]}, "twice"),
        ({"cuda_arches": ["sm_90"]}, "pattern"),
        ({"cuda_arches": []}, "for which GPUs"),
        ({"cuda": None}, "for which GPUs"),
        ({"source": {"git": "https://example.org/a.git", "commit": "main"}}, "pattern"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_what_may_not_be_declared(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(**changed)
