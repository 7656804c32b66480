"""Sources are fetched before a build: an sdist by hash, a commit with its submodules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import wheelkit
from lockstep import index as lockstep_index
from lockstep.arch import Arch
from lockstep.compile.sources import fetch, identity
from lockstep.compile.spec import CompileSpec
from lockstep.errors import LockstepError

PUBLIC = "https://forge.example/team/"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lockstep_index._page.cache_clear()
    monkeypatch.setenv("LOCKSTEP_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def spec(source: dict[str, object]) -> CompileSpec:
    return CompileSpec.model_validate(
        {
            "version": "1.0",
            "why": "there is no wheel",
            "source": source,
            "cuda_arches": ["9.0"],
            "imports": ["a"],
        }
    )


def test_an_sdist_is_fetched_once_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheelkit.sdist(tmp_path / "www", "some-thing", "1.0", {"setup.py": ""})
    sha256 = wheelkit.digest(made)
    with wheelkit.index([made]) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        first = fetch("some-thing", spec({"sdist_sha256": sha256}), Arch.X86_64)
        assert (first.folder / first.name).read_bytes() == made.read_bytes()
        assert first.folder.name == sha256
        asked = len(served.requests)
        assert fetch("some-thing", spec({"sdist_sha256": sha256}), Arch.X86_64) == first
        assert len(served.requests) == asked
        # A file that was cut short is fetched again.
        (first.folder / first.name).write_bytes(b"half")
        assert fetch("some-thing", spec({"sdist_sha256": sha256}), Arch.X86_64) == first
        assert (first.folder / first.name).read_bytes() == made.read_bytes()
        with pytest.raises(LockstepError, match=r"lists no sdist of some-thing 1\.0 with sha256 1111"):
            fetch("some-thing", spec({"sdist_sha256": "1" * 64}), Arch.X86_64)


def git(folder: Path, *words: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    names = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    return subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Two repositories, one the other's submodule by its public address, reached through the user's insteadOf."""
    here = tmp_path / "forge"
    config = tmp_path / "gitconfig"
    config.write_text(
        f'[url "{here}/"]\n\tinsteadOf = {PUBLIC}\n[protocol "file"]\n\tallow = always\n'
        "[user]\n\tname = t\n\temail = t@t\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    git(here / "part.git", "init", "-q", "-b", "main")
    (here / "part.git/part.h").write_text("#define PART 1\n")
    git(here / "part.git", "add", ".")
    git(here / "part.git", "commit", "-q", "-m", "part")
    git(here / "deep.git", "init", "-q", "-b", "main")
    (here / "deep.git/setup.py").write_text("print('deep')\n")
    git(here / "deep.git", "submodule", "add", "-q", f"{PUBLIC}part.git", "third-party/part")
    git(here / "deep.git", "add", ".")
    git(here / "deep.git", "commit", "-q", "-m", "deep")
    commit = git(here / "deep.git", "rev-parse", "HEAD")
    (here / "deep.git/setup.py").write_text("print('later')\n")
    git(here / "deep.git", "commit", "-q", "-a", "-m", "later")
    return here, commit


def test_a_commit_comes_through_the_users_mirror_with_its_submodules(forge: tuple[Path, str], state: Path) -> None:
    _, commit = forge
    source = fetch("deep-ep", spec({"git": f"{PUBLIC}deep.git", "commit": commit}), Arch.X86_64)
    tree = source.folder / source.name
    assert source.identity == f"git:{commit}"
    assert (tree / "setup.py").read_text() == "print('deep')\n"
    assert (tree / "third-party/part/part.h").read_text() == "#define PART 1\n"
    assert not list(tree.rglob(".git"))  # no history: a build that asks git for its version gets no local part
    assert fetch("deep-ep", spec({"git": "https://nowhere.invalid/x", "commit": commit}), Arch.X86_64) == source


def test_what_a_killed_fetch_left_is_removed(forge: tuple[Path, str], state: Path) -> None:
    _, commit = forge
    left = state / "sources/.git-abc.part"
    left.mkdir(parents=True)
    (state / f"sources/git-{commit}").mkdir()
    source = fetch("deep-ep", spec({"git": f"{PUBLIC}deep.git", "commit": commit}), Arch.X86_64)
    assert (source.folder / source.name / "setup.py").is_file()
    assert not left.exists()


def test_an_address_that_cannot_be_reached_fails_early_and_says_the_way_out(
    forge: tuple[Path, str], state: Path
) -> None:
    wanted = spec({"git": f"{PUBLIC}gone.git", "commit": "2" * 40})
    with pytest.raises(LockstepError) as caught:
        fetch("deep-ep", wanted, Arch.X86_64)
    assert "the source of deep-ep cannot be fetched: git fetch says: " in caught.value.what
    assert caught.value.where == f"{PUBLIC}gone.git"
    assert "insteadOf" in caught.value.fix
    assert not [path for path in (state / "sources").iterdir() if path.name != ".lock"]


def test_a_commit_of_its_own_for_each_architecture() -> None:
    wanted = spec({"git": f"{PUBLIC}deep.git", "commit": {"x86_64": "1" * 40}})
    assert identity("deep-ep", wanted, Arch.X86_64) == "git:" + "1" * 40
    with pytest.raises(LockstepError, match="no commit is declared for aarch64"):
        identity("deep-ep", wanted, Arch.AARCH64)


def test_git_never_waits_for_a_password(forge: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    wanted = spec({"git": "https://127.0.0.1:9/private.git", "commit": "3" * 40})
    with pytest.raises(LockstepError, match="cannot be fetched"):
        fetch("deep-ep", wanted, Arch.X86_64)
