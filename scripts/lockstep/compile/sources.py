"""Fetch the source of a compiled package before its build starts: the build itself has no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch
from lockstep.compile.spec import CompileSpec, GitSource, SdistSource
from lockstep.errors import LockstepError
from lockstep.files import held_lock, replacing, sha256_file
from lockstep.index import files_of, index_url, redact
from lockstep.paths import state_dir

_CHUNK = 1 << 20
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Source:
    """A source at hand. `identity` is what the cache key names; `folder` holds exactly `name`, a file or a folder."""

    identity: str
    folder: Path
    name: str


def identity(package: str, spec: CompileSpec, arch: Arch) -> str:
    """Return what identifies the source of a package, without fetching it: sdist:<sha256> or git:<commit>."""
    if isinstance(spec.source, SdistSource):
        return f"sdist:{spec.source.sdist_sha256}"
    commit = spec.source.at(arch)
    if commit is None:
        raise LockstepError(
            f"no commit is declared for {arch}",
            where=f"versions.yaml compile.{package}.source.commit",
            fix=f"add the commit for {arch}, or leave the package out on it",
        )
    return f"git:{commit}"


def fetch(package: str, spec: CompileSpec, arch: Arch) -> Source:
    """Return the source, from state_dir()/sources if it was fetched before. LockstepError where it cannot be had."""
    name = identity(package, spec, arch)
    if isinstance(spec.source, SdistSource):
        return _sdist(package, spec.version, spec.source.sdist_sha256)
    return _checkout(package, spec.source, name.removeprefix("git:"))


def _sources() -> Path:
    return state_dir() / "sources"


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Let one process at a time fetch."""
    return held_lock(folder / ".lock", "another command is fetching sources; waiting for it")


def _sdist(package: str, version: str, sha256: str) -> Source:
    folder = _sources() / sha256
    with _alone(_sources()):
        there = [path for path in folder.glob("*") if not path.name.startswith(".")] if folder.is_dir() else []
        if there and sha256_file(there[0]) == sha256:
            return Source(f"sdist:{sha256}", folder, there[0].name)
        found = [item for item in files_of(package, version) if item.sha256 == sha256]
        if not found or found[0].filename.endswith(".whl"):
            listed = [item.filename for item in files_of(package, version) if not item.filename.endswith(".whl")]
            raise LockstepError(
                f"the index lists no sdist of {package} {version} with sha256 {sha256[:16]}…",
                where=f"index {redact(index_url())}",
                fix=f"correct compile.{package}.source; there is {', '.join(listed) or 'no sdist at all'}",
            )
        shutil.rmtree(folder, ignore_errors=True)
        download(found[0].url, folder / found[0].filename, sha256)
    return Source(f"sdist:{sha256}", folder, found[0].filename)


def download(url: str, target: Path, sha256: str) -> None:
    """Fetch `url` into `target`, whole and with that SHA-256 or not at all."""
    with replacing(target) as part:
        import requests  # only here: rendering imports this module, and starts in a fraction of a second

        try:
            with requests.get(url, stream=True, timeout=_TIMEOUT) as reply, part.open("wb") as stream:
                reply.raise_for_status()
                for chunk in reply.iter_content(_CHUNK):
                    stream.write(chunk)
        except requests.RequestException as error:
            raise LockstepError(
                f"cannot be downloaded ({type(error).__name__})",
                where=redact(url).split("#")[0],
                fix="check the network, and run it again",
            ) from None
        found = sha256_file(part)
        if found != sha256:
            raise LockstepError(
                f"{target.name} has sha256 {found[:16]}…, not {sha256[:16]}… as declared",
                where=redact(url).split("#")[0],
                fix="do not use it: find out who changed it, or correct the declared hash",
            )
        part.chmod(0o644)


def _checkout(package: str, source: GitSource, commit: str) -> Source:
    """Lay out a commit with its submodules and without its history.

    git runs in the user's own environment, so that `url.<mirror>.insteadOf`, credentials and certificates apply.
    """
    folder = _sources() / f"git-{commit}"
    with _alone(_sources()):
        for left in _sources().glob(".git-*.part"):
            shutil.rmtree(left)  # of a process that was killed: the lock is ours
        if not (folder / package).is_dir():
            with tempfile.TemporaryDirectory(prefix=".git-", suffix=".part", dir=_sources()) as text:
                tree = Path(text) / package
                _clone(package, source, commit, tree)
                for inner in [tree / ".git", *tree.rglob(".git")]:
                    shutil.rmtree(inner) if inner.is_dir() and not inner.is_symlink() else inner.unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                tree.rename(folder / package)
    return Source(f"git:{commit}", folder, package)


def _clone(package: str, source: GitSource, commit: str, tree: Path) -> None:
    tree.mkdir(parents=True)
    _git(tree, package, source, "init", "--quiet")
    _git(tree, package, source, "remote", "add", "origin", source.git)
    if not _try(tree, "fetch", "--quiet", "--depth=1", "origin", commit):
        # A server may refuse to give a single commit that no branch ends in: then all of its history has to come.
        _git(tree, package, source, "fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*")
    _git(tree, package, source, "checkout", "--quiet", "--detach", commit)
    if source.submodules and (tree / ".gitmodules").is_file():
        words = ("submodule", "--quiet", "update", "--init", "--recursive")
        if not _try(tree, *words, "--depth=1"):
            _git(tree, package, source, *words)


def _run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # A server that sends nothing for 30 s is away; a password prompt would wait for ever.
    environment = dict(
        os.environ,
        GIT_TERMINAL_PROMPT="0",
        GIT_HTTP_LOW_SPEED_LIMIT="1",
        GIT_HTTP_LOW_SPEED_TIME="30",
        LC_ALL="C.UTF-8",
    )
    try:
        return subprocess.run(["git", *words], cwd=tree, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LockstepError("the program git is not installed", fix="install git") from None


def _try(tree: Path, *words: str) -> bool:
    return _run(tree, *words).returncode == 0


def _git(tree: Path, package: str, source: GitSource, *words: str) -> None:
    done = _run(tree, *words)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        # The first "fatal" names the address that failed, a submodule's too; the last only that something did.
        said = [line for line in lines if line.startswith("fatal:")][:1] or lines
        raise LockstepError(
            f"the source of {package} cannot be fetched: git {words[0]} says: {said[-1] if said else 'nothing'}",
            where=redact(source.git) if "://" in source.git else source.git,
            fix="run it where that address can be reached, or tell git of a mirror: "
            "git config --global url.<mirror>.insteadOf <start of the address>",
        )
