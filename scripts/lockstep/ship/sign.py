"""Sign a digest with the user's key, in the format that `cosign verify --key` reads.

The payload is the "simple signing" document of https://github.com/containers/image/blob/main/docs/containers-signature.5.md
as cosign writes it; the signature is ECDSA or RSA over its SHA-256 by openssl, in base64, in an annotation of the layer
that holds the payload; the manifest lies under the tag sha256-<digest>.sig (cosign's specs/SIGNATURE_SPEC.md).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.ship.access import Access
from lockstep.ship.layout import OCI_MANIFEST, Layout, put_blob
from lockstep.ship.push import copy, write_layout
from lockstep.ship.refs import Ref
from lockstep.ship.registry import Registry

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
PASSWORD_VARIABLE = "SIGN_PASSWORD"
"""The environment variable that holds the key's password, where it has one."""


def payload(repository: str, digest: str) -> bytes:
    """Return the document that is signed. Its bytes depend on the repository and the digest alone."""
    data = {
        "critical": {
            "identity": {"docker-reference": repository},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    return json.dumps(data, separators=(",", ":")).encode()


def sign_bytes(data: bytes, key: Path) -> bytes:
    """Return the signature of `data` by a PEM private key. LockstepError where openssl cannot use the key.

    A password is read from SIGN_PASSWORD; it goes to openssl through the environment, not the command line.
    """
    text = key.read_text(errors="replace") if key.is_file() else ""
    if "SIGSTORE" in text or "COSIGN" in text:
        raise LockstepError(
            "it is in cosign's own encryption, which openssl cannot read",
            where=str(key),
            fix="make a key with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem`",
        )
    argv = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    if PASSWORD_VARIABLE in os.environ:
        argv += ["-passin", f"env:{PASSWORD_VARIABLE}"]
    return _openssl(argv, data, key, "a PEM private key", stdin_closed="ENCRYPTED" in text)


def verify_bytes(data: bytes, signature: bytes, key: Path) -> bool:
    """Return whether `signature` over `data` was made by the owner of a PEM public key."""
    with tempfile.TemporaryDirectory(prefix="lockstep-verify-") as folder:
        path = Path(folder) / "signature"
        path.write_bytes(signature)
        argv = ["openssl", "dgst", "-sha256", "-verify", str(key), "-signature", str(path)]
        done = subprocess.run(argv, input=data, capture_output=True, check=False)
    if b"Verif" in done.stdout:
        return done.returncode == 0
    raise LockstepError("openssl cannot read it as a PEM public key", where=str(key), fix="give the public half")


def sign(target: Ref, digests: Sequence[str], key: Path) -> None:
    """Sign each digest in target's repository; signatures by other keys stay."""
    access = Access.of(target.registry)
    registry = Registry(target, access)
    for digest in digests:
        data = payload(target.repository, digest)
        signature = base64.b64encode(sign_bytes(data, key)).decode()
        with tempfile.TemporaryDirectory(prefix="lockstep-sign-") as folder:
            layout = Layout(Path(folder))
            layer = {**put_blob(layout, data, PAYLOAD_TYPE).to_json(), "annotations": {ANNOTATION: signature}}
            others = _signatures_of(registry, digest, without=data, folder=layout)
            layers = [*others, layer]
            config = {
                "architecture": "",
                "os": "",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
            }
            manifest = {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": put_blob(layout, json.dumps(config).encode(), _CONFIG_TYPE).to_json(),
                "layers": layers,
            }
            write_layout(layout.path, [], [put_blob(layout, json.dumps(manifest).encode(), OCI_MANIFEST)])
            copy(layout, target.with_tag(tag_of(digest)), access)


def _signatures_of(registry: Registry, digest: str, without: bytes, folder: Layout) -> list[dict[str, object]]:
    """Return the layers of earlier signatures over other payloads, and put those payloads into `folder`."""
    before = registry.manifest(tag_of(digest))
    kept = []
    for each in before.data.get("layers", []) if before else []:
        body = registry.blob(each["digest"])
        if body != without:
            put_blob(folder, body, each["mediaType"])
            kept.append(each)
    return kept


def verify(target: Ref, digest: str, key: Path) -> None:
    """Raise LockstepError unless `digest` carries a signature by `key` whose payload names this digest."""
    registry = Registry(target)
    manifest = registry.manifest(tag_of(digest))
    if manifest is None:
        raise LockstepError(f"{digest} is not signed", where=target.repository, fix="push it with SIGN_KEY=")
    for layer in manifest.data["layers"]:
        encoded = layer.get("annotations", {}).get(ANNOTATION, "")
        data = registry.blob(layer["digest"])
        try:
            named = json.loads(data)["critical"]["image"]["docker-manifest-digest"]
            signature = base64.b64decode(encoded, validate=True)
        except (ValueError, KeyError, TypeError, binascii.Error):
            continue
        if named == digest and signature and verify_bytes(data, signature, key):
            return
    raise LockstepError(
        f"no signature of {digest} was made with this key", where=f"{target.repository} {key}", fix="do not use it"
    )


def tag_of(digest: str) -> str:
    """Return the tag that cosign looks under for the signatures of a digest."""
    return digest.replace(":", "-") + ".sig"


def _openssl(argv: list[str], data: bytes, key: Path, what: str, *, stdin_closed: bool) -> bytes:
    if not key.is_file():
        raise LockstepError("there is no such file", where=str(key), fix="name the key's file")
    if stdin_closed and PASSWORD_VARIABLE not in os.environ:
        raise LockstepError("the key has a password", where=str(key), fix=f"give it in {PASSWORD_VARIABLE}")
    try:
        done = subprocess.run(argv, input=data, capture_output=True, check=False)
    except FileNotFoundError:
        raise LockstepError("the program openssl is not installed", fix="install the package openssl") from None
    if done.returncode:
        raise LockstepError(f"openssl cannot use it as {what}", where=str(key), fix="check the file and its password")
    return done.stdout
