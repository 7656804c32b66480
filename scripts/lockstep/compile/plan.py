"""How many compilers may run at a time: never more than the build's own memory limit holds.

This file is also copied into the compile stage, where the limit is read, so it imports nothing but the standard
library. The rule: one nvcc thread runs one cicc or ptxas, whose peak is 3 to 5 GB for template-heavy files; jobs x
threads x that peak must stay within the cgroup's limit less a margin. The host's free memory says nothing: inside a
container it is somebody else's (CASES F1).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
# What is not a compiler: the build system's Python with torch loaded (0.5 GiB), the linker, and page cache that the
# kernel has to write back before it can reuse it.
MARGIN_SHARE = 0.1
MARGIN_LEAST = GIB
# cgroup v1 says "no limit" as the largest page-aligned number; anything above an exbibyte is no limit.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Limits:
    """What the build may use: bytes of memory and who says so, and processor cores."""

    memory: int
    memory_from: str
    cores: int


@dataclass(frozen=True)
class Plan:
    """The chosen parallelism. Memory in bytes; `bound_by` names what kept the number of jobs down."""

    jobs: int
    threads: int
    per_thread: int
    limits: Limits
    margin: int
    bound_by: str

    @property
    def peak(self) -> int:
        """The predicted peak memory in bytes."""
        return self.jobs * self.threads * self.per_thread

    @property
    def fits(self) -> bool:
        """Whether the predicted peak stays within the limit less the margin."""
        return self.peak <= self.limits.memory - self.margin

    def environment(self) -> dict[str, str]:
        """Return the knobs of every build system, for the build process alone; never for an image's ENV."""
        jobs, threads = str(self.jobs), str(self.threads)
        return {
            "MAX_JOBS": jobs,
            "NVCC_THREADS": threads,
            "NVTE_BUILD_MAX_JOBS": jobs,
            "NVTE_BUILD_THREADS_PER_JOB": threads,
            "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        }


def choose(max_jobs: int, nvcc_threads: int, gpu_architectures: int, per_thread_gb: float, limits: Limits) -> Plan:
    """Return the plan for a build.

    nvcc runs at most one thread per GPU architecture, so threads above that number are not counted. Where not even
    one job of that many threads fits, threads go down to what does, and to 1 at the least.
    """
    per_thread = int(per_thread_gb * GIB)
    margin = max(MARGIN_LEAST, int(limits.memory * MARGIN_SHARE))
    slots = max(0, limits.memory - margin) // per_thread
    wanted = min(nvcc_threads, max(1, gpu_architectures))
    threads = max(1, min(wanted, slots))
    choices = {"max_jobs": max_jobs, "memory": slots // threads, "cores": limits.cores * 2}
    bound_by = min(choices, key=lambda name: choices[name])
    return Plan(max(1, choices[bound_by]), threads, per_thread, limits, margin, bound_by)


def explain(plan: Plan, wanted_threads: int) -> str:
    """Return one sentence that says how many jobs there are and why. wanted_threads is 0 where there is no nvcc."""
    jobs = f"{plan.jobs} job{'s' if plan.jobs > 1 else ''}"
    if wanted_threads:
        jobs += f" of {plan.threads} nvcc thread{'s' if plan.threads > 1 else ''}"
    reason = {
        "max_jobs": "max_jobs allows no more",
        "memory": f"{gib(plan.limits.memory)} ({plan.limits.memory_from}) less a margin of {gib(plan.margin)} holds "
        f"{plan.jobs * plan.threads} x {gib(plan.per_thread)}",
        "cores": f"{plan.limits.cores} cores",
    }[plan.bound_by]
    if not plan.fits:
        reason = f"not even one fits into {gib(plan.limits.memory)} ({plan.limits.memory_from}); it may be killed"
    less = f", instead of {wanted_threads} threads" if plan.threads < wanted_threads else ""
    return f"{jobs}{less}: {reason}; predicted peak {gib(plan.peak)}"


def gib(size: int) -> str:
    """Return a byte count in GiB with one digit."""
    return f"{size / GIB:.1f} GiB"


def duration(seconds: float) -> str:
    """Return a time as people say it: 2 h 47 min, 3 min, 20 s."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def read_limits(
    declared: int | None = None, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> Limits:
    """Return the memory limit and cores of the calling process.

    The smallest of: `declared` bytes (where given), MemTotal, and the limits of the process's cgroup and of those
    above it. In a container only its own cgroup may be visible: version 1 then still tells the hierarchy's limit in
    memory.stat; version 2 does not, which is what `declared` is for.
    """
    found = [(_memory_total(proc), "MemTotal")]
    if declared:
        found.append((declared, "MEMORY_GB"))
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _walk(_v2_mount(cgroups), path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _walk(cgroups / "memory", path, "memory.limit_in_bytes")
    memory, source = min((size, source) for size, source in found if 0 < size < _UNLIMITED)
    return Limits(memory, source, _cores(cgroups))


def _memory_total(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _v2_mount(cgroups: Path) -> Path:
    return cgroups / "unified" if (cgroups / "unified").is_dir() else cgroups


def _walk(mount: Path, path: str, name: str) -> list[tuple[int, str]]:
    """Return (bytes, file) of the cgroup at `path` and each above it, as far as they are visible below `mount`."""
    found: list[tuple[int, str]] = []
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        for text in _lines(folder / name):
            if text.isdigit():
                found.append((int(text), f"{name} of cgroup /{'/'.join(parts[:depth])}"))
        for text in _lines(folder / "memory.stat"):
            if text.startswith("hierarchical_memory_limit "):
                found.append((int(text.split()[1]), f"hierarchical limit of cgroup /{'/'.join(parts[:depth])}"))
    return found


def _cores(cgroups: Path) -> int:
    cores = len(os.sched_getaffinity(0))
    for quota, period in (
        [*_lines(cgroups / "cpu.max"), ""][0].split()[:2] or ["max", "0"],
        [
            *([*_lines(cgroups / "cpu/cpu.cfs_quota_us"), "max"][:1]),
            *([*_lines(cgroups / "cpu/cpu.cfs_period_us"), "0"][:1]),
        ],
    ):
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
