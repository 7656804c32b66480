"""Install uv into /opt/uv from one hashed requirement line on standard input, with the pip that Python brings."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

SECRETS = Path("/run/secrets")


def main() -> None:
    """Make the environment; the index, the certificate authority and credentials come as build secrets."""
    env = dict(os.environ, PIP_CACHE_DIR="/var/cache/pip", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    if (SECRETS / "index").is_file():
        env["PIP_INDEX_URL"] = (SECRETS / "index").read_text().strip()
    if (SECRETS / "ca").is_file():
        env["PIP_CERT"] = str(SECRETS / "ca")
    if (SECRETS / "netrc").is_file():
        env["NETRC"] = str(SECRETS / "netrc")
    venv.create("/opt/uv", with_pip=True)
    words = [
        "/opt/uv/bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "-r",
        "/dev/stdin",
    ]
    if subprocess.run(words, input=sys.stdin.read(), text=True, env=env, check=False).returncode:
        sys.exit("error: uv could not be installed; the lines above say why")


if __name__ == "__main__":
    main()
