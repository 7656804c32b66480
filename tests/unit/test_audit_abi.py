"""The abi check, on libraries that gcc makes here, and the reader of their tables on broken ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from auditkit import library
from lockstep.arch import Arch, host_arch
from lockstep.audit.abi import Line, check_abi, demangle, lines_of
from lockstep.audit.base import Base, base_of, trixie
from lockstep.audit.elf import Elf, ElfError, parse_elf, read_elf
from lockstep.audit.finding import Finding

HERE = host_arch()
PYTHON = Base(names=frozenset({"PyModule_Create2"}), sonames=frozenset({"libc.so.6"}))


def kinds(findings: list[Finding]) -> dict[str, str]:
    return {item.path: item.kind for item in findings}


def check(folder: Path, base: Base = PYTHON, others: tuple[Line, ...] = (), torch: str = "2.13.0") -> list[Finding]:
    objects = {path.name: read_elf(path) for path in sorted(folder.glob("*.so*"))}
    return check_abi(objects, {}, base, HERE, venv="v", torch=torch, others=others)


def test_reads_what_a_library_needs_wants_and_gives(tmp_path: Path) -> None:
    one = library(tmp_path / "libone.so", "int given(void) { return 1; }", soname="libone.so.1")
    source = """
        extern int given(void); extern int optional(void) __attribute__((weak));
        __attribute__((visibility("hidden"))) int secret(void) { return 0; }
        int offered(void) { return given() + (optional ? optional() : 0) + secret(); }
    """
    two = read_elf(library(tmp_path / "libtwo.so", source, links=[one], flags=["-Wl,-rpath,$ORIGIN"]))
    assert (two.machine, two.needed, two.runpath) == (HERE.elf_machine, ("libone.so.1",), "$ORIGIN")
    assert two.undefined == (("given", ""),)
    assert two.exports() == {"offered"}


def test_reads_symbol_versions(tmp_path: Path) -> None:
    script = tmp_path / "map"
    script.write_text("V_1 { global: old; local: *; }; V_2 { global: young; } V_1;")
    source = "int old(void) { return 1; } int young(void) { return 2; }"
    one = library(tmp_path / "libone.so", source, soname="libone.so.1", flags=[f"-Wl,--version-script={script}"])
    two = read_elf(
        library(tmp_path / "libtwo.so", "extern int young(void); int f(void) { return young(); }", links=[one])
    )
    assert read_elf(one).gives == ("V_1", "V_2")
    assert two.undefined == (("young", "V_2"),)
    assert two.wants == (("libone.so.1", "V_2"),)


@pytest.mark.parametrize("style", ["sysv", "gnu"])
def test_counts_symbols_without_section_headers(tmp_path: Path, style: str) -> None:
    source = "".join(f"int f{number}(void) {{ return {number}; }}" for number in range(40))
    made = library(
        tmp_path / "lib.so",
        f"extern int g(void); int f(void) {{ return g(); }} {source}",
        flags=[f"-Wl,--hash-style={style}"],
    )
    data = bytearray(made.read_bytes())
    data[40:48] = bytes(8)
    struct.pack_into("<HHH", data, 58, 0, 0, 0)
    assert parse_elf(bytes(data)).exports() == {"f", *(f"f{number}" for number in range(40))}
    assert parse_elf(bytes(data)).undefined == (("g", ""),)


def test_A4_library_built_for_another_torch_is_named_with_its_symbol(tmp_path: Path) -> None:
    """CASES A4: an extension wants a symbol of stub torch A; the venv holds B, which has dropped it."""
    dropped = "_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE"
    torch_a = library(tmp_path / "a/libc10.so", f"void {dropped}(void) {{}} void kept(void) {{}}", soname="libc10.so")
    library(tmp_path / "b/libc10.so", "void kept(void) {}", soname="libc10.so")
    source = f"extern void {dropped}(void); extern void kept(void); void init(void) {{ {dropped}(); kept(); }}"
    library(tmp_path / "b/ext.so", source, links=[torch_a])
    (found,) = check(tmp_path / "b", others=(lines_of({"libc10.so": read_elf(torch_a)}, "torch 2.11.0"),))
    assert (found.kind, found.path, found.symbols) == ("undefined", "ext.so", (dropped,))
    assert found.why == "built for another torch: the symbol is in torch 2.11.0, not in torch 2.13.0"
    assert demangle([dropped])[dropped] == "c10::impl::cow::materialize_cow_storage(c10::StorageImpl&)"
    (unaided,) = check(tmp_path / "b")
    assert unaided.why == "built for another torch than 2.13.0"
    library(tmp_path / "c/libc10.so", f"void {dropped}(void) {{}} void kept(void) {{}}", soname="libc10.so")
    (tmp_path / "c/ext.so").write_bytes((tmp_path / "b/ext.so").read_bytes())
    assert check(tmp_path / "c") == []


def test_E3_driver_is_told_from_a_library_that_is_missing(tmp_path: Path) -> None:
    """CASES E3, as far as it can be seen without running: libcuda.so.1 is the host's, libfoo.so.9 is nobody's."""
    cuda = library(tmp_path / "stubs/libcuda.so", "int cuInit(void) { return 0; }", soname="libcuda.so.1")
    foo = library(tmp_path / "stubs/libfoo.so", "int foo(void) { return 0; }", soname="libfoo.so.9")
    library(tmp_path / "v/one.so", "extern int cuInit(void); int f(void) { return cuInit(); }", links=[cuda])
    library(tmp_path / "v/two.so", "extern int foo(void); int f(void) { return foo(); }", links=[foo])
    one, two = check(tmp_path / "v")
    assert (one.path, one.kind, one.level) == ("one.so", "needs-driver", "note")
    assert (two.path, two.kind, two.libraries, two.symbols) == ("two.so", "needed", ("libfoo.so.9",), ("foo",))
    assert two.level == "fail"


def test_symbol_in_an_unrelated_library_is_out_of_reach(tmp_path: Path) -> None:
    library(tmp_path / "other.so", "int shared(void) { return 0; }")
    library(tmp_path / "ext.so", "extern int shared(void); int f(void) { return shared(); }")
    (found,) = check(tmp_path)
    assert (found.kind, found.symbols) == ("unlinked", ("shared",))
    assert "other.so" in found.what


def test_library_sees_what_its_loader_sees(tmp_path: Path) -> None:
    give = library(tmp_path / "libgive.so", "int shared(void) { return 0; }", soname="libgive.so")
    want = library(
        tmp_path / "libwant.so", "extern int shared(void); int f(void) { return shared(); }", soname="libwant.so"
    )
    library(tmp_path / "top.so", "extern int f(void); int g(void) { return f(); }", links=[want, give])
    assert check(tmp_path) == []


def test_symbol_version_newer_than_the_base_is_named(tmp_path: Path) -> None:
    script = tmp_path / "map"
    script.write_text("GLIBC_2.99 { global: fresh; };")
    flags = [f"-Wl,--version-script={script}"]
    libc = library(tmp_path / "new/libc.so.6", "int fresh(void) { return 0; }", soname="libc.so.6", flags=flags)
    library(tmp_path / "v/ext.so", "extern int fresh(void); int f(void) { return fresh(); }", links=[libc])
    base = Base(frozenset({"libc.so.6"}), frozenset(), (("libc.so.6", ("GLIBC_2.2.5", "GLIBC_2.41")),))
    (found,) = check(tmp_path / "v", base)
    assert (found.kind, found.symbols, found.libraries) == ("version", ("GLIBC_2.99",), ("libc.so.6",))


def test_foreign_machine_is_a_finding_and_device_code_is_not() -> None:
    other = next(arch for arch in Arch if arch is not HERE)
    objects = {"a.so": Elf(other.elf_machine, dynamic=True), "kernel.cubin": Elf(190)}
    (found,) = check_abi(objects, {}, PYTHON, HERE)
    assert (found.path, found.kind) == ("a.so", "machine")


def test_weak_symbols_and_python_symbols_are_no_findings(tmp_path: Path) -> None:
    source = "extern int PyModule_Create2(void); extern int maybe(void) __attribute__((weak));"
    library(tmp_path / "ext.so", f"{source} int f(void) {{ return maybe ? maybe() : PyModule_Create2(); }}")
    assert check(tmp_path) == []


def test_extension_for_another_python_is_never_loaded(tmp_path: Path) -> None:
    """A wheel may carry a module for each Python; one that carries only another's cannot be imported."""
    source = "extern int _PyThreadState_UncheckedGet(void); int f(void) { return _PyThreadState_UncheckedGet(); }"
    for name in (
        "_C.cpython-310-x.so",
        "_C.cpython-313-x.so",
        "_D.cpython-312-x.so",
        "_D.abi3.so",
        "_E.cpython-310-x.so",
    ):
        library(tmp_path / name, source if "-31" in name and "313" not in name else "int f(void) { return 0; }")
    assert {item.path: (item.kind, item.level) for item in check(tmp_path)} == {
        "_C.cpython-310-x.so": ("other-python", "note"),
        "_D.cpython-312-x.so": ("other-python", "note"),
        "_E.cpython-310-x.so": ("python", "fail"),
    }


def test_base_list_names_the_loader_the_c_library_and_python() -> None:
    for arch in Arch:
        base = trixie(arch)
        assert {"libc.so.6", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1"} <= base.sonames
        assert {"PyModule_Create2", "Py_IsInitialized", "malloc", "_ZSt9terminatev"} <= base.names
        assert "GLIBC_2.41" in base.gives()["libc.so.6"]
        assert "GLIBC_2.42" not in base.gives()["libc.so.6"]
    assert "PyThreadState_UncheckedGet" not in base.names


def test_base_of_objects_collects_versions() -> None:
    elf = Elf(62, dynamic=True, soname="libz.so.1", defined="inflate\ndeflate", gives=("ZLIB_1.2.9",))
    base = base_of([("usr/lib/libz.so.1.3", elf)])
    assert base.sonames == {"libz.so.1", "libz.so.1.3"}
    assert base.gives()["libz.so.1"] == {"ZLIB_1.2.9"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sound")
    script = folder / "map"
    script.write_text("V_1 { global: given; }; V_2 { global: more; } V_1;")
    source = "int given(void) { return 1; } int more(void) { return 2; }"
    one = library(folder / "libone.so", source, soname="libone.so.1", flags=[f"-Wl,--version-script={script}"])
    user = "extern int given(void); extern int more(void); int f(void) { return given() + more(); }"
    return library(folder / "ext.so", user, links=[one], flags=[f"-Wl,--version-script={script}"]).read_bytes()


def survives(data: bytes) -> None:
    """A damaged file is read as something or refused with one clause; nothing else may come out."""
    said = "is fine"
    try:
        parse_elf(data)
    except ElfError as error:
        said = str(error)
    assert said.startswith("is ")
    assert "\n" not in said


@pytest.mark.parametrize("size", [0, 3, 4, 16, 63, 64, 100, 500])
def test_truncated_library_is_one_sentence(sound: bytes, size: int) -> None:
    with pytest.raises(ElfError, match="is "):
        parse_elf(sound[:size])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, 20_000))
def test_any_truncation_is_survived(sound: bytes, size: int) -> None:
    survives(sound[:size])


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6))
@example(places=[(40, b"\xff" * 8)])
@example(places=[(54, b"\xff" * 8)])
def test_any_garbling_is_survived(sound: bytes, places: list[tuple[int, bytes]]) -> None:
    data = bytearray(sound)
    for at, junk in places:
        start = at % len(data)
        data[start : start + len(junk)] = junk
    survives(bytes(data[: len(sound)]))


@settings(max_examples=100, deadline=None)
@given(tail=st.binary(max_size=400))
def test_any_bytes_behind_the_magic_are_survived(tail: bytes) -> None:
    survives(b"\x7fELF" + tail)
    survives(b"\x7fELF\x02\x01\x01" + tail)
