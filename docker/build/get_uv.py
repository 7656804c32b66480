"""Install uv into /opt/uv from one hashed requirement line on standard input, with the pip that Python brings.

Every layer's stage waits for this one, so it makes no environment and compiles nothing: pip runs out of the wheel
that Debian's python3-venv has for ensurepip (package python3-pip-whl), and nothing but bin/uv is used of the result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECRETS = Path("/run/secrets")
WHEELS = Path("/usr/share/python-wheels")


def main() -> None:
    """Run pip; the index, the certificate authority and credentials come as build secrets."""
    pip = next(WHEELS.glob("pip-*.whl"), None)
    if pip is None:
        sys.exit(f"error: {WHEELS} holds no pip: the builder's packages need python3-venv")
    env = dict(os.environ, PIP_CACHE_DIR="/var/cache/pip", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    env.update(PIP_ROOT_USER_ACTION="ignore", PYTHONPATH=str(pip))
    if (SECRETS / "index").is_file():
        env["PIP_INDEX_URL"] = (SECRETS / "index").read_text().strip()
    if (SECRETS / "ca").is_file():
        env["PIP_CERT"] = str(SECRETS / "ca")
    if (SECRETS / "netrc").is_file():
        env["NETRC"] = str(SECRETS / "netrc")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    words += ["--require-hashes", "--target", "/opt/uv", "-r", "/dev/stdin"]
    if subprocess.run(words, input=sys.stdin.read(), text=True, env=env, check=False).returncode:
        sys.exit("error: uv could not be installed; the lines above say why")


if __name__ == "__main__":
    main()
