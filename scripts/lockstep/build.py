"""Step 5: make an image. BuildKit does the work; this prepares what it needs and keeps the result whole.

The result is an OCI layout, build/oci/IMAGE.ARCH/, which probe, audit, push and sqsh read: what was built is what is
probed and shipped. Blobs are shared by hard links, and a layout appears by a rename, so an interrupted build leaves the
last whole one in place (layout_made).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep import cache_refs
from lockstep.arch import Arch, host_arch
from lockstep.bake_progress import Follower, Step
from lockstep.base import Role, make_bases
from lockstep.console import megabytes, note, warn
from lockstep.disk import require_disk
from lockstep.engine import Engine
from lockstep.errors import LockstepError
from lockstep.files import held_lock, write_text
from lockstep.layers import Layer
from lockstep.layout_made import Seeding, adopt, store_of
from lockstep.matrix import Matrix
from lockstep.narrow import told
from lockstep.paths import BUILD, ROOT
from lockstep.record import last_record, record_path
from lockstep.run import run
from lockstep.secrets import build_secrets
from lockstep.stage_parts import split_shared, stage_parts

OCI = BUILD / "oci"

# Measured on the vLLM image with no wheel cached: 29.4 GB for 3.9 GB of wheels. Each wheel is unpacked in uv's cache,
# in its stage and by COPY, 2.1 times its size each, and compressed once: the layout is links to the engine's store.
_BYTES_PER_WHEEL_BYTE = 7.6


@dataclass(frozen=True)
class Built:
    """A finished image: its manifest digest, the bytes of its layers as stored, seconds, and what each step took."""

    image: str
    arch: Arch
    layout: Path
    digest: str
    size: int
    seconds: float
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Options:
    """What a build may vary without changing what is in the image, but for `base` and `compression`."""

    base: str = "bootstrap"
    compression: str = "zstd"
    no_cache: bool = False
    cache_to: str = ""
    cache_from: str = ""
    fresh_bytecode: bool = False
    """Whether bytecode that earlier builds compiled is left alone and all is compiled anew."""


def check_output(output: str, platforms: list[str], target: str, *, attested: bool = False) -> None:
    """Refuse an exporter that cannot hold what a target makes, before anything is built (CASES D9).

    `type=docker` has no index, so it takes one platform and no attestations.
    """
    kind = dict(part.split("=", 1) for part in output.split(",") if "=" in part).get("type", output)
    if kind == "docker" and (len(platforms) > 1 or attested):
        reason = f"{len(platforms)} platforms" if len(platforms) > 1 else "attestations"
        raise LockstepError(
            f"output type=docker cannot hold {reason}",
            where=f"bake target {target}",
            fix="build one architecture at a time, or use type=oci",
        )


def prepare_bases(matrix: Matrix, arch: Arch, base: str) -> None:
    """Make the Debian roots that the Dockerfile adds: the target's, unless another base is used, and the builder's."""
    wanted = [(arch, Role.RUNTIME)] if base == "bootstrap" else []
    make_bases([*wanted, (host_arch(), Role.BUILDER)], matrix)


def require_room(layers: tuple[Layer, ...], image: str, arch: Arch) -> None:
    """Refuse to start a build that the disk cannot hold. Layers that the last build recorded are taken as cached."""
    record = last_record(image, arch)
    known = set(record.layers) if record else set()
    new = sum(layer.size for layer in layers if layer_key(layer) not in known)
    require_disk(ROOT, int(new * _BYTES_PER_WHEEL_BYTE), f"building image {image} for {arch}")


def layer_key(layer: Layer) -> str:
    """Return a short text that is the same for two layers exactly when they hold the same wheels in the same venvs."""
    return f"{layer.name} " + " ".join(sorted(wheel.sha256[:16] or wheel.requirement() for wheel in layer.wheels))


def build(
    matrix: Matrix,
    image: str,
    arch: Arch,
    layers: tuple[Layer, ...],
    engine: Engine,
    options: Options,
    bake_file: str = "bake.hcl",
) -> Built:
    """Build an image and return it. LockstepError where a step fails, with the lines that say why."""
    began = time.monotonic()
    target = f"{image}-{arch}"
    layout = OCI / f"{image}.{arch}"
    parts = _parts(image, arch, layers, bake_file)
    caches = cache_refs.usable(options.cache_from)
    with build_secrets(fresh_bytecode=options.fresh_bytecode) as secrets:
        words = engine.docker_cmd("buildx", "bake", "--file", bake_file, "--progress", "rawjson")
        words += engine.bake_network(target)
        words += [word for secret in secrets for word in ("--set", f"{target}.secrets={secret}")]
        words += [word for text in proxies() for word in ("--set", f"{target}.args.{text}")]
        env = dict(
            engine.env,
            BASE=options.base,
            CACHE_TO=options.cache_to,
            CACHE_FROM=" ".join(caches),
            SOURCE_DATE_EPOCH=str(matrix.epoch),
            BUILDX_NO_DEFAULT_ATTESTATIONS="1",
            DOCKER_BUILDKIT="1",
        )

        words += ["--no-cache"] if options.no_cache else []
        pool = OCI / ".pool" / target
        words += ["--set", f"{target}.output={_output(pool, options)}", target]
        with held_lock(pool.with_name(f"{target}.lock"), f"another command is building {target}; waiting for it"):
            with Seeding(store_of(engine), pool) as seeding:
                follower = _bake_again(words, env, len(layers), anew=options.fresh_bytecode)
            digest, size = adopt(pool, layout, seeding.names)
    for fault in follower.cache_faults():
        warn(f"{fault}; the image does not depend on it")
    if freed := cache_refs.prune_local(options.cache_to):
        note(f"removed {megabytes(freed)} MB that earlier builds left in the cache's folder")
    built = Built(image, arch, layout, digest, size, time.monotonic() - began, tuple(follower.steps()))
    made_by = {"base": options.base, "builder": _builder(engine)}
    _record(built, layers, parts, {**made_by, **told(matrix, image)})
    return built


def _builder(engine: Engine) -> dict[str, str]:
    """Return the versions of what built an image, for its provenance."""
    docker = run(engine.docker_cmd("version", "--format", "{{.Server.Version}}"), env=engine.env).strip()
    return {"buildx": run(engine.docker_cmd("buildx", "version"), env=engine.env).split()[1], "docker": docker}


def reference(image: str, arch: Arch) -> str:
    """Return the name under which the engine knows an image."""
    return f"lockstep/{image}:{arch}"


def _bake_again(words: list[str], env: dict[str, str], layers: int, *, anew: bool = False) -> Follower:
    """Bake, and once more where that failed for no fault of the image.

    anew: this build is to prove something (`make repro`), so its second try may not take layers of earlier builds.

    A cache that is read may die meanwhile (CASES D10). BuildKit may give up waiting for its own store where the disk or
    the processors are overwhelmed: seen at the end of an export of 4 GB beside two other builds.
    """
    try:
        return _bake(words, env, layers)
    except LockstepError as error:
        if "DeadlineExceeded" in error.what:
            how = "from the start" if anew else "with the layers that are finished"
            warn(f"the engine did not answer itself in time; building once more {how}")
            return _bake([word for word in words if anew or word != "--no-cache"], env, layers)
        if not env["CACHE_FROM"] or not cache_refs.lost(error.what):
            raise
        warn("a cache that was read lost its content meanwhile; building once more without CACHE_FROM")
        return _bake(words, {**env, "CACHE_FROM": ""}, layers)


def _output(destination: Path, options: Options) -> str:
    """Return the exporter's words for a layout that the client writes."""
    return f"type=oci,tar=false,dest={destination},{_form(options)}"


def _form(options: Options) -> str:
    """Return what decides an image's bytes. gzip is for old clients, so it has Docker's media types (CASES B1, B11)."""
    level, oci = ("1", "true") if options.compression == "zstd" else ("6", "false")
    return f"oci-mediatypes={oci},compression={options.compression},compression-level={level},force-compression=true"


def proxies() -> Iterator[str]:
    """Yield NAME=value for each proxy variable that is set.

    They are BuildKit's predefined arguments: a RUN sees them, and neither the cache key nor the image does (CASES C6).
    """
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        if value := os.environ.get(name):
            yield f"{name}={value}"


def _bake(words: list[str], env: dict[str, str], layers: int) -> Follower:
    """Run bake, following its events; raise with the failed step's own last lines where it fails."""
    follower = Follower(layers)
    with subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            with follower.display():
                for line in process.stderr:
                    follower.feed(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise LockstepError(
            follower.failure() or f"docker buildx bake ended with exit code {process.returncode}",
            where=f"build of {words[-1]}",
            fix="correct what the lines above say and run it again; finished layers are kept in the cache",
        )
    return follower


def _parts(image: str, arch: Arch, layers: tuple[Layer, ...], bake_file: str) -> dict[str, dict[str, str]]:
    """Return what each layer's stage is built from now, for the record: `make why` compares with it."""
    folder = ROOT / "images" / image if bake_file == "bake.hcl" else (ROOT / bake_file).parent
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    return stage_parts(text, tuple(layer.name for layer in layers), arch, ROOT)


def _record(
    built: Built, layers: tuple[Layer, ...], parts: dict[str, dict[str, str]], made_by: dict[str, object]
) -> None:
    """Write what was built and how long each step took; a forecast of a bump reads the minutes from here.

    A step that came from the cache keeps the seconds of the build that made it.
    """
    path = record_path(built.image, built.arch)
    record = last_record(built.image, built.arch)
    known = record.seconds if record else {}
    seconds = {step.name: round(step.seconds, 1) for step in built.steps if not step.cached}
    shared, rest = split_shared(parts)
    data = {
        **made_by,
        "digest": built.digest,
        "layers": [layer_key(layer) for layer in layers],
        "seconds": dict(sorted((known | seconds).items())),
        "wall": round(built.seconds, 1),
        "shared": shared,
        "stages": rest,
    }
    write_text(path, json.dumps(data, indent=1) + "\n")
