"""The checks of a venv other than abi: overlap, integrity, vendored, metadata, duplicates, residue, and the rules."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from auditkit import SITE, install, library, venv, wheel
from lockstep.arch import Arch
from lockstep.audit.finding import Finding
from lockstep.audit.metadata import Installed, Reasoned, check_metadata
from lockstep.audit.overlap import overlaps
from lockstep.audit.run import Audit, Options, Wanted, audit
from lockstep.audit.waivers import AuditRules
from lockstep.cli import build_app
from lockstep.errors import LockstepError

TODAY = datetime.date(2026, 11, 30)


def run(root: Path, rules: dict[str, object] | None = None, wanted: Wanted | None = None, **more: object) -> Audit:
    options = Options(name="v", arch=Arch.X86_64, workers=1, today=TODAY, **more)  # type: ignore[arg-type]
    return audit(root, options, rules=AuditRules.model_validate(rules or {}), wanted={"v": wanted or Wanted()})


def failed(result: Audit) -> list[tuple[str, str, str]]:
    return [(item.check, item.kind, item.path) for item in result.findings if item.level == "fail"]


def test_A3_two_wheels_that_write_one_path(tmp_path: Path) -> None:
    """CASES A3: same .so path, different bytes: the disk contradicts one RECORD. Identical __init__.py may pass."""
    same = {"nvidia/nccl/__init__.py": b""}
    cu12 = wheel(tmp_path, "nccl-cu12", "2.27", {**same, "nvidia/nccl/lib/libnccl.so.2": b"/* twelve */"})
    cu13 = wheel(tmp_path, "nccl-cu13", "2.29", {**same, "nvidia/nccl/lib/libnccl.so.2": b"/* thirteen */"})
    site = venv(tmp_path / "v")
    install(site, cu12)
    install(site, cu13)
    result = run(tmp_path / "v")
    assert failed(result) == [
        ("overlap", "different", "nvidia/nccl/lib/libnccl.so.2"),
        ("integrity", "changed", "nvidia/nccl/lib/libnccl.so.2"),
    ]
    assert "nccl-cu12 2.27 and nccl-cu13 2.29 write 2 common paths, 1 of them" in result.findings[0].what
    assert result.findings[1].wheel == "nccl-cu12 2.27"


def test_A3_identical_files_of_two_wheels_pass(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": b"__path__ = []\n"}
    site = venv(tmp_path / "v")
    for name in ("one", "two"):
        install(site, wheel(tmp_path, name, "1", files))
    result = run(tmp_path / "v")
    assert result.ok
    assert [(item.kind, item.level) for item in result.findings] == [("equal", "note")]


def test_overlap_counts_paths_and_differences() -> None:
    one = {"a": "1", "b": "2", "c": ""}
    two = {"a": "1", "b": "3", "c": "", "d": "4"}
    (found,) = overlaps([("one", one), ("two", two)])
    assert found.paths == ("a", "b", "c")
    assert found.different == ("b", "c"), "an unknown fingerprint is not known to agree"


def test_C4_vendored_distribution_needs_a_waiver_of_its_own_path(tmp_path: Path) -> None:
    """CASES C4: the report shows the path; the waiver matches only there; an expired one fails."""
    nested = {
        "ray/__init__.py": b"",
        "ray/thirdparty/aiohttp-3.9.0.dist-info/METADATA": b"Name: aiohttp\nVersion: 3.9.0\n\n",
        "ray/thirdparty/aiohttp/__init__.py": b"",
    }
    site = venv(tmp_path / "v")
    install(site, wheel(tmp_path, "ray", "2.56.1", nested))
    path = "ray/thirdparty/aiohttp-3.9.0.dist-info"
    result = run(tmp_path / "v")
    assert failed(result) == [("vendored", "vendored", path)]
    assert result.findings[0].what == "vendors aiohttp 3.9.0"
    assert result.findings[0].wheel == "ray 2.56.1"

    def waived(where: str, expires: str) -> Audit:
        waiver = {"check": "vendored", "backend": "v", "path": where, "why": "not imported by us", "expires": expires}
        return run(tmp_path / "v", {"waivers": [waiver]})

    assert waived("ray/thirdparty/*", "2027-01-31").ok
    assert waived("ray/thirdparty/*", "2026-11-30").ok, "the last day counts"
    elsewhere = waived("serve/*", "2027-01-31")
    assert failed(elsewhere) == [("vendored", "vendored", path), ("waivers", "unused", "serve/*")]
    expired = waived("ray/*", "2026-11-29")
    assert failed(expired) == [("vendored", "vendored", path)]
    assert expired.findings[0].why == "the waiver expired on 2026-11-29: not imported by us"


def test_integrity_names_changed_missing_and_unowned_files(tmp_path: Path) -> None:
    site = venv(tmp_path / "v")
    install(site, wheel(tmp_path, "pkg", "1", {"pkg/a.py": b"a = 1\n", "pkg/b.py": b"", "pkg/c.py": b"c = 3\n"}))
    (site / "pkg/a.py").write_text("a = 2\n")
    (site / "pkg/b.py").unlink()
    (site / "pkg/stray.txt").write_text("left behind")
    (site / "pkg/__pycache__").mkdir()
    (site / "pkg/__pycache__/a.cpython-313.pyc").write_bytes(b"pyc")
    (site / "pkg/__pycache__/gone.cpython-313.pyc").write_bytes(b"pyc")
    assert failed(run(tmp_path / "v")) == [
        ("integrity", "changed", "pkg/a.py"),
        ("integrity", "missing", "pkg/b.py"),
        ("integrity", "unowned", "pkg/stray.txt"),
        ("integrity", "unowned", "pkg/__pycache__/gone.cpython-313.pyc"),
    ]
    fast = failed(run(tmp_path / "v", hashed=False))
    assert ("integrity", "changed", "pkg/a.py") not in fast, "equal size: only content tells, and --fast does not look"


def test_integrity_says_what_is_wrong_with_a_dist_info(tmp_path: Path) -> None:
    site = venv(tmp_path / "v")
    for name, files in {
        "norecord-1": {"METADATA": "Name: norecord\nVersion: 1\n"},
        "bad-2": {"RECORD": 'a"b,c\n"'},
    }.items():
        (site / f"{name}.dist-info").mkdir()
        for file, text in files.items():
            (site / f"{name}.dist-info" / file).write_text(text)
    faults = {(item.wheel, item.what) for item in run(tmp_path / "v").findings if item.kind == "damaged"}
    assert faults == {
        ("norecord 1", "has no RECORD"),
        ("bad 2", "has no METADATA"),
        ("bad 2", "has a malformed RECORD"),
    }


def metadata(*installed: Installed, **more: object) -> list[Finding]:
    return check_metadata(installed, Arch.AARCH64, "3.13", **more)  # type: ignore[arg-type]


def test_metadata_broken_bound_fails_and_an_override_accounts_for_it() -> None:
    numba = Installed("numba", "0.65.0", ("numpy<2.5,>=1.22", "llvmlite<0.48,>=0.47.0.dev0"))
    numpy, llvmlite = Installed("numpy", "2.5.1"), Installed("llvmlite", "0.47.0")
    (found,) = metadata(numba, numpy, llvmlite)
    assert (found.kind, found.level) == ("broken", "fail")
    assert found.what == "numba 0.65.0 requires numpy<2.5,>=1.22: numpy 2.5.1 is installed"
    override = Reasoned("numpy>=2.1", "tested with it")
    (listed,) = metadata(numba, numpy, llvmlite, overrides=[override])
    assert (listed.level, listed.why) == ("waived", "tested with it")
    (broken,) = metadata(numba, numpy, llvmlite, overrides=[Reasoned("numpy>=2.1,<2.5", "numba refuses 2.5")])
    assert broken.level == "fail", "the override itself is not kept"


def test_metadata_follows_markers_of_the_target_and_extras() -> None:
    top = Installed(
        "top",
        "1",
        (
            'only-x86; platform_machine == "x86_64"',
            'only-old; python_version < "3.13"',
            "mid[cuda]",
            'never; extra == "unasked"',
        ),
    )
    mid = Installed("mid", "1", ('driver>=2; extra == "cuda"',))
    assert [item.what for item in metadata(top, mid)] == ["mid 1 requires driver>=2: it is not installed"]
    assert [item.what for item in metadata(top, mid, Installed("driver", "1.9"))] == [
        "mid 1 requires driver>=2: driver 1.9 is installed"
    ]
    roots = ["top[unasked]==1", "mid==1"]
    assert "top 1 requires never: it is not installed" in [item.what for item in metadata(top, mid, roots=roots)]


def test_metadata_exclusion_accounts_for_a_missing_package() -> None:
    top = Installed("top", "1", ("instanttensor",))
    (listed,) = metadata(top, excluded=[Reasoned("instanttensor", "optional loader")])
    assert (listed.kind, listed.level, listed.why) == ("missing", "waived", "optional loader")


def test_metadata_of_a_prerelease_and_of_nonsense() -> None:
    assert metadata(Installed("a", "1", ("b<0.48,>=0.47",)), Installed("b", "0.47.1rc1")) == []
    (found,) = metadata(Installed("a", "1", ("b ?? 3",)))
    assert found.kind == "malformed"


def test_duplicates_of_a_distribution_and_of_torch(tmp_path: Path) -> None:
    site = venv(tmp_path / "v")
    install(site, wheel(tmp_path, "idna", "3.3", {"idna/__init__.py": b""}))
    install(site, wheel(tmp_path, "idna", "3.7", {"idna/__init__.py": b""}))
    for folder in ("torch/lib", "other/lib"):
        library(site / folder / "libc10.so", "int x(void) { return 0; }", soname="libc10.so")
    found = {(item.kind, item.what) for item in run(tmp_path / "v").findings if item.check == "duplicates"}
    assert ("distribution", "idna is installed 2 times: 3.3, 3.7") in found
    assert any(kind == "torch" and "libc10.so lies at" in what for kind, what in found)


def test_D6_F2_residue(tmp_path: Path) -> None:
    """CASES D6 and F2: no uv_cache.json, no installer's cache, no symlink out of the venv but the interpreter's."""
    site = venv(tmp_path / "v")
    local = {"pkg/__init__.py": b"", "pkg-1.dist-info/uv_cache.json": b'{"timestamp": 1}'}
    install(site, wheel(tmp_path, "pkg", "1", local))
    (site / "pkg/data").symlink_to("/root/.cache/uv/archive-v0/x")
    (site / "pkg/inside").symlink_to("__init__.py")
    cache = tmp_path / "v/.cache/pip/http"
    cache.mkdir(parents=True)
    (cache / "blob").write_text("x")
    found = {(item.kind, item.path) for item in run(tmp_path / "v", checks=("residue",)).findings}
    assert found == {
        ("note", "pkg-1.dist-info/uv_cache.json"),
        ("link", "pkg/data"),
        ("cache", ".cache/pip/http/blob"),
    }


def test_C5_shebang_of_a_moved_venv(tmp_path: Path) -> None:
    venv(tmp_path / "v")
    for name, first in {
        "good": tmp_path / "v/bin/python",
        "moved": "/build/stage/v/bin/python3",
        "sh": "/bin/sh",
    }.items():
        script = tmp_path / "v/bin" / name
        script.write_text(f"#!{first}\nimport sys\n")
        script.chmod(0o755)
    found = [item.path for item in run(tmp_path / "v", checks=("residue",)).findings]
    assert found == ["bin/moved"]


def abi_venv(tmp_path: Path) -> Path:
    site = venv(tmp_path / "v")
    foo = library(tmp_path / "stubs/libmpi.so", "int mpi(void) { return 0; }", soname="libmpi.so.40")
    library(site / "plug/one.so", "extern int mpi(void); int f(void) { return mpi(); }", links=[foo])
    library(
        site / "plug/two.so", "extern int lost(void); extern int gone(void); int f(void) { return lost() + gone(); }"
    )
    return tmp_path / "v"


def test_expected_misses_are_declared_by_path_library_and_symbol(tmp_path: Path) -> None:
    root = abi_venv(tmp_path)

    def rules(*expected: dict[str, object]) -> list[tuple[str, str, str]]:
        full = [{"backend": "v", "why": "optional plug-in", **item} for item in expected]
        return failed(run(root, {"expected": full}, checks=("abi",)))

    both = [("abi", "needed", "plug/one.so"), ("abi", "undefined", "plug/two.so")]
    assert rules() == both
    assert rules({"path": "plug/*"}) == []
    assert rules({"path": "plug/*", "library": "libmpi.so.*"}) == both[1:]
    assert rules({"path": "plug/two.so", "symbols": "lost"}) == both, "the other symbol stays"
    assert rules({"path": "plug/*", "symbols": ["lost", "go*"]}, {"path": "plug/one.so"}) == []
    assert rules({"path": "plug/*"}, {"path": "nowhere/*"}) == [("waivers", "unused", "nowhere/*")]


def test_rule_for_the_other_architecture_or_backend_is_left_alone(tmp_path: Path) -> None:
    root = abi_venv(tmp_path)
    why = "for somewhere else"
    other = [
        {"backend": "v", "arch": "aarch64", "path": "x/*", "why": why},
        {"backend": "w", "path": "x/*", "why": why},
        {"backend": ["w", "v"], "path": "plug/*", "why": why},
    ]
    assert failed(run(root, {"expected": other}, checks=("abi",))) == []


def test_date_that_is_none_is_refused() -> None:
    waiver = {"check": "abi", "path": "*", "why": "some long reason", "expires": "2027-02-31"}
    with pytest.raises(ValidationError, match="is no date"):
        AuditRules.model_validate({"waivers": [waiver]})


def test_truncated_library_is_a_finding(tmp_path: Path) -> None:
    site = venv(tmp_path / "v")
    whole = library(site / "pkg/ext.so", "int f(void) { return 0; }").read_bytes()
    (site / "pkg/ext.so").write_bytes(whole[:200])
    (site / "pkg/page.so").write_text("<html>404</html>")
    (site / "pkg/empty.so").write_bytes(b"")
    (site / "pkg/script.so").write_text("/* GNU ld script */ INPUT(libx.so.1)")
    found = {item.path: item.what for item in run(tmp_path / "v", checks=("abi",)).findings}
    assert found == {
        "pkg/ext.so": "is a truncated ELF file: its program headers lie past its end",
        "pkg/page.so": "is called a shared library and is no ELF file",
        "pkg/empty.so": "is an empty shared library",
    }


def test_venv_that_is_still_written_to_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(root: Path, folder: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", folder)

    venv(tmp_path / "v")
    monkeypatch.setattr("lockstep.audit.tree._entries", gone)
    with pytest.raises(LockstepError, match="changes while it is read"):
        run(tmp_path / "v")


def test_what_is_no_venv_is_one_sentence(tmp_path: Path) -> None:
    for path, text in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "holds no venv"),
        (tmp_path / "file", "neither"),
    ):
        if path.name == "file":
            path.write_bytes(b"nothing")
        with pytest.raises(LockstepError, match=text):
            audit(path, Options())


def test_command_prints_a_table_or_json_and_exits_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = abi_venv(tmp_path)
    monkeypatch.setattr("lockstep.audit.matrix.VERSIONS", tmp_path / "no-versions.yaml")
    shown = CliRunner().invoke(build_app(), ["audit", str(root), "--json", "--only", "abi"])
    assert shown.exit_code == 1
    data = json.loads(shown.stdout)
    assert data["ok"] is False
    assert [item["path"] for item in data["findings"]] == ["plug/one.so", "plug/two.so"]
    clean = venv(tmp_path / "clean")
    assert clean.is_dir()
    done = CliRunner().invoke(build_app(), ["audit", str(tmp_path / "clean")])
    assert done.exit_code == 0, done.output
    assert "1 venvs, 0 distributions" in done.stdout.replace("\n", " ")


def test_target_folder_is_a_venv_too(tmp_path: Path) -> None:
    install(tmp_path / "t", wheel(tmp_path, "pkg", "1", {"pkg/__init__.py": b""}, ["missing>=1"]))
    assert failed(run(tmp_path / "t")) == [("metadata", "missing", "pkg-1.dist-info")]


def test_root_with_two_venvs_names_the_other_torch(tmp_path: Path) -> None:
    root = tmp_path / "root"
    symbol = "_ZNR5torch7Library4_defEON3c1014FunctionSchemaE"
    old = library(tmp_path / "stub/libtorch_cpu.so", f"void {symbol}(void) {{}}", soname="libtorch_cpu.so")
    for name, version, data in (("new", "2.13.0", "void x(void) {}"), ("old", "2.11.0", f"void {symbol}(void) {{}}")):
        site = venv(root / "opt/venvs" / name)
        install(site, wheel(tmp_path / name, "torch", version, {}))
        library(site / "torch/lib/libtorch_cpu.so", data, soname="libtorch_cpu.so")
        library(site / "sgl/ops.so", f"extern void {symbol}(void); void f(void) {{ {symbol}(); }}", links=[old])
    result = audit(root, Options(arch=Arch.X86_64, workers=1, checks=("abi",)))
    (found,) = result.findings
    assert (found.venv, found.path, found.symbols) == ("new", "sgl/ops.so", (symbol,))
    assert found.why == "built for another torch: the symbol is in torch 2.11.0 (venv old), not in torch 2.13.0"


def test_installed_by_uv_is_clean(tmp_path: Path) -> None:
    """What uv itself writes (RECORD, INSTALLER, scripts, direct_url.json) is no finding, apart from its cache note."""
    uv = Path(sys.executable).with_name("uv")
    made = wheel(tmp_path, "pkg", "1", {"pkg/__init__.py": b""})
    root = tmp_path / "v"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, root], check=True)
    subprocess.run(
        [uv, "pip", "install", "-q", "--offline", "--no-installer-metadata", "--python", root / "bin/python", made],
        check=True,
    )
    assert failed(run(root)) == []
    assert SITE not in str(root)
