"""How a registry is reached: credentials, certificate authority, plain HTTP; for skopeo and for requests alike.

Credentials come only from the files that docker, podman and skopeo share, or from a helper named in them. They are
never put on a command line or into a message.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.run import run

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")
_CERT_DIRS = ("/etc/containers/certs.d", "/etc/docker/certs.d")
"""Where podman and docker look for a registry's own certificate authority (HOST:PORT/*.crt)."""


@dataclass(frozen=True)
class Credentials:
    """A user and a password or token. The text of it names neither."""

    user: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(…)"


@dataclass(frozen=True)
class Access:
    """What is needed to talk to one registry host."""

    host: str
    """HOST or HOST:PORT as in a reference; docker.io for Docker Hub."""
    authfile: Path | None
    """The file that holds credentials, in docker's config.json format."""
    ca: Path | None
    """A PEM file of the certificate authority to trust instead of the system's."""
    insecure: bool
    """Whether plain HTTP and unchecked certificates are allowed."""

    @classmethod
    def of(cls, host: str, env: Mapping[str, str] = os.environ) -> Access:
        """Collect the settings for `host` from the environment and the usual files.

        REGISTRY_AUTH_FILE, else $XDG_RUNTIME_DIR/containers/auth.json, else $DOCKER_CONFIG/config.json (as skopeo looks
        them up); REGISTRY_CA, else the host's folder below /etc/containers/certs.d or /etc/docker/certs.d;
        REGISTRY_INSECURE=1 allows plain HTTP, which a loopback host without a REGISTRY_CA may speak without asking
        (docker treats 127.0.0.0/8 so, https://docs.docker.com/reference/cli/dockerd/#insecure-registries).
        """
        ca = _authority(host, env)
        flag = env.get("REGISTRY_INSECURE", "")
        insecure = flag == "1" or (flag == "" and ca is None and _is_loopback(host))
        return cls(host, _authfile(env), ca, insecure)

    def credentials(self) -> Credentials | None:
        """Return the credentials for the host, or None where the files name none."""
        if self.authfile is None:
            return None
        try:
            config = json.loads(self.authfile.read_bytes())
        except ValueError:
            raise LockstepError("it is not JSON", where=str(self.authfile), fix="log in again") from None
        keys = _HUB_KEYS if self.host == "docker.io" else (self.host, f"https://{self.host}", f"http://{self.host}")
        helper = next((config["credHelpers"][key] for key in keys if key in config.get("credHelpers", {})), None)
        auths: dict[str, Any] = config.get("auths", {})
        if helper is None and not any(auths.get(key, {}).get("auth") for key in keys):
            helper = config.get("credsStore")
        if helper:
            return _ask_helper(helper, keys)
        entry = next((auths[key] for key in keys if auths.get(key, {}).get("auth")), None)
        if entry is None:
            return None
        try:
            user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = user = password = ""
        if not colon:
            raise LockstepError(
                f"the entry of {self.host} is not base64 of USER:PASSWORD",
                where=str(self.authfile),
                fix=f"log in again: skopeo login {self.host}",
            )
        return Credentials(user, password)

    @contextlib.contextmanager
    def skopeo(self, side: str) -> Iterator[list[str]]:
        """Yield skopeo's options for this registry as `side` (`src`, `dest`, or empty for inspect)."""
        prefix = f"--{side}-" if side else "--"
        options: list[str] = []
        if self.authfile is not None:
            options += [f"{prefix}authfile", str(self.authfile)]
        if self.insecure:
            options.append(f"{prefix}tls-verify=false")
        if self.ca is None:
            yield options
            return
        # skopeo takes a folder of *.crt files, not one file.
        with tempfile.TemporaryDirectory(prefix="lockstep-ca-") as folder:
            shutil.copyfile(self.ca, Path(folder) / "ca.crt")
            yield [*options, f"{prefix}cert-dir", folder]


def _authfile(env: Mapping[str, str]) -> Path | None:
    named = env.get("REGISTRY_AUTH_FILE")
    if named:
        if not Path(named).is_file():
            raise LockstepError("there is no such file", where=f"REGISTRY_AUTH_FILE={named}", fix="log in, or unset it")
        return Path(named)
    home = Path(env.get("HOME", "/root"))
    places = [Path(env.get("DOCKER_CONFIG", home / ".docker")) / "config.json"]
    if "DOCKER_CONFIG" not in env and "XDG_RUNTIME_DIR" in env:
        places.insert(0, Path(env["XDG_RUNTIME_DIR"]) / "containers/auth.json")
    return next((place for place in places if place.is_file()), None)


def _authority(host: str, env: Mapping[str, str]) -> Path | None:
    named = env.get("REGISTRY_CA")
    if named:
        if not Path(named).is_file():
            raise LockstepError("there is no such file", where=f"REGISTRY_CA={named}", fix="name a PEM file")
        return Path(named)
    for folder in _CERT_DIRS:
        found = sorted((Path(folder) / host).glob("*.crt"))
        if found:
            return found[0]
    return None


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _ask_helper(helper: str, keys: tuple[str, ...]) -> Credentials | None:
    """Ask docker-credential-HELPER (https://github.com/docker/docker-credential-helpers) for the first known key."""
    for key in keys:
        try:
            answer = json.loads(run([f"docker-credential-{helper}", "get"], stdin=key, timeout=60))
        except LockstepError as error:
            if "not found" in str(error):
                continue
            raise
        return Credentials(answer["Username"], answer["Secret"])
    return None
