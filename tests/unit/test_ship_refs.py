"""References, and the strings that enroot and pyxis read."""

from __future__ import annotations

import pytest

from lockstep.errors import LockstepError
from lockstep.ship.refs import parse

DIGEST = "sha256:" + "0123456789abcdef" * 4

# reference, skopeo, pyxis and enroot of every version, enroot from 4.0. What each version makes of the strings was
# checked against its own parser (3.0.2, 3.5.0, 4.0.0, 4.1.2 and the revision of April 2026).
GOLDEN = [
    ("ubuntu", "docker://docker.io/library/ubuntu:latest", "ubuntu:latest", "docker://ubuntu:latest"),
    ("ubuntu:24.04", "docker://docker.io/library/ubuntu:24.04", "ubuntu:24.04", "docker://ubuntu:24.04"),
    ("team/rl:v1", "docker://docker.io/team/rl:v1", "team/rl:v1", "docker://team/rl:v1"),
    ("docker.io/team/rl:v1", "docker://docker.io/team/rl:v1", "team/rl:v1", "docker://team/rl:v1"),
    (
        f"team/rl@{DIGEST}",
        f"docker://docker.io/team/rl@{DIGEST}",
        f"team/rl:{DIGEST}",
        f"docker://team/rl@{DIGEST}",
    ),
    (
        "nvcr.io/nvidia/pytorch:26.05-py3",
        "docker://nvcr.io/nvidia/pytorch:26.05-py3",
        "nvcr.io#nvidia/pytorch:26.05-py3",
        "docker://nvcr.io/nvidia/pytorch:26.05-py3",
    ),
    ("host:5000/rl", "docker://host:5000/rl:latest", "host:5000#rl:latest", "docker://host:5000/rl:latest"),
    (
        "registry.example.org:5000/a/b/c/rl:v1",
        "docker://registry.example.org:5000/a/b/c/rl:v1",
        "registry.example.org:5000#a/b/c/rl:v1",
        "docker://registry.example.org:5000/a/b/c/rl:v1",
    ),
    (
        f"host:5000/a/rl@{DIGEST}",
        f"docker://host:5000/a/rl@{DIGEST}",
        f"host:5000#a/rl:{DIGEST}",
        f"docker://host:5000/a/rl@{DIGEST}",
    ),
    (
        f"host:5000/a/rl:v1@{DIGEST}",
        f"docker://host:5000/a/rl@{DIGEST}",
        f"host:5000#a/rl:{DIGEST}",
        f"docker://host:5000/a/rl@{DIGEST}",
    ),
    ("localhost/rl:v1", "docker://localhost/rl:v1", "localhost#rl:v1", "docker://localhost#rl:v1"),
]


@pytest.mark.parametrize(("text", "skopeo", "pyxis", "short"), GOLDEN, ids=[row[0] for row in GOLDEN])
def test_B8_strings(text: str, skopeo: str, pyxis: str, short: str) -> None:
    ref = parse(text)
    assert ref.skopeo == skopeo
    assert ref.pyxis == pyxis
    assert ref.enroot == f"docker://{pyxis}"
    assert ref.enroot_short == short


@pytest.mark.parametrize("text", [row[0] for row in GOLDEN])
def test_enroots_own_spelling_is_read_back(text: str) -> None:
    ref = parse(text)
    again = parse(ref.enroot)
    assert (again.registry, again.path, again.reference) == (ref.registry, ref.path, ref.reference)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ubuntu:24.04", "ubuntu+24.04.sqsh"),
        ("nvcr.io/nvidia/pytorch:26.05-py3", "nvidia+pytorch+26.05-py3.sqsh"),
        ("host:5000/rl", "rl+latest.sqsh"),
    ],
)
def test_the_file_has_the_name_that_enroot_gives(text: str, name: str) -> None:
    assert parse(text).sqsh_name == name


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("host:5000/RL:v1", "repository path"),
        ("host:5000/", "repository path"),
        ("rl@sha256:abc", "no sha256 digest"),
        ("rl:a b", "no tag"),
        ("ho st:5000/rl", "no registry"),
        ("", "repository path"),
        ("host:port/rl:v1", "no registry"),
    ],
)
def test_a_bad_reference_names_what_is_wrong(text: str, word: str) -> None:
    with pytest.raises(LockstepError, match=word):
        parse(text)


def test_provenance_is_what_enroot_writes() -> None:
    assert parse("ubuntu").enroot_canonical == "docker://registry-1.docker.io#library/ubuntu:latest"
    assert parse(f"host:5000/a:v1@{DIGEST}").enroot_canonical == f"docker://host:5000#a:{DIGEST}"
