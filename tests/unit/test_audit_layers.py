"""Reading OCI layouts without running them, and what is wrong between layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit import SITE, folder_layer, install, layer, layout, library, venv, wheel
from lockstep.audit.finding import Finding
from lockstep.audit.layers import lint_layers, merge, scan_image, scan_tar
from lockstep.audit.oci import is_image, open_image
from lockstep.audit.run import Options, audit
from lockstep.audit.tree import Tree
from lockstep.errors import LockstepError

MEGABYTE = b"\0" * (1 << 20)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))


def trees(*layers: bytes) -> list[Tree]:
    made = []
    for data in layers:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data)), mode="r|") as archive:
            made.append(scan_tar(archive))
    return made


def shown(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(item.kind, item.path, item.level) for item in findings]


def test_F3_path_with_equal_content_in_two_layers_fails(tmp_path: Path) -> None:
    """CASES F3: `chown -R` after COPY ships a file twice; small ones and changed ones are left alone."""
    low = layer({"big": MEGABYTE, "small": b"x", "changed": MEGABYTE})
    high = layer({"big": MEGABYTE, "small": b"x", "changed": MEGABYTE + b"y"})
    (found,) = lint_layers(trees(low, high))
    assert (found.kind, found.path, found.level) == ("duplicate", "big", "fail")
    assert found.what == "is in layers 0 and 1 with equal content, 1,048,576 bytes"
    assert lint_layers(trees(low, high), threshold=(1 << 20) + 1) == []


def test_F3_in_an_image_of_venv_layers(tmp_path: Path) -> None:
    """Two layers that both carry one venv file: the lint of the whole audit sees it."""
    site = venv(tmp_path / "v")
    install(site, wheel(tmp_path, "pkg", "1", {"pkg/weights.bin": MEGABYTE}))
    one = folder_layer(tmp_path / "v", "opt/venvs/v")
    image = layout(tmp_path / "image", [one, layer({f"opt/venvs/v/{SITE}/pkg/weights.bin": MEGABYTE})])
    found = [item for item in audit(image, Options(workers=1)).findings if item.level == "fail"]
    assert [(item.kind, item.path) for item in found] == [("duplicate", f"opt/venvs/v/{SITE}/pkg/weights.bin")]


def test_B10_cross_layer_hardlink_replaced_folder_and_whiteout(tmp_path: Path) -> None:
    """CASES B10: the scanner lists all three; a whiteout fails where it hides much that is still shipped."""
    low = layer({"dir": ("dir", ""), "dir/file": MEGABYTE, "data": MEGABYTE, "tiny": b"t", "origin": b"o"})
    high = layer({"linked": ("hardlink", "origin"), "dir": ("symlink", "data"), ".wh.data": b"", ".wh.tiny": b""})
    assert sorted(shown(lint_layers(trees(low, high)))) == [
        ("hardlink", "linked", "fail"),
        ("replaced", "dir", "fail"),
        ("whiteout", "data", "fail"),
        ("whiteout", "tiny", "note"),
    ]
    assert lint_layers(trees(low, high), own_from=2) == [], "a foreign base is not ours to mend"


def test_layers_of_a_foreign_base_are_not_judged(tmp_path: Path) -> None:
    venv(tmp_path / "v")
    foreign = [layer({"old": MEGABYTE}), layer({".wh.old": b""})]
    image = layout(tmp_path / "image", [*foreign, folder_layer(tmp_path / "v", "opt/venvs/v")])
    assert audit(image, Options(workers=1)).findings == ()


def test_hard_link_inside_a_layer_is_fine() -> None:
    low = layer({"a": MEGABYTE, "b": ("hardlink", "a")})
    assert lint_layers(trees(low)) == []
    whole = merge(trees(low))
    assert whole.entries["b"].sha256 == whole.entries["a"].sha256 != ""


def test_merge_applies_whiteouts_and_opaque_folders() -> None:
    low = layer({"a/one": b"1", "a/two": b"2", "b/x/deep": b"3", "c": b"4"})
    high = layer({"a/.wh.one": b"", "b/.wh..wh..opq": b"", "b/new": b"5", "c": b"6"})
    whole = merge(trees(low, high))
    assert set(whole.entries) == {"a/two", "b/new", "c"}
    assert (whole.entries["c"].layer, whole.entries["a/two"].layer) == (1, 0)


def test_image_is_read_from_a_folder_a_tar_and_a_second_time_from_notes(tmp_path: Path) -> None:
    site = venv(tmp_path / "v")
    install(site, wheel(tmp_path, "pkg", "1", {"pkg/__init__.py": b""}, ["gone>=2"]))
    foo = library(tmp_path / "stubs/libfoo.so", "int foo(void) { return 0; }", soname="libfoo.so.9")
    library(site / "pkg/ext.so", "extern int foo(void); int f(void) { return foo(); }", links=[foo])
    libc = library(tmp_path / "libc.so.6", "int puts(void) { return 0; }", soname="libc.so.6")
    base = layer({"usr/lib/x86_64-linux-gnu/libc.so.6": libc.read_bytes()})
    image = layout(tmp_path / "image", [base, folder_layer(tmp_path / "v", "opt/venvs/v")])
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(image, ".")
    expected = [("abi", "v", "pkg/ext.so"), ("integrity", "v", "pkg/ext.so"), ("metadata", "v", "pkg-1.dist-info")]
    for path in (image, tmp_path / "image.tar", image):
        assert is_image(path)
        result = audit(path, Options(workers=1))
        assert [(item.check, item.venv, item.path) for item in result.findings if item.level == "fail"] == expected
    assert len(list((tmp_path / "state/audit-cache").iterdir())) == 2
    shutil.rmtree(image / "blobs")
    with pytest.raises(LockstepError, match="is no readable image"):
        audit(image, Options(workers=1))


def test_zstd_layer(tmp_path: Path) -> None:
    plain = gzip.decompress(layer({"a": b"1"}))
    packed = subprocess.run(["zstd", "-qc"], input=plain, capture_output=True, check=True).stdout
    image = layout(tmp_path / "image", [gzip.compress(plain)])
    (blob,) = open_image(image).layers
    size = len((image / blob.member).read_bytes())
    (image / blob.member).write_bytes(packed)
    zstd = replace(open_image(image), layers=(replace(blob, size=len(packed)),))
    with pytest.raises(LockstepError, match="does not match its digest"):
        scan_image(zstd, workers=1)
    named = replace(blob, size=len(packed), digest=f"sha256:{hashlib.sha256(packed).hexdigest()}")
    (tree,) = scan_image(replace(zstd, layers=(named,)), workers=1)
    assert set(tree.entries) == {"a"}
    assert size != len(packed)


@pytest.mark.parametrize("damage", ["cut", "garbled", "missing"])
def test_damaged_layer_is_one_sentence(tmp_path: Path, damage: str) -> None:
    image = layout(tmp_path / "image", [layer({"a": MEGABYTE[:5000], "b": bytes(range(256)) * 50})])
    blob = max((image / "blobs/sha256").iterdir(), key=lambda path: path.read_bytes()[:2] == b"\x1f\x8b")
    data = blob.read_bytes()
    if damage == "missing":
        blob.unlink()
    else:
        blob.write_bytes(data[:-20] if damage == "cut" else data[:40] + b"\xff" * 20 + data[60:])
    with pytest.raises(LockstepError) as caught:
        scan_image(open_image(image), workers=1)
    assert "\n" not in str(caught.value)


def test_index_of_two_architectures_asks_for_one(tmp_path: Path) -> None:
    one = layout(tmp_path / "image", [layer({"a": b"1"})], arch="amd64")
    first = json.loads((one / "index.json").read_text())["manifests"]
    layout(tmp_path / "image", [layer({"a": b"2"})], arch="arm64")
    second = json.loads((one / "index.json").read_text())["manifests"]
    attestation = {"mediaType": "x", "digest": "sha256:0", "platform": {"architecture": "unknown", "os": "unknown"}}
    (one / "index.json").write_text(json.dumps({"manifests": [*first, *second, attestation]}))
    with pytest.raises(LockstepError, match=r"holds 2 images that fit \(architectures: amd64, arm64\)"):
        open_image(one)
    assert open_image(one, "arm64").architecture == "arm64"


def test_old_docker_archive(tmp_path: Path) -> None:
    plain = gzip.decompress(layer({"a": b"1"}))
    config = json.dumps({"architecture": "amd64", "rootfs": {"diff_ids": ["sha256:abc"]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["x:y"], "Layers": ["l/layer.tar"]}]).encode()
    with tarfile.open(tmp_path / "saved.tar", "w") as archive:
        for name, data in {"c.json": config, "l/layer.tar": plain, "manifest.json": manifest}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (tree,) = scan_image(open_image(tmp_path / "saved.tar"), workers=1, cache=False)
    assert set(tree.entries) == {"a"}
