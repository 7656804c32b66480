"""Lay out the image's own files: entrypoint, add-ons, and the one list of patches.

files.py --from DIR --out /out [--patches DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from install import settle


def main() -> None:
    """Copy the files below --from to /opt/lockstep of --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patches", type=Path, help="reports of the patched layers, in any depth")
    arguments = parser.parse_args()
    target = arguments.out / "opt" / "lockstep"
    shutil.copytree(arguments.source, target)
    if arguments.patches:
        reports = sorted(str(path) for path in arguments.patches.rglob("*.json"))
        words = [sys.executable, str(Path(__file__).with_name("apply_patches.py")), "--merge", *reports]
        subprocess.run([*words, "--report", str(target / "patches.json")], check=True)
    settle(arguments.out, int(os.environ["SOURCE_DATE_EPOCH"]))


if __name__ == "__main__":
    main()
