"""Image references: parse one, and write it as the registry, enroot and pyxis each want to read it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lockstep.errors import LockstepError

DOCKER_HUB = "docker.io"
_HUB_ALIASES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_HUB_API = "registry-1.docker.io"
"""The host that serves Docker Hub's registry API, and the name by which enroot knows it."""

# The grammar of https://github.com/distribution/reference: one domain, then lower-case path components.
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_DOMAIN = rf"(?:{_WORD}(?:\.{_WORD})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_IS_DOMAIN = re.compile(rf"{_DOMAIN}\Z")


@dataclass(frozen=True)
class Ref:
    """A reference to an image in a registry; `registry` is docker.io for Docker Hub."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """Registry and path, without tag or digest."""
        return f"{self.registry}/{self.path}"

    @property
    def api_host(self) -> str:
        """The host (and port) that answers the registry's HTTP API."""
        return _HUB_API if self.registry == DOCKER_HUB else self.registry

    @property
    def reference(self) -> str:
        """What goes after /manifests/ in the API: the digest where there is one, else the tag, else `latest`."""
        return self.digest or self.tag or "latest"

    def with_tag(self, tag: str) -> Ref:
        """Return the same repository at `tag`."""
        return replace(self, tag=_checked_tag(tag, tag), digest="")

    def with_digest(self, digest: str) -> Ref:
        """Return the same repository at `digest`, without a tag."""
        if not _DIGEST.match(digest):
            raise LockstepError(f"{digest!r} is no sha256 digest", fix="give sha256: and 64 hexadecimal digits")
        return replace(self, tag="", digest=digest)

    def __str__(self) -> str:
        return self.repository + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def skopeo(self) -> str:
        """The name for skopeo, which refuses a tag beside a digest: the digest wins."""
        return f"docker://{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}")

    @property
    def pyxis(self) -> str:
        """The value of `srun --container-image`: REGISTRY#PATH:TAG, read alike by every enroot from 3.0.1 to 4.2.

        `#` always separates the registry, where `/` made enroot before 4.0 ask Docker Hub (NVIDIA/pyxis#168). A digest
        is written as a tag (`:sha256:…`), which enroot has read since 3.0.1; the `@sha256:…` form came with 4.0, and
        enroot before it refuses a tag and a digest together (NVIDIA/pyxis#118). A digest says more than a tag, so the
        tag is left out beside one. Docker Hub is left out too: every version asks it by default, and only enroot
        after 4.1.2 knows it by its alias docker.io.
        """
        where = "" if self.registry == DOCKER_HUB else f"{self.registry}#"
        path = self.path
        if self.registry == DOCKER_HUB and path.startswith("library/"):
            path = path.removeprefix("library/")
        return f"{where}{path}:{self.reference}"

    @property
    def enroot(self) -> str:
        """The URI for `enroot import`, in the form that every version reads (see `pyxis`)."""
        return f"docker://{self.pyxis}"

    @property
    def enroot_short(self) -> str:
        """The URI in Docker's own spelling, which enroot reads since 4.0 where the registry has a dot or a port."""
        tail = f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}"
        if self.registry == DOCKER_HUB:
            return f"docker://{self.path.removeprefix('library/')}{tail}"
        if "." not in self.registry and ":" not in self.registry:
            # `localhost/…` is a Docker Hub user's image to enroot.
            return self.enroot
        return f"docker://{self.registry}/{self.path}{tail}"

    @property
    def enroot_canonical(self) -> str:
        """What enroot writes into /etc/rc as the provenance of an import (`docker://REGISTRY#PATH:TAG`)."""
        return f"docker://{self.api_host}#{self.path}:{self.reference}"

    @property
    def enroot_needs_4(self) -> bool:
        """Whether enroot_short means something else, or nothing, to enroot before 4.0."""
        return self.registry != DOCKER_HUB or bool(self.digest)

    @property
    def sqsh_name(self) -> str:
        """The file that `enroot import` makes where no -o is given: path and tag joined by `+`."""
        path = self.path.removeprefix("library/") if self.registry == DOCKER_HUB else self.path
        return f"{path.replace('/', '+')}+{self.reference}.sqsh"


def parse(text: str) -> Ref:
    """Parse `[REGISTRY/]PATH[:TAG][@DIGEST]`, with or without docker:// before it, and enroot's `REGISTRY#PATH` too.

    The first component is a registry if it holds a dot or a port or is `localhost`; else the image is Docker Hub's,
    under `library/` where it has one component (the rule of Docker's reference package). LockstepError names the part
    that is wrong.
    """
    rest = text.removeprefix("docker://")
    rest, _, digest = rest.partition("@")
    if digest and not _DIGEST.match(digest):
        raise LockstepError(f"{digest!r} is no sha256 digest", where=text, fix="give sha256: and 64 hexadecimal digits")
    registry, hash_mark, path = rest.partition("#")
    if not hash_mark:
        first, slash, others = rest.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry, path = first, others
        else:
            registry, path = DOCKER_HUB, rest
    path, tag = _split_tag(path)
    if tag.startswith("sha256:") and not digest:
        tag, digest = "", tag
        if not _DIGEST.match(digest):
            raise LockstepError(f"{digest!r} is no sha256 digest", where=text, fix="give 64 hexadecimal digits")
    if registry in _HUB_ALIASES:
        registry = DOCKER_HUB
        path = path if "/" in path else f"library/{path}"
    if not _IS_DOMAIN.match(registry):
        raise LockstepError(f"{registry!r} is no registry's host", where=text, fix="give HOST or HOST:PORT")
    if not _PATH.match(path):
        raise LockstepError(
            f"{path!r} is no repository path", where=text, fix="use lower-case words joined by / . _ or -"
        )
    return Ref(registry, path, _checked_tag(tag, text) if tag else "", digest)


def _split_tag(path: str) -> tuple[str, str]:
    """Split PATH[:TAG]; the tag may itself hold colons (enroot's `:sha256:…`)."""
    head, colon, tag = path.partition(":")
    return (head, tag) if colon else (path, "")


def _checked_tag(tag: str, where: str) -> str:
    if not _TAG.match(tag):
        raise LockstepError(
            f"{tag!r} is no tag", where=where, fix="use at most 128 letters, digits, dots, dashes and underscores"
        )
    return tag
