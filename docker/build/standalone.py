"""Put a standalone Python at /usr/bin/python3.13 of a base that has none, such as NVIDIA's on Ubuntu 24.04.

uv knows the hash of each build it installs, and uv itself is pinned by hash, so the interpreter is too. It lies below
/opt/python, never below /root, where other users could not read it (CASES B2).

    standalone.py --version 3.13.9 --machine x86_64 --out /out
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from install import environment, settle


def main() -> None:
    """Install the interpreter below --out and link it as /usr/bin/python<minor> and libpython into the usual places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    name = f"cpython-{arguments.version}-linux-{arguments.machine}-gnu"
    folder = arguments.out / "opt" / "python"
    env = dict(environment(), UV_PYTHON_DOWNLOADS="manual", UV_PYTHON_INSTALL_DIR=str(folder))
    words = ["/opt/uv/bin/uv", "python", "install", "--no-bin", name]
    if subprocess.run(words, env=env, check=False).returncode:
        sys.exit(f"error: {name} could not be installed; uv fetches it from its own release site")
    minor = "python" + ".".join(arguments.version.split(".")[:2])
    target = arguments.out / "usr" / "bin" / minor
    target.parent.mkdir(parents=True)
    target.symlink_to(f"/opt/python/{name}/bin/{minor}")
    settle(arguments.out, int(os.environ["SOURCE_DATE_EPOCH"]))


if __name__ == "__main__":
    main()
