"""Make a .sqsh that enroot and pyxis start as it is: what `enroot import` would make of the image, without enroot.

The layers go through flatten.py straight into mksquashfs, so nothing is unpacked. As in an import, /dev is emptied,
every owner becomes root, the owner's read (and search) permission is added, extended attributes are dropped, all times
are the epoch, and four files below /etc come from the image's configuration.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lockstep import console, files
from lockstep.errors import LockstepError
from lockstep.ship import enroot_config, flatten
from lockstep.ship.source import Source
from lockstep.ship.tarstream import DIRECTORY, LINK, REGULAR, SYMLINK, Entry, Writer

DEFAULT_LEVEL = 9
"""zstd level. On a tree of venvs and shared libraries, 3 is 8 % larger at a third of the time, 12 is 0.4 % smaller at
three times the time, and mksquashfs's own default of 15 is slower still. A .sqsh is made once and read by many."""
_LEVELS = {"zstd": range(1, 23), "gzip": range(1, 10), "lz4": None, "lzo": range(1, 10), "xz": None}
_LEVEL_OPTION = "-Xcompression-level"
_GROWTH = 1.3
"""A squashfs of 128 KiB blocks against zstd layers packed as one stream: 1.05 to 1.2 in what was measured."""
_MIN_TOOLS = "4.5"


@dataclass(frozen=True)
class Options:
    """How to pack. epoch: seconds since 1970 that every time in the file gets. processors: 0 means all."""

    epoch: int
    compressor: str = "zstd"
    level: int | None = DEFAULT_LEVEL
    processors: int = 0


def make(source: Source, output: Path, options: Options) -> Path:
    """Write `output` from `source`, whole or not at all. The same source and options give the same bytes.

    LockstepError where mksquashfs or its compressor is missing, the disk is too small, or a layer is damaged.
    """
    preflight(options.compressor)
    _check_level(options)
    need_space(output, estimate(source))
    configured = enroot_config.make(source.config, source.provenance)
    with _alone(output), files.replacing(output) as part, _checking(source) as wait_checks:
        members = _pack(source, configured, part, options)
        wait_checks()
        part.chmod(0o644)
    console.note(f"{output} has {members} files, {console.megabytes(output.stat().st_size)} MB")
    return output


def preflight(compressor: str) -> list[str]:
    """Return the compressors of mksquashfs; LockstepError unless it reads tar and has `compressor`."""
    if shutil.which("mksquashfs") is None:
        raise LockstepError("the program mksquashfs is not installed", fix="install the package squashfs-tools")
    done = subprocess.run(["mksquashfs", "-help"], capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if "-tar" not in text:
        raise LockstepError(
            "this mksquashfs cannot read a tar stream", fix=f"install squashfs-tools {_MIN_TOOLS} or newer"
        )
    listed = text.partition("Compressors available")[2]
    found = re.findall(r"^\t(gzip|lzma|lzo|lz4|xz|zstd)\b", listed, re.MULTILINE)
    if compressor not in found:
        raise LockstepError(
            f"this mksquashfs has no {compressor} (it has {', '.join(found)})",
            fix=f"give COMP={found[0] if found else 'gzip'}, or install squashfs-tools with {compressor}",
        )
    return found


def estimate(source: Source) -> int:
    """Return the bytes that the .sqsh is expected to need, from the packed size of the layers."""
    return int(sum(layer.size for layer in source.layers) * _GROWTH) + (16 << 20)


def need_space(output: Path, needed: int) -> None:
    """Raise LockstepError unless the file system of `output` has `needed` bytes free."""
    folder = output.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LockstepError(
            f"{needed} bytes are needed and {free} are free",
            where=str(folder),
            fix=f"free {needed - free} bytes, or give another place with OUT=FILE",
        )


def _check_level(options: Options) -> None:
    allowed = _LEVELS.get(options.compressor)
    if options.level is not None and (allowed is None or options.level not in allowed):
        span = f"levels {allowed.start} to {allowed.stop - 1}" if allowed else "no levels"
        raise LockstepError(f"{options.compressor} has {span}, not {options.level}", fix="change LEVEL=")


def command(output: Path, options: Options) -> list[str]:
    """Return the mksquashfs command line, which reads a tar archive from its input."""
    argv = ["mksquashfs", "-", str(output), "-tar", "-noappend", "-exit-on-error", "-quiet", "-no-progress"]
    argv += ["-comp", options.compressor]
    if options.level is not None:
        argv += [_LEVEL_OPTION, str(options.level)]
    argv += ["-all-root", "-root-mode", "755", "-no-xattrs"]
    argv += ["-mkfs-time", str(options.epoch), "-all-time", str(options.epoch)]
    if options.processors:
        argv += ["-processors", str(options.processors)]
    return argv


class _Mksquashfs:
    """A running mksquashfs that reads a tar archive from us."""

    def __init__(self, output: Path, options: Options) -> None:
        output.unlink(missing_ok=True)
        # mksquashfs refuses SOURCE_DATE_EPOCH beside -mkfs-time; the option says the same.
        env = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process; stop() closes it)
        self._process = subprocess.Popen(
            command(output, options), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._words, env=env
        )
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        flatten.widen(self._stdin.fileno())
        self.writer = Writer(self._stdin.fileno())

    def finish(self) -> None:
        """Close its input and wait; LockstepError with its last words where it failed."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        code = self._process.wait()
        if code:
            self._words.seek(0)
            words = self._words.read().decode(errors="replace").strip().splitlines()
            raise LockstepError(
                f"mksquashfs failed with exit code {code}: " + "\n".join(words[-5:]),
                fix="see its message; a full disk and too little memory are the usual reasons",
            )

    def stop(self) -> None:
        """End it, whatever it was doing."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._words.close()


def _pack(source: Source, configured: enroot_config.EnrootFiles, output: Path, options: Options) -> int:
    """Run the layers through mksquashfs into `output`; return the number of members."""
    started: list[_Mksquashfs] = []

    def start() -> Writer:
        for each in started:
            each.stop()
        started.append(_Mksquashfs(output, options))
        return started[-1].writer

    try:
        with console.download_progress() as progress:
            task = progress.add_task("packing", total=sum(layer.size for layer in source.layers))
            try:
                members = flatten.flatten(
                    source.layers,
                    start,
                    top=etc_entries(configured),
                    folders=[configured.workdir.strip("/").encode()],
                    change=as_import,
                    progress=lambda used: progress.update(task, completed=used),
                )
            except BrokenPipeError:
                members = 0
            started[-1].finish()
        return members
    finally:
        for each in started:
            each.stop()


def as_import(entry: Entry) -> bool:
    """Change a member as `enroot import` does; return whether it is kept.

    What lies in /dev is left out (the folder stays); the owner may read everything and search every folder (enroot's
    `u+rX`, and `u+w` on folders). Extended attributes, which are not extracted, are left out by mksquashfs.
    """
    if not entry.path or entry.path.startswith(b"dev/"):
        # mksquashfs takes no member for the root; its mode is an option.
        return False
    if entry.kind == DIRECTORY:
        entry.mode |= 0o700
    elif entry.kind not in {SYMLINK, LINK}:
        entry.mode |= 0o500 if entry.mode & 0o111 else 0o400
    return True


def etc_entries(configured: enroot_config.EnrootFiles) -> list[tuple[Entry, bytes]]:
    """Return the members that stand above every layer: the four files, as a user with umask 022 makes them."""
    made = {
        b"etc/environment": configured.environment,
        b"etc/fstab": configured.fstab,
        b"etc/rc": configured.rc,
        b"etc/rc.local": configured.rc_local,
    }
    return [(Entry(path, REGULAR, 0o644), text.encode("utf-8", "surrogateescape")) for path, text in made.items()]


@contextlib.contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Hold a lock on `output`, and remove what a killed run left beside it."""
    with (output.parent / f".{output.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError("another run is writing it", where=str(output), fix="wait for it to end") from None
        for stale in output.parent.glob(f".{output.name}.*.part"):
            stale.unlink(missing_ok=True)
        yield
        Path(lock.name).unlink(missing_ok=True)


@contextlib.contextmanager
def _checking(source: Source) -> Iterator[Callable[[], None]]:
    """Hash the layers while they are packed; the yielded function waits and raises LockstepError on a difference."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        checks: list[Future[None]] = [] if source.checked else [pool.submit(_check, each) for each in source.layers]

        def wait() -> None:
            for each in checks:
                each.result()

        try:
            yield wait
        finally:
            pool.shutdown(cancel_futures=True)


def _check(layer: flatten.LayerFile) -> None:
    if layer.compression != "none":
        # zstd frames (BuildKit writes checksums) and gzip members carry their own checks, and sizes were compared.
        return
    if layer.digest and f"sha256:{files.sha256_file(layer.path)}" != layer.digest:
        raise LockstepError(
            f"the layer {layer.digest} holds other bytes", where=str(layer.path), fix="build or fetch the image again"
        )


def to_tar(source: Source, output: Path) -> Path:
    """Write the image's merged tree as one plain tar: for runtimes that trip over whiteouts or links across layers."""
    need_space(output, sum(layer.size for layer in source.layers) * 3)
    with files.replacing(output) as part, _checking(source) as wait_checks:
        with part.open("wb", buffering=0) as stream:

            def start() -> Writer:
                stream.seek(0)
                stream.truncate()
                return Writer(stream.fileno())

            flatten.flatten(source.layers, start)
        wait_checks()
        part.chmod(0o644)
    return output
