"""Pushing to a real registry (Debian's docker-registry on a loopback port). Cases B1, D4.

`LOCKSTEP_KILLS=50 pytest tests/build/test_push.py -k kill` runs the kill test fifty times.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from lockstep.errors import LockstepError
from lockstep.ship import attest, push, sign
from lockstep.ship.attest import Document
from lockstep.ship.layout import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Layout, OciImage
from lockstep.ship.refs import Ref, parse
from lockstep.ship.registry import ENROOT_IMAGE_TYPES, ENROOT_LIST_TYPES, Registry
from shipkit import Member, TestRegistry, layer, needs_registry, registry, write_layout

pytestmark = needs_registry
SCRIPTS = Path(__file__).parents[2] / "scripts"
KILLS = int(os.environ.get("LOCKSTEP_KILLS", "10"))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestRegistry]:
    for name in ("REGISTRY_AUTH_FILE", "REGISTRY_CA", "REGISTRY_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    with registry(tmp_path / "registry") as running:
        yield running


def built(folder: Path, arch: str, *parts: bytes, compression: str = "zstd") -> OciImage:
    """Make the image of an architecture, one layer for each part."""
    layers = [layer([Member(f"part{number}", data=part)]) for number, part in enumerate(parts)]
    write_layout(folder / arch, layers, arch=arch, compression=compression)
    return Layout(folder / arch).image()


def both(folder: Path, compression: str = "zstd") -> list[OciImage]:
    return [built(folder, arch, os.urandom(200_000), b"x", compression=compression) for arch in ("amd64", "arm64")]


def accepted(server: TestRegistry, path: str, *types: str) -> requests.Response:
    headers = {"Accept": ", ".join(types)}
    return requests.get(f"http://{server.host}/v2/{path}", headers=headers, timeout=10)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "docker"])
def test_B1_an_index_of_real_platforms_that_enroots_types_get(
    tmp_path: Path, server: TestRegistry, compression: str
) -> None:
    images = both(tmp_path, compression)
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    index = push.push_index(images, target)
    listed = accepted(server, "team/rl/manifests/v1", *ENROOT_LIST_TYPES)
    assert listed.content == index.body
    assert listed.headers["Docker-Content-Digest"] == index.digest
    for entry, image in zip(listed.json()["manifests"], images, strict=True):
        assert entry["platform"] == {"architecture": image.platform.architecture, "os": "linux"}
        plain = accepted(server, f"team/rl/manifests/{entry['digest']}", *ENROOT_IMAGE_TYPES)
        assert plain.headers["Docker-Content-Digest"] == image.descriptor.digest
        assert plain.json()["layers"] == image.manifest["layers"]


def test_B1_docker_types_alone_get_an_image_built_with_them(tmp_path: Path, server: TestRegistry) -> None:
    images = both(tmp_path, "docker")
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    index = push.push_index(images, target)
    listed = accepted(server, "team/rl/manifests/v1", DOCKER_LIST, DOCKER_MANIFEST)
    assert (listed.headers["Content-Type"], listed.content) == (DOCKER_LIST, index.body)


def test_the_tag_is_the_last_request(tmp_path: Path, server: TestRegistry) -> None:
    images = both(tmp_path)
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    assert requests.get(f"http://{server.host}/v2/team/rl/tags/list", timeout=10).json().get("tags") in (None, [])
    index = push.push_index(images, target)
    puts = [path for path in server.requests("PUT") if "/manifests/" in path]
    assert puts[-1] == "/v2/team/rl/manifests/v1"
    assert puts.index(f"/v2/team/rl/manifests/{index.digest}") < len(puts) - 1


def test_a_bump_uploads_only_the_changed_layer(tmp_path: Path, server: TestRegistry) -> None:
    big = os.urandom(500_000)
    target = parse(f"{server.host}/team/rl:v1")
    before = built(tmp_path / "1", "amd64", big, b"one")
    after = built(tmp_path / "2", "amd64", big, b"two")
    push.push_by_digest([before], target)
    uploads = len([path for path in server.requests("PUT") if "/blobs/uploads/" in path])
    size = stored(tmp_path)
    push.push_by_digest([after], target)
    more = len([path for path in server.requests("PUT") if "/blobs/uploads/" in path]) - uploads
    assert more == 2  # the configuration and one layer
    changed = [each for each in after.blobs if each not in before.blobs]
    assert stored(tmp_path) - size == sum(each.size for each in changed) + after.descriptor.size


def stored(tmp_path: Path) -> int:
    """Return the bytes of content in the registry's store."""
    return sum(path.stat().st_size for path in (tmp_path / "registry/data").rglob("data"))


def test_pushing_again_uploads_nothing(tmp_path: Path, server: TestRegistry) -> None:
    images = both(tmp_path)
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    before = len(server.requests("POST"))
    push.push_by_digest(images, target)
    push.push_index(images, target)
    assert len(server.requests("POST")) == before


def test_D4_merge_refuses_while_an_architecture_is_missing(tmp_path: Path, server: TestRegistry) -> None:
    images = both(tmp_path)
    old = [built(tmp_path / "old", arch, b"old") for arch in ("amd64", "arm64")]
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(old, target)
    index = push.push_index(old, target)
    push.push_by_digest(images[:1], target)
    with pytest.raises(LockstepError, match="the tag v1 stays where it is"):
        push.merge(target, [each.descriptor.digest for each in images])
    assert tag_digest(target) == index.digest
    push.push_by_digest(images[1:], target)
    assert push.merge(target, [each.descriptor.digest for each in images]).digest == tag_digest(target)
    assert tag_digest(target) == push.index_of(images).digest


def tag_digest(target: Ref) -> str | None:
    held = Registry(target).manifest(target.tag)
    return held.digest if held else None


PUSH = """
import sys
from pathlib import Path
from lockstep.ship import push
from lockstep.ship.layout import Layout
from lockstep.ship.refs import parse
images = [Layout(Path(each)).image() for each in sys.argv[2:]]
target = parse(sys.argv[1])
push.push_by_digest(images, target)
push.push_index(images, target)
"""


def test_D4_a_killed_push_leaves_the_tag_and_the_next_one_succeeds(tmp_path: Path, server: TestRegistry) -> None:
    target = parse(f"{server.host}/team/rl:v1")
    current = [built(tmp_path / "0", arch, b"first") for arch in ("amd64", "arm64")]
    push.push_by_digest(current, target)
    holds = push.push_index(current, target).digest
    longest = 2.0
    chance = random.Random(20261130)
    for number in range(1, KILLS + 1):
        images = [built(tmp_path / str(number), arch, os.urandom(3_000_000), b"y") for arch in ("amd64", "arm64")]
        wanted = push.index_of(images).digest
        argv = [sys.executable, "-c", PUSH, str(target), *(str(each.layout.path) for each in images)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        process = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(chance.uniform(0.2, longest))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        seen = tag_digest(target)
        assert seen in {holds, wanted}
        if seen == wanted:
            for each in images:
                assert Registry(target).manifest(each.descriptor.digest) is not None
        push.push_by_digest(images, target)
        holds = push.push_index(images, target).digest
        assert tag_digest(target) == holds == wanted


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestRegistry]:
    """A registry with TLS by its own authority and a login."""
    tls = tmp_path / "tls"
    tls.mkdir()
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=127.0.0.1",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.crt",
    ):
        (tls / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True, cwd=tls)
    # bcrypt of `secret`, which is all that docker-registry reads: made by `htpasswd -nbB user secret`.
    (tmp_path / "htpasswd").write_text("user:$2y$05$oCBH/QHlGB24Eogvk4BdiuYxhNwmhlsT49ugtpNhv2VF/ubh9Ly7.\n")
    monkeypatch.delenv("REGISTRY_INSECURE", raising=False)
    with registry(tmp_path / "registry", htpasswd=tmp_path / "htpasswd", cert=tls) as running:
        yield running


def login(path: Path, host: str, password: str) -> str:
    token = base64.b64encode(f"user:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": token}}}))
    return str(path)


def test_basic_login_and_a_private_authority(
    tmp_path: Path, secured: TestRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = both(tmp_path)
    target = parse(f"{secured.host}/team/rl:v1")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", login(tmp_path / "auth.json", secured.host, "secret"))
    monkeypatch.setenv("REGISTRY_CA", str(tmp_path / "tls/ca.crt"))
    push.push_by_digest(images, target)
    assert push.push_index(images, target).digest == tag_digest(target)


def test_a_wrong_password_and_an_unknown_authority_say_so_and_tell_no_secret(
    tmp_path: Path, secured: TestRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = both(tmp_path)
    target = parse(f"{secured.host}/team/rl:v1")
    monkeypatch.setenv("REGISTRY_CA", str(tmp_path / "tls/ca.crt"))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", login(tmp_path / "auth.json", secured.host, "wr0ng-word"))
    with pytest.raises(LockstepError, match="skopeo login") as caught:
        push.push_by_digest(images, target)
    assert "wr0ng-word" not in str(caught.value)
    monkeypatch.delenv("REGISTRY_CA")
    monkeypatch.setenv("REGISTRY_INSECURE", "0")
    with pytest.raises(LockstepError, match="REGISTRY_CA"):
        push.push_by_digest(images, target)


def test_documents_are_referrers_and_the_index_stays_clean(tmp_path: Path, server: TestRegistry) -> None:
    images = both(tmp_path)
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    subject = images[0].descriptor
    papers = [Document("application/vnd.cyclonedx+json", b"{}", {}), Document(attest.IN_TOTO, b'{"a":1}', {"k": "v"})]
    made = attest.attach(target, subject, papers)
    assert attest.attach(target, subject, papers) == made
    index = push.push_index(images, target)
    assert len(json.loads(index.body)["manifests"]) == 2
    found = attest.find(target, subject.digest)
    assert [each["digest"] for each in found] == made
    assert {each["artifactType"] for each in found} == {each.media_type for each in papers}
    artifact = Registry(target).manifest(made[0])
    assert artifact is not None
    assert artifact.data["subject"]["digest"] == subject.digest
    assert attest.fetch(target, subject.digest, attest.IN_TOTO) == [b'{"a":1}']
    more = attest.attach(target, subject, [Document("application/other", b"1", {})])
    assert [each["digest"] for each in attest.find(target, subject.digest)] == made + more


def test_signatures(tmp_path: Path, server: TestRegistry) -> None:
    images = both(tmp_path)
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    digest = images[0].descriptor.digest
    for name in ("mine", "other"):
        subprocess.run(
            f"openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.pem &&"
            f" openssl pkey -in {name}.pem -pubout -out {name}.pub",
            shell=True,
            check=True,
            cwd=tmp_path,
            capture_output=True,
        )
    with pytest.raises(LockstepError, match="is not signed"):
        sign.verify(target, digest, tmp_path / "mine.pub")
    sign.sign(target, [digest], tmp_path / "mine.pem")
    sign.verify(target, digest, tmp_path / "mine.pub")
    with pytest.raises(LockstepError, match="no signature"):
        sign.verify(target, digest, tmp_path / "other.pub")
    # The signature of one digest, put under another's tag, is no signature of that one.
    other = images[1].descriptor.digest
    stolen = Registry(target).manifest(sign.tag_of(digest))
    assert stolen is not None
    headers = {"Content-Type": OCI_MANIFEST}
    url = f"http://{server.host}/v2/team/rl/manifests/{sign.tag_of(other)}"
    requests.put(url, data=stolen.body, headers=headers, timeout=10).raise_for_status()
    with pytest.raises(LockstepError, match="no signature"):
        sign.verify(target, other, tmp_path / "mine.pub")


def test_an_index_has_the_form_that_skopeo_keeps(tmp_path: Path, server: TestRegistry) -> None:
    """skopeo 1.9 writes an index anew and refuses where that changes its bytes; ours must be the bytes it writes."""
    images = both(tmp_path)
    target = parse(f"{server.host}/team/rl:v1")
    push.push_by_digest(images, target)
    index = push.push_index(images, target)
    assert index.media_type == OCI_INDEX
    copied = parse(f"{server.host}/team/copy:v1")
    words = ["skopeo", "--insecure-policy", "copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false"]
    subprocess.run([*words, target.skopeo, copied.skopeo], check=True, capture_output=True)
    assert tag_digest(copied) == index.digest
