"""The .sqsh: determinism, equality with `docker export`, and what a killed or cramped run leaves. Cases B10, B11, B12.

`LOCKSTEP_KILLS=50 pytest tests/build/test_sqsh.py -k kill` runs the kill test fifty times.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.arch import Arch, host_arch
from lockstep.engine import Engine, ensure_engine
from lockstep.engine_images import register_layout
from lockstep.errors import LockstepError
from lockstep.ship import sqsh
from lockstep.ship.layout import Layout
from lockstep.ship.source import Source, of_image, open_source
from lockstep.ship.sqsh import Options
from shipkit import EPOCH, Member, layer, needs_squashfs, needs_zstd, write_layout

pytestmark = [
    needs_squashfs,
    needs_zstd,
    pytest.mark.skipif(os.geteuid() != 0, reason="owners are compared, which takes root"),
]
SCRIPTS = Path(__file__).parents[2] / "scripts"
KILLS = int(os.environ.get("LOCKSTEP_KILLS", "10"))
CONFIG = {"Entrypoint": ["/bin/true"], "WorkingDir": "/workspace", "Env": ["A=1"], "Labels": {"l": "v"}}


def layers() -> list[bytes]:
    """Layers with everything that is known to go wrong."""
    big = os.urandom(300_000)
    return [
        layer(
            [
                Member("bin", "d"),
                Member("bin/a", data=big, mode=0o4755, uid=1000),
                # Real tars give every name of a file the same mode, and containerd applies that of each.
                Member("bin/b", "h", link="bin/a", mode=0o4755, uid=1000),
                Member("dev", "d"),
                Member("dev/keep-me-not", data=b"x"),
                Member("dir", "d", mode=0o2750),
                Member("dir/gone", data=b"1"),
                Member("dir/stays", data=b"2", mode=0o200),
                Member("closed", "d", mode=0o555),
                Member("closed/x", data=b"3", mode=0o111),
                Member("swap", "d"),
                Member("swap/below", data=b"4"),
                Member("hidden", data=b"5"),
                Member("shown", "h", link="hidden"),
                Member("tmp", "d", mode=0o1777),
                Member("absolute", "l", link="/usr/share/Főtanúsítvány"),
                Member("far", "l", link="/" + "t" * 150),
                Member("Főtanúsítvány", data=b"7"),
                Member("long/" + "n" * 120 + "/" + "m" * 120, data=b"6"),
            ]
        ),
        layer(
            [
                Member("dir", "d", mode=0o2750),
                Member("dir/.wh.gone", "w"),
                Member("swap", "l", link="dir"),
                Member("hidden", data=b"new"),
                Member("etc", "d"),
                Member("etc/fstab", data=b"# the image's own\n"),
                Member("many", "d"),
                *[Member(f"many/{number}", data=os.urandom(50) * 20) for number in range(300)],
            ]
        ),
    ]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    write_layout(tmp_path / "layout", layers(), compression="zstd", settings=CONFIG, arch=host_arch().docker)
    return of_image(Layout(tmp_path / "layout").image())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("processors", [1, 2, 4])
def test_B12_equal_bytes_whatever_the_processors(tmp_path: Path, source: Source, processors: int) -> None:
    first = sqsh.make(source, tmp_path / "1.sqsh", Options(EPOCH))
    for number in range(3):
        again = sqsh.make(source, tmp_path / f"again{number}.sqsh", Options(EPOCH, processors=processors))
        assert sha256(again) == sha256(first)


def test_B12_another_epoch_gives_other_bytes(tmp_path: Path, source: Source) -> None:
    first = sqsh.make(source, tmp_path / "1.sqsh", Options(EPOCH))
    assert sha256(sqsh.make(source, tmp_path / "2.sqsh", Options(EPOCH + 1))) != sha256(first)


Tree = dict[str, tuple[object, ...]]


def tree_of_folder(root: Path) -> Tree:
    """Return path -> type and mode, owner, content or target, first name of a hard-linked file."""
    made: Tree = {}
    first: dict[int, str] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        name = path.relative_to(root).as_posix()
        content: object = None
        link = ""
        if stat.S_ISLNK(info.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(info.st_mode):
            content = sha256(path)
            link = first.setdefault(info.st_ino, name) if info.st_nlink > 1 else ""
        made[name] = (oct(info.st_mode), (info.st_uid, info.st_gid), content, link)
    return made


def tree_of_tar(path: Path, folder: Path) -> Tree:
    folder.mkdir()
    subprocess.run(["tar", "-xpf", path, "-C", folder, "--numeric-owner", "--same-owner"], check=True)
    return tree_of_folder(folder)


def unpacked(path: Path, folder: Path) -> Tree:
    subprocess.run(["unsquashfs", "-no-progress", "-d", folder, path], check=True, capture_output=True)
    return tree_of_folder(folder)


def as_imported(tree: Tree) -> Tree:
    """Return what enroot's import makes of an exported tree, but for the files below /etc."""
    made: Tree = {}
    for name, (mode, _owner, content, link) in tree.items():
        if name.startswith("dev/") or name == ".dockerenv":
            continue
        bits = int(str(mode), 8)
        if stat.S_ISDIR(bits):
            bits |= 0o700
        elif stat.S_ISREG(bits):
            bits |= 0o500 if bits & 0o111 else 0o400
        made[name] = (oct(bits), (0, 0), content, link)
    return made


CONFIGURED = {"etc/rc", "etc/rc.local", "etc/environment", "etc/fstab"}
DOCKER_ADDS = {"etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab", "proc", "sys", "etc"}
"""What the engine puts into every container that it creates."""


@pytest.fixture
def engine() -> Engine:
    try:
        return ensure_engine()
    except LockstepError as error:
        pytest.skip(str(error))


@pytest.fixture
def exported(tmp_path: Path, source: Source, engine: Engine) -> Iterator[Path]:
    """`docker export` of a container of the image."""
    name = f"lockstep/test-export:{uuid.uuid4().hex}"
    register_layout(engine, tmp_path / "layout", name)
    container = docker(engine, "create", "--network", "none", name)
    try:
        docker(engine, "export", "-o", str(tmp_path / "export.tar"), container)
        yield tmp_path / "export.tar"
    finally:
        docker(engine, "rm", container)
        docker(engine, "image", "rm", name)


def docker(engine: Engine, *words: str) -> str:
    call = engine.docker_cmd(*words)
    return subprocess.run(call, env=engine.env, check=True, capture_output=True, text=True).stdout.strip()


def test_unsquashed_it_equals_docker_export(tmp_path: Path, source: Source, exported: Path) -> None:
    made = unpacked(sqsh.make(source, tmp_path / "x.sqsh", Options(EPOCH)), tmp_path / "squashed")
    wanted = as_imported(tree_of_tar(exported, tmp_path / "exported"))
    added = made.keys() - wanted.keys()
    assert added <= CONFIGURED | {"workspace"}
    assert wanted.keys() - made.keys() <= DOCKER_ADDS
    for name in (made.keys() & wanted.keys()) - CONFIGURED - DOCKER_ADDS:
        assert made[name] == wanted[name], name


def test_B10_flattened_it_lists_as_docker_export_does(tmp_path: Path, source: Source, exported: Path) -> None:
    made = tree_of_tar(sqsh.to_tar(source, tmp_path / "flat.tar"), tmp_path / "flat")
    wanted = tree_of_tar(exported, tmp_path / "exported")
    # The engine also makes the working directory when it creates a container.
    for name in wanted.keys() - DOCKER_ADDS - {".dockerenv", "workspace"}:
        if not name.startswith("dev/"):
            assert made[name] == wanted[name], name
    assert made.keys() - wanted.keys() <= {"dev/keep-me-not"}


def test_what_the_configuration_adds(tmp_path: Path, source: Source) -> None:
    made = unpacked(sqsh.make(source, tmp_path / "x.sqsh", Options(EPOCH)), tmp_path / "out")
    text = (tmp_path / "out/etc/rc").read_text()
    assert "exec '/bin/true' \"$@\"" in text
    assert 'cd "/workspace"' in text
    assert (tmp_path / "out/etc/environment").read_text() == "A=1\n"
    assert (tmp_path / "out/etc/fstab").read_text() == ""
    assert made["workspace"] == (oct(stat.S_IFDIR | 0o755), (0, 0), None, "")
    assert "dev/keep-me-not" not in made
    assert "dev" in made


@pytest.mark.parametrize("kind", ["tarball", "docker-archive"])
def test_a_tarball_gives_the_same_tree(tmp_path: Path, kind: str) -> None:
    parts = layers()
    write_layout(tmp_path / "layout", parts, compression="zstd", settings=CONFIG, arch=host_arch().docker)
    source = of_image(Layout(tmp_path / "layout").image())
    tar = tmp_path / "image.tar"
    if kind == "tarball":
        with tarfile.open(tar, "w") as archive:
            archive.add(tmp_path / "layout", ".")
    else:
        if shutil.which("skopeo") is None:
            pytest.skip("skopeo is not installed")
        # The older format has no zstd layers.
        write_layout(tmp_path / "layout", parts, compression="gzip", settings=CONFIG, arch=host_arch().docker)
        words = ["skopeo", "--insecure-policy", "copy", f"oci:{tmp_path}/layout", f"docker-archive:{tar}:x/y:z"]
        subprocess.run(words, check=True, capture_output=True)
    first = unpacked(sqsh.make(source, tmp_path / "1.sqsh", Options(EPOCH)), tmp_path / "1")
    with open_source(str(tar), host_arch(), tmp_path / "scratch", "host:5000/a:b") as opened:
        second = unpacked(sqsh.make(opened, tmp_path / "2.sqsh", Options(EPOCH)), tmp_path / "2")
    assert {name: value for name, value in first.items() if name != "etc/rc"} == {
        name: value for name, value in second.items() if name != "etc/rc"
    }
    assert (tmp_path / "2/etc/rc").read_text().startswith("# enroot-provenance: docker://host:5000#a:b\n")


def test_another_architecture_is_refused(tmp_path: Path, source: Source) -> None:
    other = next(each for each in Arch if each is not host_arch())
    with (
        pytest.raises(LockstepError, match=f"{other.docker} is wanted"),
        open_source(str(tmp_path / "layout"), other, tmp_path),
    ):
        pass


def test_B11_a_missing_compressor_is_named_before_work_starts(tmp_path: Path, source: Source) -> None:
    with pytest.raises(LockstepError, match=r"has no snappy \(it has gzip"):
        sqsh.make(source, tmp_path / "x.sqsh", Options(EPOCH, "snappy", None))


def test_B11_a_small_disk_is_an_early_error_with_the_bytes_needed(tmp_path: Path, source: Source) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        needed = sqsh.estimate(source)
        with pytest.raises(LockstepError, match=f"{needed} bytes are needed and \\d+ are free"):
            sqsh.make(source, small / "x.sqsh", Options(EPOCH))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_damaged_layer_makes_no_file(tmp_path: Path, source: Source) -> None:
    blob = source.layers[1].path
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(LockstepError):
        sqsh.make(source, tmp_path / "x.sqsh", Options(EPOCH))
    assert not (tmp_path / "x.sqsh").exists()


MAKE = """
import sys
from pathlib import Path
from lockstep.ship import sqsh
from lockstep.ship.layout import Layout
from lockstep.ship.source import of_image
sqsh.make(of_image(Layout(Path(sys.argv[1])).image()), Path(sys.argv[2]), sqsh.Options(int(sys.argv[3]), level=19))
"""


def test_a_killed_run_leaves_no_file_and_the_next_one_succeeds(tmp_path: Path) -> None:
    write_layout(tmp_path / "big", [layer([Member("x", data=os.urandom(6_000_000))]), *layers()], settings=CONFIG)
    output = tmp_path / "out/x.sqsh"
    wanted = ""
    chance = random.Random(20261130)
    for _number in range(KILLS):
        argv = [sys.executable, "-c", MAKE, str(tmp_path / "big"), str(output), str(EPOCH)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        process = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.1, 3.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if output.exists():
            assert not wanted or sha256(output) == wanted
        subprocess.run(argv, env=environment, check=True, stderr=subprocess.DEVNULL)
        wanted = wanted or sha256(output)
        assert sha256(output) == wanted
        assert [path.name for path in output.parent.iterdir()] == ["x.sqsh"]
        output.unlink()
