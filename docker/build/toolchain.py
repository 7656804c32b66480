"""Install the build environment of a compile stage: hashed requirement lines on standard input, into /opt/build.

This stage has a network and runs no code of the packages that it installs; the stage that compiles has none.
"""

from __future__ import annotations

import subprocess
import sys
import venv

from install import environment


def main() -> None:
    """Make the environment; index, certificate authority and credentials come as build secrets."""
    venv.create("/opt/build", with_pip=False)
    words = ["/opt/uv/bin/uv", "pip", "install", "--quiet", "--python", "/opt/build/bin/python"]
    words += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirements", "/dev/stdin"]
    if subprocess.run(words, input=sys.stdin.read(), text=True, env=environment(), check=False).returncode:
        sys.exit("error: the build environment could not be installed; the lines above say why")


if __name__ == "__main__":
    main()
