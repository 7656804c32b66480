"""What a build needs to know and an image must not keep: index address, credentials, certificate authority.

They travel as BuildKit secrets, which are mounted for one RUN and are part of neither the layer nor the cache key.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import LockstepError

# The usual names, most specific first: Python's and uv's own, then requests', curl's and pip's.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@contextmanager
def build_secrets(*, fresh_bytecode: bool = False) -> Iterator[list[str]]:
    """Yield `id=…,src=…` for each secret that the environment holds; the index's file is gone afterwards.

    fresh_bytecode tells the stages to compile anew (docker/build/bytecode.py). It is no secret, but as one it reaches
    them without being part of a layer's cache key.

    LockstepError where a variable names a certificate file that is not there.
    """
    flags = []
    if ca := certificate_file():
        flags.append(f"id=ca,src={ca}")
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if netrc.is_file():
        flags.append(f"id=netrc,src={netrc}")
    if fresh_bytecode:
        flags.append(f"id=fresh-bytecode,src={os.devnull}")
    index = next((os.environ[name] for name in _INDEX_VARIABLES if os.environ.get(name)), None)
    if index is None:
        yield flags
        return
    # mkstemp makes the file readable by its owner alone: the address may hold a password.
    with tempfile.NamedTemporaryFile("w", prefix="lockstep-", encoding="utf-8") as stream:
        stream.write(index)
        stream.flush()
        yield [*flags, f"id=index,src={stream.name}"]


def certificate_file() -> Path | None:
    """Return the certificate authority file that the environment names, or None where it names none."""
    for name in _CA_VARIABLES:
        if value := os.environ.get(name):
            if Path(value).is_file():
                return Path(value)
            raise LockstepError(
                "is not a file", where=f"{name}={value}", fix="name the file of certificates, or unset the variable"
            )
    return None
