"""Name an OCI layout's image in an engine, so that `docker run` finds it."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.engine import Engine
from lockstep.engine_private import engine_dir, running_pid
from lockstep.errors import LockstepError
from lockstep.run import run

# dockerd starts this containerd itself; "moby" is the namespace in which it keeps images, and BuildKit its layers.
_CTR = ("ctr", "--address", "/run/docker/containerd/containerd.sock", "--namespace", "moby")


@dataclass(frozen=True)
class _Image:
    """The one image of an OCI layout: digests are `sha256:…`, sizes are bytes."""

    layout: Path
    manifest: str
    descriptor: dict[str, object]
    config: str
    layers: tuple[str, ...]

    def blob(self, digest: str) -> Path:
        return self.layout / "blobs" / digest.replace(":", "/")


def _read_layout(layout: Path) -> _Image:
    try:
        index = json.loads((layout / "index.json").read_text())
        (descriptor,) = index["manifests"]
        manifest_digest = str(descriptor["digest"])
        manifest = json.loads((layout / "blobs" / manifest_digest.replace(":", "/")).read_text())
        config = str(manifest["config"]["digest"])
        layers = tuple(str(layer["digest"]) for layer in manifest["layers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LockstepError(
            f"this is not an OCI layout of one image ({error})", where=str(layout), fix="build the image again"
        ) from None
    return _Image(layout, manifest_digest, descriptor, config, layers)


def register_layout(engine: Engine, layout_dir: Path, name: str) -> str:
    """Give the image of an OCI layout a name in the engine; return its manifest digest.

    name is a reference such as `lockstep/vllm:latest`. In the private engine nothing is unpacked and only blobs that
    its store lacks are copied: BuildKit has just compressed the layers there, and the first `docker run` unpacks
    them. In any other engine it is `docker load`.
    """
    image = _read_layout(layout_dir)
    if not engine.private:
        _feed(engine.docker_cmd("load", "--quiet"), _load_archive(image, name), env=engine.env)
        return image.manifest
    pid = running_pid(engine_dir())
    if pid is None:
        raise LockstepError("the private engine is not running", fix="run `make engine`")
    ctr = ("nsenter", "--target", str(pid), "--mount", "--", *_CTR)
    whole = {image.config, *image.layers}
    missing = whole - _held(ctr)
    # A collection of the build cache may fall between the look and the import; what it took is brought by the second.
    while True:
        archive = _import_archive(image, name, missing)
        _feed((*ctr, "images", "import", "--local", "--all-platforms", "--no-unpack", "--digests=false", "-"), archive)
        lost = whole - _held(ctr)
        if not lost:
            return image.manifest
        if lost <= missing:
            raise LockstepError(f"the private engine did not keep {', '.join(sorted(lost))}", where=str(layout_dir))
        missing = lost


def _held(ctr: Sequence[str]) -> set[str]:
    return set(run([*ctr, "content", "ls", "--quiet"]).split())


# An archive is members in order: a name, and either bytes or a file to stream.
_Member = tuple[str, bytes | Path]


def _import_archive(image: _Image, name: str, blobs: set[str]) -> list[_Member]:
    """Return the members of an OCI archive that names the image and carries only the given blobs and the manifest."""
    descriptor = {**image.descriptor, "annotations": {"io.containerd.image.name": _full_name(name)}}
    index = {"schemaVersion": 2, "manifests": [descriptor]}
    digests = [image.manifest, *sorted(blobs)]
    return [
        ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
        *((f"blobs/{digest.replace(':', '/')}", image.blob(digest)) for digest in digests),
        ("index.json", json.dumps(index).encode()),
    ]


def _load_archive(image: _Image, name: str) -> list[_Member]:
    """Return the members of an archive that old and new `docker load` read: an OCI layout with a manifest.json."""
    legacy = [
        {
            "Config": f"blobs/{image.config.replace(':', '/')}",
            "RepoTags": [name],
            "Layers": [f"blobs/{layer.replace(':', '/')}" for layer in image.layers],
        }
    ]
    members = _import_archive(image, name, {image.config, *image.layers})
    return [*members, ("manifest.json", json.dumps(legacy).encode())]


def _full_name(name: str) -> str:
    """Return a short reference in full, as containerd stores it (distribution's reference grammar: `docker.io/`…)."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        full = name
    elif rest:
        full = f"docker.io/{name}"
    else:
        full = f"docker.io/library/{name}"
    return full if ":" in full.rpartition("/")[2] else f"{full}:latest"


def _feed(argv: Sequence[str], members: Iterable[_Member], env: dict[str, str] | None = None) -> None:
    """Run a program with a tar archive of `members` as its stdin."""
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with tarfile.open(fileobj=process.stdin, mode="w|", bufsize=1 << 20) as archive:
                for name, content in members:
                    entry = tarfile.TarInfo(name)
                    if isinstance(content, bytes):
                        entry.size = len(content)
                        archive.addfile(entry, io.BytesIO(content))
                    else:
                        entry.size = content.stat().st_size
                        with content.open("rb") as stream:
                            archive.addfile(entry, stream)
            process.stdin.close()
        except BrokenPipeError:
            pass  # the program's own words say why it stopped reading
        said = process.stdout.read().decode(errors="replace").strip()
    if process.returncode:
        raise LockstepError(f"the engine did not take the image: {said[-500:]}")
