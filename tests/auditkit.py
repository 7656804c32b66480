"""Tiny venvs, wheels, libraries and image layouts that the audit's tests build as they run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SITE = "lib/python3.13/site-packages"


def library(
    path: Path,
    source: str,
    *,
    links: Sequence[Path] = (),
    soname: str = "",
    flags: Sequence[str] = (),
) -> Path:
    """Compile a shared library without a C library, so that its symbols are exactly those of the source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_suffix(".c")
    code.write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", path, code, *flags]
    command += [f"-Wl,-soname,{soname}"] if soname else []
    command += ["-Wl,--no-as-needed", *links] if links else []
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    code.unlink()
    return path


def record_hash(data: bytes) -> str:
    """Return a RECORD hash."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(name: str, version: str, requires: Sequence[str] = ()) -> bytes:
    """Return a METADATA file."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {item}" for item in requires), "", "Description."]).encode()


def wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes], requires: Sequence[str] = ()) -> Path:
    """Write a wheel and return its path."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    content = dict(files) | {
        f"{info}/METADATA": metadata(name, version, requires),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},{record_hash(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    return path


def venv(root: Path) -> Path:
    """Make an empty venv and return its site-packages."""
    site = root / SITE
    site.mkdir(parents=True, exist_ok=True)
    (root / "bin").mkdir(exist_ok=True)
    (root / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.13.5\n")
    if not (root / "bin/python").is_symlink():
        (root / "bin/python").symlink_to("/usr/bin/python3.13")
    return site


def install(site: Path, made: Path) -> None:
    """Unpack a wheel into a site-packages, as any installer would; a later one writes over an earlier one."""
    with zipfile.ZipFile(made) as archive:
        archive.extractall(site)


def layer(files: Mapping[str, bytes | tuple[str, str]]) -> bytes:
    """Return a gzip layer. A value is a file's bytes, or ("symlink" | "hardlink" | "dir", target)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, value in files.items():
            member = tarfile.TarInfo(path)
            if isinstance(value, bytes):
                member.size = len(value)
                archive.addfile(member, io.BytesIO(value))
                continue
            kind, target = value
            member.type = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "dir": tarfile.DIRTYPE}[kind]
            member.linkname = target
            archive.addfile(member)
    return gzip.compress(stream.getvalue(), mtime=0)


def folder_layer(root: Path, prefix: str) -> bytes:
    """Return a gzip layer of a folder's content below `prefix`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(root, prefix)
    return gzip.compress(stream.getvalue(), mtime=0)


def layout(
    path: Path, layers: Sequence[bytes], *, arch: str = "amd64", config: Mapping[str, object] | None = None
) -> Path:
    """Write an OCI layout folder of gzip layers, as buildx does with `type=oci,tar=false`."""
    blobs = path / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def blob(data: bytes, media: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    diffs = [f"sha256:{hashlib.sha256(gzip.decompress(item)).hexdigest()}" for item in layers]
    body = {
        "architecture": arch,
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": diffs},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(body).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(item, "application/vnd.oci.image.layer.v1.tar+gzip") for item in layers],
    }
    listed = blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    listed["platform"] = {"architecture": arch, "os": "linux"}
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    return path
