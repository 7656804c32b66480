"""Resolution by the real uv against an index of tiny wheels on this machine: what is chosen, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import lockkit
import wheelkit
from lockkit import lock, locked, wheel
from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.lock import Lock, LockedWheel
from lockstep.matrix import Matrix
from lockstep.resolve import Upgrade, parse_upgrade, resolve

Serve = Callable[..., wheelkit.Index]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests: a fresh one costs uv a look at every interpreter of the machine."""
    return tmp_path_factory.mktemp("uv")


@pytest.fixture
def serve(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serve the given files as the only index there is, with another cache than the user's."""
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL", "UV_FIND_LINKS", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:

        def start(*files: Path) -> wheelkit.Index:
            index = stack.enter_context(wheelkit.index(files))
            monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
            return index

        yield start


def _resolve(
    matrix: Matrix,
    name: str = "a",
    arch: Arch = Arch.X86_64,
    previous: Lock | None = None,
    others: tuple[Lock, ...] = (),
    upgrade: str = "",
) -> dict[str, LockedWheel]:
    return resolve(matrix, name, arch, previous=previous, others=others, upgrade=parse_upgrade(upgrade)).by_name()


def _versions(found: dict[str, LockedWheel]) -> dict[str, str]:
    return {name: item.version for name, item in found.items()}


def test_a_lock_holds_file_hash_and_size_of_the_wheel_that_the_platform_installs(tmp_path: Path, serve: Serve) -> None:
    files = {
        tag: wheel(tmp_path, "ext", "1.0", tag=tag)
        for tag in (
            "cp313-cp313-manylinux_2_28_x86_64",
            "cp313-cp313-manylinux_2_17_aarch64",
            "cp312-cp312-linux_x86_64",
        )
    }
    pure = wheel(tmp_path, "dep", "2.0")
    serve(*files.values(), pure)
    matrix = lockkit.matrix('  a: {line: plain, requires: ["ext", "dep"]}')
    for arch, tag in ((Arch.X86_64, "manylinux_2_28_x86_64"), (Arch.AARCH64, "manylinux_2_17_aarch64")):
        path = files[f"cp313-cp313-{tag}"]
        found = _resolve(matrix, arch=arch)
        assert found["ext"] == LockedWheel("ext", "1.0", path.name, wheelkit.digest(path), path.stat().st_size)
        assert found["dep"].filename == pure.name


def test_a_package_without_a_wheel_for_one_architecture_is_named_with_it(tmp_path: Path, serve: Serve) -> None:
    serve(wheel(tmp_path, "ext", "1.0", tag="cp313-cp313-manylinux_2_28_x86_64"))
    matrix = lockkit.matrix("  a: {line: plain, requires: [ext]}")
    assert _versions(_resolve(matrix)) == {"ext": "1.0"}
    with pytest.raises(LockstepError, match="backend a on aarch64") as caught:
        _resolve(matrix, arch=Arch.AARCH64)
    assert "ext" in caught.value.what


def test_locked_versions_stay_unless_asked_to_move(tmp_path: Path, serve: Serve) -> None:
    serve(*(wheel(tmp_path, name, version) for name in ("one", "two") for version in ("1.0", "2.0")))
    matrix = lockkit.matrix("  a: {line: plain, requires: [one, two]}")
    old = lock("a", locked("one"), locked("two"))
    assert _versions(_resolve(matrix, previous=old)) == {"one": "1.0", "two": "1.0"}
    assert _versions(_resolve(matrix, previous=old, upgrade="two")) == {"one": "1.0", "two": "2.0"}
    assert _versions(_resolve(matrix, previous=old, upgrade="all")) == {"one": "2.0", "two": "2.0"}


def test_versions_of_other_backends_are_preferred_and_its_own_before_them(tmp_path: Path, serve: Serve) -> None:
    serve(*(wheel(tmp_path, name, version) for name in ("one", "two") for version in ("1.0", "2.0", "3.0")))
    matrix = lockkit.matrix("  a: {line: plain, requires: [one, two]}")
    mate = lock("b", locked("one", "1.0"), locked("two", "1.0"))
    own = lock("a", locked("two", "2.0"))
    assert _versions(_resolve(matrix, previous=own, others=(mate,))) == {"one": "1.0", "two": "2.0"}


def test_a_hold_keeps_a_package_and_not_past_stops_a_relock(tmp_path: Path, serve: Serve) -> None:
    serve(*(wheel(tmp_path, "x", version) for version in ("1.0", "1.1", "1.2")))
    text = '  a: {line: plain, requires: [x], holds: [{package: x, %s, why: "1.2 breaks the hooks"}]}'
    assert _versions(_resolve(lockkit.matrix(text % 'version: "1.0"'), upgrade="all")) == {"x": "1.0"}
    held = lockkit.matrix(text % 'not_past: "1.1"')
    with pytest.raises(LockstepError, match=r"x would move to 1\.2, past 1\.1") as caught:
        _resolve(held, upgrade="all")
    assert "1.2 breaks the hooks" in str(caught.value)
    assert _versions(_resolve(held, previous=lock("a", locked("x", "1.1")))) == {"x": "1.1"}


def test_constraints_and_exclusions(tmp_path: Path, serve: Serve) -> None:
    serve(
        wheel(tmp_path, "app", "1.0", ["num", "codec"]),
        *(wheel(tmp_path, "num", version) for version in ("2.4", "2.5")),
        wheel(tmp_path, "codec", "1.0"),
    )
    text = """  a:
    line: plain
    requires: [app]
    constraints: [{requirement: num<2.5, why: another package refuses it}]
    exclude: [{package: codec, arch: x86_64, why: it carries codecs}]"""
    matrix = lockkit.matrix(text)
    assert _versions(_resolve(matrix)) == {"app": "1.0", "num": "2.4"}
    assert _versions(_resolve(matrix, arch=Arch.AARCH64)) == {"app": "1.0", "num": "2.4", "codec": "1.0"}


def test_A7_each_venv_holds_exactly_its_own_version(tmp_path: Path, serve: Serve) -> None:
    """Two extras pin two versions of one package; both pull in a package that depends on it."""
    serve(
        wheel(tmp_path, "old", "1.0", ["idna==3.3", "shared"]),
        wheel(tmp_path, "new", "1.0", ["idna==3.7", "shared"]),
        wheel(tmp_path, "shared", "1.0", ["idna"]),
        *(wheel(tmp_path, "idna", version) for version in ("3.3", "3.7", "3.10")),
    )
    matrix = lockkit.matrix("  a: {line: plain, requires: [old]}\n  b: {line: plain, requires: [new]}")
    first = resolve(matrix, "a", Arch.X86_64, previous=None, others=[], upgrade=Upgrade())
    assert first.by_name()["idna"].version == "3.3"
    assert _versions(_resolve(matrix, "b", others=(first,)))["idna"] == "3.7"
    both = lockkit.matrix("  a: {line: plain, requires: [old, new]}")
    with pytest.raises(LockstepError, match=r"idna==3\.3") as caught:
        _resolve(both)
    assert "idna==3.7" in str(caught.value)


def test_A8_a_clash_is_said_before_anything_is_built(tmp_path: Path, serve: Serve) -> None:
    serve(wheel(tmp_path, "torch", "1.0", ["libx==1"]), *(wheel(tmp_path, "libx", version) for version in ("1", "2")))
    with pytest.raises(LockstepError, match=r"no set of wheels satisfies versions\.yaml") as caught:
        _resolve(lockkit.matrix("  a: {line: plain, requires: [torch, libx==2]}"))
    said = str(caught.value)
    assert "torch" in said
    assert "libx==1" in said
    assert "libx==2" in said
    assert "declare an override with its why" in said
    assert "Traceback" not in said


def test_A8_an_override_is_recorded_with_its_reason_and_moves_that_package_alone(tmp_path: Path, serve: Serve) -> None:
    serve(
        wheel(tmp_path, "torch", "1.0", ["libx==1", "liby"]),
        *(wheel(tmp_path, "libx", version) for version in ("1", "2")),
        wheel(tmp_path, "liby", "1.0"),
    )
    text = "  a: {line: plain, requires: [torch], overrides: [{requirement: libx==2, why: 1 hangs on this network}]}"
    matrix = lockkit.matrix(text)
    assert _versions(_resolve(matrix)) == {"torch": "1.0", "libx": "2", "liby": "1.0"}
    assert matrix.backends["a"].overrides[0].why == "1 hangs on this network"


def test_A8_an_error_names_the_override_that_has_a_part_in_it(tmp_path: Path, serve: Serve) -> None:
    serve(wheel(tmp_path, "torch", "1.0", ["libx==1"]), wheel(tmp_path, "libx", "1"))
    text = "  a: {line: plain, requires: [torch], overrides: [{requirement: libx==2, why: 1 hangs on this network}]}"
    with pytest.raises(LockstepError, match=r"override libx==2 \(1 hangs on this network\)"):
        _resolve(lockkit.matrix(text))


def test_A14_a_build_for_another_platform_is_not_taken_for_the_pinned_one(tmp_path: Path, serve: Serve) -> None:
    """The index holds x 1.0+cpu and x 1.0+cu130; the line pins 1.0, so nobody has said which."""
    serve(*(wheel(tmp_path, "x", f"1.0+{build}") for build in ("cpu", "cu130")))
    with pytest.raises(LockstepError, match=r"the index serves x 1\.0\+\w+ where line pinned pins 1\.0"):
        _resolve(lockkit.matrix("  a: {line: pinned, requires: [x]}"))
    serve(wheel(tmp_path, "x", "1.0+cpu"))
    with pytest.raises(LockstepError, match=r"x 1\.0\+cpu where line pinned pins 1\.0"):
        _resolve(lockkit.matrix("  a: {line: pinned, requires: [x]}"))


def test_A14_the_whole_version_takes_the_wanted_build(tmp_path: Path, serve: Serve) -> None:
    serve(*(wheel(tmp_path, "x", f"1.0+{build}") for build in ("cpu", "cu130")))
    found = _resolve(lockkit.matrix("  a: {line: cuda, requires: [x]}", '  cuda: {x: "1.0+cu130"}'))
    assert _versions(found) == {"x": "1.0+cu130"}


def test_A15_a_stub_source_distribution_is_never_taken(tmp_path: Path, serve: Serve) -> None:
    stub = wheelkit.sdist(tmp_path, "big", "1.0", {"pyproject.toml": '[build-system]\nbuild-backend = "wheel_stub"\n'})
    serve(stub, wheel(tmp_path, "other", "1.0"))
    with pytest.raises(LockstepError, match="big") as caught:
        _resolve(lockkit.matrix("  a: {line: plain, requires: [big]}"))
    assert "declare it under compile or mirror" in caught.value.fix


COMPILE = """
compile:
  ext: {version: "2.0", why: for this test, source: {sdist_sha256: "%s"}, cuda: null, requires: [dep<2], imports: [ext]}
""" % ("0" * 64)


def test_a_compiled_package_is_resolved_by_its_declared_requirements(tmp_path: Path, serve: Serve) -> None:
    serve(
        wheel(tmp_path, "app", "1.0", ["ext>=2"]),
        *(wheel(tmp_path, "dep", version) for version in ("1.0", "2.0")),
        wheelkit.sdist(tmp_path, "ext", "2.0", {"setup.py": "raise SystemExit"}),
    )
    matrix = lockkit.matrix("  a: {line: plain, requires: [app], compile: [ext]}", COMPILE)
    found = _resolve(matrix)
    assert _versions(found) == {"app": "1.0", "dep": "1.0", "ext": "2.0"}
    assert found["ext"] == LockedWheel("ext", "2.0", "", "", 0, "compile", "plain")


def test_A4_no_wheel_of_an_index_takes_the_place_of_a_compiled_one(tmp_path: Path, serve: Serve) -> None:
    """The index offers the same version, a local build of it and a newer one, all with other requirements."""
    index = serve(
        *(wheel(tmp_path, "ext", version, ["evil"]) for version in ("2.0", "2.0+torch9", "3.0")),
        *(wheel(tmp_path, "dep", version) for version in ("1.0", "2.0")),
        wheel(tmp_path, "evil", "1.0"),
    )
    found = _resolve(lockkit.matrix("  a: {line: plain, requires: [dep], compile: [ext]}", COMPILE))
    assert _versions(found) == {"dep": "1.0", "ext": "2.0"}
    assert not [path for path, _ in index.requests if path.startswith("/simple/ext")]


def test_a_compiled_package_that_does_not_fit_is_named(tmp_path: Path, serve: Serve) -> None:
    serve(wheel(tmp_path, "dep", "2.0"))
    with pytest.raises(LockstepError, match="ext") as caught:
        _resolve(lockkit.matrix("  a: {line: plain, requires: [dep], compile: [ext]}", COMPILE))
    assert "dep<2" in str(caught.value)


MIRROR = """
mirror:
  big: {version: "1.0rc1", why: for this test, wheels: {x86_64: X86, aarch64: {}}, requires: [dep<2]}
"""


def test_a_mirrored_package_is_locked_before_and_after_its_hash_is_known(tmp_path: Path, serve: Serve) -> None:
    serve(*(wheel(tmp_path, "dep", version) for version in ("1.0", "2.0")))
    backend = "  a: {line: plain, requires: [dep], mirror: [big]}"
    before = _resolve(lockkit.matrix(backend, MIRROR.replace("X86", "{}")))
    assert _versions(before) == {"dep": "1.0", "big": "1.0rc1"}
    assert before["big"].line() == "big==1.0rc1  # not mirrored"
    known = '{sha256: "%s", filename: big-1.0rc1-py3-none-any.whl, size: 5}' % ("a" * 64)
    matrix = lockkit.matrix(backend, MIRROR.replace("X86", known))
    after = _resolve(matrix)
    assert after["big"] == LockedWheel("big", "1.0rc1", "big-1.0rc1-py3-none-any.whl", "a" * 64, 5, "mirror")
    assert _resolve(matrix, arch=Arch.AARCH64)["big"].sha256 == ""


def test_an_index_that_does_not_answer_is_said_as_that(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    index = serve()
    dead = index.url.replace("127.0.0.1", "user:secret@127.0.0.1").rsplit(":", 1)[0] + ":9/simple/"
    monkeypatch.setenv("UV_DEFAULT_INDEX", dead)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(LockstepError, match="the index does not answer") as caught:
        _resolve(lockkit.matrix("  a: {line: plain, requires: [x]}"))
    assert "secret" not in str(caught.value)
    assert "the locks were left as they are" in str(caught.value)


def test_upgrade_reads_names_in_any_spelling() -> None:
    assert parse_upgrade("") == Upgrade()
    assert parse_upgrade("all") == Upgrade(everything=True)
    assert parse_upgrade("Flash_Attn, torch") == Upgrade(packages=frozenset({"flash-attn", "torch"}))
