"""`make bench`: measure an image beside its peers in the same run, and write docs/bench.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lockstep.arch import Arch
from lockstep.bench_peers import HostInstall, compress, cpu_model, layer_bytes, merged, squash, timed, unpack
from lockstep.console import note
from lockstep.engine import ensure_engine, forget_steps
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.index import files_of
from lockstep.lock import Lock, LockedWheel, carried, read_lock, write_lock
from lockstep.matrix import Matrix
from lockstep.paths import BUILD, ROOT
from lockstep.repro import Variation, copy_checkout
from lockstep.ship import sqsh
from lockstep.ship.layout import Layout, OciImage
from lockstep.ship.source import of_image

_HEAVY = 1_000_000_000
"""Bytes of wheels from which the time of a build is that of its wheels, not of the base (140 MB packed)."""

_PROGRAM = (sys.executable, "-c", "from lockstep.cli import main; main()")


@dataclass(frozen=True)
class Measure:
    """One row: ours beside the peer's, in `unit`; bar is what ours, or the ratio where there is a peer, may be."""

    what: str
    ours: float
    peer: float | None
    unit: str
    against: str
    bar: float | None = None

    @property
    def figure(self) -> float:
        """Return what the bar is about: the ratio, or ours alone."""
        return self.ours / self.peer if self.peer else self.ours

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None where there is none."""
        return None if self.bar is None else self.figure <= self.bar


@dataclass
class Bench:
    """All of one run. notes say what was counted and what could not be measured; loads are 1-minute load averages."""

    image: str
    arch: Arch
    measures: list[Measure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, measure: Measure) -> None:
        """Keep a row and say it."""
        self.measures.append(measure)
        self.loads.append(os.getloadavg()[0])
        note(f"{measure.what}: {_number(measure.ours, measure.unit)}")


def bench(matrix: Matrix, image: str, arch: Arch, folder: Path | None = None) -> Bench:
    """Measure an image; return the rows. LockstepError where it cannot be built.

    folder: where the peers' trees go, build/bench by default; it is removed in the end.
    """
    work = folder or BUILD / "bench"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    found = Bench(image, arch)
    locks = [carried(matrix, image, read_lock(name, arch)) for name in matrix.images[image].backends]
    try:
        _cold(found, matrix, locks, work)
        _warm(found, image, arch)
        _bump(found, matrix, image, arch, work)
        _bytes(found, matrix, locks, work)
        _render(found)
        for name in ("cache", "plain"):  # gigabytes that the unpacked tree may need
            shutil.rmtree(work / name)
        _squash(found, matrix, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


def _lockstep(*words: str, root: Path = ROOT) -> None:
    env = merged({"LOCKSTEP_ROOT": str(root), "PYTHONPATH": str(Path(__file__).resolve().parents[1])})
    done = subprocess.run([*_PROGRAM, *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.strip().splitlines()[-6:])
        raise LockstepError(f"lockstep {' '.join(words)} failed: {said}")


def _layout(image: str, arch: Arch, root: Path = ROOT) -> OciImage:
    return Layout(root / "build" / "oci" / f"{image}.{arch}").image(arch)


def _cold(found: Bench, matrix: Matrix, locks: Sequence[Lock], work: Path) -> None:
    note("a first build and a first uv round fill the wheel caches")
    _lockstep("image", found.image, "--arch", found.arch.value)
    host = HostInstall(work, locks, found.arch, matrix.python)
    host.install("plain", bytecode=False)
    forget_steps(ensure_engine())
    build = timed(lambda: _lockstep("image", found.image, "--arch", found.arch.value))
    heavy = sum({wheel: wheel.size for lock in locks for wheel in lock.wheels}.values()) > _HEAVY
    if not heavy:
        found.notes.append("The bar of the cold build is for images whose wheels outweigh the base; this one's do not.")
    for name, bytecode, bar in (("plain", False, 1.5 if heavy else None), ("compiled", True, None)):
        install = timed(partial(host.install, name, bytecode=bytecode))
        packed = timed(partial(compress, work / name, work / "tree.tar.zst"))
        (work / "tree.tar.zst").unlink()
        more = " with --compile-bytecode" if bytecode else ""
        said = f"uv pip install{more} of the same locks, linked from a warm cache, {install:.1f} s, and "
        said += f"`tar | zstd -3` of what it installed, {packed:.1f} s"
        found.add(Measure("cold build, wheel cache warm", build, install + packed, "s", said, bar))
    shutil.rmtree(work / "compiled")
    if left := host.left_out():
        found.notes.append(f"uv on the host leaves out {left} wheels that no index serves.")
    found.notes.append(
        "The build, with nothing cached but wheels and the bytecode compiled of them, does what uv does not: it "
        "assembles the base, fixes modes and times, compresses layer by layer and hashes all of it. uv compiles "
        f"with this machine's Python {sys.version_info.major}.{sys.version_info.minor} and links files instead of "
        "copying them."
    )


def _warm(found: Bench, image: str, arch: Arch) -> None:
    seconds = min(timed(lambda: _lockstep("image", image, "--arch", arch.value)) for _ in range(2))
    found.add(Measure("no-op `make image`", seconds, None, "s", "best of 2, start of the program included", 5.0))


def other_version(wheel: LockedWheel) -> LockedWheel | None:
    """Return the nearest other release of a pure-Python wheel that is a pure-Python wheel too, or None."""
    try:
        files = files_of(wheel.name)
    except LockstepError:
        return None
    pure = [item for item in files if item.filename.endswith("-py3-none-any.whl") and item.sha256]
    before = [item for item in pure if item.version != wheel.version]
    if not before:
        return None
    item = before[-1]
    return replace(wheel, version=item.version, filename=item.filename, sha256=item.sha256, size=item.size)


def _bump(found: Bench, matrix: Matrix, image: str, arch: Arch, work: Path) -> None:
    checkout = work / "checkout"
    copy_checkout(checkout, Variation(1, "", "C.UTF-8", "UTC", 0o022, 0, 0, os.getuid(), "checkout", 0))
    _lockstep("image", image, "--arch", arch.value, root=checkout)
    before = [layer.digest for layer in _layout(image, arch, checkout).layers]
    locks = [read_lock(name, arch, checkout) for name in matrix.images[image].backends]
    small = sorted(
        {
            wheel
            for lock in locks
            for wheel in carried(matrix, image, lock).wheels
            if wheel.filename.endswith("any.whl")
        },
        key=lambda wheel: (wheel.size, wheel.name),
    )
    moved = next(((wheel, other) for wheel in small if (other := other_version(wheel))), None)
    if moved is None:
        found.notes.append("One-package bump: no pure-Python wheel of the lock has another release.")
        return
    wheel, other = moved
    for lock in locks:
        if wheel in lock.wheels:
            wheels = tuple(sorted(other if item == wheel else item for item in lock.wheels))
            write_lock(replace(lock, wheels=wheels), checkout)
    seconds = timed(lambda: _lockstep("image", image, "--arch", arch.value, root=checkout))
    after = [layer.digest for layer in _layout(image, arch, checkout).layers]
    said = f"{wheel.name} {wheel.version} → {other.version}, the wheel fetched anew"
    found.add(Measure("one small package in another version", seconds, None, "s", said, 30.0))
    changed = float(len(set(after) - set(before)))
    found.add(Measure("layer digests that it changes", changed, None, "", f"of {len(after)}", 1.0))
    shutil.rmtree(checkout)
    _lockstep("image", image, "--arch", arch.value)  # the engine's name for the image is the real one again


def _bytes(found: Bench, matrix: Matrix, locks: Sequence[Lock], work: Path) -> None:
    counted = layer_bytes(_layout(found.image, found.arch))
    host = HostInstall(work, locks, found.arch, matrix.python)
    wheels = host.wheel_bytes(work / "plain")
    peer = wheels + counted.pyc + counted.base
    said = f"installed wheels once each {wheels / 1e6:,.1f} MB, their bytecode {counted.pyc / 1e6:,.1f} MB, the base "
    said += f"{counted.base / 1e6:,.1f} MB"
    found.add(Measure("unpacked bytes of all layers", counted.files / 1e6, peer / 1e6, "MB", said, 1.02))
    above, own = (counted.files - counted.base) / 1e6, (wheels + counted.pyc) / 1e6
    said = "the same without the base; the image's own files are the rest"
    found.add(Measure("of which above the base", above, own, "MB", said))
    sizes = {wheel: wheel.size for lock in locks for wheel in lock.wheels}
    said = "the wheels as downloaded, once each; the layers hold bytecode besides"
    found.add(Measure("packed bytes above the base", counted.packed / 1e6, sum(sizes.values()) / 1e6, "MB", said))
    found.notes.append(
        "Unpacked bytes: regular files of the layers' archives, a hard link being no file; the peer is the files that "
        "each distinct wheel's RECORD names, as uv installed them, plus the bytecode that the layers hold, plus the "
        "lowest layer."
    )


def _render(found: Bench) -> None:
    began = os.times()
    seconds = min(timed(lambda: _lockstep("render", "--check")) for _ in range(3))
    ended = os.times()
    cpu = (ended.children_user + ended.children_system - began.children_user - began.children_system) / 3
    said = f"every image, best of 3, start of the program included; {cpu:.2f} s of processor time"
    found.add(Measure("`make render` of everything", seconds, None, "s", said, 0.5))


def _squash(found: Bench, matrix: Matrix, work: Path) -> None:
    if shutil.which("mksquashfs") is None:
        found.notes.append("`.sqsh`: mksquashfs is not installed.")
        return
    image = _layout(found.image, found.arch)
    options = sqsh.Options(matrix.epoch)
    unpack(image, work / "tree")
    theirs: list[float] = []
    mine: list[float] = []
    for _ in range(2):  # by turns, so that neither has the better state of the page cache both times
        theirs.append(timed(lambda: squash(work / "tree", work / "peer.sqsh", sqsh.DEFAULT_LEVEL)))
        (work / "peer.sqsh").unlink()
        mine.append(timed(lambda: sqsh.make(of_image(image), work / "ours.sqsh", options)))
        (work / "ours.sqsh").unlink()
    ours, peer = min(mine), min(theirs)
    said = f"best of 2; mksquashfs (zstd {sqsh.DEFAULT_LEVEL}) over the unpacked tree, itself not counted"
    found.add(Measure("`.sqsh` from the layers", ours, peer, "s", said, 1.1))


def write_bench(found: Bench, path: Path = ROOT / "docs" / "bench.md") -> Path:
    """Write the table of one image into docs/bench.md, keeping those of the others; return the path."""
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    parts = {part.split("\n", 1)[0]: part for part in old.split("\n## ")[1:]}
    title = f"{found.image} on {found.arch}"
    parts[title] = f"{title}\n\n{as_markdown(found)}"
    body = "\n## ".join(["", *(parts[name].strip("\n") + "\n" for name in sorted(parts))])
    write_text(path, _HEAD + body.removeprefix("\n") if body else _HEAD)
    return path


_HEAD = """# Measured

Written by `make bench IMAGE=…`: every figure stands beside its peer's, taken in the same run on the same machine.

"""


def as_markdown(found: Bench) -> str:
    """Return the table of one image. Pure but for the machine's own description."""
    rows = ["| what | Lockstep | peer | ratio | bar | peer, or how |", "|---|---|---|---|---|---|"]
    for item in found.measures:
        ratio = f"{item.ours / item.peer:.2f}" if item.peer else ""
        peer = _number(item.peer, item.unit) if item.peer else ""
        bar = "" if item.bar is None else f"{item.bar:g}{' (met)' if item.met else ' (**missed**)'}"
        ours = _number(item.ours, item.unit)
        rows.append(f"| {item.what} | {ours} | {peer} | {ratio} | {bar} | {_cell(item.against)} |")
    low, high = min(found.loads, default=0.0), max(found.loads, default=0.0)
    where = (
        f"{os.cpu_count()} cores ({cpu_model() or 'unknown'}), load average {low:.1f} to {high:.1f} during the run, "
    )
    where += time.strftime("%Y-%m-%d", time.gmtime())
    return "\n".join([*rows, "", f"Machine: {where}.", *(f"\n{text}" for text in found.notes), ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _number(value: float, unit: str) -> str:
    return f"{value:.0f}" if not unit else f"{value:,.2f} {unit}" if value < 10 else f"{value:,.1f} {unit}"
