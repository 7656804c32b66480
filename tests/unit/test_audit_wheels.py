"""Cards of wheels, and faults of a lock seen from them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit import library, wheel
from lockstep.arch import Arch, host_arch
from lockstep.audit.elf import Elf
from lockstep.audit.locks import audit_lock, is_lock
from lockstep.audit.run import Options
from lockstep.audit.venv import header_fields
from lockstep.audit.waivers import AuditRules
from lockstep.audit.wheel_abi import check_wheel_abi, torch_line, wheel_elves
from lockstep.audit.wheels import card_of, check_cards, locked_cards, overlap_of_lock
from lockstep.errors import LockstepError
from lockstep.lock import Lock, LockedWheel, format_lock

HERE = host_arch()


def locked(path: Path) -> LockedWheel:
    name, version = path.name.split("-")[:2]
    data = path.read_bytes()
    return LockedWheel(name.replace("_", "-"), version, path.name, hashlib.sha256(data).hexdigest(), len(data), "index")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("lockstep.audit.wheels.WHEELS", tmp_path / "wheels")
    return tmp_path / "wheels"


def test_card_spreads_the_data_folder_and_leaves_out_dist_info(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": b"", "pkg-1.data/scripts/tool": b"#!python", "pkg-1.data/purelib/pkg/more.py": b"x"}
    card = card_of(wheel(tmp_path, "pkg", "1", files, ["numpy<2.5", 'x; extra == "y"']))
    assert set(card.files) == {"pkg/__init__.py", "../../../bin/tool", "pkg/more.py"}
    assert (card.label, card.requires) == ("pkg 1", ("numpy<2.5", 'x; extra == "y"'))


def test_folded_licence_does_not_end_the_header() -> None:
    licence = "License: Apache\n   \n        TERMS\x0c AND\n        \n"
    text = f"Name: sglang\n{licence}Requires-Dist: torch==2.11.0\n\nRequires-Dist: no\n"
    fields = header_fields(text)
    assert fields["requires-dist"] == ["torch==2.11.0"]
    assert header_fields(text.replace("\n", "\r\n"))["requires-dist"] == ["torch==2.11.0"]


def test_A3_overlap_is_seen_at_lock_time(store: Path) -> None:
    one = wheel(store, "libs-base", "4.5.2", {"dsl/a.py": b"a", "dsl/b.py": b"b", "dsl/only.py": b""})
    two = wheel(store, "libs-cu13", "4.5.2", {"dsl/a.py": b"a", "dsl/b.py": b"B"})
    wheels = [locked(one), locked(two)]
    (found,) = overlap_of_lock(wheels)
    assert (found.first, found.second) == ("libs-base 4.5.2", "libs-cu13 4.5.2")
    assert (found.paths, found.different) == (("dsl/a.py", "dsl/b.py"), ("dsl/b.py",))
    one.unlink()
    assert len(locked_cards(wheels)) == 2, "a card that is known needs no wheel"


def test_lock_is_audited_by_the_rules_of_its_backend(store: Path, tmp_path: Path) -> None:
    made = [wheel(store, "one", "1", {"top.py": b"1"}, ["two>=2"]), wheel(store, "two", "1", {"top.py": b"2"})]
    lock = Lock("v", Arch.AARCH64, "0" * 16, tuple(locked(path) for path in made))
    path = tmp_path / "images/v/lock.aarch64.txt"
    path.parent.mkdir(parents=True)
    path.write_text(format_lock(lock))
    assert is_lock(path)
    found = audit_lock(path, Options(), AuditRules(), {})
    assert [(item.check, item.kind, item.venv) for item in found.findings] == [
        ("overlap", "different", "v"),
        ("metadata", "broken", "v"),
    ]
    waiver = {"check": "overlap", "backend": "v", "path": "top.py", "why": "a stray file", "expires": "2999-01-01"}
    rules = AuditRules.model_validate({"waivers": [waiver]})
    assert [item.level for item in audit_lock(path, Options(), rules, {}).findings] == ["waived", "fail"]


def test_cards_tell_a_broken_bound(tmp_path: Path) -> None:
    numba = card_of(wheel(tmp_path, "numba", "0.65.0", {}, ["numpy<2.5"]))
    numpy = card_of(wheel(tmp_path, "numpy", "2.5.1", {}))
    (found,) = check_cards([numba, numpy], Arch.X86_64, "3.13")
    assert found.what == "numba 0.65.0 requires numpy<2.5: numpy 2.5.1 is installed"


def test_elves_of_a_wheel(tmp_path: Path) -> None:
    data = library(tmp_path / "ext.so", "int f(void) { return 0; }").read_bytes()
    made = wheel(tmp_path, "pkg", "1", {"pkg/ext.so": data, "pkg/cut.so": data[:100], "pkg/text.so": b"INPUT(x)"})
    whole, cut = wheel_elves(made)
    assert isinstance(whole[1], Elf)
    assert whole[1].exports() == {"f"}
    assert cut == ("pkg/cut.so", "is a truncated ELF file: its program headers lie past its end")


def test_A4_wheel_for_another_torch_is_seen_before_it_is_installed(tmp_path: Path) -> None:
    symbol = "_ZNR5torch7Library4_defEON3c1014FunctionSchemaE"
    old = library(tmp_path / "libtorch_cpu.so", f"void {symbol}(void) {{}}", soname="libtorch_cpu.so")
    torches = {}
    for version, source in (("2.11.0", old.read_bytes()), ("2.13.0", b"")):
        data = source or library(tmp_path / "new.so", "void x(void) {}", soname="libtorch_cpu.so").read_bytes()
        torches[version] = wheel(tmp_path, "torch", version, {"torch/lib/libtorch_cpu.so": data})
    user = library(tmp_path / "ops.so", f"extern void {symbol}(void); void f(void) {{ {symbol}(); }}", links=[old])
    kernel = wheel(tmp_path, "kernel", "0.4.5", {"kernel/ops.so": user.read_bytes()})
    line = torch_line(torches["2.11.0"], "2.11.0")
    (found,) = check_wheel_abi(kernel, [torches["2.13.0"]], HERE, torch="2.13.0", others=[line])
    assert (found.symbols, found.wheel) == ((symbol,), "kernel-0.4.5")
    assert found.why == "built for another torch: the symbol is in torch 2.11.0, not in torch 2.13.0"
    assert check_wheel_abi(kernel, [torches["2.11.0"]], HERE, torch="2.11.0") == []


@pytest.mark.parametrize("content", [b"", b"PK", b"<html>404</html>", b"\x50\x4b\x05\x06" + bytes(18)])
def test_wheel_that_is_no_zip_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pkg-1-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(LockstepError, match=r"pkg-1-py3-none-any\.whl: is not a wheel"):
        card_of(path)


def test_wheel_with_a_wrong_name_or_a_damaged_member(tmp_path: Path) -> None:
    made = wheel(tmp_path, "pkg", "1", {"pkg/ext.so": b"\x7fELF" + bytes(500)})
    bad = tmp_path / "nonsense.whl"
    bad.write_bytes(made.read_bytes())
    with pytest.raises(LockstepError, match="is not a wheel"):
        card_of(bad)
    data = bytearray(made.read_bytes())
    with zipfile.ZipFile(made) as archive:
        at = archive.getinfo("pkg/ext.so").header_offset + 50
    data[at : at + 4] = b"\xff\xff\xff\xff"
    made.write_bytes(bytes(data))
    with pytest.raises(LockstepError, match="is not a sound wheel"):
        list(wheel_elves(made))


@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=6)), max_size=5),
    keep=st.integers(0, 2000),
)
def test_any_damage_to_a_wheel_is_survived(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, bytes]], keep: int
) -> None:
    folder = tmp_path_factory.mktemp("w")
    made = wheel(folder, "pkg", "1", {"pkg/a.so": b"\x7fELF" + bytes(100), "pkg/b.py": b"x = 1"}, ["y"])
    data = bytearray(made.read_bytes())
    for at, junk in places:
        start = at % len(data)
        data[start : start + len(junk)] = junk
    made.write_bytes(bytes(data[: max(keep, len(data) // 2)]))
    said = ""
    try:
        card_of(made)
        list(wheel_elves(made))
    except LockstepError as error:
        said = str(error)
    assert "Traceback" not in said


def test_wheel_that_is_not_made_yet_counts_as_installed(store: Path) -> None:
    compiled = LockedWheel("made-here", "2.8.1", "", "", 0, "compile", "torch-2.13")
    user = locked(wheel(store, "user", "1", {"a.py": b""}, ["made-here==2.8.1", "missing"]))
    found = check_cards(locked_cards([compiled, user]), Arch.X86_64, "3.13")
    assert [item.what for item in found] == ["user 1 requires missing: it is not installed"]


def test_notes_of_cards_that_are_damaged_are_made_again(store: Path) -> None:
    made = locked(wheel(store, "pkg", "1", {"a.py": b""}))
    (first,) = locked_cards([made])
    (note,) = (store.parent / "state/wheel-index").iterdir()
    note.write_text(json.dumps({"name": "x"}))
    assert locked_cards([made]) == [first]
