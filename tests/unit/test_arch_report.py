"""`make arch-report`: what differs between the architectures is found, and is either declared or a fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shipkit
from lockkit import lock, locked
from lockkit import matrix as small
from lockstep.arch import Arch
from lockstep.archreport import facts
from lockstep.archreport.compare import ArchReport, judge
from lockstep.archreport.facts import Side, deb_name, dockerfile_settings, imaged, planned
from lockstep.archreport.scripts import FILE, entry_points, script_target, wheel_scripts
from lockstep.cli import build_app
from lockstep.debs import DebLock
from lockstep.errors import LockstepError
from lockstep.lock import Lock
from lockstep.matrix import Matrix, load
from lockstep.narrow import Narrowing, narrow
from lockstep.ship import digests

BACKENDS = "  a: {line: plain, requires: [p]}"
DOCKERFILE = """\
ARG BASE=bootstrap
FROM scratch AS base-bootstrap-amd64
FROM scratch AS base-bootstrap-arm64
FROM base-${BASE}-amd64 AS release-amd64
COPY --link --from=x /out/ /
FROM base-${BASE}-arm64 AS release-arm64
COPY --link --from=y /out/ /
FROM release-${TARGETARCH} AS release
ENV PATH=/bin LANG=C.UTF-8
LABEL \\
      title="a b"
WORKDIR /workspace
ENTRYPOINT ["/opt/lockstep/entrypoint"]
CMD ["/bin/bash"]
"""


def side(arch: Arch, *things: tuple[str, str, str, str], seen: facts.Seen = "plan", owner: str = "") -> Side:
    made = Side(arch, seen, covers=frozenset({"package", "source", "script", "patch", "setting", "deb"}))
    for what, venv, name, value in things:
        made.add(what, venv, name, value, owner if what in {"script", "patch", "source"} else "")
    return made


def report(one: Side, two: Side, more: str = "", backends: str = BACKENDS) -> ArchReport:
    return judge(small(backends, f"arch_differences:\n{more}" if more else ""), "all", [one, two])


def declare(**keys: str) -> str:
    return "  - {" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}\n"


def test_equal_architectures_have_no_difference() -> None:
    same = ("package", "a", "p", "1.0")
    found = report(side(Arch.X86_64, same), side(Arch.AARCH64, same))
    assert found.ok
    assert not found.differences


def test_an_undeclared_difference_is_one_sentence_with_what_to_write() -> None:
    found = report(side(Arch.X86_64, ("package", "a", "p", "1.0")), side(Arch.AARCH64, ("package", "a", "p", "1.1")))
    assert not found.ok
    (item,) = found.undeclared
    assert item.sentence() == "the package p of a is 1.0 on x86_64 and 1.1 on aarch64, undeclared"
    assert item.entry() == '{what: package, name: "p", backends: [a], why: …}'


def test_what_one_architecture_has_alone_says_so() -> None:
    found = report(side(Arch.X86_64), side(Arch.AARCH64, ("deb", "", "d", "1")))
    (item,) = found.undeclared
    assert item.sentence() == "the Debian package d is on aarch64 only, undeclared"
    assert item.entry() == '{what: deb, name: "d", only_on: aarch64, why: …}'


def test_a_declaration_gives_its_reason() -> None:
    more = declare(what="package", name="p", backends="[a]", only_on="x86_64", why="no wheel for aarch64")
    found = report(side(Arch.X86_64, ("package", "a", "p", "1.0")), side(Arch.AARCH64), more)
    assert found.ok
    assert [item.why for item in found.differences] == ["no wheel for aarch64"]


@pytest.mark.parametrize(
    "keys",
    [
        {"what": "package", "name": "p", "backends": "[a]", "why": "differs in its version"},
        {"what": "package", "name": "p", "backends": "[a]", "only_on": "aarch64", "why": "the other way round"},
        {"what": "package", "name": "q", "backends": "[a]", "only_on": "x86_64", "why": "another package"},
        {"what": "script", "name": "p", "backends": "[a]", "only_on": "x86_64", "why": "another kind of thing"},
    ],
)
def test_a_declaration_of_something_else_excuses_nothing_and_is_a_fault_itself(keys: dict[str, str]) -> None:
    found = report(side(Arch.X86_64, ("package", "a", "p", "1.0")), side(Arch.AARCH64), declare(**keys))
    assert len(found.undeclared) == 1
    assert len(found.unused) == 1
    assert "remove or correct the declaration" in found.unused[0]


def test_an_exclusion_on_one_architecture_is_a_declaration() -> None:
    backends = """
  a:
    line: plain
    requires: [p]
    exclude: [{package: q, arch: aarch64, why: not built for aarch64}]
"""
    had = side(Arch.X86_64, ("package", "a", "q", "1.0"))
    assert report(had, side(Arch.AARCH64), backends=backends).ok
    gone = report(side(Arch.X86_64), side(Arch.AARCH64), backends=backends)
    assert gone.unused == (
        "the package q of a is declared to differ, as being on x86_64 only, and does not: "
        "remove or correct the declaration",
    )


def test_what_belongs_to_a_package_of_one_architecture_is_not_told_again() -> None:
    one = side(Arch.X86_64, ("package", "a", "p", "1"), ("script", "a", "p", "p:main"), owner="p")
    found = report(one, side(Arch.AARCH64), declare(what="package", name="p", backends="[a]", only_on="x86_64",
                                                    why="no wheel for aarch64"))  # fmt: skip
    assert found.ok
    assert [item.thing.what for item in found.differences] == ["package"]


def test_a_script_with_another_target_is_told() -> None:
    sides = [
        side(arch, ("package", "a", "p", "1"), ("script", "a", "run", target), owner="p")
        for arch, target in ((Arch.X86_64, "p:main"), (Arch.AARCH64, "p:other"))
    ]
    (item,) = report(sides[0], sides[1]).undeclared
    assert item.sentence() == "the console script run of a is p:main on x86_64 and p:other on aarch64, undeclared"


def test_a_declaration_about_what_was_not_looked_at_is_not_judged() -> None:
    sides = [replace(side(arch), covers=frozenset({"package"})) for arch in Arch]
    assert report(
        sides[0], sides[1], declare(what="script", name="run", backends="[a]", why="two programs of one name")
    ).ok


def test_of_an_optional_package_that_the_image_lacks_nothing_is_judged() -> None:
    matrix = load()
    sides = planned(matrix, "vllm")
    assert not [thing for thing in sides[0].facts if thing.what == "source"]
    assert judge(matrix, "vllm", sides).ok


def test_the_committed_locks_differ_only_where_it_is_declared() -> None:
    matrix = load()
    for image in matrix.images:
        found = judge(matrix, image, planned(matrix, image))
        assert found.ok, [item.sentence() for item in found.undeclared] + list(found.unused)
        assert found.counts["setting (plan)"]["x86_64"] > 8


def test_a_narrowed_image_is_compared_too() -> None:
    matrix, name = narrow(load(), "rl", Narrowing.parse("sglang trtllm"))
    found = judge(matrix, name, planned(matrix, name))
    assert found.ok
    assert {item.thing.what for item in found.differences} == {"deb"}


def test_a_difference_seen_in_plan_and_image_is_told_once() -> None:
    sides = [side(arch, seen=seen) for seen in facts.SEEN for arch in Arch]
    for each in sides[::2]:
        each.add("package", "a", "p", "1")
    found = judge(small(BACKENDS), "all", sides)
    (item,) = found.differences
    assert item.seen == ("plan", "image")
    assert found.seen == ("plan", "image")


def test_one_architecture_is_nothing_to_compare() -> None:
    text = small(BACKENDS).model_copy(update={"arches": ["x86_64"]})
    with pytest.raises(LockstepError, match="nothing to compare"):
        judge(text, "all", [side(Arch.X86_64)])


def test_the_plan_reads_locks_debian_locks_and_dockerfile(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = {
        Arch.X86_64: lock("a", locked("p"), locked("vllm", "0.29.0")),
        Arch.AARCH64: lock("a", locked("p", "1.1"), locked("vllm", "0.29.0"), arch=Arch.AARCH64),
    }

    def read(_backend: str, arch: Arch) -> Lock:
        return locks[arch]

    def debs(arch: Arch, *_: object) -> DebLock:
        return DebLock("trixie", arch, (), ())

    def dockerfile(_matrix: Matrix, _image: str) -> str:
        return DOCKERFILE

    monkeypatch.setattr(facts, "read_lock", read)
    monkeypatch.setattr(facts, "base_lock", debs)
    monkeypatch.setattr(facts, "_dockerfile", dockerfile)
    sides = planned(small(BACKENDS), "all")
    assert [each.facts[facts.Thing("package", "a", "p")] for each in sides] == ["1.0", "1.1"]
    assert any(thing.what == "patch" and thing.name.startswith("vllm ") for thing in sides[0].facts)
    assert sides[1].facts[facts.Thing("setting", "", "workingdir")] == "/workspace"


def test_settings_of_a_dockerfile_have_the_names_of_an_images_configuration() -> None:
    assert dockerfile_settings(DOCKERFILE, Arch.AARCH64) == {
        "env PATH": "/bin",
        "env LANG": "C.UTF-8",
        "label title": "a b",
        "workingdir": "/workspace",
        "entrypoint": '["/opt/lockstep/entrypoint"]',
        "cmd": '["/bin/bash"]',
    }


def test_a_setting_of_one_architectures_stage_is_seen() -> None:
    text = DOCKERFILE.replace("COPY --link --from=y", "ENV ONLY=here\nCOPY --link --from=y")
    assert dockerfile_settings(text, Arch.AARCH64)["env ONLY"] == "here"
    assert "env ONLY" not in dockerfile_settings(text, Arch.X86_64)


def test_a_cross_compilers_own_triplet_is_no_difference() -> None:
    assert deb_name("gcc-14-x86-64-linux-gnu", Arch.X86_64) == deb_name("gcc-14-aarch64-linux-gnu", Arch.AARCH64)
    assert deb_name("gcc-14-x86-64-linux-gnu", Arch.AARCH64) == "gcc-14-x86-64-linux-gnu"


def test_entry_points_are_read_as_the_specification_has_them() -> None:
    text = (
        "[console_scripts]\nRun = pkg.cli:main.run\nold = pkg : f [extra]\n[other]\nx = y:z\n[gui_scripts]\ng=pkg:g\n"
    )
    assert entry_points(text) == {"Run": "pkg.cli:main", "old": "pkg:f", "g": "pkg:g"}


def test_a_scripts_target_is_read_from_its_import() -> None:
    text = "#!/opt/venvs/a/bin/python\n# -*- coding: utf-8 -*-\nimport sys\nfrom pkg.cli import main\n"
    assert script_target(text) == "pkg.cli:main"
    assert script_target("#!/bin/sh\nexec true\n") == FILE
    assert script_target("\x7fELF") == FILE


def test_a_wheels_scripts_are_read_from_the_wheel_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import auditkit
    from lockstep.archreport import scripts

    made = auditkit.wheel(
        tmp_path,
        "p",
        "1.0",
        {"p-1.0.dist-info/entry_points.txt": b"[console_scripts]\nrun=p:main\n", "p-1.0.data/scripts/tool": b"\x7fELF"},
    )
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(scripts, "locate", lambda _wheel: made)
    wheel = locked("p")
    assert list(wheel_scripts([wheel])) == [(wheel, {"run": "p:main", "tool": FILE})]
    made.unlink()
    assert list(wheel_scripts([wheel])) == [(wheel, {"run": "p:main", "tool": FILE})]


def test_a_wheel_that_is_not_at_hand_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.archreport import scripts

    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path))
    monkeypatch.setattr(scripts, "locate", lambda _wheel: None)
    assert list(wheel_scripts([locked("p")])) == []


def image(folder: Path, arch: Arch, *, script: bytes, patched: str) -> None:
    """Build a small image of one venv and record it as `make image` does."""
    site = "opt/venvs/a/lib/python3.13/site-packages"
    record = "../../../bin/run,,\np-1.0.dist-info/METADATA,,\np-1.0.dist-info/RECORD,,\n"
    status = "Package: libc6\nStatus: install ok installed\nVersion: 2.41-1\nArchitecture: any\n"
    patches = {"schema": 1, "patches": [{"venv": "a", "package": "p", "id": "fix", "file": "p.py", "status": "applied",
                                         "sha256_after": patched}]}  # fmt: skip
    members = [
        shipkit.Member("opt/venvs/a/bin/run", data=script, mode=0o755),
        shipkit.Member(f"{site}/p-1.0.dist-info", "d"),
        shipkit.Member(f"{site}/p-1.0.dist-info/METADATA", data=b"Metadata-Version: 2.1\nName: p\nVersion: 1.0\n"),
        shipkit.Member(f"{site}/p-1.0.dist-info/RECORD", data=record.encode()),
        shipkit.Member("opt/venvs/a/pyvenv.cfg", data=b"version = 3.13\n"),
        shipkit.Member("opt/lockstep/patches.json", data=json.dumps(patches).encode()),
        shipkit.Member("var/lib/dpkg/status", data=status.encode()),
    ]
    layout = folder / f"oci/all.{arch}"
    settings = {"Env": ["PATH=/bin"], "Entrypoint": ["/opt/lockstep/entrypoint"]}
    digest = shipkit.write_layout(layout, [shipkit.layer(members)], arch=arch.docker, settings=settings)
    digests.record_digest("all", arch, digest, layout, folder / "digests.json")


def test_images_are_compared_by_what_lies_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    head = b"#!/opt/venvs/a/bin/python\nimport sys\nfrom p import "
    image(tmp_path, Arch.X86_64, script=head + b"main\n", patched="1" * 64)
    image(tmp_path, Arch.AARCH64, script=head + b"other\n", patched="2" * 64)
    where = tmp_path / "digests.json"
    sides = [imaged("all", arch, path=where) for arch in Arch]
    assert all(sides)
    found = judge(small(BACKENDS), "all", [each for each in sides if each])
    assert [(item.thing.what, item.thing.name, [value for _, value in item.values]) for item in found.differences] == [
        ("patch", "p fix p.py", ["applied " + "1" * 12, "applied " + "2" * 12]),
        ("script", "run", ["p:main", "p:other"]),
    ]
    assert found.counts["package (image)"] == {"x86_64": 1, "aarch64": 1}
    assert found.counts["deb (image)"] == {"x86_64": 1, "aarch64": 1}
    assert found.counts["setting (image)"] == {"x86_64": 2, "aarch64": 2}


def test_an_image_that_was_not_built_is_none(tmp_path: Path) -> None:
    assert imaged("all", Arch.X86_64, path=tmp_path / "digests.json") is None


def test_the_matrix_refuses_what_a_declaration_cannot_mean() -> None:
    for keys, what in (
        ({"what": "package", "name": "p", "why": "somewhere or other"}, "names no venv"),
        ({"what": "deb", "name": "d", "backends": "[a]", "why": "somewhere or other"}, "belongs to the whole image"),
        ({"what": "package", "name": "p", "backends": "[b]", "why": "somewhere or other"}, 'no backend "b"'),
        ({"what": "package", "name": "p", "backends": "[a]"}, "why: is missing"),
        ({"what": "wheel", "name": "p", "backends": "[a]", "why": "somewhere or other"}, "should be"),
    ):
        with pytest.raises(LockstepError) as caught:
            small(BACKENDS, f"arch_differences:\n{declare(**keys)}")
        assert "arch_differences" in str(caught.value)
        assert what in str(caught.value)


def test_the_command_prints_json_and_fails_for_an_undeclared_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep import matrix as matrices

    runner = CliRunner()
    words = ["arch-report", "smoke", "--plan-only", "--json"]
    done = runner.invoke(build_app(), words)
    assert done.exit_code == 0, done.output
    whole = load()
    bare = whole.model_copy(update={"arch_differences": []})
    monkeypatch.setattr(matrices, "load", lambda: bare)
    done = runner.invoke(build_app(), words)
    assert done.exit_code == 1
