"""What skopeo cannot do with a registry: an answer to given Accept types, and the referrers of a digest.

Images and artifacts are uploaded by skopeo (see push.py). The one thing put from here is the index under a referrers
tag: skopeo up to 1.9 writes an index anew and drops the artifactType of its entries. The protocol is
https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import requests

from lockstep.errors import LockstepError
from lockstep.ship.access import Access
from lockstep.ship.layout import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST
from lockstep.ship.refs import Ref

ALL_TYPES = (OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST)
ENROOT_LIST_TYPES = (DOCKER_LIST, OCI_INDEX)
"""What `enroot import` accepts when it asks for the list of architectures."""
ENROOT_IMAGE_TYPES = (DOCKER_MANIFEST, OCI_MANIFEST)
"""What it accepts when it asks for the image of one."""
_TIMEOUT = (15, 60)
_PAGE = 1000
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Manifest:
    """A manifest or index as the registry returned it."""

    digest: str
    media_type: str
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


class Registry:
    """A reader of one repository of a registry."""

    def __init__(self, ref: Ref, access: Access | None = None) -> None:
        self.ref = ref
        self.access = access or Access.of(ref.registry)
        self._session = requests.Session()
        if self.access.ca is not None:
            self._session.verify = str(self.access.ca)
            # requests lets REQUESTS_CA_BUNDLE override a session's verify unless it is told not to look.
            self._session.trust_env = False
        elif self.access.insecure:
            self._session.verify = False
            self._session.trust_env = False
        self._scheme = "https"
        self._authorization = ""

    def manifest(self, reference: str, accept: tuple[str, ...] = ALL_TYPES) -> Manifest | None:
        """Return what the registry gives for a tag or digest under `accept`, or None where it answers 404.

        The digest is computed from the bytes; where `reference` is a digest, other bytes are a LockstepError.
        """
        answer = self._get(f"manifests/{reference}", {"Accept": ", ".join(accept)} if accept else {})
        if answer.status_code == 404:
            return None
        self._must_be_ok(answer, f"manifest {reference}")
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise LockstepError(f"the registry gave {digest} for {reference}", where=self.ref.repository)
        return Manifest(digest, answer.headers.get("Content-Type", "").partition(";")[0], answer.content)

    def has_blob(self, digest: str) -> bool:
        """Return whether the repository holds a blob."""
        answer = self._ask("HEAD", f"blobs/{digest}", {})
        if answer.status_code != 404:
            self._must_be_ok(answer, f"blob {digest}")
        return answer.status_code != 404

    def blob(self, digest: str) -> bytes:
        """Return a small blob's bytes, checked against the digest."""
        answer = self._get(f"blobs/{digest}", {})
        self._must_be_ok(answer, f"blob {digest}")
        if f"sha256:{hashlib.sha256(answer.content).hexdigest()}" != digest:
            raise LockstepError(f"the registry gave other bytes for the blob {digest}", where=self.ref.repository)
        return answer.content

    def put_index(self, tag: str, body: bytes) -> None:
        """Point a tag at an OCI index whose manifests are in the repository already."""
        answer = self._ask("PUT", f"manifests/{tag}", {"Content-Type": OCI_INDEX}, body)
        if answer.status_code != 201:
            self._must_be_ok(answer, f"index {tag}")

    def tags(self) -> list[str]:
        """Return the repository's tags, none where the registry has no such repository."""
        found: list[str] = []
        while True:
            tail = f"tags/list?n={_PAGE}" + (f"&last={found[-1]}" if found else "")
            answer = self._get(tail, {})
            if answer.status_code == 404:
                return found
            self._must_be_ok(answer, "list of tags")
            try:
                more = [str(tag) for tag in answer.json().get("tags") or [] if tag not in found]
            except (AttributeError, TypeError, ValueError) as error:  # a proxy's page
                raise LockstepError(
                    "the registry's answer is no list of tags", where=str(self.ref), fix="check that it is a registry"
                ) from error
            found += more
            # Registries may answer with fewer than asked for; the Link header says that there are more.
            if not more or "Link" not in answer.headers:
                return found

    def delete(self, digest: str) -> None:
        """Remove a manifest with all its tags. LockstepError where the registry does not allow that."""
        answer = self._ask("DELETE", f"manifests/{digest}", {})
        if answer.status_code == 405:
            raise LockstepError("the registry does not allow deleting", where=self.ref.registry, fix="enable it there")
        if answer.status_code not in {202, 404}:
            self._must_be_ok(answer, f"deletion of {digest}")

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """Return the descriptors that refer to `digest` by the referrers API, or None where the registry lacks it."""
        answer = self._get(f"referrers/{digest}", {"Accept": OCI_INDEX})
        # 404 means no API (distribution-spec 1.1, "Listing Referrers"); some registries of before 1.1 answer otherwise.
        if answer.status_code in {400, 404, 405} or "json" not in answer.headers.get("Content-Type", ""):
            return None
        self._must_be_ok(answer, f"referrers of {digest}")
        found: list[dict[str, Any]] = answer.json().get("manifests") or []
        return found

    def _get(self, tail: str, headers: dict[str, str]) -> requests.Response:
        return self._ask("GET", tail, headers)

    def _ask(self, method: str, tail: str, headers: dict[str, str], body: bytes | None = None) -> requests.Response:
        answer = self._send(method, tail, headers, body)
        if answer.status_code == 401:
            self._authorize(answer.headers.get("WWW-Authenticate", ""))
            answer = self._send(method, tail, headers, body)
        return answer

    def _send(self, method: str, tail: str, headers: dict[str, str], body: bytes | None) -> requests.Response:
        if self._authorization:
            headers = {**headers, "Authorization": self._authorization}
        url = f"{self._scheme}://{self.ref.api_host}/v2/{self.ref.path}/{tail}"
        try:
            # requests drops the Authorization header where a redirect leads to another host, as it must.
            return self._session.request(
                method, url, headers=headers, data=body, timeout=_TIMEOUT, verify=self._session.verify
            )
        except requests.RequestException as error:
            if self.access.insecure and self._scheme == "https":
                self._scheme = "http"
                return self._send(method, tail, headers, body)
            if isinstance(error, requests.exceptions.SSLError):
                raise LockstepError(
                    f"its certificate is not trusted ({_short(error)})",
                    where=self.ref.registry,
                    fix="name its certificate authority with REGISTRY_CA=FILE",
                ) from None
            raise LockstepError(
                f"it does not answer ({_short(error)})", where=self.ref.registry, fix="check the name and the network"
            ) from None

    def _authorize(self, challenge: str) -> None:
        """Answer a 401 as https://distribution.github.io/distribution/spec/auth/token/ says, or by Basic."""
        credentials = self.access.credentials()
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if credentials is None:
                raise self._denied("it wants a login and there is none")
            self._authorization = requests.auth._basic_auth_str(credentials.user, credentials.password)
            return
        fields = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in fields:
            raise self._denied(f"it asks for the unknown login {kind!r}")
        query = {"scope": fields.get("scope") or f"repository:{self.ref.path}:pull"}
        if "service" in fields:
            query["service"] = fields["service"]
        answer = self._session.get(
            fields["realm"],
            params=query,
            auth=(credentials.user, credentials.password) if credentials else None,
            timeout=_TIMEOUT,
            verify=self._session.verify,
        )
        if answer.status_code != 200:
            raise self._denied("the login is refused")
        token = answer.json()
        self._authorization = f"Bearer {token.get('token') or token.get('access_token')}"

    def _denied(self, why: str) -> LockstepError:
        return LockstepError(why, where=self.ref.registry, fix=f"log in: skopeo login {self.ref.registry}")

    def _must_be_ok(self, answer: requests.Response, what: str) -> None:
        if answer.status_code in {401, 403}:
            raise self._denied(f"the login may not read {self.ref.path}")
        if answer.status_code != 200:
            raise LockstepError(
                f"it answered {answer.status_code} {answer.reason} for the {what}", where=self.ref.repository
            )


def _short(error: Exception) -> str:
    """Return the innermost words of a requests error, which wraps several others in its text."""
    inner: BaseException = error
    while inner.__context__ is not None:
        inner = inner.__context__
    return str(inner)[:200] or type(inner).__name__
