"""Build the wheel of the runtime package: the same bytes from the same sources, on every machine.

A backend such as hatchling compresses with whichever zlib the interpreter has and names itself in the wheel, so its
bytes depend on the machine; a lock needs one hash. The package is pure Python, so its wheel is a zip of its files,
stored without compression. A test compares it with what hatchling builds from the same folder.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path

from lockstep import files, paths
from lockstep.errors import LockstepError

SOURCE = paths.DOCKER / "runtime"

# The earliest time that a zip can hold (APPNOTE 4.4.6). Installers do not take over times from a wheel.
_TIME = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def members(source: Path) -> dict[str, bytes]:
    """Return what the wheel of `source` holds, by path: modules, the .pth switch and the .dist-info but its RECORD."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    package = source / "src" / name
    if f'__version__ = "{version}"' not in (package / "__init__.py").read_text():
        raise LockstepError(
            f"__version__ is not {version}, which pyproject.toml says",
            where=str(package / "__init__.py"),
            fix="write the same version in both",
        )
    found = {f"{name}/{path.relative_to(package)}": path.read_bytes() for path in sorted(package.rglob("*.py"))}
    found[f"{name}.pth"] = (source / "src" / f"{name}.pth").read_bytes()
    metadata = (
        f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {version}\nSummary: {project['description']}\n"
        f"License-Expression: {project['license']}\nRequires-Python: {project['requires-python']}\n"
        f"Description-Content-Type: text/markdown\n\n{(source / project['readme']).read_text()}"
    )
    info = f"{name}-{version}.dist-info"
    found[f"{info}/METADATA"] = metadata.encode()
    found[f"{info}/WHEEL"] = _WHEEL.encode()
    return found


def filename(source: Path = SOURCE) -> str:
    """Return the file name that `build` gives the wheel."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    return f"{project['name'].replace('-', '_')}-{project['version']}-py3-none-any.whl"


def build(out: Path = paths.BUILD / "wheels", source: Path = SOURCE) -> Path:
    """Write the wheel into `out` unless it lies there already, and return its path."""
    found = members(source)
    info = next(path.split("/")[0] for path in found if path.endswith("/WHEEL"))
    rows = []
    for path, data in found.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    found[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    wheel = out / filename(source)
    with files.replacing(wheel) as part:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            for path, data in found.items():
                member = zipfile.ZipInfo(path, _TIME)
                member.external_attr = 0o100644 << 16
                member.create_system = 3
                archive.writestr(member, data)
        part.chmod(0o644)
    return wheel


if __name__ == "__main__":
    print(build())
