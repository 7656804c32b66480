"""`make mirror` against an index of stand-in wheels that the test builds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wheelkit
from lockstep import index as lockstep_index
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.matrix import Matrix, parse
from lockstep.mirror import store
from lockstep.mirror.fetch import Mirrored, build_backend, mirror_all
from lockstep.paths import ROOT

STUB = '[build-system]\nrequires = ["wheel-stub"]\nbuild-backend = "wheel_stub.buildapi"\n'


@pytest.fixture(autouse=True)
def _fresh_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    lockstep_index._page.cache_clear()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def entry(x86: str = "{}", arm: str | None = "{}", requires: str = "[]", version: str = "1.3.0rc21") -> str:
    arm_line = f"      aarch64: {arm}\n" if arm is not None else ""
    return f"""
mirror:
  tensorrt-llm:
    version: "{version}"
    why: a stand-in takes its place in this test
    requires: {requires}
    wheels:
      x86_64: {x86}
{arm_line}"""


def mirror(matrix: Matrix, folder: Path, *arches: Arch) -> tuple[list[Mirrored], list[LockstepError]]:
    faults: list[LockstepError] = []
    done = list(
        mirror_all(
            matrix, ["tensorrt-llm"], arches or (Arch.X86_64,), faults, folder / "mirror", folder / "versions.yaml"
        )
    )
    return done, faults


def prepared(folder: Path, parts: str) -> Matrix:
    text = wheelkit.matrix_text(parts)
    (folder / "versions.yaml").write_text(text)
    return parse(text)


def test_fetch_fills_in_the_hash_and_leaves_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64")
    matrix = prepared(tmp_path, entry() + "# a comment stays\n")
    before = (tmp_path / "versions.yaml").read_text()
    with wheelkit.index([wheel]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        done, faults = mirror(matrix, tmp_path)
        assert [item.state for item in done] == ["fetched"]
        assert not faults
        kept = tmp_path / "mirror" / wheelkit.digest(wheel) / wheel.name
        assert kept.read_bytes() == wheel.read_bytes()
        after = (tmp_path / "versions.yaml").read_text()
        changed = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
        assert changed == [
            (
                "      x86_64: {}",
                f'      x86_64: {{sha256: "{wheelkit.digest(wheel)}", filename: {wheel.name}, '
                f"size: {wheel.stat().st_size}}}",
            )
        ]
        # The second run copies nothing and asks the index for nothing.
        asked = len(served.requests)
        mtime = kept.stat().st_mtime_ns
        again, faults = mirror(parse(after), tmp_path)
        assert [item.state for item in again] == ["there"]
        assert len(served.requests) == asked
        assert kept.stat().st_mtime_ns == mtime
        found = store.require(parse(after), "tensorrt-llm", Arch.X86_64, tmp_path / "mirror")
        assert found.path == kept


def test_A15_a_stub_sdist_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = wheelkit.sdist(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", {"pyproject.toml": STUB})
    with wheelkit.index([stub]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        done, faults = mirror(prepared(tmp_path, entry()), tmp_path)
    assert [item.state for item in done] == ["not mirrored"]
    assert "tensorrt_llm-1.3.0rc21.tar.gz is a stub: its build backend wheel_stub.buildapi would download" in str(
        faults[0]
    )
    assert "LOCKSTEP_MIRROR_INDEX" in faults[0].fix
    assert not list((tmp_path / "mirror").rglob("*.tar.gz"))


def test_A15_a_missing_architecture_is_named_by_its_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64")
    other = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp312-cp312-linux_aarch64")
    with wheelkit.index([here, other]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        done, faults = mirror(prepared(tmp_path, entry()), tmp_path, Arch.X86_64, Arch.AARCH64)
    assert [item.state for item in done] == ["fetched", "not mirrored"]  # one fault does not keep the other away
    assert "no wheel of tensorrt-llm 1.3.0rc21 for cp313-aarch64" in faults[0].what
    assert "cp312-cp312-linux_aarch64" in faults[0].what


def test_A15_an_undeclared_architecture_is_named_by_its_tag(tmp_path: Path) -> None:
    _, faults = mirror(prepared(tmp_path, entry(arm=None)), tmp_path, Arch.AARCH64)
    assert "no wheel of tensorrt-llm 1.3.0rc21 is declared for cp313-aarch64" in faults[0].what


def test_A15_a_tampered_wheel_fails_in_the_store_and_from_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64")
    good = wheelkit.digest(wheel)
    matrix = prepared(tmp_path, entry(x86=f'{{sha256: "{good}", filename: {wheel.name}}}'))
    with wheelkit.index([wheel]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        assert not mirror(matrix, tmp_path)[1]
        kept = tmp_path / "mirror" / good / wheel.name
        kept.write_bytes(kept.read_bytes() + b"x")
        _, faults = mirror(matrix, tmp_path)
        assert "was changed or cut short" in faults[0].what
        with pytest.raises(LockstepError, match="was changed or cut short"):
            store.require(matrix, "tensorrt-llm", Arch.X86_64, tmp_path / "mirror")
        kept.unlink()
        wheel.write_bytes(wheel.read_bytes() + b"x")
        lockstep_index._page.cache_clear()
        _, faults = mirror(matrix, tmp_path)
        assert "the index serves" in faults[0].what
        assert not kept.exists()


def test_a_wheel_of_another_python_or_version_is_refused(tmp_path: Path) -> None:
    for name in ("tensorrt_llm-1.3.0rc21-cp312-cp312-linux_x86_64.whl", "tensorrt_llm-1.3.0rc22-py3-none-any.whl"):
        matrix = prepared(tmp_path, entry(x86=f'{{sha256: "{"0" * 64}", filename: {name}}}'))
        with pytest.raises(LockstepError, match=r"is wanted for cp313-x86_64|not tensorrt-llm 1\.3\.0rc21"):
            store.known(matrix, "tensorrt-llm", Arch.X86_64)


def test_requirements_must_agree_with_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheelkit.stand_in(
        tmp_path / "www",
        "tensorrt-llm",
        "1.3.0rc21",
        "cp313-cp313-linux_x86_64",
        ["torch==2.11.0", "cuda-python<13.4", 'pywin32; sys_platform == "win32"', 'pytest; extra == "dev"'],
    )
    with wheelkit.index([wheel]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        _, faults = mirror(prepared(tmp_path, entry(requires='["torch==2.11.0", "numpy"]')), tmp_path)
        assert "requires cuda-python<13.4; versions.yaml has numpy" in faults[0].what
        assert faults[0].where == "versions.yaml mirror.tensorrt-llm.requires"
        matrix = prepared(tmp_path, entry(requires='["cuda_python < 13.4", "torch==2.11.0"]'))
        assert not mirror(matrix, tmp_path)[1]


def test_not_mirrored_says_which_wheel_and_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_MIRROR_INDEX", raising=False)
    matrix = prepared(tmp_path, entry())
    assert store.known(matrix, "tensorrt-llm", Arch.AARCH64) is None
    with pytest.raises(LockstepError) as caught:
        store.require(matrix, "tensorrt-llm", Arch.AARCH64, tmp_path / "mirror")
    assert "tensorrt-llm 1.3.0rc21 for aarch64 is not mirrored" in caught.value.what
    assert "make mirror PACKAGE=tensorrt-llm ARCH=aarch64" in caught.value.fix
    name = "tensorrt_llm-1.3.0rc21-cp313-cp313-linux_aarch64.whl"
    known = prepared(tmp_path, entry(arm=f'{{sha256: "{"1" * 64}", filename: {name}}}'))
    with pytest.raises(LockstepError) as caught:
        store.require(known, "tensorrt-llm", Arch.AARCH64, tmp_path / "mirror")
    assert name in caught.value.what
    assert "make mirror-pull" in caught.value.fix


def test_a_cut_download_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"tensorrt_llm/weights.bin": random.Random(1).randbytes(300_000)}
    wheel = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64", more=more)
    matrix = prepared(tmp_path, entry())
    with wheelkit.index([wheel]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        served.cut_after = 200_000
        _, faults = mirror(matrix, tmp_path)
        assert "cannot be downloaded" in faults[0].what
        served.cut_after = None
        _, faults = mirror(matrix, tmp_path)
        assert not faults
        assert served.requests[-1][1] == f"bytes={3 << 16}-"
    assert (tmp_path / "mirror" / wheelkit.digest(wheel) / wheel.name).is_file()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(left=st.binary(max_size=2000))
def test_whatever_a_killed_run_left_the_next_one_succeeds(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    tmp_path = tmp_path_factory.mktemp("killed")
    wheel = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64")
    part = tmp_path / "mirror" / ".part" / f"x86_64-{wheel.name}"
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    with wheelkit.index([wheel]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        lockstep_index._page.cache_clear()
        done, faults = mirror(prepared(tmp_path, entry()), tmp_path)
    assert not faults
    assert [item.state for item in done] == ["fetched"]
    assert (tmp_path / "mirror" / wheelkit.digest(wheel) / wheel.name).read_bytes() == wheel.read_bytes()


def test_build_backend_is_read_from_the_sdist(tmp_path: Path) -> None:
    assert build_backend(wheelkit.sdist(tmp_path, "a", "1", {"pyproject.toml": STUB}).read_bytes()) == (
        "wheel_stub.buildapi"
    )
    assert build_backend(wheelkit.sdist(tmp_path, "b", "1", {"setup.py": ""}).read_bytes()) == ""


def test_a_hash_that_cannot_be_filled_in_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64")
    parts = entry().replace("      x86_64: {}", "      x86_64:\n        {}")
    with wheelkit.index([wheel]) as served:
        monkeypatch.setenv("LOCKSTEP_MIRROR_INDEX", served.url)
        _, faults = mirror(prepared(tmp_path, parts), tmp_path)
    assert wheelkit.digest(wheel) in faults[0].fix


def test_a_run_killed_at_any_point_leaves_nothing_that_hinders_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process and a real SIGKILL, each time after more of the transfer than the time before."""
    more = {"tensorrt_llm/weights.bin": random.Random(2).randbytes(3_000_000)}
    wheel = wheelkit.stand_in(tmp_path / "www", "tensorrt-llm", "1.3.0rc21", "cp313-cp313-linux_x86_64", more=more)
    prepared(tmp_path, entry())
    code = f"""
from pathlib import Path
from lockstep.arch import Arch
from lockstep.matrix import load
from lockstep.mirror.fetch import mirror_all
faults = []
folder = Path({str(tmp_path)!r})
matrix = load(folder / "versions.yaml")
list(mirror_all(matrix, ["tensorrt-llm"], [Arch.X86_64], faults, folder / "mirror", folder / "versions.yaml"))
assert not faults, faults
"""
    part = tmp_path / "mirror" / ".part" / f"x86_64-{wheel.name}"
    with wheelkit.index([wheel]) as served:
        served.pause = 0.002
        environment = dict(os.environ, LOCKSTEP_MIRROR_INDEX=served.url, PYTHONPATH=str(ROOT / "scripts"))
        words = [sys.executable, "-c", code]
        for at_least in (1, 700_000, 1_500_000, 2_500_000):
            with subprocess.Popen(words, env=environment) as process:
                while process.poll() is None and (not part.exists() or part.stat().st_size < at_least):
                    pass
                process.kill()
        subprocess.run(words, env=environment, check=True)
    assert (tmp_path / "mirror" / wheelkit.digest(wheel) / wheel.name).read_bytes() == wheel.read_bytes()
    assert not part.exists()
