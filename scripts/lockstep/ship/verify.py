"""Check a pushed image: its digests, its signature, its SBOM against its layers, and that it can be built again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.arch import Arch
from lockstep.errors import LockstepError
from lockstep.ship import attest, contents, sbom, sign
from lockstep.ship.refs import Ref
from lockstep.ship.registry import ENROOT_IMAGE_TYPES, ENROOT_LIST_TYPES, Manifest, Registry
from lockstep.ship.source import open_source


@dataclass(frozen=True)
class Check:
    """One thing looked at. state is ok, FAIL or skipped; detail says what was seen."""

    what: str
    state: str
    detail: str


Rebuild = Callable[[Mapping[str, Any]], str]
"""Builds again from the provenance's build definition and returns the manifest's digest."""


def verify(
    ref: Ref, *, key: Path | None, scratch: Path, arches: Sequence[Arch] = (), rebuild: Rebuild | None = None
) -> list[Check]:
    """Check what `ref` names; arches limits it to some of an index's. LockstepError only where nothing can be read.

    key: the PEM public key that must have signed; None: signatures are not looked at. rebuild: given, every image is
    built again from what its provenance recorded.
    """
    registry = Registry(ref)
    top = registry.manifest(ref.reference)
    if top is None:
        raise LockstepError("there is no such image", where=str(ref), fix="check name and tag")
    checks = [Check("digest", "ok", f"{ref.reference} is {top.digest}")]
    checks += _accepted(registry, ref.reference)
    images: list[tuple[Arch, Manifest]] = []
    for entry in top.data.get("manifests", [None]):
        checks += _one(registry, top, entry, images)
    chosen = [(arch, manifest) for arch, manifest in images if not arches or arch in arches]
    for digest in dict.fromkeys([top.digest, *(manifest.digest for _arch, manifest in chosen)]):
        checks.append(_signed(ref, digest, key))
    for arch, manifest in chosen:
        checks.append(_described(ref, arch, manifest, scratch))
        checks.append(_rebuilt(ref, arch, manifest.digest, rebuild))
    return checks


def _accepted(registry: Registry, reference: str) -> list[Check]:
    """Ask as enroot does: once for a list, once for an image."""
    answered = [registry.manifest(reference, types) is not None for types in (ENROOT_LIST_TYPES, ENROOT_IMAGE_TYPES)]
    return [Check("enroot", "ok" if any(answered) else "FAIL", "the registry answers to the types that enroot accepts")]


def _one(
    registry: Registry, top: Manifest, entry: dict[str, Any] | None, images: list[tuple[Arch, Manifest]]
) -> list[Check]:
    """Check one entry of an index, or the image itself: real platform, manifest and blobs there."""
    manifest = top if entry is None else registry.manifest(entry["digest"])
    if manifest is None:
        return [Check("image", "FAIL", f"{entry['digest'] if entry else ''} is not in the registry")]
    config = json.loads(registry.blob(manifest.data["config"]["digest"]))
    said = (entry or {}).get("platform") or {"os": config["os"], "architecture": config["architecture"]}
    name = f"{said.get('os')}/{said.get('architecture')}"
    arch = next((each for each in Arch if each.platform == name), None)
    if arch is None or config["architecture"] != said["architecture"]:
        return [Check("image", "FAIL", f"{manifest.digest} is for {name}, which is no real platform of it")]
    images.append((arch, manifest))
    missing = [each["digest"] for each in manifest.data["layers"] if not registry.has_blob(each["digest"])]
    if missing:
        return [Check(f"image {arch}", "FAIL", f"layers are missing: {', '.join(missing)}")]
    size = sum(each["size"] for each in manifest.data["layers"])
    return [Check(f"image {arch}", "ok", f"{manifest.digest}, {len(manifest.data['layers'])} layers, {size} bytes")]


def _signed(ref: Ref, digest: str, key: Path | None) -> Check:
    if key is None:
        return Check("signature", "skipped", "no KEY= is given")
    try:
        sign.verify(ref, digest, key)
    except LockstepError as error:
        return Check("signature", "FAIL", error.what)
    return Check("signature", "ok", f"{digest} is signed by {key}")


def _described(ref: Ref, arch: Arch, manifest: Manifest, scratch: Path) -> Check:
    what = f"sbom {arch}"
    documents = attest.fetch(ref, manifest.digest, sbom.MEDIA_TYPE)
    if not documents:
        return Check(what, "FAIL", "none is attached")
    with open_source(str(ref.with_digest(manifest.digest)), arch, scratch) as source:
        held = contents.read(source)
    for document in documents:
        described = json.loads(document)["metadata"]["component"]["version"]
        differences = sbom.compare(document, held)
        if described != manifest.digest:
            differences = [f"it describes {described}"]
        if differences:
            return Check(what, "FAIL", "; ".join(differences[:8]))
    return Check(what, "ok", f"names the {len(held.python)} Python and {len(held.debian)} Debian packages on disk")


def _rebuilt(ref: Ref, arch: Arch, digest: str, rebuild: Rebuild | None) -> Check:
    what = f"rebuild {arch}"
    if rebuild is None:
        return Check(what, "skipped", "REBUILD=1 is not given")
    statements = [json.loads(each) for each in attest.fetch(ref, digest, attest.IN_TOTO)]
    definition = next(
        (
            each["predicate"]["buildDefinition"]
            for each in statements
            if each.get("predicateType") == attest.PROVENANCE
            and each["predicate"]["buildDefinition"]["buildType"] == attest.BUILD_TYPE
        ),
        None,
    )
    if definition is None:
        return Check(what, "FAIL", "no provenance is attached")
    try:
        made = rebuild(definition)
    except LockstepError as error:
        return Check(what, "FAIL", str(error))
    if made != digest:
        return Check(what, "FAIL", f"it came out as {made}, not {digest}")
    return Check(what, "ok", "the recorded inputs give the same digest")


def same_inputs(definition: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """Raise LockstepError unless the checkout has the input files that the provenance recorded."""
    recorded = {each["name"]: each["digest"]["sha256"] for each in definition["resolvedDependencies"] if "name" in each}
    differing = sorted(name for name in recorded.keys() | inputs.keys() if recorded.get(name) != inputs.get(name))
    if differing:
        commits = [each["digest"]["gitCommit"] for each in definition["resolvedDependencies"] if "uri" in each]
        raise LockstepError(
            "the checkout has other inputs than were recorded: " + ", ".join(differing),
            fix=f"check out {commits[0]}" if commits else "check out the commit that it was built from",
        )
