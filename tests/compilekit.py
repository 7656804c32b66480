"""Run the driver of a compile stage outside of one: with a fake nvcc, on sources that bring their own build backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.compile.job import SCRIPTS, Job

# Writes its arguments down, then an object. FAKE_SECONDS makes it take time; FAKE_DIES makes it fall to a signal.
NVCC = """#!/bin/sh
case "$1" in --version|-V) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;; esac
echo "$@" >> "@LOG@"
echo "start $$ $(date +%s%N)" >> "@LOG@.times"
sleep "@SECONDS@"
echo "end $$ $(date +%s%N)" >> "@LOG@.times"
out=; for word in "$@"; do [ "$last" = "-o" ] && out=$word; last=$word; done
@DIES@
echo object > "$out"
"""

# A build as torch's BuildExtension does it: ninja, one edge per file, nvcc with an architecture list of its own making.
BUILD = """
import os, pathlib, subprocess
names = sorted(path.name for path in pathlib.Path(".").glob("*.cu"))
arches = [text.replace(".", "") for text in os.environ["TORCH_CUDA_ARCH_LIST"].split(";")]
@ARCHES@
codes = " ".join(f"-gencode arch=compute_{n},code=sm_{n}" for n in arches)
nvcc = os.environ["PYTORCH_NVCC"]
here = os.getcwd()
with open("build.ninja", "w") as out:
    out.write(f"rule cuda\\n command = {nvcc} {codes} --threads 4 -c $in -o $out\\n")
    for name in names:
        out.write(f"build {here}/{name}.o: cuda {here}/{name}\\n")
subprocess.run(["ninja", "-v", "-j", os.environ["MAX_JOBS"]], check=True)
pathlib.Path("lib/some_thing").mkdir(parents=True)
pathlib.Path("lib/some_thing/__init__.py").write_text("FLAG = %r\\n" % os.environ.get("FLAG"))
pathlib.Path("environment.json").write_text(__import__("json").dumps(dict(os.environ)))
"""


@dataclass(frozen=True)
class Ran:
    """What a run of the driver left."""

    code: int
    text: str
    out: Path
    work: Path
    log: Path

    def said(self) -> list[str]:
        """Return the lines for the user."""
        return [line.removeprefix("lockstep| ") for line in self.text.splitlines() if line.startswith("lockstep| ")]

    def failure(self) -> str:
        """Return the sentence that says why it failed."""
        return next((line for line in self.text.splitlines() if line.startswith("lockstep! ")), "")

    def nvcc_calls(self) -> list[list[str]]:
        """Return the arguments of each call of the fake nvcc."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def most_at_once(self) -> int:
        """Return how many fake nvcc ran at the same time at most."""
        events = sorted(
            (int(words[2]), 1 if words[0] == "start" else -1)
            for words in (line.split() for line in Path(f"{self.log}.times").read_text().splitlines())
        )
        running = most = 0
        for _, step in events:
            running += step
            most = max(most, running)
        return most

    def result(self) -> dict[str, Any]:
        """Return result.json."""
        data: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return data


def cuda_home(folder: Path, seconds: float = 0, dies: str = "") -> Path:
    """Write a CUDA_HOME with a fake nvcc."""
    nvcc = folder / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    text = NVCC.replace("@LOG@", str(folder / "nvcc.log")).replace("@SECONDS@", str(seconds)).replace("@DIES@", dies)
    nvcc.write_text(text)
    nvcc.chmod(0o755)
    return folder / "cuda"


def job(folder: Path, **changed: Any) -> Job:
    """Return a job for a package named some-thing, without torch."""
    fields: dict[str, Any] = {
        "key": "k" * 64,
        "package": "some-thing",
        "version": "1.0",
        "source": "sdist:" + "0" * 64,
        "directory": "",
        "torch": None,
        "cuda": "13.0",
        "cuda_arches": ["9.0", "10.0"],
        "gencode": "check",
        "max_jobs": 4,
        "nvcc_threads": 4,
        "memory_per_thread_gb": 5,
        "seconds_per_file": 60,
        "memory_limit": None,
        "env": {},
        "requires": [],
        "imports": ["some_thing"],
        "arch": "x86_64",
        "python": "3.13",
        "compiler": "a test's",
        "epoch": 1767225600,
        "namespace": "test",
        "venv": str(folder / "venv"),
        "cuda_home": str(folder / "cuda"),
        "ccache_dir": None,
    }
    return Job.model_validate({**fields, **changed})


def run(
    folder: Path,
    source: Path,
    what: Job,
    *,
    environment: Mapping[str, str] = {},
    before: Sequence[str] = (),
    work: str = "work",
    timeout: float = 120,
) -> Ran:
    """Run the driver on `source`; `before` is put before its command, to run it in a cgroup."""
    if not (folder / "venv").exists():
        venv.create(folder / "venv", with_pip=False, symlinks=True)
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    for path in SCRIPTS:
        (scripts / path.name).write_bytes(path.read_bytes())
    (folder / "job.json").write_text(what.model_dump_json())
    words = [*before, sys.executable, str(scripts / "compile.py"), str(folder / "job.json"), str(source)]
    done = subprocess.run(
        [*words, str(folder / "out")],
        env={"PATH": os.environ["PATH"], "LOCKSTEP_WORK": str(folder / work), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    return Ran(done.returncode, done.stdout + done.stderr, folder / "out", folder / work, folder / "nvcc.log")
