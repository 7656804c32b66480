"""What a build is given: the cache key, and the job that the driver inside the stage carries out."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from lockstep.base import Role, base_key, base_lock
from lockstep.compile import environment, sources
from lockstep.compile.environment import Target
from lockstep.compile.spec import CacheKey, CompileSpec
from lockstep.errors import LockstepError
from lockstep.lock import Lock
from lockstep.matrix import Matrix
from lockstep.paths import DOCKER, ROOT, STAGES

SCRIPTS = (
    *(DOCKER / "build" / name for name in ("compile.py", "cuda_home.py", "shim.py", "sitecustomize.py", "watch.py")),
    *(DOCKER / "build" / name for name in ("wheelfile.py", "runpath.py")),
    Path(__file__).with_name("plan.py"),
)
"""The files that carry out a build; with the stage's template they are the "build script" of the key."""

TEMPLATE = STAGES / "compile.j2"
VENV = "/opt/build"
CCACHE = "/var/cache/ccache"


class Job(BaseModel):
    """What docker/build/compile.py reads as JOB.json. Paths are inside the stage; memory_limit is in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    package: str
    version: str
    source: str
    directory: str
    torch: str | None
    cuda: str | None
    cuda_arches: list[str]
    gencode: str
    max_jobs: int
    nvcc_threads: int
    memory_per_thread_gb: float
    seconds_per_file: float
    memory_limit: int | None
    env: dict[str, str]
    requires: list[str]
    imports: list[str]
    arch: str
    python: str
    compiler: str
    epoch: int
    namespace: str
    venv: str = VENV
    cuda_home: str = "/usr/local/cuda"
    ccache_dir: str | None = CCACHE


def key_of(matrix: Matrix, target: Target, root: Path = ROOT) -> CacheKey:
    """Return the cache key of a wheel, from versions.yaml and the locks alone: nothing is fetched or built."""
    spec = environment.spec_of(matrix, target.package)
    lock = environment.read(matrix, target, root)
    debs = base_lock(target.arch, Role.COMPILE, matrix)
    gcc = next((deb.version for deb in debs.debs if deb.name == "g++"), None)
    if gcc is None:
        raise LockstepError(
            "the compile base holds no C++ compiler",
            where="versions.yaml bases.bootstrap.compile_packages",
            fix="add g++ and run `make lock-base`",
        )
    return CacheKey(
        package=target.package,
        version=spec.version,
        source=sources.identity(target.package, spec, target.arch),
        directory=spec.directory,
        line=target.line,
        torch=_version(lock, "torch"),
        cuda=spec.cuda or "",
        cuda_arches=spec.cuda_arches,
        gencode=spec.gencode,
        arch=target.arch.value,
        python=matrix.python,
        compiler=f"g++ {gcc}, nvcc {_version(lock, 'nvidia-cuda-nvcc')}",
        base=base_key(debs, matrix.epoch),
        requirements=hashlib.sha256("\n".join(wheel.requirement() for wheel in lock.wheels).encode()).hexdigest(),
        environment=spec.env,
        epoch=matrix.epoch,
        build_script=script_hash(),
    )


def _version(lock: Lock, name: str) -> str:
    wheel = lock.by_name().get(name)
    return wheel.version if wheel else ""


def script_hash() -> str:
    """Return the SHA-256 over the files that carry out a build, names included."""
    total = hashlib.sha256()
    for path in (*SCRIPTS, TEMPLATE):
        data = path.read_bytes()
        total.update(f"{path.name} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()


def job_of(key: CacheKey, spec: CompileSpec, *, memory_limit: int | None, cold: bool) -> Job:
    """Return the job of a build. A cold one uses no compiler cache."""
    return Job(
        key=key.digest(),
        package=key.package,
        version=key.version,
        source=key.source,
        directory=key.directory,
        torch=key.torch or None,
        cuda=key.cuda or None,
        cuda_arches=key.cuda_arches,
        gencode=key.gencode,
        max_jobs=spec.max_jobs,
        nvcc_threads=spec.nvcc_threads,
        memory_per_thread_gb=spec.memory_per_thread_gb,
        seconds_per_file=spec.seconds_per_file,
        memory_limit=memory_limit,
        env=spec.env,
        requires=spec.requires,
        imports=spec.imports,
        arch=key.arch,
        python=key.python,
        compiler=key.compiler,
        epoch=key.epoch,
        namespace=key.cache_namespace(),
        ccache_dir=None if cold else CCACHE,
    )
