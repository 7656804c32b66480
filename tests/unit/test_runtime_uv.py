"""Workers of a running image never change its venvs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.render import image_env
from lockstep.tools import uv_program


def _fingerprint(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)} {path.lstat().st_mode} {path.lstat().st_mtime_ns}\n".encode())
        if path.is_file() and not path.is_symlink():
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("options", [(), ("--active",)], ids=["plain", "active"])
def test_C2_uv_run_leaves_the_venv_as_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    venv, project = tmp_path / "venv", tmp_path / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    project.mkdir()
    # A project whose requirement the venv lacks: plain `uv run` would resolve and install it, on every worker.
    (project / "pyproject.toml").write_text(
        '[project]\nname = "job"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["idna==3.7"]\n'
    )
    before = _fingerprint(venv)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("UV_", "VIRTUAL_ENV"))},
        **image_env(["vllm"]),
        "PATH": f"{venv / 'bin'}:/usr/bin:/bin",
        "VIRTUAL_ENV": str(venv),
        "UV_OFFLINE": "1",  # as with --network none
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    words = [str(uv_program()), "run", *options, "python", "-c", "import sys; print(sys.prefix)"]
    done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=120)
    if options:
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(venv)
    assert "Installed" not in done.stderr
    assert _fingerprint(venv) == before
    assert not (project / "uv.lock").exists()
