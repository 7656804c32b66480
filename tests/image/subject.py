"""Which image is under test, and what its locks say of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from lockstep.arch import Arch
from lockstep.lock import Lock, carried, read_lock
from lockstep.matrix import Backend, Matrix, load
from lockstep.narrow import blamed, left_out_module, with_narrowed
from lockstep.render import runtime_venvs
from lockstep.runtime_wheel import filename


@dataclass(frozen=True)
class Config:
    """The image's own configuration, as the engine reports it."""

    env: dict[str, str]
    labels: dict[str, str]
    entrypoint: list[str]


def _config() -> Config:
    data = json.loads(os.environ.get("LOCKSTEP_CONFIG", "{}"))
    env = dict(text.split("=", 1) for text in data.get("Env") or [])
    return Config(env, data.get("Labels") or {}, data.get("Entrypoint") or [])


@dataclass
class Subject:
    """The image under test. `results` collects, per `venv:module`, what its import did."""

    image: str
    arch: Arch
    user: str
    backends: dict[str, Backend]
    locks: dict[str, Lock]
    python: str
    epoch: int
    runtime: dict[str, str]
    """Name and version of the runtime package, for each venv that has it."""
    config: Config
    matrix: Matrix
    results: dict[str, dict[str, str]] = field(default_factory=dict)

    def left_out(self, venv: str, module: str) -> str:
        """Return the package of a module that the image was built without (WITHOUT=), or ""."""
        return left_out_module(self.matrix, self.image, venv, module)

    def blamed(self, venv: str, said: str) -> str:
        """Return the package that the image was built without and that an import's error asks for, or ""."""
        return blamed(self.matrix, self.image, venv, said)


def _subject() -> Subject:
    image, arch = os.environ.get("LOCKSTEP_IMAGE", "smoke"), Arch(os.environ.get("LOCKSTEP_ARCH", "x86_64"))
    matrix = with_narrowed(load(), image)
    names = matrix.images[image].backends
    return Subject(
        image,
        arch,
        os.environ.get("LOCKSTEP_USER", "root"),
        {name: matrix.backends[name] for name in names},
        {name: carried(matrix, image, read_lock(name, arch)) for name in names},
        matrix.python,
        matrix.epoch,
        dict.fromkeys(runtime_venvs(matrix, names), filename().split("-")[1]),
        _config(),
        matrix,
    )


SUBJECT = _subject()
