"""Find the Docker to build with, or make one.

In order: DOCKER_HOST; the machine's own Docker, if it answers and has buildx; the private engine (engine_private).
BUILDER names a buildx builder, local, remote or Kubernetes, and is passed on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lockstep import engine_private
from lockstep.console import note
from lockstep.engine_private import EngineDir, engine_dir
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.paths import BUILD
from lockstep.run import run

_CONTAINERD_DRIVER = "io.containerd.snapshotter"


@dataclass(frozen=True)
class Engine:
    """A Docker that answers, with buildx."""

    docker: Path
    """The client program."""

    env: dict[str, str]
    """The whole environment to run the client in (and anything that runs it: bake, testinfra)."""

    private: bool
    """Whether it is Lockstep's own; then builds and containers have the host's network or none, and no bridge."""

    containerd_store: bool
    """Whether images are kept in containerd's store, which holds zstd layers and OCI layouts as they are."""

    def docker_cmd(self, *args: str) -> list[str]:
        """Return the words of a docker command, to be run with `env`."""
        return [str(self.docker), *args]

    @property
    def build_network(self) -> str:
        """The network mode that a build step or a container with network access needs here: 'host' or 'default'."""
        return "host" if self.private else "default"

    def bake_network(self, *targets: str) -> list[str]:
        """Return the words of a bake command that give `targets` the network mode of `build_network`.

        buildx 0.13, the private engine's, ignores `network` in bake.hcl and has no --set for it; it takes the mode, and
        the right to it, from a compose file whose services are merged over the targets of the same names.
        """
        if not self.private:
            return []
        services = {name: {"build": {"network": "host"}} for name in targets}
        path = BUILD / "engine" / f"host-network.{'.'.join(targets)}.yaml"
        write_text(path, json.dumps({"services": services}) + "\n")
        return ["--file", str(path)]


@dataclass(frozen=True)
class EngineStatus:
    """What `make engine-status` shows."""

    kind: str
    """DOCKER_HOST, the machine's Docker, the private engine, or none."""

    running: bool
    address: str
    server: str
    buildx: str
    containerd_store: bool
    note: str


@dataclass(frozen=True)
class _Info:
    """What `docker info` says: version '' where no server answers, buildx '' where the client has no such plugin."""

    server: str
    buildx: str
    containerd_store: bool
    error: str


def ask(docker: Path, env: dict[str, str]) -> _Info:
    """Ask a client about itself and its server with one `docker info`; never raises for a server that is away."""
    try:
        done = subprocess.run(
            [docker, "info", "--format", "{{json .}}"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return _Info("", "", False, f"{docker} does not work")
    plugins = (answer.get("ClientInfo") or {}).get("Plugins") or []
    buildx = next((p.get("Version", "") or "?" for p in plugins if p.get("Name") == "buildx" and not p.get("Err")), "")
    errors = answer.get("ServerErrors") or []
    status = json.dumps(answer.get("DriverStatus") or [])
    return _Info(
        server=str(answer.get("ServerVersion", "")),
        buildx=buildx,
        containerd_store=_CONTAINERD_DRIVER in status,
        error=" ".join(errors) or done.stderr.strip(),
    )


def ensure_engine() -> Engine:
    """Return the engine to use, making and starting the private one where there is no other.

    LockstepError where DOCKER_HOST does not answer, or where there is no engine and none can be made.
    """
    env = _user_env()
    host = _other_host()
    reasons: list[str] = []
    local = None if _names_private() else shutil.which("docker")
    if local:
        info = ask(Path(local), env)
        if info.server and info.buildx:
            return Engine(Path(local), env, private=False, containerd_store=info.containerd_store)
        if info.buildx and "BUILDX_BUILDER" in env and not host:
            # A named builder builds without a Docker beside it; only loading and running images needs one.
            return Engine(Path(local), env, private=False, containerd_store=False)
        reasons.append(f"{local} has no buildx" if not info.buildx else f"{local}: {info.error}")
        if host and info.buildx:
            raise LockstepError(
                f"no Docker answers there: {info.error}",
                where=f"DOCKER_HOST={host}",
                fix="start it, or unset DOCKER_HOST",
            )
    else:
        reasons.append("no docker program in PATH")
    refused = engine_private.why_not_possible()
    if refused:
        raise LockstepError(
            f"there is no Docker to build with ({'; '.join(reasons)}), and {refused}, so none can be made",
            fix="install Docker with its buildx plugin, or set DOCKER_HOST to an engine elsewhere, or run as root",
        )
    where = engine_dir()
    if host:
        return _private_client(where, host)
    engine_private.start(where)
    return private_engine(where)


def private_engine(where: EngineDir) -> Engine:
    """Return the private engine at `where`, which must be running."""
    return Engine(where.bin / "docker", _private_env(where), private=True, containerd_store=True)


def _private_client(where: EngineDir, host: str) -> Engine:
    """Use the private engine's client, without starting the engine, for the Docker that DOCKER_HOST names."""
    with engine_private.engine_lock(where):
        engine_private.make_root(where)
    env = {**_private_env(where), "DOCKER_HOST": host}
    info = ask(where.bin / "docker", env)
    if not info.server:
        raise LockstepError(
            f"no Docker answers there: {info.error}", where=f"DOCKER_HOST={host}", fix="start it, or unset DOCKER_HOST"
        )
    return Engine(where.bin / "docker", env, private=False, containerd_store=info.containerd_store)


def _names_private() -> bool:
    """Return whether DOCKER_HOST is the private engine itself: a shell that `make engine` told how to reach it."""
    return os.environ.get("DOCKER_HOST") == f"unix://{engine_dir().socket}"


def _other_host() -> str:
    return "" if _names_private() else os.environ.get("DOCKER_HOST", "")


def _user_env() -> dict[str, str]:
    env = dict(os.environ)
    if env.get("BUILDER"):
        env["BUILDX_BUILDER"] = env["BUILDER"]
    return env


def _private_env(where: EngineDir) -> dict[str, str]:
    env = _user_env()
    if "BUILDX_BUILDER" in env and "BUILDX_CONFIG" not in env:
        # A builder that the user made is described in the user's own folder.
        user = Path(env.get("DOCKER_CONFIG", Path.home() / ".docker"))
        env["BUILDX_CONFIG"] = str(user / "buildx")
    env.pop("DOCKER_CONTEXT", None)
    env["DOCKER_HOST"] = f"unix://{where.socket}"
    env["DOCKER_CONFIG"] = str(where.config)
    env["PATH"] = f"{where.bin}{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


def forget_steps(engine: Engine) -> None:
    """Remove every finished step from the private engine's build cache, and leave the cache mounts.

    Those hold wheels and bytecode; `--no-cache` would empty them too (seen with dockerd 26.1). LockstepError where the
    engine is not the private one, whose cache is nobody else's.
    """
    if not engine.private:
        raise LockstepError(
            "only the private engine's build cache may be emptied, and this one may be somebody's",
            where=engine.env.get("DOCKER_HOST", "the default engine"),
            fix="unset DOCKER_HOST and run it as root: the private engine is used then",
        )
    run(engine.docker_cmd("buildx", "prune", "--all", "--force", "--filter", "type=regular"), env=engine.env)


def stop_engine() -> None:
    """Stop the private engine, if it runs; its images and caches stay. No other engine is touched."""
    note("stopped the private engine" if engine_private.stop(engine_dir()) else "no private engine is running")


def clean_engine() -> None:
    """Stop the private engine and remove it with all its images and caches."""
    engine_private.clean(engine_dir())
    note("the private engine is removed")


def engine_status() -> EngineStatus:
    """Return which engine a build would use now, without making or starting one."""
    env = _user_env()
    host = _other_host()
    local = None if _names_private() else shutil.which("docker")
    where = engine_dir()
    if local:
        info = ask(Path(local), env)
        if (info.server and info.buildx) or host:
            kind = "DOCKER_HOST" if host else "the machine's Docker"
            address = host or "the machine's default"
            return EngineStatus(
                kind, bool(info.server), address, info.server, info.buildx, info.containerd_store, info.error
            )
    if where.root.is_dir():
        # An engine that was killed leaves its socket; only one that answers is running.
        info = ask(where.bin / "docker", _private_env(where))
        remark = "" if info.server else "stopped; `make engine` starts it"
        return EngineStatus(
            "the private engine",
            bool(info.server),
            f"unix://{where.socket}",
            info.server,
            info.buildx,
            info.containerd_store,
            remark,
        )
    refused = engine_private.why_not_possible()
    remark = f"none can be made: {refused}" if refused else "`make engine` makes the private one"
    return EngineStatus("none", False, "", "", "", False, remark)
