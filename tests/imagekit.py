"""What the build tests share: a checkout of their own, with tiny wheels from an index of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep import paths
from lockstep.arch import host_arch
from lockstep.matrix import load

ARCH = host_arch()
PARTS = ("bases", "compile", "stages", "docker", "requirements.txt", ".dockerignore", "versions.yaml", "images")


@dataclass
class Checkout:
    """A copy of what a build reads. `run` runs the command line in it; `env` is added to the environment."""

    root: Path
    env: dict[str, str]

    def run(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `lockstep WORDS` in this checkout and return what it said."""
        whole = os.environ | self.env | {"LOCKSTEP_ROOT": str(self.root)} | (env or {})
        program = [sys.executable, "-c", "from lockstep.cli import main; main()"]
        return subprocess.run([*program, *words], env=whole, capture_output=True, text=True, check=False, timeout=1500)

    def ok(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Run `lockstep WORDS`, which must succeed; return its stdout and stderr."""
        done = self.run(*words, env=env)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout + done.stderr

    def fails(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Run `lockstep WORDS`, which must end with exit code 1, one sentence and no traceback; return the sentence."""
        done = self.run(*words, env=env)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr[done.stderr.index("error: ") :]

    def digest(self, image: str) -> str:
        """Return the manifest digest of the image that was built last."""
        return str(json.loads((self.layout(image) / "index.json").read_text())["manifests"][0]["digest"])

    def layout(self, image: str) -> Path:
        """Return the OCI layout of an image."""
        return self.root / "build" / "oci" / f"{image}.{ARCH}"

    def layers(self, image: str) -> list[str]:
        """Return the layer digests of an image, bottom first."""
        manifest = self.layout(image) / "blobs" / "sha256" / self.digest(image).removeprefix("sha256:")
        return [str(layer["digest"]) for layer in json.loads(manifest.read_text())["layers"]]

    def edit(self, old: str, new: str) -> None:
        """Replace text in versions.yaml; it must be there."""
        path = self.root / "versions.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def checkout(folder: Path, env: dict[str, str] | None = None) -> Checkout:
    """Copy the committed inputs of a build into `folder`."""
    folder.mkdir(parents=True)
    for name in PARTS:
        source = paths.ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy2(source, folder / name)
    return Checkout(folder, env or {})


def tiny(folder: Path, index: str, backends: dict[str, Sequence[str]], more: str = "") -> Checkout:
    """Make a checkout whose matrix has these backends alone, on one line, for this machine's architecture.

    The bases are those of the real matrix, so that nothing of Debian is made again.
    """
    made = checkout(folder, {"UV_DEFAULT_INDEX": index, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
    shutil.rmtree(made.root / "images")
    real = load()
    lines = [
        "schema: 1",
        f"epoch: {real.epoch}",
        f'python: "{real.python}"',
        f"arches: [{ARCH}]",
        f"bases: {json.dumps(real.bases.model_dump(mode='json', exclude={'cuda'}))}",
        "lines: {plain: {}}",
        "backends:",
        *(f"  {name}: {{line: plain, requires: {json.dumps(list(words))}{more}}}" for name, words in backends.items()),
        "images:",
        f"  tiny: {{backends: {json.dumps(list(backends))}}}",
    ]
    (made.root / "versions.yaml").write_text("\n".join(lines) + "\n")
    return made
