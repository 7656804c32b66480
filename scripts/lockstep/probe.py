"""Step 6: run an image and look. Starts containers, lets pytest-testinfra look into them, and records what it saw.

Two containers: one as root, and one as a cluster runs it: uid 12345, read-only, no network, and other file systems
mounted over /root, /home, /tmp, /run and /workspace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.arch import Arch, host_arch
from lockstep.build import reference
from lockstep.engine import Engine, ensure_engine
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.matrix import Matrix
from lockstep.paths import BUILD
from lockstep.run import run

PROBES = BUILD / "probe"
COVERED = ("/root", "/home", "/tmp", "/run", "/workspace")
"""What clusters mount over: nothing that the image needs may lie there."""

_CODE = Path(__file__).resolve().parents[2]
"""Where the probes lie: beside this program, also when LOCKSTEP_ROOT names another checkout."""

USERS = {
    "root": [],
    "user": [
        "--user",
        "12345:12345",
        "--read-only",
        *[word for folder in COVERED for word in ("--tmpfs", f"{folder}:exec,mode=1777")],
    ],
}


def probe(matrix: Matrix, image: str, arch: Arch, select: str = "") -> Path:
    """Probe an image that has been built and named; return the record's path.

    select is a pytest -k expression. LockstepError where the image is not in the engine or a probe failed.
    """
    engine = ensure_engine()
    name = reference(image, arch)
    if arch is not host_arch():
        from lockstep.engine_binfmt import ensure_binfmt

        ensure_binfmt(arch)
    inspect = engine.docker_cmd("image", "inspect", "--format", "{{json .Config}}", name)
    known = subprocess.run(inspect, env=engine.env, capture_output=True, text=True, check=False)
    if known.returncode:
        raise LockstepError(
            "the engine has no such image", where=name, fix=f"run `make image IMAGE={image} ARCH={arch}`"
        )
    record = PROBES / f"{image}.{arch}.json"
    seen: dict[str, dict[str, dict[str, str]]] = {}
    failed = []
    for user, flags in USERS.items():
        with _container(engine, name, arch, flags) as container:
            results = record.with_name(f".{record.name}.{user}")
            about = {"LOCKSTEP_IMAGE": image, "LOCKSTEP_ARCH": arch.value, "LOCKSTEP_USER": user}
            about |= {"LOCKSTEP_RESULTS": str(results), "LOCKSTEP_CONFIG": known.stdout}
            if _pytest(engine, container, about, select):
                failed.append(user)
            _merge(seen, user, results)
    write_text(
        record, json.dumps({"image": image, "arch": arch.value, "modules": seen}, indent=1, sort_keys=True) + "\n"
    )
    if failed:
        raise LockstepError(
            f"probes failed as {' and '.join(failed)}", where=name, fix="read the lines above; they name each probe"
        )
    return record


@contextmanager
def _container(engine: Engine, name: str, arch: Arch, flags: list[str]) -> Iterator[str]:
    """Start a container that sleeps, without network, and remove it afterwards."""
    words = ["run", "--detach", "--rm", "--network", "none", "--platform", arch.platform, *flags, name]
    container = run(engine.docker_cmd(*words, "sleep", "7200"), env=engine.env).strip()
    try:
        yield container
    finally:
        run(engine.docker_cmd("rm", "--force", container), env=engine.env)


def _pytest(engine: Engine, container: str, about: dict[str, str], select: str) -> int:
    """Run tests/image against a container; `about` tells them what it is."""
    env = engine.env | about
    # testinfra calls the first `docker` of PATH.
    env["PATH"] = f"{engine.docker.parent}{os.pathsep}{env.get('PATH', '')}"
    Path(about["LOCKSTEP_RESULTS"]).parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--hosts=docker://{container}"]
    words += ["-k", select] if select else []
    return subprocess.run([*words, "tests/image"], cwd=_CODE, env=env, check=False).returncode


def _merge(seen: dict[str, dict[str, dict[str, str]]], user: str, results: Path) -> None:
    """Join one container's module results (written by tests/image/conftest.py) into the record."""
    if results.is_file():
        for module, result in json.loads(results.read_text()).items():
            seen.setdefault(module, {})[user] = result
        results.unlink()
