"""Layouts, the record of digests, the index, the scanner and the job file: what needs neither network nor engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.matrix import load
from lockstep.ship import digests, sbom
from lockstep.ship.access import Access
from lockstep.ship.attest import Recipe, provenance
from lockstep.ship.contents import Contents, DebianPackage, PythonPackage, VendoredLibrary, read
from lockstep.ship.layout import DOCKER_LIST, OCI_INDEX, Layout
from lockstep.ship.push import index_of
from lockstep.ship.refs import parse
from lockstep.ship.scan import scan
from lockstep.ship.slurm import job_text
from lockstep.ship.source import of_image
from lockstep.ship.sqsh import Options, command, need_space
from shipkit import EPOCH, Member, layer, write_layout

SMALL = [layer([Member("a", data=b"1")])]


def test_record_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "build/digests.json"
    digest = write_layout(tmp_path / "build/oci/smoke.x86_64", SMALL)
    digests.record_digest("smoke", Arch.X86_64, digest, tmp_path / "build/oci/smoke.x86_64", path)
    digests.record_digest("alpha", Arch.X86_64, digest, tmp_path / "build/oci/smoke.x86_64", path)
    entry = digests.built("smoke", Arch.X86_64, path)
    assert (entry.digest, entry.layers, entry.layout) == (digest, 1, "oci/smoke.x86_64")
    assert digests.layout_of(entry, path) == tmp_path / "build/oci/smoke.x86_64"
    assert list(json.loads(path.read_text())["images"]) == ["alpha", "smoke"]


def test_what_was_not_built_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="make image IMAGE=smoke ARCH=aarch64"):
        digests.built("smoke", Arch.AARCH64, tmp_path / "digests.json")


def test_a_digest_that_the_layout_does_not_hold_is_not_recorded(tmp_path: Path) -> None:
    write_layout(tmp_path / "l", SMALL)
    with pytest.raises(LockstepError, match="the layout holds"):
        digests.record_digest("smoke", Arch.X86_64, "sha256:" + "0" * 64, tmp_path / "l", tmp_path / "d.json")
    assert not (tmp_path / "d.json").exists()


@pytest.mark.parametrize("how", ["missing", "short", "changed"])
def test_a_half_made_layout_is_refused(tmp_path: Path, how: str) -> None:
    digest = write_layout(tmp_path / "l", SMALL)
    manifest = json.loads(Layout(tmp_path / "l").blob(digest).read_bytes())
    which = manifest["config"] if how == "changed" else manifest["layers"][0]
    blob = Layout(tmp_path / "l").blob(which["digest"])
    if how == "missing":
        blob.unlink()
    else:
        blob.write_bytes(blob.read_bytes()[:-1] if how == "short" else b"{" + blob.read_bytes()[1:-1] + b" ")
    with pytest.raises(LockstepError, match=r"is missing|has \d+ bytes|holds other bytes"):
        digests.record_digest("smoke", Arch.X86_64, digest, tmp_path / "l", tmp_path / "d.json")


@pytest.mark.parametrize(("compression", "kind"), [("zstd", OCI_INDEX), ("gzip", OCI_INDEX), ("docker", DOCKER_LIST)])
def test_B1_index_has_real_platforms_only(tmp_path: Path, compression: str, kind: str) -> None:
    images = []
    for arch in ("arm64", "amd64"):
        write_layout(tmp_path / arch, SMALL, arch=arch, compression=compression)
        images.append(Layout(tmp_path / arch).image())
    index = index_of(images)
    assert index.digest == index_of(images[::-1]).digest
    data = json.loads(index.body)
    assert data["mediaType"] == kind
    assert [each["platform"] for each in data["manifests"]] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux"},
    ]


def test_two_images_of_one_architecture_make_no_index(tmp_path: Path) -> None:
    write_layout(tmp_path / "a", SMALL)
    image = Layout(tmp_path / "a").image()
    with pytest.raises(LockstepError, match="twice"):
        index_of([image, image])


def test_B10_scanner_lists_all_three(tmp_path: Path) -> None:
    write_layout(
        tmp_path / "l",
        [
            layer([Member("d", "d"), Member("d/x", data=b"1"), Member("f", data=b"2"), Member("g", data=b"3")]),
            layer([Member("h", "h", link="f"), Member("d", "l", link="e"), Member(".wh.g", "w")]),
        ],
    )
    found = scan(of_image(Layout(tmp_path / "l").image()).layers)
    assert [(each.kind, each.layer, each.path) for each in found] == [
        ("cross-layer-hard-link", 1, "/h"),
        ("folder-to-link", 1, "/d"),
        ("whiteout", 1, "/g"),
    ]
    assert scan(of_image(Layout(tmp_path / "l").image()).layers, first=2) == []


def site(venv: str, tail: str) -> str:
    return f"opt/venvs/{venv}/lib/python3.13/site-packages/{tail}"


def test_contents_are_read_from_the_layers(tmp_path: Path) -> None:
    meta = b"Metadata-Version: 2.4\nName: Typing_Extensions\nVersion: 4.1\nLicense-Expression: PSF-2.0\n\nText"
    status = b"Package: a\nStatus: install ok installed\nVersion: 1:2-3\nArchitecture: amd64\n\nPackage: gone\n"
    status += b"Status: deinstall ok config-files\nVersion: 1\nArchitecture: all\n"
    write_layout(
        tmp_path / "l",
        [
            layer(
                [Member("var/lib/dpkg/status", data=status), Member(site("v", "old-1.dist-info/METADATA"), data=meta)]
            ),
            layer(
                [
                    Member(site("v", "t-4.1.dist-info/METADATA"), data=meta),
                    Member(site("w", "t-4.1.dist-info/METADATA"), "h", link=site("v", "t-4.1.dist-info/METADATA")),
                    Member(site("v", "setuptools/_vendor/t-4.1.dist-info/METADATA"), data=meta),
                    Member(site("v", "numpy.libs/libgfortran-0.so.5"), data=b"ELF"),
                    Member(site("v", "old-1.dist-info/.wh.METADATA"), "w"),
                ]
            ),
        ],
    )
    held = read(of_image(Layout(tmp_path / "l").image()))
    assert held == Contents(
        python=[PythonPackage(venv, "typing-extensions", "4.1", "", "PSF-2.0") for venv in ("v", "w")],
        vendored=[PythonPackage("v", "typing-extensions", "4.1", "setuptools/_vendor", "PSF-2.0")],
        debian=[DebianPackage("a", "1:2-3", "amd64")],
        libraries=[VendoredLibrary("v", "numpy.libs", "libgfortran-0.so.5")],
    )


def test_sbom_is_the_same_each_time_and_tells_every_difference() -> None:
    held = Contents([PythonPackage("v", "lockstep-runtime", "1")], [], [DebianPackage("a", "1", "amd64")], [])
    subject = sbom.Subject("smoke", Arch.X86_64, "sha256:" + "0" * 64, EPOCH)
    made = sbom.make(subject, [], [], "", held)
    assert made == sbom.make(subject, [], [], "", held)
    assert json.loads(made)["metadata"]["timestamp"] == "2026-01-01T00:00:00+00:00"
    assert sbom.compare(made, held) == []
    other = Contents([PythonPackage("v", "evil", "6")], [], [DebianPackage("a", "2", "amd64")], [])
    assert sbom.compare(made, other) == [
        "Debian: a 1 is in the SBOM and not in the image",
        "Debian: a 2 is in the image and not in the SBOM",
        "v: evil 6 is in the image and not in the SBOM",
        "v: lockstep-runtime 1 is in the SBOM and not in the image",
    ]


def test_provenance_names_the_inputs_and_no_time() -> None:
    recipe = Recipe("smoke", Arch.X86_64, "bootstrap", "zstd", EPOCH, "c" * 40, "", {"versions.yaml": "a" * 64}, {})
    made = json.loads(provenance(recipe, "host/smoke", "sha256:" + "0" * 64).body)
    assert made["subject"] == [{"name": "host/smoke", "digest": {"sha256": "0" * 64}}]
    dependencies = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [each["digest"] for each in dependencies] == [{"gitCommit": "c" * 40}, {"sha256": "a" * 64}]


def test_credentials_are_found_and_never_shown(tmp_path: Path) -> None:
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps({"auths": {"host:5000": {"auth": "dXNlcjpwYTpzcw=="}}}))
    access = Access.of("host:5000", {"REGISTRY_AUTH_FILE": str(auth)})
    found = access.credentials()
    assert found is not None
    assert (found.user, found.password) == ("user", "pa:ss")
    assert "ss" not in repr(found).removeprefix("Credentials")
    with access.skopeo("dest") as options:
        assert options == ["--dest-authfile", str(auth)]
    assert Access.of("other:5000", {"REGISTRY_AUTH_FILE": str(auth)}).credentials() is None


@pytest.mark.parametrize(
    ("host", "env", "insecure"),
    [
        ("127.0.0.1:5000", {}, True),
        ("localhost:5000", {}, True),
        ("[::1]:5000", {}, True),
        ("host:5000", {}, False),
        ("host:5000", {"REGISTRY_INSECURE": "1"}, True),
        ("127.0.0.1:5000", {"REGISTRY_INSECURE": "0"}, False),
    ],
)
def test_only_loopback_is_spoken_to_without_tls_unasked(host: str, env: dict[str, str], insecure: bool) -> None:
    assert Access.of(host, {"HOME": "/nonexistent", **env}).insecure is insecure


def test_job_is_valid_bash_and_probes_every_import() -> None:
    matrix = load()
    text = job_text("smoke", matrix, parse("host:5000/team/smoke:v1"))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for backend in matrix.images["smoke"].backends:
        for module in matrix.backends[backend].imports:
            assert f"probe {backend} {module}\n" in text
    assert "container=${1:-host:5000#team/smoke:v1}" in text


def test_B12_times_and_owners_are_fixed_on_the_command_line() -> None:
    words = command(Path("x.sqsh"), Options(epoch=7, processors=3))
    for pair in (["-mkfs-time", "7"], ["-all-time", "7"], ["-processors", "3"], ["-comp", "zstd"]):
        at = words.index(pair[0])
        assert words[at : at + 2] == pair
    assert {"-all-root", "-noappend", "-no-xattrs"} <= set(words)


def test_B11_too_little_space_says_how_many_bytes_are_needed(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match=f"{10**18} bytes are needed and \\d+ are free"):
        need_space(tmp_path / "x.sqsh", 10**18)


def test_licenses_are_collected_once_and_the_same_each_time(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "docker/build/licenses.py"
    root = tmp_path / "root"
    for venv in ("v", "w"):
        info = root / site(venv, "a-1.dist-info")
        (info / "licenses").mkdir(parents=True)
        (info / "METADATA").write_text("Name: a\nVersion: 1\nLicense-Expression: MIT\n")
        (info / "licenses/LICENSE").write_text("the text")
    (root / "usr/share/doc/b").mkdir(parents=True)
    (root / "usr/share/doc/b/copyright").write_text("the text")
    (root / "usr/share/doc/c").symlink_to("b")
    for out in ("one", "two"):
        subprocess.run(["python3", str(script), str(root), str(tmp_path / out)], check=True, capture_output=True)
    index = json.loads((tmp_path / "one/index.json").read_text())
    assert [(each["kind"], each["name"], each["in"]) for each in index["packages"]] == [
        ("debian", "b", []),
        ("debian", "c", []),
        ("python", "a", ["v", "w"]),
    ]
    assert len(list((tmp_path / "one/texts").iterdir())) == 1
    subprocess.run(["diff", "-r", str(tmp_path / "one"), str(tmp_path / "two")], check=True)
