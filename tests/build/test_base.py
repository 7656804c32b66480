"""The base made for real, and Debian locks against a small archive of our own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lockstep.arch import host_arch
from lockstep.base import Role, base_lock, make_base
from lockstep.debs import deb_path, fetch_debs, lock_base
from lockstep.errors import LockstepError
from lockstep.files import sha256_file
from lockstep.matrix import load
from lockstep.paths import state_dir
from lockstep.run import run


@pytest.fixture(scope="module")
def runtime() -> Path:
    """Return this machine's runtime base."""
    return make_base(host_arch(), Role.RUNTIME)


def test_D7_a_base_made_on_another_machine_has_the_same_bytes(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "debs").symlink_to(state_dir() / "debs")
    program = f"""
import socket, sys
from pathlib import Path
from lockstep import base
from lockstep.arch import host_arch
socket.sethostname("elsewhere")
matrix = base.load()
lock = base.base_lock(host_arch(), base.Role.RUNTIME, matrix)
base._make(lock, matrix, Path({str(tmp_path / "rootfs.tar")!r}), "test", base.Role.RUNTIME)
"""
    other = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "LOCKSTEP_STATE": str(tmp_path), "SECRET": "s3cr3t"}
    subprocess.run(["unshare", "--uts", sys.executable, "-c", program], env=other, umask=0o077, check=True)
    assert sha256_file(tmp_path / "rootfs.tar") == sha256_file(runtime)


def test_the_base_holds_what_images_need(runtime: Path) -> None:
    with tarfile.open(runtime) as archive:
        names = set(archive.getnames())
    assert {
        "usr/bin/python3.13",
        "usr/bin/bash",
        "usr/bin/gcc",
        "usr/bin/g++",
        "usr/include/python3.13/Python.h",
        f"usr/lib/{host_arch().multiarch}/libpython3.13.so.1.0",
        f"usr/lib/{host_arch().multiarch}/libibverbs.so.1",
        "usr/lib/python3.13/json/__pycache__/decoder.cpython-313.pyc",
        "usr/lib/locale/C.utf8/LC_CTYPE",
        "usr/share/doc/libc6/copyright",
        "etc/machine-id",
    } <= names


def test_the_bytecode_is_valid_and_complete(runtime: Path, tmp_path: Path) -> None:
    """An interpreter in the base reads every module's bytecode and would write none."""
    with tarfile.open(runtime) as archive:
        archive.extractall(tmp_path, filter="tar")
    program = """
import importlib.util, pathlib, sys, _imp
for source in pathlib.Path("/usr/lib/python3.13").rglob("*.py"):
    if source.is_symlink(): continue
    data = pathlib.Path(importlib.util.cache_from_source(str(source))).read_bytes()
    assert data[:4] == importlib.util.MAGIC_NUMBER and data[4] == 3, source
    assert data[8:16] == importlib.util.source_hash(source.read_bytes()), source
"""
    done = subprocess.run(
        ["chroot", tmp_path, "/usr/bin/python3.13", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_lock_of_other_packages_is_refused() -> None:
    matrix = load()
    asked = matrix.bases.bootstrap.model_copy(update={"packages": [*matrix.bases.bootstrap.packages, "nano"]})
    changed = matrix.model_copy(update={"bases": matrix.bases.model_copy(update={"bootstrap": asked})})
    with pytest.raises(LockstepError, match="asks for other Debian packages than are locked; run `make lock-base`"):
        base_lock(host_arch(), Role.RUNTIME, changed)


class _Archive:
    """A Debian archive of two packages in a folder, which DEBIAN_MIRROR names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publish(essential="1.0", tool="1.0")

    def publish(self, **versions: str) -> None:
        """Hold exactly these packages from now on."""
        pool = self.folder / "pool"
        pool.mkdir(parents=True, exist_ok=True)
        for old in pool.glob("*.deb"):
            old.unlink()
        stanzas = []
        for name, version in versions.items():
            tree = self.folder / "tree" / name
            (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
            control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Test <test@localhost>\n"
            control += "Essential: yes\n" if name == "essential" else ""
            (tree / "DEBIAN/control").write_text(f"{control}Description: test\n")
            path = pool / f"{name}_{version}_all.deb"
            run(["dpkg-deb", "--build", "--root-owner-group", tree, path])
            data = path.read_bytes()
            stanzas.append(
                f"{control}Filename: pool/{path.name}\nSize: {len(data)}\n"
                f"SHA256: {hashlib.sha256(data).hexdigest()}\nDescription: test\n"
            )
        for suite, text in (("test", "\n".join(stanzas)), ("test-updates", "")):
            lists = self.folder / "dists" / suite / "main" / f"binary-{host_arch().docker}"
            lists.mkdir(parents=True, exist_ok=True)
            (lists / "Packages").write_text(text)
            digest = hashlib.sha256(text.encode()).hexdigest()
            name = f"main/binary-{host_arch().docker}/Packages"
            (lists.parents[1] / "Release").write_text(
                f"Suite: {suite}\nCodename: {suite}\nSHA256:\n {digest} {len(text)} {name}\n"
            )


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Archive:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("DEBIAN_SECURITY_MIRROR", raising=False)
    monkeypatch.setenv("DEBIAN_MIRROR", f"[trusted=yes] file://{tmp_path / 'archive'}")
    return _Archive(tmp_path / "archive")


def test_D8_a_dropped_package_comes_from_the_store_or_is_named(archive: _Archive) -> None:
    lock = lock_base("test", ["tool"], host_arch())
    assert [(deb.name, deb.version) for deb in lock.debs] == [("essential", "1.0"), ("tool", "1.0")]
    stored = fetch_debs(lock, "runtime.txt")
    archive.publish(essential="1.0", tool="1.1")
    assert fetch_debs(lock, "runtime.txt") == stored
    stored[1].unlink()
    with pytest.raises(LockstepError) as fault:
        fetch_debs(lock, "runtime.txt")
    assert fault.value.what == ("the Debian archive does not have what is locked: tool 1.0 (the archive has 1.1 now)")
    assert (fault.value.where, "make lock-base" in fault.value.fix) == ("runtime.txt", True)


def test_a_tampered_package_of_the_archive_is_refused(archive: _Archive) -> None:
    lock = lock_base("test", ["tool"], host_arch())
    path = archive.folder / "pool" / "tool_1.0_all.deb"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LockstepError):
        fetch_debs(lock, "runtime.txt")
    assert not deb_path(lock.debs[1]).exists()


def test_an_unknown_package_is_named(archive: _Archive) -> None:
    with pytest.raises(LockstepError, match="no-such-package"):
        lock_base("test", ["no-such-package"], host_arch())
