"""What the tests of compiling and mirroring share: stand-in wheels and sources, and an index that serves them.

The stand-ins carry the name of the package whose place they take in a test, and nothing of it. None is ever in a lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import auditkit
from lockstep.files import sha256_file
from lockstep.matrix import Matrix, parse

MATRIX = """
schema: 1
epoch: 1767225600
python: "3.13"
arches: [x86_64, aarch64]
bases:
  bootstrap: {suite: trixie, packages: [python3.13], compile_packages: [g++]}
lines:
  torch-2.13: {torch: "2.13.0"}
  plain: {idna: "3.10"}
PARTS
backends:
  only: {line: plain, requires: ["idna==3.10"]}
images:
  only: {backends: [only]}
"""


def matrix(parts: str) -> Matrix:
    """Return a small matrix with `parts` (YAML of whole top-level keys) in it."""
    return parse(matrix_text(parts), "versions.yaml")


def matrix_text(parts: str) -> str:
    """Return the text of that matrix."""
    return MATRIX.replace("PARTS", parts)


def stand_in(
    folder: Path, name: str, version: str, tag: str, requires: Sequence[str] = (), more: Mapping[str, bytes] = {}
) -> Path:
    """Build a wheel that stands in for a package, tagged as asked."""
    made = auditkit.wheel(
        folder, name, version, {f"{name.replace('-', '_')}/__init__.py": b"STAND_IN = True\n", **more}, requires
    )
    target = made.with_name(f"{name.replace('-', '_')}-{version}-{tag}.whl")
    made.rename(target)
    return target


def sdist(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Build a source distribution."""
    top = f"{name.replace('-', '_')}-{version}"
    target = folder / f"{top}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text.encode())
            member.mode = 0o755 if text.startswith("#!") else 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return target


# A build backend that lives in the source itself, so that a test needs no setuptools: build.py writes the members of
# the wheel below `lib`, this packs them.
BACKEND = """
import hashlib, os, runpy, zipfile, pathlib

def build_wheel(folder, config_settings=None, metadata_directory=None):
    runpy.run_path("build.py", run_name="__main__")
    name, version, tag = pathlib.Path("NAME").read_text().split()
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    target = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(folder, target), "w") as archive:
        for path in pathlib.Path("lib").rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to("lib"))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\\nTag: {tag}\\n")
        archive.writestr(f"{info}/RECORD", "")
    return target
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def source_package(folder: Path, name: str, version: str, build: str, more: Mapping[str, str] = {}) -> Path:
    """Build an sdist whose build.py is `build`; it leaves the wheel's members below lib/."""
    files = {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "build.py": build,
        "NAME": f"{name} {version} py3-none-any",
    }
    return sdist(folder, name, version, files | dict(more))


@dataclass
class Index:
    """A running index. `cut_after` bytes end a transfer early, as a lost connection does; `pause` seconds slow it down
    after each 64 KiB."""

    url: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    cut_after: int | None = None
    pause: float = 0.0


@contextlib.contextmanager
def index(files: Sequence[Path]) -> Iterator[Index]:
    """Serve files as a simple index (PEP 691) that answers range requests, on a free loopback port."""
    served = {path.name: path for path in files}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append((self.path, self.headers.get("Range", "")))
            if self.path.startswith("/simple/"):
                self._page(self.path.strip("/").split("/")[-1])
            elif self.path.removeprefix("/files/") in served:
                self._file(served[self.path.removeprefix("/files/")])
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            """uv asks for a wheel's size before it reads parts of it."""
            self.do_GET()

        def _page(self, name: str) -> None:
            found = [path for path in served.values() if _project(path.name) == name]
            if not found:
                self.send_error(404)
                return
            page: dict[str, Any] = {"meta": {"api-version": "1.1"}, "name": name, "files": [], "versions": []}
            for path in found:
                hashes = {"sha256": sha256_file(path)}
                size = path.stat().st_size
                url = f"/files/{path.name}"
                page["files"].append({"filename": path.name, "url": url, "hashes": hashes, "size": size})
            body = json.dumps(page).encode()
            self._send(200, body, "application/vnd.pypi.simple.v1+json")

        def _file(self, path: Path) -> None:
            body = path.read_bytes()
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted is None:
                self._send(200, body, "application/octet-stream")
                return
            first, last = int(wanted[1]), int(wanted[2] or len(body) - 1)
            if first >= len(body):
                self.send_error(416)
                return
            self._send(206, body[first : last + 1], "application/octet-stream")

        def _send(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if state.cut_after is not None and kind.endswith("octet-stream"):
                self.wfile.write(body[: state.cut_after])
                self.close_connection = True
                return
            for at in range(0, len(body), 1 << 16):
                self.wfile.write(body[at : at + (1 << 16)])
                time.sleep(state.pause)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Index(f"http://127.0.0.1:{server.server_address[1]}/simple/")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _project(filename: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"-\d", filename)[0]).lower()


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
