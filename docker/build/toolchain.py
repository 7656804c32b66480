"""Install the build environment of a compile stage: hashed requirement lines on standard input, into /opt/build.

This stage has a network and runs no code of the packages that it installs; the stage that compiles has none. It stands
alone, without the install stages' modules: a change of those must not make gigabytes of build environment anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

SECRETS = Path("/run/secrets")


def environment() -> dict[str, str]:
    """Return uv's environment; index, certificate authority and credentials come as build secrets."""
    env = dict(
        os.environ,
        UV_CACHE_DIR="/var/cache/uv",
        UV_LINK_MODE="copy",
        UV_NO_CONFIG="1",
        UV_PYTHON_DOWNLOADS="never",
        UV_HTTP_TIMEOUT="300",
    )
    if (SECRETS / "index").is_file():
        env["UV_DEFAULT_INDEX"] = (SECRETS / "index").read_text().strip()
    if (SECRETS / "ca").is_file():
        env["SSL_CERT_FILE"] = str(SECRETS / "ca")
    if (SECRETS / "netrc").is_file():
        env["NETRC"] = str(SECRETS / "netrc")
    return env


def main() -> None:
    """Make the environment, or add to it."""
    if not Path("/opt/build").exists():
        venv.create("/opt/build", with_pip=False)
    words = ["/opt/uv/bin/uv", "pip", "install", "--quiet", "--python", "/opt/build/bin/python"]
    words += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirements", "/dev/stdin"]
    if subprocess.run(words, input=sys.stdin.read(), text=True, env=environment(), check=False).returncode:
        sys.exit("error: the build environment could not be installed; the lines above say why")


if __name__ == "__main__":
    main()
