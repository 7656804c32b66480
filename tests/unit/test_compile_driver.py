"""The driver of the compile stage, with a fake nvcc where a real one would be."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import auditkit
import compilekit
import wheelkit

pytestmark = pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
FILES = {f"file{number}.cu": "// CUDA\n" for number in range(3)}


def source(folder: Path, arches: str = "", more: dict[str, str] | None = None, build: str = "") -> Path:
    text = build or compilekit.BUILD.replace("@ARCHES@", arches)
    return wheelkit.source_package(folder, "some-thing", "1.0", text, more if more is not None else FILES)


def code_of(call: list[str]) -> list[str]:
    return [call[at + 1] for at, word in enumerate(call) if word == "-gencode"]


def test_A11_the_gpu_list_is_the_matrixs_and_not_the_bases(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(
        tmp_path, source(tmp_path), compilekit.job(tmp_path), environment={"TORCH_CUDA_ARCH_LIST": "7.0"}
    )
    assert ran.code == 0, ran.text
    calls = ran.nvcc_calls()
    assert len(calls) == 3
    for call in calls:
        assert code_of(call) == ["arch=compute_90,code=sm_90", "arch=compute_100,code=sm_100"]
    seen = json.loads((ran.work / "some-thing/environment.json").read_text())
    assert seen["TORCH_CUDA_ARCH_LIST"] == "9.0;10.0"
    assert seen["FLASH_ATTN_CUDA_ARCHS"] == seen["NVTE_CUDA_ARCHS"] == seen["CUDAARCHS"] == "90;100"
    assert ran.result()["gpu_code"] == ["sm_100", "sm_90"]


def test_A11_a_build_that_asks_for_other_gpus_fails(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(tmp_path, source(tmp_path, 'arches = ["75", "90"]'), compilekit.job(tmp_path))
    assert ran.code == 1
    assert "nvcc was asked for sm_75, sm_90, versions.yaml says 9.0, 10.0" in ran.failure()
    assert "gencode: replace" in ran.failure()


def test_A11_a_hard_wired_list_can_be_replaced(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(
        tmp_path, source(tmp_path, 'arches = ["75", "90"]'), compilekit.job(tmp_path, gencode="replace")
    )
    assert ran.code == 0, ran.text
    assert {tuple(code_of(call)) for call in ran.nvcc_calls()} == {
        ("arch=compute_90,code=sm_90", "arch=compute_100,code=sm_100")
    }


def test_a_feature_specific_gpu_counts_as_its_family(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(tmp_path, source(tmp_path, 'arches = ["90a", "100"]'), compilekit.job(tmp_path))
    assert ran.code == 0, ran.text


def test_nvcc_gets_the_flags_that_make_objects_equal_and_no_more_threads_than_planned(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(tmp_path, source(tmp_path), compilekit.job(tmp_path, nvcc_threads=1))
    for call in ran.nvcc_calls():
        assert "--objdir-as-tempdir" in call
        assert f"-frandom-seed={Path(call[call.index('-c') + 1]).name}" in call
        assert call[call.index("--threads") + 1] == "1"  # the source asks for 4


def test_F1_the_knobs_are_set_for_the_process_and_nothing_of_the_machine_comes_in(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(
        tmp_path,
        source(tmp_path),
        compilekit.job(tmp_path, memory_limit=13 << 30),
        environment={"MAX_JOBS": "64", "CFLAGS": "-march=native", "SECRET": "x"},
    )
    seen = json.loads((ran.work / "some-thing/environment.json").read_text())
    assert {name: seen[name] for name in ("MAX_JOBS", "NVCC_THREADS", "NVTE_BUILD_MAX_JOBS")} == {
        "MAX_JOBS": "1",
        "NVCC_THREADS": "2",
        "NVTE_BUILD_MAX_JOBS": "1",
    }
    assert "SECRET" not in seen
    assert seen["CFLAGS"] == "-g0"


def test_the_plan_is_said_before_and_the_progress_while_compiling(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    what = compilekit.job(tmp_path, memory_limit=13 << 30)
    said = compilekit.run(tmp_path, source(tmp_path), what).said()
    assert said[0] == "some-thing 1.0 for Python 3.13, CUDA 13.0, GPUs 9.0, 10.0"
    assert said[1].startswith("plan: 1 job of 2 nvcc threads, instead of 4 threads: 13.0 GiB (MEMORY_GB) less a margin")
    assert said[2].startswith("plan: 3 files (3 CUDA), 0 of them compiled before; about 3 min at 60 s a file")
    assert any(line.startswith("3 of 3 files done (0 from the cache)") for line in said)


def test_A4_an_attempt_to_reach_the_network_fails_the_build(tmp_path: Path) -> None:
    build = """
import pathlib, urllib.request
try:
    urllib.request.urlopen("http://wheels.invalid/guessed.whl", timeout=1)
except OSError:
    print("Precompiled wheel not found. Building from source...")
pathlib.Path("lib/some_thing").mkdir(parents=True)
pathlib.Path("lib/some_thing/__init__.py").write_text("")
"""
    ran = compilekit.run(tmp_path, source(tmp_path, build=build), compilekit.job(tmp_path, cuda=None, cuda_arches=[]))
    assert ran.code == 1
    assert "tried to reach http://wheels.invalid/guessed.whl" in ran.failure()


def test_A4_the_wheel_says_what_it_was_built_for(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(tmp_path, source(tmp_path), compilekit.job(tmp_path))
    with zipfile.ZipFile(ran.out / ran.result()["wheel"]) as archive:
        stamp = json.loads(archive.read("some_thing-1.0.dist-info/lockstep.json"))
        record = archive.read("some_thing-1.0.dist-info/RECORD").decode()
    assert {name: stamp[name] for name in ("torch", "cuda", "cuda_arches", "arch", "python")} == {
        "torch": None,
        "cuda": "13.0",
        "cuda_arches": ["9.0", "10.0"],
        "arch": "x86_64",
        "python": "3.13",
    }
    assert "some_thing-1.0.dist-info/lockstep.json,sha256=" in record


@pytest.mark.parametrize(
    ("symbol", "library", "code", "words"),
    [
        ("c10_check_of_another_torch", "", 1, "undefined symbol: c10_check_of_another_torch"),
        ("", "libcuda.so.1", 0, "needs the GPU's driver (libcuda.so.1)"),
        ("", "libfoo.so.9", 1, "libfoo.so.9: cannot open shared object file"),
    ],
)
def test_A4_E3_the_extension_is_imported_at_build(
    tmp_path: Path, symbol: str, library: str, code: int, words: str
) -> None:
    """A symbol that torch no longer has, or a missing library, fails; only the driver's own is expected to be away."""
    needed = auditkit.library(tmp_path / library, "int need(void) { return 1; }", soname=library) if library else None
    calls = symbol or ("need" if library else "")
    text = f"int {calls}(void); int PyInit_some_ext(void) {{ return {calls}(); }}"
    links = [needed] if needed else []
    extension = auditkit.library(
        tmp_path / "some_ext.so", text, links=links, flags=["-Wl,--unresolved-symbols=ignore-all"]
    )
    if needed:
        needed.unlink()
    build = f"""
import pathlib, shutil
pathlib.Path("lib").mkdir()
shutil.copy({str(extension)!r}, "lib/some_ext.so")
"""
    what = compilekit.job(tmp_path, cuda=None, cuda_arches=[], imports=["some_ext"])
    ran = compilekit.run(tmp_path, source(tmp_path, build=build), what)
    assert ran.code == code, ran.text
    assert words in ran.text
    if code == 0:
        assert ran.result()["needs_driver"] == ["some_ext"]


def test_another_package_or_version_than_declared_is_refused(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path)
    ran = compilekit.run(tmp_path, source(tmp_path), compilekit.job(tmp_path, version="1.1"))
    assert "the source built some-thing 1.0, not some-thing 1.1" in ran.failure()


@pytest.mark.parametrize(
    "dies", ["echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\" >&2; exit 9", "kill -9 $$"]
)
def test_F1_a_kill_is_called_that_with_the_setting_to_lower(tmp_path: Path, dies: str) -> None:
    compilekit.cuda_home(tmp_path, dies=dies)
    ran = compilekit.run(tmp_path, source(tmp_path), compilekit.job(tmp_path, memory_limit=30 << 30))
    assert ran.code == 1
    assert "the kernel killed a compiler of some-thing for lack of memory, at 2 jobs of 2 threads" in ran.failure()
    assert "raise compile.some-thing.memory_per_thread_gb (now 5) or lower max_jobs (now 4)" in ran.failure()


def test_a_compilers_error_is_not_called_a_kill(tmp_path: Path) -> None:
    compilekit.cuda_home(tmp_path, dies="echo 'file0.cu(1): error: expected a ;' >&2; exit 2")
    ran = compilekit.run(tmp_path, source(tmp_path), compilekit.job(tmp_path))
    assert "does not build" in ran.failure()
    assert "error: expected a ;" in ran.failure()
    assert "memory" not in ran.failure()


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """Also where the file system lists folders in another order, and at another time."""
    build = """
import os, pathlib, zipfile
pathlib.Path("lib/some_thing").mkdir(parents=True)
names = [name for _, _, files in os.walk("parts") for name in files] + os.listdir("parts")
pathlib.Path("lib/some_thing/__init__.py").write_text(repr(names))
"""
    sums = set()
    for order in (("a", "b", "c", "d"), ("d", "b", "a", "c")):
        folder = tmp_path / "".join(order)
        made = source(folder, build=build, more={f"parts/{name}": "" for name in order})
        ran = compilekit.run(folder, made, compilekit.job(folder, cuda=None, cuda_arches=[]))
        assert ran.code == 0, ran.text
        wheel = ran.out / ran.result()["wheel"]
        sums.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(sums) == 1


def test_a_build_directory_of_the_source_can_be_chosen(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "python/pyproject.toml": wheelkit.PYPROJECT,
        "python/backend.py": wheelkit.BACKEND,
        "python/NAME": "some-thing 1.0 py3-none-any",
        "python/build.py": "import os\nos.mkdir('lib')\nopen('lib/some_thing.py', 'w').close()\n",
    }
    made = wheelkit.sdist(tmp_path, "some-thing", "1.0", files)
    ran = compilekit.run(tmp_path, made, compilekit.job(tmp_path, cuda=None, cuda_arches=[], directory="python"))
    assert ran.code == 0, ran.text
