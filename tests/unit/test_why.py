"""What a layer is built from is read out of the Dockerfile, and `make why` says what of it has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep import why
from lockstep.arch import Arch, host_arch
from lockstep.matrix import load
from lockstep.paths import ROOT
from lockstep.record import Record
from lockstep.stage_parts import split_shared, stage_parts

ARCH = Arch.X86_64
BUILDER = host_arch().docker
TEXT = """# Generated
FROM --platform=linux/amd64 scratch AS base-bootstrap-amd64
ADD build/base/aaaa/rootfs.tar /
FROM scratch AS builder-BUILDER
ADD build/base/bbbb/rootfs.tar /
FROM builder-${BUILDARCH} AS builder
ENV SOURCE_DATE_EPOCH=1767225600 TZ=UTC
RUN --mount=type=cache,id=pip,target=/c \\
    --mount=type=bind,source=docker/get_uv.py,target=/lockstep/get_uv.py \\
    python3.13 /lockstep/get_uv.py <<'EOF'
uv==0.13.9 --hash=sha256:111111111111aaaa
EOF
COPY docker/install.py docker/pyc.py /lockstep/

FROM builder AS amd64-a-g
RUN --mount=type=cache,id=uv,target=/c \\
    python3.13 /lockstep/install.py --out /out <<'EOF'
[a]
idna==3.10 --hash=sha256:222222222222aaaa
EOF

FROM builder AS amd64-a-big
RUN --mount=type=bind,source=docker/patches/big,target=/lockstep/patches/big \\
    python3.13 /lockstep/install.py --patches /lockstep/patches --out /out <<'EOF'
[a]
big==1.0 --hash=sha256:333333333333aaaa
[b]
big==2.0 --hash=sha256:444444444444aaaa
store:abcdef
EOF

FROM base-bootstrap-amd64 AS release-amd64
COPY --link --from=amd64-a-g /out/ /
""".replace("BUILDER", BUILDER)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("get_uv.py", "install.py", "pyc.py", "patches/big/one.patch"):
        path = tmp_path / "docker" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def parts(root: Path, text: str = TEXT) -> dict[str, dict[str, str]]:
    return stage_parts(text, ("a-g", "a-big"), ARCH, root)


def test_everything_that_a_stage_uses_is_a_part_of_it(root: Path) -> None:
    found = parts(root)
    assert set(found["a-g"]) == {
        "builder base", "SOURCE_DATE_EPOCH", "TZ", "uv", "docker/get_uv.py", "command of get_uv.py",
        "docker/install.py", "docker/pyc.py", "wheel idna", "venvs", "command",
    }  # fmt: skip
    assert found["a-g"]["builder base"] == "build/base/bbbb/rootfs.tar"
    assert found["a-g"]["wheel idna"] == "3.10 (222222222222)"
    assert found["a-g"]["uv"] == "0.13.9 (111111111111)"
    assert found["a-big"]["wheel big"] == "1.0 (333333333333), 2.0 (444444444444)"
    assert found["a-big"]["venvs"] == "a b"
    assert "wheel store:abcdef" in found["a-big"]


@pytest.mark.parametrize(
    ("old", "new", "layers", "what"),
    [
        ("idna==3.10 --hash=sha256:222222222222", "idna==3.11 --hash=sha256:555555555555", {"a-g"}, "wheel idna"),
        ("base/bbbb", "base/cccc", {"a-g", "a-big"}, "builder base"),
        ("1767225600", "1767225601", {"a-g", "a-big"}, "SOURCE_DATE_EPOCH"),
        ("uv==0.13.9", "uv==0.14.0", {"a-g", "a-big"}, "uv"),
        ("base/aaaa", "base/cccc", set(), ""),
        ("[b]", "[c]", {"a-big"}, "venvs"),
        ("install.py --out", "install.py --fast --out", {"a-g"}, "command"),
    ],
)
def test_a_change_of_the_dockerfile_touches_the_layers_that_use_it(
    root: Path, old: str, new: str, layers: set[str], what: str
) -> None:
    before, after = parts(root), parts(root, TEXT.replace(old, new))
    reasons = {layer: why.differences(before[layer], after[layer]) for layer in before}
    assert {layer for layer, found in reasons.items() if found} == layers
    assert {reason.what for found in reasons.values() for reason in found} == ({what} if what else set())


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("docker/pyc.py", {"a-g", "a-big"}),
        ("docker/install.py", {"a-g", "a-big"}),
        ("docker/patches/big/one.patch", {"a-big"}),
    ],
)
def test_a_changed_file_touches_the_layers_that_use_it(root: Path, name: str, layers: set[str]) -> None:
    before = parts(root)
    (root / name).write_text("changed")
    after = parts(root)
    assert {layer for layer in before if why.differences(before[layer], after[layer])} == layers


def test_a_record_holds_what_is_common_once(root: Path) -> None:
    found = parts(root)
    shared, rest = split_shared(found)
    assert "uv" in shared
    assert all("uv" not in stage for stage in rest.values())
    assert {layer: {**shared, **stage} for layer, stage in rest.items()} == found


def test_the_sentences(root: Path) -> None:
    before = {"wheel a": "1 (x)", "wheel gone": "1 (y)", "SOURCE_DATE_EPOCH": "1"}
    now = {"wheel a": "2 (z)", "wheel new": "1 (w)", "SOURCE_DATE_EPOCH": "2"}
    assert [reason.sentence() for reason in why.differences(before, now)] == [
        "a: 1 (x) → 2 (z)",
        "gone 1 (y) goes out",
        "new 1 (w) comes in",
        "SOURCE_DATE_EPOCH: 1 → 2 (the epoch)",
    ]


def test_the_real_image_against_a_record_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = load()
    layers = why.planned(matrix, "smoke", ARCH, ROOT)
    found = why.current_parts(matrix, "smoke", ARCH, layers)
    assert {layer.name for layer in layers} == set(found)
    record = tmp_path / "smoke.x86_64.json"
    shared, rest = split_shared(found)
    record.write_text(json.dumps({"layers": [], "seconds": {"smoke-a-g": 8.0}, "shared": shared, "stages": rest}))
    monkeypatch.setattr(why, "record_path", lambda image, arch: record)
    monkeypatch.setattr(why, "last_record", lambda image, arch: Record.model_validate_json(record.read_text()))
    answer = why.explain_layer(matrix, "smoke", ARCH, "smoke-a-g")
    assert not answer.rebuilt
    rest["smoke-a-g"]["wheel idna"] = "3.9 (000000000000)"
    record.write_text(json.dumps({"layers": [], "seconds": {"smoke-a-g": 8.0}, "shared": shared, "stages": rest}))
    answer = why.explain_layer(matrix, "smoke", ARCH, "smoke-a-g")
    assert answer.rebuilt
    assert answer.seconds == 8.0
    assert [reason.sentence() for reason in answer.reasons] == ["idna: 3.9 (000000000000) → 3.10 (946d195a0d25)"]


def test_without_a_record_it_would_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "last_record", lambda image, arch: None)
    answer = why.explain_layer(load(), "smoke", ARCH, "smoke-a-g")
    assert answer.rebuilt
    assert not answer.known
