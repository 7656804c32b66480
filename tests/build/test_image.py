"""Images built by the real engine from small real wheels: one digest however they are made, and nothing left over."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import auditkit
import imagekit
import shipkit
import wheelkit
from imagekit import Checkout
from lockstep.engine import ensure_engine, forget_steps
from lockstep.render import uv_requirement
from lockstep.tools import uv_program


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The smoke image, built cold in a checkout of its own."""
    made = imagekit.checkout(tmp_path_factory.mktemp("cold") / "checkout")
    made.ok("image", "smoke", "--no-cache")
    return made


def _inside(image: str, *command: str) -> str:
    engine = ensure_engine()
    words = engine.docker_cmd("run", "--rm", "--network", "none", f"lockstep/{image}:{imagekit.ARCH}", *command)
    return subprocess.run(words, env=engine.env, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def load() -> Iterator[None]:
    """Keep every core busy while a test builds."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


def test_D2_warm_and_cold_elsewhere_under_load_give_one_digest(smoke: Checkout, tmp_path: Path, load: None) -> None:
    digest = smoke.digest("smoke")
    smoke.ok("image", "smoke")
    assert smoke.digest("smoke") == digest
    other = imagekit.checkout(tmp_path / "another" / "path", {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOSTNAME": "other"})
    for path in other.root.rglob("*.py"):
        os.utime(path, (1, 1))
    other.ok("image", "smoke", "--no-cache", "--fresh-bytecode")
    assert other.digest("smoke") == digest


def test_D2_bytecode_kept_from_an_earlier_build_gives_the_same_digest(smoke: Checkout) -> None:
    smoke.ok("image", "smoke", "--no-cache", "--fresh-bytecode")
    digest = smoke.digest("smoke")
    engine = ensure_engine()
    if not engine.private:
        pytest.skip("the steps of another engine than the private one are not ours to forget")
    for _ in range(2):  # the second finds what the first has kept
        forget_steps(engine)
        smoke.ok("image", "smoke")
        assert smoke.digest("smoke") == digest


def test_the_engines_store_and_the_client_give_one_layout(smoke: Checkout, tmp_path: Path) -> None:
    """A builder that BUILDER names, even the engine's own by its name, is asked over its client, as any other is."""
    smoke.ok("image", "smoke")
    engine = ensure_engine()
    name = engine.docker_cmd("buildx", "inspect")
    said = subprocess.run(name, env=engine.env, check=True, capture_output=True, text=True).stdout
    builder = re.search(r"^Name:\s+(\S+)", said, re.MULTILINE)
    assert builder
    other = imagekit.checkout(tmp_path / "checkout", {"BUILDER": builder[1]})
    other.ok("image", "smoke")
    for layout in (smoke.layout("smoke"), other.layout("smoke")):
        assert {path.name for path in layout.parent.iterdir()} <= {layout.name, ".pool"}
    assert (other.root / "build" / "oci" / ".pool").is_dir()
    files = [
        {str(path.relative_to(one)): path.read_bytes() for path in sorted(one.rglob("*")) if path.is_file()}
        for one in (smoke.layout("smoke"), other.layout("smoke"))
    ]
    assert files[0] == files[1]


def test_a_second_build_takes_every_layer_from_the_cache(smoke: Checkout) -> None:
    """F2: nothing is downloaded, because no step that could download runs."""
    said = smoke.ok("image", "smoke")
    assert "4 of 4 layers" in said or "every layer" in said


def test_a_new_version_of_one_package_changes_exactly_one_layer(smoke: Checkout, tmp_path: Path) -> None:
    bumped = imagekit.checkout(tmp_path / "checkout")
    bumped.edit("tabulate==0.9.0", "tabulate==0.10.0")
    bumped.ok("lock", "--backend", "smoke-a")
    bumped.ok("image", "smoke")
    before, after = smoke.layers("smoke"), bumped.layers("smoke")
    assert len(before) == len(after)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1


def test_A7_each_venv_holds_its_own_version(smoke: Checkout) -> None:
    code = "import idna; print(idna.__version__)"
    smoke.ok("image", "smoke")
    assert _inside("smoke", "/opt/venvs/smoke-a/bin/python", "-c", code) == "3.10\n"
    assert _inside("smoke", "/opt/venvs/smoke-b/bin/python", "-c", code) == "3.7\n"


def test_a_wheel_that_two_venvs_share_is_stored_once(smoke: Checkout) -> None:
    smoke.ok("image", "smoke")
    paths = [f"/opt/venvs/smoke-{venv}/lib/python3.13/site-packages/packaging/version.py" for venv in "ab"]
    (inode,) = set(_inside("smoke", "stat", "-c", "%i", *paths).split())
    assert inode
    pyc = [path.replace("version.py", "__pycache__/version.cpython-313.pyc") for path in paths]
    assert len(set(_inside("smoke", "stat", "-c", "%i", *pyc).split())) == 1


def test_D10_a_dead_cache_does_not_lose_the_image(smoke: Checkout) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    cache = f"type=registry,ref=127.0.0.1:{port}/cache"
    said = smoke.ok("image", "smoke", "--cache-to", cache, "--cache-from", cache)
    assert smoke.digest("smoke") in said
    assert "warning" in said


@shipkit.needs_registry
def test_D10_a_cache_whose_blobs_were_collected_is_left_out(
    smoke: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    with shipkit.registry(tmp_path / "registry") as server:
        live, gone = (f"type=registry,ref={server.host}/cache:{name}" for name in ("live", "gone"))
        said = smoke.ok("image", "smoke", "--cache-to", f"{live},mode=max", "--cache-from", f"{gone} {live}")
        assert f"the cache {gone} is left out: the registry has no such reference" in said
        said = smoke.ok("image", "smoke", "--cache-from", live)
        assert "left out" not in said
        max((tmp_path / "registry").rglob("data"), key=lambda path: path.stat().st_size).unlink()
        said = smoke.ok("image", "smoke", "--cache-from", live)
    assert f"the cache {live} is left out: 1 of its" in said
    assert smoke.digest("smoke") in said


def test_a_tampered_hash_stops_the_build_and_keeps_the_last_image(smoke: Checkout, tmp_path: Path) -> None:
    from lockstep.lock import LockedWheel, lock_path, parse_lock, write_lock

    bad = imagekit.checkout(tmp_path / "checkout")
    path = lock_path("smoke-a", imagekit.ARCH, bad.root)
    lock = parse_lock(path.read_text(), "smoke-a", imagekit.ARCH, path.name)
    wheels = tuple(
        LockedWheel(w.name, w.version, w.filename, "0" * 64, w.size) if w.name == "tabulate" else w for w in lock.wheels
    )
    write_lock(type(lock)(lock.backend, lock.arch, lock.inputs, wheels), bad.root)
    message = bad.fails("image", "smoke")
    assert "tabulate" in message
    assert "hash" in message.lower()
    assert not bad.layout("smoke").exists()


def test_a_lock_edited_by_hand_is_refused(tmp_path: Path) -> None:
    edited = imagekit.checkout(tmp_path / "checkout")
    path = edited.root / "images" / "smoke-a" / f"lock.{imagekit.ARCH}.txt"
    path.write_text(re.sub(r"sha256:([0-9a-f]{63})[0-9a-f]", r"sha256:\g<1>0", path.read_text(), count=1))
    assert "was edited by hand" in edited.fails("image", "smoke")


def test_an_index_that_is_down_is_said_and_locks_stay(tmp_path: Path) -> None:
    there = imagekit.checkout(tmp_path / "checkout", {"UV_DEFAULT_INDEX": "http://u:hunter2@127.0.0.1:9/simple"})
    before = (there.root / "images" / "smoke-a" / f"lock.{imagekit.ARCH}.txt").read_text()
    there.edit("tabulate==0.9.0", "tabulate==0.10.0")
    message = there.fails("lock", "--backend", "smoke-a")
    assert "the index does not answer" in message
    assert "hunter2" not in message
    assert (there.root / "images" / "smoke-a" / f"lock.{imagekit.ARCH}.txt").read_text() == before


def test_D5_what_is_published_after_locking_changes_nothing(tmp_path: Path, uv_wheel: Path) -> None:
    old = auditkit.wheel(tmp_path / "w", "d5-package", "1.0", {"d5_package.py": b"VERSION = 1\n"})
    new = auditkit.wheel(tmp_path / "w", "d5-package", "2.0", {"d5_package.py": b"VERSION = 2\n"})
    with wheelkit.index([old, uv_wheel]) as index:
        there = imagekit.tiny(tmp_path / "checkout", index.url, {"one": ["d5-package"]})
        there.ok("lock")
        there.ok("image", "tiny")
        digest = there.digest("tiny")
    with wheelkit.index([old, new, uv_wheel]) as index:
        there.env["UV_DEFAULT_INDEX"] = index.url
        there.ok("image", "tiny", "--no-cache")
    assert there.digest("tiny") == digest


def test_C6_a_proxy_neither_busts_the_cache_nor_stays(tmp_path: Path, uv_wheel: Path) -> None:
    """The proxy here is the index itself: a plain HTTP request by way of it has the whole address as its path."""
    wheel = auditkit.wheel(tmp_path / "w", "c6-package", "1.0", {"c6_package.py": b""})
    with wheelkit.index([wheel, uv_wheel]) as index:
        there = imagekit.tiny(tmp_path / "checkout", index.url, {"one": ["c6-package"]})
        there.ok("lock")
        there.ok("image", "tiny")
        digest = there.digest("tiny")
        proxy = index.url.removesuffix("/simple/")
        said = there.ok("image", "tiny", env={"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy})
    assert "2 of 2 layers" in said or "every layer" in said
    assert there.digest("tiny") == digest
    assert "proxy" not in _inside("tiny", "env").lower()


def test_E3_a_missing_driver_is_told_from_a_missing_library(tmp_path: Path, uv_wheel: Path) -> None:
    driver = auditkit.library(tmp_path / "libcuda.so.1", "int cuInit(void) { return 0; }", soname="libcuda.so.1")
    other = auditkit.library(tmp_path / "libfoo.so.9", "int foo(void) { return 0; }", soname="libfoo.so.9")
    needs = {
        name: auditkit.library(tmp_path / f"{name}.so", f"int {name}_x;", links=[library]).read_bytes()
        for name, library in (("e3_driver", driver), ("e3_broken", other))
    }
    wheels = [
        auditkit.wheel(tmp_path / "w", name.replace("_", "-"), "1.0", {f"{name}.abi3.so": data})
        for name, data in needs.items()
    ]
    with wheelkit.index([*wheels, uv_wheel]) as index:
        there = imagekit.tiny(
            tmp_path / "checkout", index.url, {"one": ["e3-driver", "e3-broken"]}, ", imports: [e3_driver, e3_broken]"
        )
        there.ok("lock")
        there.ok("image", "tiny")
    done = there.run("probe", "tiny", "--select", "test_import or E3_")
    assert done.returncode == 1
    report = done.stdout
    assert "1 failed" in report
    assert "1 skipped" in report
    assert "needs an NVIDIA driver: ImportError: libcuda.so.1" in report
    assert "libfoo.so.9: cannot open shared object file" in report
    record = (there.root / "build" / "probe" / f"tiny.{imagekit.ARCH}.json").read_text()
    assert '"result": "needs-driver"' in record
    assert '"result": "fail"' in record


def test_the_smoke_image_passes_its_probes(smoke: Checkout) -> None:
    """B2, B5, B6, B7, C5, D6, E7, F2 inside the image: tests/image, as root and as a cluster's user."""
    smoke.ok("image", "smoke")
    smoke.ok("probe", "smoke")


def test_C5_a_package_added_by_hand_survives_and_scripts_find_their_python(smoke: Checkout) -> None:
    """Nothing in an image syncs a venv later, so what a user adds stays."""
    smoke.ok("image", "smoke")
    script = (
        "b=/opt/venvs/smoke-a/bin; echo x=1 > $b/../lib/python3.13/site-packages/extra.py; "
        "$b/tabulate --help >/dev/null; $b/python -c 'import extra; print(extra.x)'"
    )
    assert _inside("smoke", "sh", "-c", script) == "1\n"


def test_uv_is_the_pinned_one() -> None:
    """D5: host and builder use one uv."""
    from lockstep.paths import ROOT

    version = subprocess.run([uv_program(), "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    assert uv_requirement(ROOT).startswith(f"uv=={version} ")
