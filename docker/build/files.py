"""Lay out the image's own files: entrypoint and empty mount points, with settled modes and times.

files.py --from DIR --out /out
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from install import settle

# Mount points that users and clusters cover; they must exist in a read-only image.
FOLDERS = ("workspace",)


def main() -> None:
    """Copy the files below --from to /opt/lockstep of --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    target = arguments.out / "opt" / "lockstep"
    shutil.copytree(arguments.source, target)
    for name in FOLDERS:
        (arguments.out / name).mkdir()
    settle(arguments.out, int(os.environ["SOURCE_DATE_EPOCH"]))


if __name__ == "__main__":
    main()
