"""F1 in a real cgroup: what the driver does where memory is limited, and what it says when that was not enough."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import compilekit
import wheelkit

GIB = 1 << 30
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of this test's own."""

    path: Path

    def limit(self, size: int) -> None:
        """Set its memory limit in bytes."""
        name = "memory.limit_in_bytes" if self.path.is_relative_to(V1) else "memory.max"
        (self.path / name).write_text(str(size))

    def words(self) -> list[str]:
        """Return what to put before a command so that it runs in here."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    top = V1 if V1.is_dir() else V2
    path = top / f"lockstep-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    if not (path / "memory.limit_in_bytes").exists() and not (path / "memory.max").exists():
        path.rmdir()
        pytest.skip("no memory controller here")
    yield Cgroup(path)
    path.rmdir()


@pytest.mark.parametrize(
    ("limit", "each", "gpus", "jobs", "threads"),
    [
        (8, 5.0, ["9.0", "10.0"], 1, 1),  # flash-attn under 8 GB
        (16, 5.0, ["9.0", "10.0"], 1, 2),
        (8, 1.5, ["9.0", "10.0"], 2, 2),
        (8, 1.5, ["9.0"], 4, 1),
    ],
)
def test_F1_as_many_compilers_as_the_cgroup_holds(
    tmp_path: Path, cgroup: Cgroup, limit: int, each: float, gpus: list[str], jobs: int, threads: int
) -> None:
    cgroup.limit(limit * GIB)
    compilekit.cuda_home(tmp_path, seconds=0.5)
    files = {f"file{number}.cu": "" for number in range(8)}
    text = compilekit.BUILD.replace("@ARCHES@", "")
    made = wheelkit.source_package(tmp_path, "some-thing", "1.0", text, files)
    what = compilekit.job(tmp_path, memory_per_thread_gb=each, cuda_arches=gpus)
    ran = compilekit.run(tmp_path, made, what, before=cgroup.words())
    assert ran.code == 0, ran.text
    result = ran.result()
    cores = min(jobs, 2 * len(os.sched_getaffinity(0)))
    assert (result["jobs"], result["threads"], result["limit_bytes"]) == (cores, threads, limit * GIB)
    assert f"cgroup /lockstep-test-{os.getpid()}" in result["limit_from"]
    assert ran.most_at_once() <= cores
    assert ran.most_at_once() * threads * each <= limit
    assert {call[call.index("--threads") + 1] for call in ran.nvcc_calls()} == {str(threads)}


def test_F1_a_real_kill_by_the_kernel_is_recognised(tmp_path: Path, cgroup: Cgroup) -> None:
    """The compiler's parent says nothing of the kill here: only the cgroup's own counter tells it."""
    cgroup.limit(300 << 20)
    eat = "python3 -c 'x = bytearray(600 << 20); print(len(x))' 2>/dev/null >/dev/null || exit 1"
    compilekit.cuda_home(tmp_path, dies=eat)
    text = compilekit.BUILD.replace("@ARCHES@", "")
    made = wheelkit.source_package(tmp_path, "some-thing", "1.0", text, {"file.cu": ""})
    ran = compilekit.run(tmp_path, made, compilekit.job(tmp_path), before=cgroup.words())
    assert ran.code == 1
    assert "the kernel killed a compiler of some-thing for lack of memory, at 1 jobs of 1 threads" in ran.failure()
    assert "not even one fits into 0.3 GiB" in ran.text
