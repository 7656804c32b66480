"""The breakages of real wheels that an audit has to see, on those wheels. Needs the index; some gigabytes for ABI."""

from __future__ import annotations

import pytest

from lockstep.arch import Arch
from lockstep.audit.finding import Finding
from lockstep.audit.overlap import overlaps
from lockstep.audit.wheel_abi import check_wheel_abi, torch_line
from lockstep.audit.wheels import Card, card_of, check_cards
from lockstep.index import RemoteWheel, find_wheel

DSL = ("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13")


def remote(name: str, version: str, arch: Arch = Arch.X86_64) -> RemoteWheel:
    return find_wheel(name, version, arch, "3.13")


def card(name: str, version: str) -> Card:
    return card_of(remote(name, version))


def test_A3_cutlass_dsl_overlaps_at_4_5_2_and_not_at_4_6_2() -> None:
    (found,) = overlaps((item.label, item.files) for item in [card(name, "4.5.2") for name in DSL])
    assert (len(found.paths), len(found.different)) == (180, 99)
    assert overlaps((item.label, item.files) for item in [card(name, "4.6.2") for name in DSL]) == []


def test_numpy_past_the_bound_of_numba_is_flagged() -> None:
    found = check_cards([card("numpy", "2.5.1"), card("numba", "0.65.0")], Arch.X86_64, "3.13")
    assert "numba 0.65.0 requires numpy<2.5,>=1.22: numpy 2.5.1 is installed" in [item.what for item in found]


def test_llguidance_past_the_bound_of_vllm_is_flagged() -> None:
    found = check_cards([card("vllm", "0.29.0"), card("llguidance", "1.8.0")], Arch.X86_64, "3.13")
    broken = [item.what for item in found if item.kind == "broken"]
    assert broken == ["vllm 0.29.0 requires llguidance<1.8.0,>=1.7.0: llguidance 1.8.0 is installed"]


def judged(name: str, version: str, torch: str, arch: Arch, other: str = "") -> list[Finding]:
    others = [torch_line(remote("torch", other, arch), other)] if other else []
    return check_wheel_abi(
        remote(name, version, arch), [remote("torch", torch, arch)], arch, torch=torch, others=others
    )


@pytest.mark.parametrize("arch", list(Arch))
def test_A4_sglang_kernel_needs_torch_2_11(arch: Arch) -> None:
    found = judged("sglang-kernel", "0.4.5", "2.13.0", arch, other="2.11.0")
    symbols = {name for item in found for name in item.symbols}
    assert any(name.startswith("_ZNK2at10TensorBase14const_data_ptr") for name in symbols)
    assert any(name.startswith("_ZNR5torch7Library4_def") for name in symbols)
    assert all("torch 2.11.0, not in torch 2.13.0" in item.why for item in found if item.kind == "undefined")
    # One of its modules is there for Python 3.10 alone; nothing is amiss with torch.
    fits = judged("sglang-kernel", "0.4.5", "2.11.0", arch)
    left = [("python", f"infllm_ops.cpython-310-{arch}-linux-gnu.so")]
    assert [(item.kind, item.path.rpartition("/")[2]) for item in fits] == left


def test_A4_nixl_ep_cpp_does_not_fit_torch_2_13() -> None:
    found = judged("nixl-cu13", "1.3.0", "2.13.0", Arch.X86_64, other="2.11.0")
    named = {item.path.rpartition("/")[2]: item.symbols for item in found}
    (path,) = [name for name in named if name.startswith("nixl_ep_cpp")]
    assert any(name.startswith("_ZN3c104impl3cow23materialize_cow_storage") for name in named[path])
