"""What `compile:` in versions.yaml may say, and the key under which a built wheel is kept."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from lockstep.arch import Arch
from lockstep.matrix.types import Model, Package, Req, Sha256, Version, Why

# Set for every build from the spec and the plan (docker/build/compile.py), so `env` must not set them: a second
# source for the same knob is how CASES A11 and F1 came about.
OWN_VARIABLES = frozenset(
    {
        "MAX_JOBS",
        "NVCC_THREADS",
        "NVTE_BUILD_MAX_JOBS",
        "NVTE_BUILD_THREADS_PER_JOB",
        "CMAKE_BUILD_PARALLEL_LEVEL",
        "TORCH_CUDA_ARCH_LIST",
        "FLASH_ATTN_CUDA_ARCHS",
        "NVTE_CUDA_ARCHS",
        "CUDAARCHS",
        "CUDA_HOME",
        "SOURCE_DATE_EPOCH",
        "PYTORCH_NVCC",
        "CC",
        "CXX",
        "CUDACXX",
    }
)


def _environment(values: dict[str, str]) -> dict[str, str]:
    for name in values:
        if name in OWN_VARIABLES:
            raise ValueError(f"{name} is set by Lockstep from the other keys of this entry; leave it out of env")
        if not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise ValueError(f'"{name}" is not the name of an environment variable')
    return values


CudaArch = Annotated[str, Field(pattern=r"^\d{1,2}\.\d[af]?$")]
"""A compute capability as torch writes it, e.g. "9.0", "10.0", "9.0a"; always quoted."""

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class SdistSource(Model):
    """The package's own source distribution on the index, by hash."""

    sdist_sha256: Annotated[Sha256, Field(description="of the .tar.gz that the index lists for this version")]


class GitSource(Model):
    """A commit of a git repository. The user's `url.<mirror>.insteadOf` decides where it is fetched from."""

    git: Annotated[str, Field(min_length=1, description="the repository's public address")]
    commit: Annotated[
        Commit | dict[Literal["x86_64", "aarch64"], Commit],
        Field(description="the whole commit id; one for all architectures, or one for each"),
    ]
    submodules: Annotated[bool, Field(description="fetch the submodules that the commit names, recursively")] = True

    def at(self, arch: Arch) -> str | None:
        """Return the commit for an architecture; None where none is declared for it."""
        return self.commit if isinstance(self.commit, str) else self.commit.get(arch.value)


class CompileSpec(Model):
    """One package that is built from source, once per torch line and architecture, then kept in wheels/."""

    version: Version
    why: Why
    source: SdistSource | GitSource
    directory: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._/-]*$", description="folder of the source that holds the Python project")
    ] = ""
    cuda: Annotated[
        str | None,
        Field(pattern=r"^\d+\.\d+$", description="release of nvcc and the CUDA headers, torch's own; null: no CUDA"),
    ] = "13.0"
    cuda_arches: Annotated[list[CudaArch], Field(description="the GPUs it is compiled for")] = []
    gencode: Annotated[
        Literal["check", "replace"],
        Field(
            description="check: the build system must itself ask nvcc for exactly cuda_arches; "
            "replace: its list is hard-wired, so put cuda_arches in its place"
        ),
    ] = "check"
    max_jobs: Annotated[int, Field(ge=1, description="compilers at a time, at most")] = 4
    nvcc_threads: Annotated[int, Field(ge=1, description="threads of one nvcc; one per GPU architecture helps")] = 4
    memory_per_thread_gb: Annotated[
        float, Field(gt=0, description="peak memory of one nvcc thread, in units of 2^30 bytes")
    ] = 5
    seconds_per_file: Annotated[
        float,
        Field(gt=0, description="CPU seconds of a CUDA file: predicts a first build's time"),
    ] = 60
    env: Annotated[
        dict[str, str],
        AfterValidator(_environment),
        Field(description="further environment of the build"),
    ] = {}
    build_requires: Annotated[
        list[Req], Field(description="what the build imports, besides the line's torch and the CUDA compiler")
    ] = ["setuptools", "wheel", "packaging", "ninja"]
    requires: Annotated[
        list[Req], Field(description="the wheel's own requirements, so that a backend can be locked before it is built")
    ] = []
    imports: Annotated[
        list[str],
        Field(min_length=1, description="modules that must import with the line's torch"),
    ]

    @model_validator(mode="after")
    def _gpus_are_named(self) -> CompileSpec:
        if len(set(self.cuda_arches)) != len(self.cuda_arches):
            raise ValueError("cuda_arches names an architecture twice")
        if bool(self.cuda) != bool(self.cuda_arches):
            raise ValueError("cuda_arches says for which GPUs a CUDA package is compiled: give it, or set cuda: null")
        return self


class CacheKey(Model):
    """Everything that a compiled wheel depends on. Two builds with one key are the same build."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    package: Package
    version: Version
    source: Annotated[str, Field(description="sdist:<sha256> or git:<commit>")]
    directory: str
    line: Annotated[str, Field(description="name of the torch line")]
    torch: Annotated[str, Field(description="torch's exact version in the build environment")]
    cuda: Annotated[str, Field(description="release of nvcc and the CUDA headers")]
    cuda_arches: list[str]
    gencode: str
    arch: Annotated[str, Field(description="processor architecture")]
    python: str
    compiler: Annotated[str, Field(description="the C++ compiler's and nvcc's exact versions")]
    base: Annotated[str, Field(description="key of the base's package lock")]
    requirements: Annotated[str, Field(description="sha256 of the hash-locked build environment")]
    environment: dict[str, str]
    epoch: int
    build_script: Annotated[str, Field(description="sha256 over the files that carry out the build")]

    def text(self) -> str:
        """Return the canonical JSON that is hashed and written beside the wheel as key.json."""
        return json.dumps(self.model_dump(by_alias=True), sort_keys=True, indent=1, ensure_ascii=True) + "\n"

    def digest(self) -> str:
        """Return the key: the SHA-256 of `text()` in hex, and the name of the folder below wheels/."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def cache_namespace(self) -> str:
        """Return the name under which ccache keeps this build's objects.

        ccache preprocesses a CUDA file for one GPU architecture only, so it does not see a change inside an
        `#if __CUDA_ARCH__` of another. What decides an object is therefore in the name; the build script is not.
        """
        fields = self.model_dump(by_alias=True)
        for name in ("build_script", "requirements", "version"):
            fields.pop(name)
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
