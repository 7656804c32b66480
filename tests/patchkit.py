"""Fake virtual environments with one installed package, for tests of the patch helper."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APPLY = ROOT / "docker" / "build" / "apply_patches.py"
PATCHES = ROOT / "docker" / "patches"

HEADER = """\
Description: {summary}
Origin: other, a test
Forwarded: no
Last-Update: 2026-01-01
Lockstep-Id: {id}
Lockstep-Package: demo
Lockstep-Versions: {versions}
{more}---
"""

TEXT = "import os\n\n\ndef first():\n    return 1\n\n\ndef second():\n    return 2\n\n\nLAST = 3\n"

FIRST = """\
--- a/demo/code.py
+++ b/demo/code.py
@@ -4,4 +4,4 @@
 def first():
-    return 1
+    return 10
.
.
""".replace("\n.", "\n ")

SECOND = """\
--- a/demo/code.py
+++ b/demo/code.py
@@ -8,3 +8,4 @@
 def second():
-    return 2
+    two = 2
+    return two
.
""".replace("\n.", "\n ")


def install(venv: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Make a venv that holds one package and return its site-packages; RECORD lists every file."""
    site = venv / "lib" / "python3.13" / "site-packages"
    info = f"{name}-{version}.dist-info"
    content = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\n"}
    rows = []
    for path, text in content.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    (site / info / "RECORD").write_text("".join(rows) + f"{info}/RECORD,,\n")
    return site


def write_patch(folder: Path, diff: str, *, name: str = "a", versions: str = ">=1,<2", more: str = "") -> Path:
    """Write a patch of the package `demo` into a patches folder and return that folder."""
    target = folder / "demo" / f"{name}.patch"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(HEADER.format(summary="a test", id=f"demo-{name}", versions=versions, more=more) + diff)
    return folder


def apply(venv: Path, patches: Path, *options: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the helper as the build stage does. path: the PATH to run it with."""
    words = [sys.executable, str(APPLY), "--venv", str(venv), "--patches", str(patches), *map(str, options)]
    env = {"PATH": path} if path is not None else None
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env)


def integrity(site: Path) -> list[str]:
    """Return what of the RECORDs contradicts the disk: a wrong hash or size, or a file that is gone."""
    wrong = []
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(newline="") as stream:
            for path, digest, size in csv.reader(stream):
                file = site / path
                if not file.is_file():
                    wrong.append(f"{path} is gone")
                elif digest:
                    found = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
                    if digest != f"sha256={found}" or size != str(file.stat().st_size):
                        wrong.append(f"{path} differs")
    return wrong
