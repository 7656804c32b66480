"""Build one wheel from source in a stage of its own, and put it into the store."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.markup import escape

from lockstep.arch import host_arch
from lockstep.base import Role, make_base
from lockstep.build import proxies
from lockstep.compile import environment, ledger, sources, store
from lockstep.compile.environment import Target
from lockstep.compile.job import CCACHE, SCRIPTS, TEMPLATE, Job, job_of, key_of, script_hash
from lockstep.compile.spec import CacheKey
from lockstep.compile.store import StoredWheel
from lockstep.console import note
from lockstep.disk import require_disk
from lockstep.engine import Engine
from lockstep.errors import LockstepError
from lockstep.files import replacing, write_text
from lockstep.lock import Lock, LockedWheel
from lockstep.matrix import Matrix
from lockstep.mirror.check import check_requirements
from lockstep.paths import BUILD, ROOT
from lockstep.render import uv_requirement
from lockstep.secrets import build_secrets

# Measured: 2.84 GB of wheels (torch 2.13, CUDA) become a layer of 5.1 GB, and uv's cache holds the same once more.
_BYTES_PER_WHEEL_BYTE = 4
_SHARED_AT_LEAST = 5_000_000
_LINE = re.compile(r"^#\d+ (?:\d+\.\d+ )?(?P<text>.*)$")
_TAIL = 40


@dataclass(frozen=True)
class Options:
    """How to build. memory_limit is in bytes; cgroup_parent names the cgroup that the engine runs the build under."""

    cold: bool = False
    memory_limit: int | None = None
    cgroup_parent: str = ""


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel that was built now, or found in the store (`result` and `book` are then what its own build left)."""

    target: Target
    stored: StoredWheel
    cached: bool
    seconds: float
    book: ledger.Ledger | None


@dataclass
class _Said:
    """What the driver and the engine printed that matters."""

    what: str = ""
    fix: str = ""
    tail: list[str] = field(default_factory=list)


def build(matrix: Matrix, target: Target, engine: Engine, options: Options, root: Path = ROOT) -> BuiltWheel:
    """Return the wheel of a target, building it unless the store has it or a cold build is asked for."""
    began = time.monotonic()
    key = key_of(matrix, target, root)
    if not options.cold and (stored := store.find(key)) is not None:
        return BuiltWheel(target, stored, True, 0.0, ledger.read(stored.path.parent))
    require_native(target, engine)
    spec = environment.spec_of(matrix, target.package)
    lock = environment.read(matrix, target, root)
    source = sources.fetch(target.package, spec, target.arch)
    require_disk(BUILD, sum(wheel.size for wheel in lock.wheels) * _BYTES_PER_WHEEL_BYTE, f"compiling {target.package}")
    base_tar = make_base(target.arch, Role.COMPILE, matrix)
    folder = BUILD / "compile" / key.digest()
    job = job_of(key, spec, memory_limit=options.memory_limit, cold=options.cold)
    write_text(folder / "Dockerfile", dockerfile(job, lock, base_tar, source.name, target, root))
    _write_job(folder / "job", job)
    if script_hash() != key.build_script:
        raise LockstepError("the build's own files were changed meanwhile", where="docker/build", fix="run it again")
    note(f"compiling {target} (key {key.digest()[:16]}); log in {(folder / 'log.txt').relative_to(ROOT)}")
    made = _run(engine, folder, source, target, options)
    wheel = next(made.glob("*.whl"))
    check_requirements(wheel, spec.requires, target.arch, matrix.python, f"compile.{target.package}.requires")
    stored, book = store.enter(key, wheel)
    with replacing(stored.path.parent / "result.json") as part:
        shutil.copyfile(made / "result.json", part)
    return BuiltWheel(target, stored, False, time.monotonic() - began, book)


def prepared(
    matrix: Matrix, target: Target, engine: Engine, options: Options, faults: list[LockstepError], root: Path = ROOT
) -> bool:
    """Return whether a wheel is in the store or could be built now: its lock, its machine and its source are there.

    What stands in the way is added to `faults`.
    """
    try:
        if not options.cold and store.find(key_of(matrix, target, root)) is not None:
            return True
        require_native(target, engine)
        sources.fetch(target.package, environment.spec_of(matrix, target.package), target.arch)
    except LockstepError as error:
        faults.append(error)
        return False
    return True


def require_native(target: Target, engine: Engine) -> None:
    """Refuse to compile for another architecture here: an emulated compiler takes some twenty times as long."""
    if target.arch is host_arch() or engine.env.get("BUILDX_BUILDER") or not engine.private:
        return
    raise LockstepError(
        f"{target.package} has to be compiled on {target.arch}, and this engine is {host_arch()}",
        fix="name a builder of that architecture with BUILDER=, or run `make wheels` there and copy wheels/",
    )


def dockerfile(job: Job, lock: Lock, base_tar: Path, source_name: str, target: Target, root: Path = ROOT) -> str:
    """Return the text of the stage's Dockerfile."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        undefined=StrictUndefined,
        block_start_string="«%",
        block_end_string="%»",
        variable_start_string="«",
        variable_end_string="»",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return templates.get_template(TEMPLATE.name).render(
        key=job.key,
        platform=target.arch.platform,
        base_tar=base_tar.relative_to(root),
        epoch=job.epoch,
        uv_requirement=uv_requirement(root),
        requirements=[
            [wheel.requirement() for wheel in lock.wheels if _shared(wheel) is part] for part in (True, False)
        ],
        ccache=CCACHE,
        source_name=source_name,
    )


def _shared(wheel: LockedWheel) -> bool:
    """Tell whether a wheel of a build environment is torch, CUDA or another that torch brings, by name and size.

    Only what they share among packages depends on it: a wheel on the wrong side costs disk, nothing else.
    """
    libraries = wheel.name.startswith("nvidia-") and not re.search("frontend|cutlass", wheel.name)
    return wheel.name in ("torch", "triton") or (libraries and wheel.size >= _SHARED_AT_LEAST)


def _write_job(folder: Path, job: Job) -> None:
    """Lay out what the stage mounts at /job: the driver, its modules, and the job."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {path.name for path in SCRIPTS} | {"job.json"}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for path in SCRIPTS:
        write_text(folder / path.name, path.read_text(encoding="utf-8"))
    write_text(folder / "job.json", job.model_dump_json(indent=1) + "\n")


def _run(engine: Engine, folder: Path, source: sources.Source, target: Target, options: Options) -> Path:
    """Run the build; return the folder that holds what it left."""
    made = folder / "out"
    shutil.rmtree(made, ignore_errors=True)
    with build_secrets() as secrets:
        words = engine.docker_cmd("buildx", "build", "--progress", "plain", "--file", str(folder / "Dockerfile"))
        words += ["--platform", target.arch.platform, "--target", "wheel", "--output", f"type=local,dest={made}"]
        words += ["--build-context", f"job={folder / 'job'}", "--build-context", f"source={source.folder}"]
        words += ["--provenance=false", "--sbom=false"]
        if engine.build_network == "host":
            words += ["--network", "host", "--allow", "network.host"]
        if options.cold:
            words += ["--no-cache-filter", "compile"]
        if options.cgroup_parent:
            words += ["--cgroup-parent", options.cgroup_parent]
        words += [word for secret in secrets for word in ("--secret", secret)]
        words += [word for text in proxies() for word in ("--build-arg", text)]
        said, code = _follow([*words, str(ROOT)], engine.env, folder / "log.txt")
    if code or not (made / "result.json").is_file():
        raise _failure(said, code, target, folder)
    return made


def _follow(words: list[str], env: dict[str, str], log: Path) -> tuple[_Said, int]:
    """Run buildx; pass the driver's lines on to the user and everything to the log."""
    said = _Said()
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            with log.open("w") as stream:
                for text in _texts(process.stderr, stream):
                    if text.startswith("lockstep| "):
                        note(f"  {escape(text.removeprefix('lockstep| '))}")
                    elif text.startswith("lockstep! "):
                        said.what, _, said.fix = text.removeprefix("lockstep! ").partition(" -> ")
                    elif text.strip():
                        said.tail = [*said.tail[-_TAIL:], text]
        except BaseException:
            process.terminate()  # BuildKit then stops the stage; ccache keeps what is compiled
            raise
        return said, process.wait()


def _texts(stream: object, log: object) -> Iterator[str]:
    """Yield what the steps printed, without BuildKit's step number and time; write the raw lines to the log."""
    for line in stream:  # type: ignore[attr-defined]
        log.write(line)  # type: ignore[attr-defined]
        log.flush()  # type: ignore[attr-defined]
        match = _LINE.match(line.rstrip("\n"))
        yield match["text"] if match else line.rstrip("\n")


def _failure(said: _Said, code: int, target: Target, folder: Path) -> LockstepError:
    log = str((folder / "log.txt").relative_to(ROOT))
    if said.what:
        return LockstepError(said.what, where=log, fix=said.fix)
    if any("exit code: 137" in line for line in said.tail):
        return LockstepError(
            f"the kernel killed the build of {target.package}, most likely for lack of memory",
            where=log,
            fix=f"lower compile.{target.package}.max_jobs in versions.yaml, or give the build more memory",
        )
    # BuildKit repeats the whole failed command in its own last line; what the command printed says more.
    errors = [line for line in said.tail if re.search(r"\w*[Ee]rror\b", line) and "failed to solve" not in line]
    last = (errors or said.tail or ["it printed nothing"])[-1]
    return LockstepError(f"compiling {target} failed with exit code {code}: {last[:300]}", where=log, fix="see the log")


def result_of(stored: StoredWheel) -> dict[str, object]:
    """Return what the build of a stored wheel measured: seconds, peak_bytes, jobs, and each compiled file."""
    path = stored.path.parent / "result.json"
    data: dict[str, object] = json.loads(path.read_text()) if path.is_file() else {}
    return data


def key_text(key: CacheKey) -> str:
    """Return a key as people read it: package, version, line, architecture, GPUs."""
    return f"{key.package} {key.version} {key.line} {key.arch} {','.join(key.cuda_arches) or 'no GPU code'}"
