"""Is a wheel what was declared: its hash, its tags for the platform, its own list of requirements."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.files import sha256_file
from lockstep.index import best_wheel


def check_filename(filename: str, package: str, version: str, arch: Arch, python: str, where: str) -> None:
    """Refuse a wheel of another package or version, or one that the platform would not install."""
    try:
        name, found, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise LockstepError(f"{filename} is not a wheel's name: {error}", where=where, fix="correct it") from None
    if canonicalize_name(name) != package or found != Version(version):
        raise LockstepError(
            f"{filename} is {canonicalize_name(name)} {found}, not {package} {version}", where=where, fix="correct it"
        )
    if best_wheel([filename], arch, python) is None:
        have = ", ".join(sorted(str(tag) for tag in tags))
        raise LockstepError(
            f"{filename} is for {have}; {package} is wanted for {wanted_tag(arch, python)}",
            where=where,
            fix=f"name the wheel that is built for Python {python} on {arch}",
        )


def wanted_tag(arch: Arch, python: str) -> str:
    """Return how a wheel for the platform is tagged, as in a file name: cp313-linux_aarch64 (manylinux counts)."""
    return f"cp{python.replace('.', '')}-{arch}"


def check_bytes(path: Path, sha256: str, where: str) -> None:
    """Refuse a file with another SHA-256 than declared."""
    found = sha256_file(path)
    if found != sha256:
        raise LockstepError(
            f"{path.name} has sha256 {found[:16]}…, not {sha256[:16]}… as declared: it was changed or cut short",
            where=where,
            fix="delete it and run `make mirror`; if it stays so, find out who changed it before you change the hash",
        )


def requirements_of(wheel: Path) -> list[str]:
    """Return the Requires-Dist lines of a wheel's METADATA (core metadata specification)."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
            headers = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise LockstepError(
            f"is not a wheel: {error or 'it has no METADATA'}", where=wheel.name, fix="get it again"
        ) from None
    return [str(value) for value in headers.get_all("Requires-Dist") or []]


def check_requirements(wheel: Path, declared: Iterable[str], arch: Arch, python: str, key: str) -> None:
    """Refuse a wheel that requires other things than the matrix says under `key`: the lock was resolved from those.

    Compared is what the platform would install: lines of extras are left out, and so are lines whose marker does not
    hold there.
    """
    mine = {_plain(item) for item in _effective(declared, arch, python)}
    its = {_plain(item) for item in _effective(requirements_of(wheel), arch, python)}
    if mine == its:
        return
    parts = [f"{wheel.name} requires {', '.join(sorted(its - mine))}" if its - mine else ""]
    parts += [
        f"versions.yaml has {', '.join(sorted(mine - its))}, which the wheel does not ask for" if mine - its else ""
    ]
    raise LockstepError(
        "; ".join(part for part in parts if part),
        where=f"versions.yaml {key}",
        fix="write there what the wheel says, then relock",
    )


def _effective(texts: Iterable[str], arch: Arch, python: str) -> Iterable[Requirement]:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": arch.value,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    for text in texts:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def _plain(requirement: Requirement) -> str:
    """Return a requirement without its marker, in one spelling."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}{','.join(sorted(str(requirement.specifier).split(',')))}"
