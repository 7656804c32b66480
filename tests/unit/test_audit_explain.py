"""make explain: who requires a package, and which bound decides."""

from __future__ import annotations

from typing import Any

from lockstep.arch import Arch
from lockstep.audit.metadata import Installed
from lockstep.explain import Explanation, explain, newest_release
from lockstep.matrix import Backend

LOCK = (
    Installed("vllm", "0.29.0", ("numba==0.65.0", "llguidance<1.8.0,>=1.7.0")),
    Installed("numba", "0.65.0", ("numpy<2.5,>=1.22", 'scipy; extra == "unasked"')),
    Installed("other", "1", ('numpy>=3; platform_machine == "aarch64"', "numpy")),
    Installed("numpy", "2.4.6"),
    Installed("llguidance", "1.7.6"),
)


def ask(package: str, newest: str = "", **more: Any) -> Explanation:
    backend = Backend.model_validate({"line": "torch-2.13", "requires": ["vllm==0.29.0"], **more})
    return explain(
        package, LOCK, backend, {"torch": "2.13.0"}, name="vllm", arch=Arch.X86_64, python="3.13", newest=newest
    )


def rows(found: Explanation) -> list[tuple[str, str, bool]]:
    return [(bound.source, bound.text, bound.in_force) for bound in found.bounds]


def test_requirement_of_another_package_decides() -> None:
    found = ask("numpy", "2.5.1")
    assert rows(found) == [("numba 0.65.0", "<2.5,>=1.22", True), ("other 1", "any version", True)]
    assert found.verdict() == "the newest release is 2.5.1, and is kept out by numba 0.65.0 (<2.5,>=1.22)"


def test_override_replaces_the_requirements_and_decides_with_its_why() -> None:
    override = {"requirement": "numpy>=2.1,<2.5", "why": "numba refuses 2.5"}
    found = ask("numpy", "2.5.1", overrides=[override])
    assert rows(found)[0] == ("override in versions.yaml", "<2.5,>=2.1", True)
    assert [bound.in_force for bound in found.bounds[1:]] == [False, False]
    assert found.verdict().endswith("kept out by override in versions.yaml (<2.5,>=2.1): numba refuses 2.5")


def test_cap_line_hold_and_exclusion() -> None:
    cap = {"requirement": "llguidance>=1.7,<1.8", "why": "a floor-only override passed it"}
    capped = ask("llguidance", "1.8.0", constraints=[cap])
    assert [bound.kind for bound in capped.deciding] == ["constraint", "requirement"]
    assert [bound.text for bound in ask("torch").bounds] == ["==2.13.0"]
    hold = {"package": "numpy", "not_past": "2.4.9", "why": "later ones are slow"}
    assert ("hold in versions.yaml", "<=2.4.9", True) in rows(ask("numpy", holds=[hold]))
    left_out = {"package": "ray", "why": "it is not used here"}
    assert ask("ray", exclude=[left_out]).verdict() == "ray is left out: it is not used here"


def test_nothing_requires_it_or_nothing_holds_it() -> None:
    assert ask("scipy").verdict() == "nothing in vllm requires scipy"
    assert ask("NumPy", "2.4.6").verdict() == "it is the newest release that the index has"
    assert "no bound keeps it out" in ask("numpy", "2.4.7").verdict()


def test_newest_release_prefers_finals() -> None:
    assert newest_release(["1.0", "2.0rc1", "nonsense", "1.10"]) == "1.10"
    assert newest_release(["2.0rc1"]) == "2.0rc1"
    assert newest_release([]) == ""
