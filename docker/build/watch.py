"""Watch a build from outside: what is compiled, how fast, how long it still takes, how much memory it has needed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from plan import Plan, duration, gib

_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY = 1.0
# A line every half a minute when nothing ends; a first build of flash-attn has minutes between two files.
_HEARTBEAT = 30.0


class Watch:
    """Follows one build process. `compiled` holds one entry per compiled file, `peak` bytes of resident memory."""

    def __init__(self, job: dict, plan: Plan, events: Path, history: Path | None, say: Callable[[str], None]) -> None:
        self._job, self._plan, self._say = job, plan, say
        self._events, self._offset = events, 0
        self._past = past_times(history)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = self._spoke = time.monotonic()
        self._files: set[str] = set()
        self.peak = self.now = 0
        self.compiled: list[dict] = []

    def start(self, pid: int) -> None:
        """Begin to watch the process `pid` and all below it."""
        self._thread = threading.Thread(target=self._loop, args=(pid,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, after the last events have been read."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._read()

    def gpu_code(self) -> list[str]:
        """Return the GPU code that nvcc was asked for over all files (sm_90, …)."""
        return sorted({arch for item in self.compiled for arch in item["arches"]})

    def _loop(self, pid: int) -> None:
        while not self._ended.wait(_EVERY):
            self.now = resident(pid)
            self.peak = max(self.peak, self.now)
            self._read()
            if time.monotonic() - self._spoke > _HEARTBEAT:
                self._progress()

    def _read(self) -> None:
        if not self._events.is_file():
            return
        with self._events.open() as stream:
            stream.seek(self._offset)
            lines = stream.readlines()
            whole = [line for line in lines if line.endswith("\n")]
            self._offset += sum(len(line.encode()) for line in whole)
        news = False
        for event in map(json.loads, whole):
            if event["event"] == "files":
                self._announce(event["files"])
            else:
                self.compiled.append(event)
                news = True
        if news:
            self._progress()

    def _announce(self, files: list[str]) -> None:
        self._files |= set(files)
        fresh = [name for name in files if name not in self._past]
        cuda = sum(name.endswith(".cu") for name in files)
        each = self._seconds_each(cuda > 0)
        time_left = each * len(fresh) / max(1, min(self._plan.jobs, self._plan.limits.cores))
        self._say(
            f"plan: {len(files)} files ({cuda} CUDA), {len(files) - len(fresh)} of them compiled before; "
            f"about {duration(time_left)} at {duration(each)} a file"
        )

    def _seconds_each(self, cuda: bool) -> float:
        """Return the seconds of one file: the mean of those measured, else what the matrix says (C++ takes a third)."""
        measured = list(self._past.values())
        if measured:
            return sum(measured) / len(measured)
        return float(self._job["seconds_per_file"]) / (1 if cuda else 3)

    def _progress(self) -> None:
        self._spoke = time.monotonic()
        if not self._files and not self.compiled:
            self._say(f"the build system is preparing; memory {gib(self.now)} now")
            return
        done = len({item["source"] for item in self.compiled if item["code"] == 0})
        fresh = [item for item in self.compiled if item["cache"] != "hit"]
        total = max(len(self._files), done)
        elapsed = self._spoke - self._began
        speed = 60 * len(fresh) / elapsed if elapsed else 0.0
        left = [name for name in self._files - {item["source"] for item in self.compiled} if name not in self._past]
        rest = f", about {duration(len(left) * elapsed / len(fresh))} left" if fresh and left else ""
        hits = len(self.compiled) - len(fresh)
        self._say(
            f"{done} of {total} files done ({hits} from the cache), {speed:.1f} a minute{rest}; "
            f"memory {gib(self.now)} now, {gib(self.peak)} at most"
        )


def past_times(history: Path | None) -> dict[str, float]:
    """Return the seconds that each file of this very build took when it was last compiled, by source name."""
    if history is None or not history.is_file():
        return {}
    past: dict[str, float] = {}
    for line in history.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a machine that lost its power
        if event.get("code") == 0 and event.get("cache") == "miss":
            past[event["source"]] = float(event["seconds"])
    return past


def resident(pid: int) -> int:
    """Return the resident bytes of a process and everything below it."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        entry = folder.name
        if not entry.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(stat[1]), []).append(int(entry))
        pages[int(entry)] = int(stat[21])
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += pages.get(one, 0)
        waiting += children.get(one, [])
    return total * _PAGE


def oom_kills(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return how many processes the kernel has killed for lack of memory in our cgroup and above."""
    total = 0
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = (cgroups / "memory", "memory.oom_control") if controllers else (cgroups, "memory.events")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            try:
                text = mount.joinpath(*parts[:depth], name).read_text()
            except OSError:
                continue
            total += sum(int(row.split()[1]) for row in text.splitlines() if row.startswith("oom_kill "))
    return total
