"""What stays in the base, on archives of a few members."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from lockstep.base_tar import Installed, kept, normalise
from lockstep.errors import LockstepError

EPOCH = 1767225600
STATUS = (
    b"Package: bash\nStatus: install ok installed\nArchitecture: amd64\nVersion: 5.2\nDescription: shell\n more: no\n"
)


def _archive(path: Path, *members: tuple[str, bytes | str | None, float]) -> Path:
    """Write members in the given order: bytes make a file, None a folder, text a hard link to that name."""
    with tarfile.open(path, "w") as made:
        for name, content, mtime in members:
            entry = tarfile.TarInfo(name)
            entry.mtime = mtime
            entry.uname = "builder"
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.LNKTYPE, content
            else:
                entry.size = len(content)
            made.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


BASIC = (
    ("./", None, 5.5),
    ("./etc/", None, EPOCH + 100),
    ("./etc/machine-id", b"0123\n", 7),
    ("./etc/hostname", b"builder\n", 7),
    ("./usr/bin/a", b"program", EPOCH + 0.5),
    ("./usr/bin/b", "./usr/bin/a", EPOCH + 9),
    ("./var/lib/dpkg/status", STATUS, EPOCH + 1),
)


def _read(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return {member.name: member for member in archive}


def test_D7_times_owners_and_order_are_not_the_builders(tmp_path: Path) -> None:
    normalise(_archive(tmp_path / "in", *BASIC), tmp_path / "one", EPOCH)
    normalise(_archive(tmp_path / "in", *reversed(BASIC[:4]), *BASIC[4:]), tmp_path / "two", EPOCH)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    members = _read(tmp_path / "one")
    assert list(members) == sorted(members, key=lambda name: name.split("/"))
    assert {member.mtime for member in members.values()} == {5, EPOCH}
    assert {member.uname for member in members.values()} == {""}
    assert members["etc/machine-id"].size == 0
    assert "etc/hostname" not in members
    assert (members["usr/bin/b"].type, members["usr/bin/b"].linkname) == (tarfile.LNKTYPE, "usr/bin/a")


def test_the_package_database_is_reported(tmp_path: Path) -> None:
    found = normalise(_archive(tmp_path / "in", *BASIC), tmp_path / "out", EPOCH)
    assert found == [Installed("bash", "5.2", "amd64")]


def test_extra_files_get_their_folder(tmp_path: Path) -> None:
    name = "usr/lib/python3.13/__pycache__/a.cpython-313.pyc"
    normalise(_archive(tmp_path / "in", *BASIC), tmp_path / "out", EPOCH, {name: b"code"})
    members = _read(tmp_path / "out")
    assert members[name].size == 4
    assert members["usr/lib/python3.13/__pycache__"].isdir()
    assert members[name].mtime == EPOCH


def test_a_hard_link_to_what_does_not_stay_is_refused(tmp_path: Path) -> None:
    source = _archive(tmp_path / "in", *BASIC, ("./var/log/a", b"x", 0), ("./var/z", "./var/log/a", 0))
    with pytest.raises(LockstepError, match="var/z is a hard link to var/log/a"):
        normalise(source, tmp_path / "out", EPOCH)


@pytest.mark.parametrize(
    "path",
    [
        "dev/null",
        "etc/hostname",
        "etc/passwd-",
        "etc/resolv.conf",
        "usr/lib/python3.13/__pycache__/abc.cpython-313.pyc",
        "usr/lib/python3.13/json/__pycache__",
        "usr/share/doc/bash/changelog.gz",
        "usr/share/doc/apt/examples/apt.conf",
        "usr/share/man/man1/bash.1.gz",
        "var/cache/ldconfig/aux-cache",
        "var/lib/apt/lists/lock",
        "var/lib/dpkg/status-old",
        "var/log/dpkg.log",
        "var/log/apt/history.log",
    ],
)
def test_D7_residue_goes(path: str) -> None:
    assert not kept(path)


@pytest.mark.parametrize(
    "path",
    [
        "dev",
        "etc/ld.so.cache",
        "etc/passwd",
        "root/.bashrc",
        "tmp",
        "usr/include/python3.13/Python.h",
        "usr/lib/python3.13/json/decoder.py",
        "usr/lib/python3.13/test/support/__init__.py",
        "usr/share/doc/bash",
        "usr/share/doc/bash/copyright",
        "usr/share/python3/runtime.d",
        "usr/share/zoneinfo/UTC",
        "var/lib/dpkg/info/bash.list",
        "var/lib/dpkg/status",
        "var/log",
    ],
)
def test_what_an_image_needs_stays(path: str) -> None:
    assert kept(path)
