"""The compile stage on a real engine: no network, the store, and a killed build that goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import wheelkit
from lockstep.paths import ROOT, state_dir

LOCKSTEP = [sys.executable, "-c", "from lockstep.cli import main; main()"]

# Compiles three files through the compiler that it is given; waits for ever after the second one, the first time.
BUILD = """
import os, pathlib, subprocess, time
routes = pathlib.Path("/proc/net/route").read_text().splitlines()[1:]
assert not routes, f"the compile stage has a network: {routes}"
here = os.getcwd()
def compile(name):
    subprocess.run([os.environ["CC"], "-fPIC", "-O2", "-c", f"{here}/{name}.c", "-o", f"{here}/{name}.o"], check=True)
marker = pathlib.Path(os.environ["CCACHE_DIR"]) / "lockstep-test-@ID@"
first = marker.parent.is_dir() and not marker.exists()
if first:
    marker.write_text("")
compile("one")
compile("two")
if first:
    time.sleep(3600)
compile("three")
marker.unlink(missing_ok=True)
pathlib.Path("lib").mkdir()
subprocess.run([os.environ["CC"], "-shared", "-o", "lib/some_ext.so", "one.o", "two.o", "three.o"], check=True)
"""
EXTENSION = """
#include <Python.h>
extern int three(void);
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "some_ext", 0, -1, 0};
PyMODINIT_FUNC PyInit_some_ext(void) { return three() ? PyModule_Create(&module) : 0; }
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of its own, with one compiled package whose source is at hand already."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("docker/build", "stages", "bases"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("requirements.txt", ".dockerignore"):
        shutil.copy(ROOT / name, root / name)
    files = {
        "one.c": EXTENSION.replace("<Python.h>", "<python3.13/Python.h>"),
        "two.c": "int two(void) { return 2; }\n",
        "three.c": "extern int two(void); int three(void) { return two() + 1; }\n",
    }
    build = BUILD.replace("@ID@", uuid.uuid4().hex)
    made = wheelkit.source_package(root, "some-thing", "1.0", build, files)
    sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
    kept = state_dir() / "sources" / sha256
    kept.mkdir(parents=True)
    made.rename(kept / made.name)
    versions = (ROOT / "versions.yaml").read_text()
    base = versions[versions.index("bases:") : versions.index("  cuda:")]
    parts = f"""
compile:
  some-thing:
    version: "1.0"
    why: a stand-in that the test builds
    source: {{sdist_sha256: "{sha256}"}}
    cuda: null
    build_requires: ["idna==3.10"]
    imports: [some_ext]
"""
    text = wheelkit.matrix_text(parts)
    (root / "versions.yaml").write_text(text[: text.index("bases:")] + base + text[text.index("lines:") :])
    yield root
    shutil.rmtree(kept)


def lockstep(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOCKSTEP, *words], env=dict(os.environ, LOCKSTEP_ROOT=str(root)), capture_output=True, text=True, check=False
    )


def test_a_killed_build_goes_on_where_it_was_and_is_then_found_in_the_store(checkout: Path) -> None:
    made = lockstep(checkout, "lock-wheels", "--package", "some-thing", "--line", "plain")
    assert made.returncode == 0, made.stderr
    words = ["wheels", "--package", "some-thing", "--line", "plain"]
    with subprocess.Popen(
        [*LOCKSTEP, *words],
        env=dict(os.environ, LOCKSTEP_ROOT=str(checkout)),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if "2 of 2 files done" in line:
                os.killpg(process.pid, signal.SIGKILL)
                break
        assert "2 of 2 files done (0 from the cache)" in seen[-1], "".join(seen)
    assert not list((checkout / "wheels").glob("*/*.whl"))

    done = lockstep(checkout, *words)
    assert done.returncode == 0, done.stderr
    wheels = list((checkout / "wheels").glob("*/*.whl"))
    assert len(wheels) == 1
    folder = wheels[0].parent
    assert hashlib.sha256((folder / "key.json").read_bytes()).hexdigest() == folder.name
    compiled = {item["source"]: item["cache"] for item in json.loads((folder / "result.json").read_text())["compiled"]}
    assert compiled == {"one.c": "hit", "two.c": "hit", "three.c": "miss"}

    again = lockstep(checkout, *words)
    assert "cached" in again.stderr
    assert wheels[0].is_file()

    cold = lockstep(checkout, *words, "--cold")
    # It has no compiler cache, so there is no folder for the marker either, and it does not wait.
    assert cold.returncode == 0, cold.stderr
    assert "two builds, equal bytes (1 shared objects)" in cold.stdout


def test_the_knobs_are_in_no_layer(checkout: Path) -> None:
    """F1: they are set for the build's process; the stage that leaves the build holds the wheel and nothing else."""
    text = next((checkout / "build/compile").glob("*/Dockerfile")).read_text()
    assert "MAX_JOBS" not in text
    assert "RUN --network=none" in text
    assert text.rstrip().splitlines()[-2:] == ["FROM scratch AS wheel", "COPY --from=compile /out/ /"]
