"""The private engine: dockerd in a Debian root of its own, on its own socket, with its own mounts and processes.

Everything lies below state_dir()/engine and nothing else on the machine is touched:

    root/     Debian with docker.io, buildx and containerd, made by mmdebstrap
    docker/   images, build cache
    run/      docker.sock
    bin/      `docker`, for the host's PATH: the root's program, started with the root's own libraries
    config/   DOCKER_CONFIG with buildx as its plugin
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch, host_arch
from lockstep.console import note
from lockstep.debian import is_debian_like, mirror_lines, mmdebstrap, require_mmdebstrap, require_programs
from lockstep.disk import free_bytes, require_disk
from lockstep.errors import LockstepError
from lockstep.files import held_lock, write_text
from lockstep.paths import DOCKER, state_dir
from lockstep.run import run

# A suite's name, not "stable": the versions that docs/engine.md speaks of are trixie's (docker.io 26.1, buildx 0.13).
_SUITE = "trixie"
_PACKAGES = (
    "docker.io",
    "docker-cli",
    "docker-buildx",
    "containerd",
    "iptables",
    "ca-certificates",
    "mount",
    "util-linux",
)
# Measured: the root takes 640 MB; mmdebstrap keeps the downloaded packages beside it while it works.
_ROOT_BYTES = 1_200_000_000

# Of the disk that the engine could have (what is free and what it holds), the build cache keeps at most this part.
# The rest is for what is no cache: the OCI layout of the image just built (as large as its layers), its unpacked
# copy when somebody runs it, and other people's files. BuildKit's collector never drops a record that a running
# build holds, so a build larger than this succeeds too.
CACHE_SHARE = 0.6

_START_SECONDS = 60

# Go's collector took a tenth of a vLLM build's processor time in dockerd and containerd, whose heaps are some 100 MB:
# it runs when the heap has grown by this many percent, 100 by default.
_GARBAGE = "400"
_STOP_SECONDS = 30


@dataclass(frozen=True)
class EngineDir:
    """The folder of a private engine and the paths in it."""

    path: Path

    @property
    def root(self) -> Path:
        """The engine's Debian root."""
        return self.path / "root"

    @property
    def data(self) -> Path:
        """Images and build cache, dockerd's data root."""
        return self.path / "docker"

    @property
    def socket(self) -> Path:
        """The socket that the engine answers on."""
        return self.path / "run" / "docker.sock"

    @property
    def log(self) -> Path:
        """What dockerd said since it was last started."""
        return self.path / "dockerd.log"

    @property
    def bin(self) -> Path:
        """A folder for PATH that holds `docker` and nothing else."""
        return self.path / "bin"

    @property
    def config(self) -> Path:
        """The client's DOCKER_CONFIG."""
        return self.path / "config"


def engine_dir() -> EngineDir:
    """Return where this user's private engine lies or would lie."""
    return EngineDir(state_dir() / "engine")


def why_not_possible() -> str:
    """Return in one clause why this machine cannot have a private engine, or '' where it can."""
    if os.geteuid() != 0:
        return "this user is not root"
    if not is_debian_like():
        return "this machine is neither Debian nor Ubuntu"
    return ""


def engine_lock(where: EngineDir) -> contextlib.AbstractContextManager[None]:
    """Hold the engine's lock, so that two `make` at once make and start one engine, one after the other."""
    return held_lock(where.path / "lock", "another command is preparing the private engine; waiting for it")


def answers(where: EngineDir, timeout: float = 5) -> bool:
    """Return whether a Docker answers on the engine's socket within `timeout` seconds."""

    class OnSocket(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(str(where.socket))

    connection = OnSocket("localhost")
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def running_pid(where: EngineDir) -> int | None:
    """Return the host's id of the engine's process 1, or None where no engine runs.

    Found by looking, not by a pidfile, which may be stale, lost or name another process by now: it is the process
    whose root folder is the engine's root and whose id in its own PID namespace is 1 (NSpid of proc_pid_status(5)).
    """
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or not (process / "root").samefile(where.root):
                continue
            status = (process / "status").read_text()
        except OSError:
            continue
        if any(line.startswith("NSpid:") and line.split()[2:] == ["1"] for line in status.splitlines()):
            return int(process.name)
    return None


def start(where: EngineDir) -> None:
    """Make the engine's root if need be, start the engine unless it answers, and return when it does.

    Recovers by itself from a killed daemon, a stale socket and a half-made root.
    """
    with engine_lock(where):
        if answers(where):
            _refresh_from_host(where)
            return
        _refuse_stacked_overlay(where)
        make_root(where)
        _stop(where)
        _start(where)


def _start(where: EngineDir) -> None:
    began = time.monotonic()
    note("starting the private engine")
    for folder in (where.data, where.socket.parent):
        folder.mkdir(parents=True, exist_ok=True)
    where.data.chmod(0o710)
    where.socket.unlink(missing_ok=True)
    _refresh_from_host(where)
    write_text(where.root / "etc/docker/daemon.json", daemon_json(_cache_bytes(where)))
    script = DOCKER / "engine" / "start.sh"
    # Of the environment only the proxies: certificate and library paths of the host mean nothing in the root.
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    with where.log.open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--", "sh", str(script), str(where.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**proxies, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "GOGC": _GARBAGE},
            start_new_session=True,
            cwd="/",
        )
    while not answers(where):
        if process.poll() is not None or time.monotonic() - began > _START_SECONDS:
            _stop(where)
            raise LockstepError(f"the private engine did not start: {_last_words(where)}", where=str(where.log))
        time.sleep(0.1)
    note(f"the private engine answers after {time.monotonic() - began:.1f} s")


def _last_words(where: EngineDir) -> str:
    lines = where.log.read_text(errors="replace").strip().splitlines()
    telling = [line for line in lines if "level=info" not in line and "level=warn" not in line]
    return " | ".join((telling or lines or ["docker/engine/start.sh ended without a word"])[-3:])[-600:]


def stop(where: EngineDir) -> bool:
    """Stop the engine; its images and caches stay. Return whether one was running."""
    if not where.path.is_dir():
        return False
    with engine_lock(where):
        return _stop(where)


def _stop(where: EngineDir) -> bool:
    pid = running_pid(where)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        if not _gone(pid, _STOP_SECONDS):
            os.kill(pid, signal.SIGKILL)
            _gone(pid, _STOP_SECONDS)
    where.socket.unlink(missing_ok=True)
    return pid is not None


def _gone(pid: int, seconds: float) -> bool:
    """Wait for a process that need not be our child to end; its last thread's end closes the pidfd (pidfd_open(2))."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def clean(where: EngineDir) -> None:
    """Stop the engine and remove it with all its images and caches."""
    if not where.path.is_dir():
        return
    with engine_lock(where):
        _stop(where)
        mounted = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {where.path}/" in line]
        if mounted:
            raise LockstepError(
                "something is mounted below the engine's folder", where=str(where.path), fix="unmount it first"
            )
        # One process for a million files: rm(1) is several times faster than shutil.rmtree.
        run(["rm", "-rf", "--one-file-system", *where.path.glob("*")])
    shutil.rmtree(where.path, ignore_errors=True)


def recipe() -> str:
    """Return what identifies the engine's root: another recipe makes another root."""
    return hashlib.sha256("\n".join([_SUITE, *_PACKAGES]).encode()).hexdigest()


def make_root(where: EngineDir) -> None:
    """Make the engine's Debian root, unless it is there; the caller holds the lock.

    It is made under another name and renamed when complete, so a root that exists is whole. One of an older recipe is
    replaced.
    """
    stamp = where.root / ".lockstep-recipe"
    if stamp.is_file() and stamp.read_text() == recipe():
        return
    half = where.path / "root.part"
    _stop(where)
    for leftover in (half, where.root):
        if leftover.exists():
            run(["rm", "-rf", "--one-file-system", leftover])
    require_disk(where.path, _ROOT_BYTES, "making the private engine")
    require_mmdebstrap("the private engine")
    require_programs({"unshare": "util-linux", "nsenter": "util-linux"}, "the private engine")
    began = time.monotonic()
    note(f"making the private engine from Debian {_SUITE}'s packages (once, about half a minute)")
    mmdebstrap(
        "--mode=root",
        "--variant=essential",
        f"--include={','.join(_PACKAGES)}",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=force-unsafe-io",  # one sync at the end instead of one for each file
        _SUITE,
        half,
        *mirror_lines(_SUITE),
        fix="check that the Debian archive can be reached (DEBIAN_MIRROR names another), and run `make engine` again",
    )
    _write_client(where, half)
    (half / ".lockstep-recipe").write_text(recipe())
    os.sync()  # the rename must not reach the disk before the files do
    half.rename(where.root)
    note(f"made the private engine in {time.monotonic() - began:.0f} s")


def _write_client(where: EngineDir, half: Path) -> None:
    """Write `docker` and its buildx plugin for the host's PATH, as scripts that start the root's programs.

    The programs need a newer glibc than the host may have, so the root's own loader starts them with the root's
    libraries. PATH gets a folder with this one name, never the root's /usr/bin.
    """
    arch = host_arch()
    loader = {Arch.X86_64: "usr/lib64/ld-linux-x86-64.so.2", Arch.AARCH64: "usr/lib/ld-linux-aarch64.so.1"}[arch]
    libraries = where.root / "usr/lib" / arch.multiarch
    plugin = "usr/libexec/docker/cli-plugins/docker-buildx"
    if not (half / plugin).exists():
        plugin = "usr/lib/docker/cli-plugins/docker-buildx"
    for script, program in (
        (where.bin / "docker", "usr/bin/docker"),
        (where.config / "cli-plugins" / "docker-buildx", plugin),
    ):
        write_text(
            script,
            "#!/bin/sh\n# Written by `make engine`: the private engine's program with the private engine's libraries.\n"
            f'exec "{where.root / loader}" --library-path "{libraries}" --argv0 "$0" "{where.root / program}" "$@"\n',
        )
        script.chmod(0o755)


def _refresh_from_host(where: EngineDir) -> None:
    """Give the engine what a machine changes while it runs: name servers, host names, certificate authorities."""
    for name in ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"):
        source = Path("/") / name
        target = where.root / name
        if source.is_file():
            if target.is_symlink():
                target.unlink()
            write_text(target, source.read_text(errors="replace"))
    login = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "config.json"
    link = where.config / "config.json"
    # The user's registry logins stay where they are and work here too.
    if login.is_file() and login.parent != where.config and not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(login)


def daemon_json(cache_bytes: int) -> str:
    """Return dockerd's configuration.

    containerd's image store holds zstd layers and OCI layouts as they are. No bridge and no iptables rules: the host's
    network is left alone, so builds and containers use the host's network or none. One collection rule for the build
    cache, because BuildKit's default rules drop cache mounts, our wheel cache, after two days without use.
    """
    settings = {
        "features": {"containerd-snapshotter": True},
        "iptables": False,
        "bridge": "none",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "builder": {
            "gc": {"enabled": True, "policy": [{"keepStorage": f"{cache_bytes}", "all": True}]},
            "Entitlements": {"network-host": True},
        },
    }
    return json.dumps(settings, indent=1) + "\n"


def _cache_bytes(where: EngineDir) -> int:
    held = int(run(["du", "-s", "--block-size=1", where.data]).split()[0])
    return int((free_bytes(where.path) + held) * CACHE_SHARE)


def _refuse_stacked_overlay(where: EngineDir) -> None:
    """Overlayfs cannot be the upper layer of overlayfs (kernel, overlayfs.rst), which is what a container's / is."""
    device = where.path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        if head.split()[2] == number and tail.split()[0] == "overlay":
            raise LockstepError(
                "the private engine cannot keep its layers on an overlay file system (a container's own root)",
                where=str(where.path),
                fix="set LOCKSTEP_STATE to a folder on a disk or volume, or DOCKER_HOST to an engine",
            )
