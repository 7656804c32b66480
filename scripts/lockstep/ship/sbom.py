"""The software bill of materials: CycloneDX 1.6, from the locks and what the layers hold; the same bytes each time."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from lockstep.arch import Arch
from lockstep.debs import LockedDeb
from lockstep.lock import Lock
from lockstep.ship.contents import Contents, DebianPackage, PythonPackage

MEDIA_TYPE = "application/vnd.cyclonedx+json"
_PREFIX = "lockstep:"
OWN = frozenset({"lockstep-runtime"})
"""Packages that a build makes from this repository, so that no lock names them."""


@dataclass(frozen=True)
class Subject:
    """The image that is described."""

    name: str
    arch: Arch
    digest: str
    epoch: int


def make(subject: Subject, locks: Sequence[Lock], debs: Sequence[LockedDeb], suite: str, contents: Contents) -> bytes:
    """Return the SBOM as JSON.

    Python packages come from the locks (with the wheels' hashes), Debian packages from the base's lock where it has one
    and else from dpkg's status, vendored parts from the layers. The serial number is derived from the image's digest
    and the time is the epoch, so equal inputs give equal bytes.
    """
    root = _component(
        ComponentType.CONTAINER,
        subject.name,
        subject.digest,
        PackageURL("oci", None, subject.name, subject.digest, {"arch": subject.arch.docker}),
        sha256=subject.digest.removeprefix("sha256:"),
    )
    parts = [*_python(locks, contents), *_debian(debs, suite, contents), *_vendored(contents)]
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{subject.name}@{subject.digest}"),
        metadata=BomMetaData(timestamp=datetime.datetime.fromtimestamp(subject.epoch, datetime.UTC), component=root),
        components=parts,
    )
    bom.register_dependency(root, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    return (json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n").encode()


def _component(
    kind: ComponentType,
    name: str,
    version: str | None,
    purl: PackageURL | None,
    *,
    sha256: str = "",
    spdx: str = "",
    properties: dict[str, str] | None = None,
    ref: str = "",
) -> Component:
    return Component(
        type=kind,
        name=name,
        version=version,
        purl=purl,
        bom_ref=ref or (purl.to_string() if purl else name),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
        licenses=[LicenseFactory().make_from_string(spdx)] if spdx else [],
        properties=[Property(name=_PREFIX + key, value=value) for key, value in sorted((properties or {}).items())],
    )


def _python(locks: Sequence[Lock], contents: Contents) -> list[Component]:
    spdx = {(each.name, each.version): each.license for each in contents.python}
    by_wheel: dict[tuple[str, str, str], tuple[dict[str, str], set[str]]] = {}
    for lock in locks:
        for wheel in lock.wheels:
            about = {"file": wheel.filename, "origin": wheel.origin}
            by_wheel.setdefault((wheel.name, wheel.version, wheel.sha256), (about, set()))[1].add(lock.backend)
    made = []
    for (name, version, sha256), (about, venvs) in sorted(by_wheel.items()):
        purl = PackageURL("pypi", None, name, version, {"file_name": about["file"]})
        properties = {**about, "venvs": ",".join(sorted(venvs))}
        made.append(
            _component(
                ComponentType.LIBRARY,
                name,
                version,
                purl,
                sha256=sha256,
                spdx=spdx.get((name, version), ""),
                properties=properties,
                ref=f"{purl.to_string()}#{sha256[:16]}",
            )
        )
    own: dict[tuple[str, str], set[str]] = {}
    for each in contents.python:
        if each.name in OWN:
            own.setdefault((each.name, each.version), set()).add(each.venv)
    for (name, version), venvs in sorted(own.items()):
        about = {"origin": "repository", "venvs": ",".join(sorted(venvs))}
        made.append(
            _component(
                ComponentType.LIBRARY, name, version, PackageURL("generic", None, name, version), properties=about
            )
        )
    return made


def _debian(debs: Sequence[LockedDeb], suite: str, contents: Contents) -> list[Component]:
    hashes = {(each.name, each.version, each.arch): each.sha256 for each in debs}
    listed = [DebianPackage(*key) for key in hashes] or contents.debian
    made = []
    for each in sorted(listed):
        where = {"arch": each.architecture} | ({"distro": suite} if suite else {})
        purl = PackageURL("deb", "debian" if suite else None, each.name, each.version, where)
        sha256 = hashes.get((each.name, each.version, each.architecture), "")
        made.append(_component(ComponentType.LIBRARY, each.name, each.version, purl, sha256=sha256))
    return made


def _vendored(contents: Contents) -> list[Component]:
    made = []
    places: dict[PythonPackage, set[str]] = {}
    for each in contents.vendored:
        key = PythonPackage("", each.name, each.version, "", each.license)
        places.setdefault(key, set()).add(f"{each.venv}:{each.folder}")
    for key, found in sorted(places.items()):
        purl = PackageURL("pypi", None, key.name, key.version)
        about = {"vendored-in": ",".join(sorted(found))}
        made.append(
            _component(
                ComponentType.LIBRARY,
                key.name,
                key.version or None,
                purl,
                spdx=key.license,
                properties=about,
                ref=f"{purl.to_string()}#vendored",
            )
        )
    files: dict[tuple[str, str], set[str]] = {}
    for library in contents.libraries:
        files.setdefault((library.folder, library.file), set()).add(library.venv)
    for (folder, file), venvs in sorted(files.items()):
        about = {"vendored-in": folder, "venvs": ",".join(sorted(venvs))}
        made.append(_component(ComponentType.FILE, file, None, None, properties=about, ref=f"{folder}/{file}"))
    return made


def compare(document: bytes, contents: Contents) -> list[str]:
    """Return the differences between an SBOM and what the layers hold, one sentence each; none: they agree."""
    bom: dict[str, Any] = json.loads(document)
    stated: set[tuple[str, str, str]] = set()
    stated_debs: set[tuple[str, str]] = set()
    for each in bom.get("components", []):
        about = {item["name"].removeprefix(_PREFIX): item["value"] for item in each.get("properties", [])}
        purl = str(each.get("purl", ""))
        if purl.startswith("pkg:deb/"):
            stated_debs.add((each["name"], each["version"]))
        elif "venvs" in about and "vendored-in" not in about:
            stated |= {(venv, each["name"], each["version"]) for venv in about["venvs"].split(",")}
    held = {(each.venv, each.name, each.version) for each in contents.python}
    held_debs = {(each.name, each.version) for each in contents.debian}
    said = [f"{venv}: {name} {version} is in the image and not in the SBOM" for venv, name, version in held - stated]
    said += [f"{venv}: {name} {version} is in the SBOM and not in the image" for venv, name, version in stated - held]
    said += [
        f"Debian: {name} {version} is in the image and not in the SBOM" for name, version in held_debs - stated_debs
    ]
    said += [
        f"Debian: {name} {version} is in the SBOM and not in the image" for name, version in stated_debs - held_debs
    ]
    return sorted(said)
