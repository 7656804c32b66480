"""How many compilers may run at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.compile.plan import GIB, Limits, choose, duration, explain, read_limits


def limits(gib: float, cores: int = 64) -> Limits:
    return Limits(int(gib * GIB), "a test", cores)


@given(
    max_jobs=st.integers(1, 64),
    threads=st.integers(1, 16),
    gpus=st.integers(0, 12),
    each=st.floats(0.5, 12),
    memory=st.integers(2, 2048),
    cores=st.integers(1, 256),
)
def test_F1_jobs_times_threads_times_memory_stay_below_the_limit(
    max_jobs: int, threads: int, gpus: int, each: float, memory: int, cores: int
) -> None:
    plan = choose(max_jobs, threads, gpus, each, limits(memory, cores))
    assert 1 <= plan.jobs <= max_jobs
    assert plan.jobs <= cores * 2
    assert 1 <= plan.threads <= threads
    if int(each * GIB) <= plan.limits.memory - plan.margin:
        assert plan.jobs * plan.threads * int(each * GIB) <= plan.limits.memory - plan.margin
    else:
        assert (plan.jobs, plan.threads, plan.fits) == (1, 1, False)


@pytest.mark.parametrize(
    ("memory", "jobs", "threads"),
    [(8, 1, 1), (16, 1, 2), (24, 2, 2), (64, 4, 2), (6, 1, 1), (5, 1, 1), (1024, 4, 2)],
)
def test_F1_flash_attn_under_usual_limits(memory: float, jobs: int, threads: int) -> None:
    plan = choose(4, 4, 2, 5, limits(memory))
    assert (plan.jobs, plan.threads) == (jobs, threads)


def test_the_reason_is_said() -> None:
    text = explain(choose(4, 4, 4, 5, limits(8)), 4)
    assert text == (
        "1 job of 1 nvcc thread, instead of 4 threads: 8.0 GiB (a test) less a margin of 1.0 GiB holds 1 x 5.0 GiB; "
        "predicted peak 5.0 GiB"
    )
    assert "not even one fits into 4.0 GiB" in explain(choose(4, 4, 4, 5, limits(4)), 4)
    assert "max_jobs allows no more" in explain(choose(4, 2, 2, 5, limits(1000)), 2)
    assert "2 cores" in explain(choose(64, 1, 1, 1, limits(1000, 2)), 1)


def test_knobs_of_every_build_system() -> None:
    assert choose(4, 4, 4, 5, limits(50)).environment() == {
        "MAX_JOBS": "2",
        "NVCC_THREADS": "4",
        "NVTE_BUILD_MAX_JOBS": "2",
        "NVTE_BUILD_THREADS_PER_JOB": "4",
        "CMAKE_BUILD_PARALLEL_LEVEL": "2",
    }


def machine(folder: Path, cgroup: str, files: dict[str, str], total_kib: int = 64 << 20) -> tuple[Path, Path]:
    """Write a /proc and a /sys/fs/cgroup."""
    proc, mount = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(cgroup)
    (proc / "meminfo").write_text(f"MemTotal: {total_kib} kB\nMemFree: 1 kB\n")
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    return proc, mount


def test_cgroup_v2_takes_the_smallest_limit_up_the_tree(tmp_path: Path) -> None:
    proc, mount = machine(
        tmp_path,
        "0::/a/b/c\n",
        {"memory.max": "max\n", "a/memory.max": f"{8 * GIB}\n", "a/b/memory.max": "max\n", "a/b/c/memory.max": "max\n"},
    )
    found = read_limits(None, proc, mount)
    assert (found.memory, found.memory_from) == (8 * GIB, "memory.max of cgroup /a")


def test_cgroup_v1_takes_the_smallest_limit_up_the_tree(tmp_path: Path) -> None:
    proc, mount = machine(
        tmp_path,
        "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/a/memory.limit_in_bytes": f"{16 * GIB}\n",
            "memory/a/b/memory.limit_in_bytes": f"{12 * GIB}\n",
        },
    )
    assert read_limits(None, proc, mount).memory == 12 * GIB


def test_cgroup_v1_in_a_container_sees_its_parents_limit(tmp_path: Path) -> None:
    """The container's own cgroup is mounted at the top, under a path that is not there; its parent is not visible."""
    proc, mount = machine(
        tmp_path,
        "4:memory:/engine/one\n",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.stat": f"cache 0\nhierarchical_memory_limit {8 * GIB}\n",
        },
    )
    found = read_limits(None, proc, mount)
    assert (found.memory, found.memory_from) == (8 * GIB, "hierarchical limit of cgroup /")


def test_without_a_cgroup_the_machine_counts_and_a_declared_limit_wins_if_smaller(tmp_path: Path) -> None:
    proc, mount = machine(tmp_path, "0::/\n", {}, total_kib=32 << 20)
    assert read_limits(None, proc, mount).memory_from == "MemTotal"
    assert read_limits(10 * GIB, proc, mount).memory == 10 * GIB
    assert read_limits(100 * GIB, proc, mount).memory == 32 * GIB


def test_a_processor_quota_counts_as_cores(tmp_path: Path) -> None:
    proc, mount = machine(tmp_path, "0::/\n", {"cpu.max": "100000 100000\n"})
    assert read_limits(None, proc, mount).cores == 1


def test_durations() -> None:
    assert [duration(value) for value in (20, 200, 10020)] == ["20 s", "3 min", "2 h 47 min"]
