"""What a build is measured against: uv and zstd on the host, mksquashfs over a tree; and what bytes there are."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from lockstep.arch import Arch
from lockstep.lock import Lock
from lockstep.run import run
from lockstep.ship.flatten import LayerFile, opened
from lockstep.ship.layout import OciImage
from lockstep.ship.tarstream import REGULAR, Reader
from lockstep.tools import uv_program


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes. What earlier work left unwritten is written first, so it is not counted."""
    os.sync()
    began = time.monotonic()
    work()
    return time.monotonic() - began


@dataclass(frozen=True)
class HostInstall:
    """uv on the host, into plain folders: one per lock, from a cache of its own that a first round fills."""

    folder: Path
    locks: Sequence[Lock]
    arch: Arch
    python: str

    def left_out(self) -> int:
        """Return how many wheels of the locks no index serves, so that uv on the host cannot install them."""
        return sum(wheel.origin != "index" for lock in self.locks for wheel in lock.wheels)

    def install(self, name: str, *, bytecode: bool) -> Path:
        """Install every lock below folder/NAME and return it. Files are linked from the cache, uv's default."""
        top = self.folder / name
        shutil.rmtree(top, ignore_errors=True)
        for lock in self.locks:
            requirements = self.folder / f"{lock.backend}.txt"
            lines = [wheel.requirement() for wheel in lock.wheels if wheel.origin == "index"]
            requirements.write_text("".join(f"{line}\n" for line in lines))
            words: list[str | Path] = [uv_program(), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
            words += ["--only-binary", ":all:", "--python-version", self.python]
            words += ["--python-platform", self.arch.manylinux, "--target", top / lock.backend, "-r", requirements]
            words += ["--compile-bytecode"] if bytecode else []
            env = {**os.environ, "UV_CACHE_DIR": str(self.folder / "cache"), "UV_PYTHON_DOWNLOADS": "never"}
            env |= {"UV_NO_INSTALLER_METADATA": "1"}
            run(words, env=env)
        return top

    def wheel_bytes(self, top: Path) -> int:
        """Return the bytes of the installed files, each distinct wheel counted once, bytecode left out."""
        seen: set[tuple[str, str]] = set()
        total = 0
        for lock in self.locks:
            site = top / lock.backend
            versions = {wheel.filename: (wheel.name, wheel.sha256) for wheel in lock.wheels}
            keys = {key for key in versions.values() if key not in seen}
            names = {name for name, _ in keys}
            for info in site.glob("*.dist-info"):
                name = canonicalize_name(info.name.split("-", 1)[0])
                if name in names:
                    total += _recorded(site, info)
            seen |= keys
        return total


def _recorded(site: Path, info: Path) -> int:
    """Return the bytes of the files that a distribution's RECORD names."""
    total = 0
    with (info / "RECORD").open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            if not row or row[0].endswith(".pyc"):
                continue
            # Scripts and data stand in RECORD as seen from a venv's site-packages; --target puts them into bin/.
            path = site / row[0]
            if not path.is_file():
                path = site / "bin" / Path(row[0]).name
            if path.is_file():
                total += path.stat().st_size
    return total


def compress(tree: Path, target: Path) -> None:
    """Pack a folder with `tar | zstd -3`, as one would by hand."""
    with target.open("wb") as stream:
        tar = subprocess.Popen(["tar", "-C", str(tree), "-cf", "-", "."], stdout=subprocess.PIPE)
        done = subprocess.run(["zstd", "-3", "-q", "-c"], stdin=tar.stdout, stdout=stream, check=False)
        assert tar.stdout is not None
        tar.stdout.close()
        if tar.wait() or done.returncode:
            raise OSError(f"tar or zstd failed over {tree}")


@dataclass(frozen=True)
class LayerBytes:
    """Bytes of an image's layers. files: of regular files unpacked, each inode once; pyc: those of bytecode above the
    base; base: those of the lowest layer; packed: as stored, without the lowest layer."""

    files: int
    pyc: int
    base: int
    packed: int


def layer_bytes(image: OciImage) -> LayerBytes:
    """Count an image's layers. A hard link is a name, not a file, so what several venvs share counts once."""
    files = pyc = base = 0
    for number, layer in enumerate(image.layers):
        file = LayerFile(image.layout.blob(layer.digest), layer.compression, layer.digest)
        with opened(file) as (fd, _):
            for entry in Reader(fd):
                if entry.kind != REGULAR:
                    continue
                files += entry.size
                if number == 0:
                    base += entry.size
                elif entry.path.endswith(b".pyc"):
                    pyc += entry.size
    return LayerBytes(files, pyc, base, sum(layer.size for layer in image.layers[1:]))


def unpack(image: OciImage, target: Path) -> None:
    """Unpack all layers over one another; what an image of Lockstep's has no need of (whiteouts) is not looked at."""
    target.mkdir(parents=True)
    for layer in image.layers:
        file = LayerFile(image.layout.blob(layer.digest), layer.compression, layer.digest)
        with opened(file) as (fd, _):
            subprocess.run(["tar", "-C", str(target), "-xpf", "-", "--numeric-owner"], stdin=fd, check=True)


def squash(tree: Path, target: Path, level: int) -> None:
    """Pack a tree with mksquashfs (zstd), as one would by hand."""
    words: list[str | Path] = ["mksquashfs", tree, target, "-noappend", "-quiet", "-no-progress", "-comp", "zstd"]
    run([*words, "-Xcompression-level", str(level), "-all-root", "-no-xattrs"])


def cpu_model() -> str:
    """Return what /proc/cpuinfo calls the processor, or nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def merged(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with `parts` in it."""
    return {**os.environ, **parts}
