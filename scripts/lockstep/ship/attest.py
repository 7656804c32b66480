"""Attach documents to an image as OCI referrers: the SBOM and the provenance.

A referrer is an artifact manifest whose `subject` is the image (image-spec 1.1). The index that enroot and old clients
read is not touched. Where a registry has no referrers API, the artifacts are also listed in an index under the tag
sha256-<digest>, as distribution-spec 1.1 ("Pushing Manifests with Subject", "Referrers Tag Schema") tells clients to.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep import console, paths
from lockstep.arch import Arch
from lockstep.files import sha256_file
from lockstep.ship.access import Access
from lockstep.ship.layout import OCI_INDEX, OCI_MANIFEST, Descriptor, Layout, put_blob
from lockstep.ship.push import copy, write_layout
from lockstep.ship.refs import Ref
from lockstep.ship.registry import Registry

IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:lockstep:image-build:1"
"""What the provenance's parameters mean; docs/ship.md says it in words."""
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True)
class Document:
    """One document to attach: its type, which is the artifact's type too, its bytes and annotations."""

    media_type: str
    body: bytes
    annotations: Mapping[str, str]


@dataclass(frozen=True)
class Recipe:
    """What an image was made from, for its provenance."""

    image: str
    arch: Arch
    base: str
    compression: str
    epoch: int
    commit: str
    source: str
    inputs: Mapping[str, str]
    """Input file, relative to the checkout -> sha256 in hex."""
    builder: Mapping[str, str]
    """Program -> version, of what did the building."""
    part: Mapping[str, object] = field(default_factory=dict)
    """What is missing of a narrowed image (narrow.told); empty of a whole one."""


def provenance(recipe: Recipe, subject: str, digest: str) -> Document:
    """Return the SLSA v1 provenance of `digest` as an in-toto statement, without times: equal inputs, equal bytes."""
    dependencies: list[dict[str, Any]] = [
        {"name": name, "digest": {"sha256": value}} for name, value in sorted(recipe.inputs.items())
    ]
    if recipe.commit:
        uri = f"git+{recipe.source}@{recipe.commit}" if recipe.source else f"git:{recipe.commit}"
        dependencies.insert(0, {"uri": uri, "digest": {"gitCommit": recipe.commit}})
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": subject, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "image": recipe.image,
                    "arch": recipe.arch.value,
                    "base": recipe.base,
                    "compression": recipe.compression,
                    **recipe.part,
                },
                "internalParameters": {"epoch": recipe.epoch},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": "urn:lockstep:builder", "version": dict(sorted(recipe.builder.items()))}},
        },
    }
    body = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    return Document(IN_TOTO, body, {"in-toto.io/predicate-type": PROVENANCE})


def attach(target: Ref, subject: Descriptor, documents: Sequence[Document]) -> list[str]:
    """Push `documents` as referrers of `subject`, an image in target's repository; return the artifacts' digests.

    What is attached already is not pushed again.
    """
    access = Access.of(target.registry)
    registry = Registry(target, access)
    entries = []
    with tempfile.TemporaryDirectory(prefix="lockstep-attest-") as folder:
        for number, document in enumerate(documents):
            layout = Layout(Path(folder) / str(number))
            descriptor, artifact = _artifact(layout, subject, document)
            if registry.manifest(descriptor.digest) is None:
                write_layout(layout.path, [], [descriptor])
                copy(layout, target.with_digest(descriptor.digest), access)
            entries.append({**descriptor.to_json(), "artifactType": artifact["artifactType"]})
        if registry.referrers(subject.digest) is None:
            _list_under_tag(registry, subject, entries)
    return [str(each["digest"]) for each in entries]


def find(target: Ref, digest: str) -> list[dict[str, Any]]:
    """Return the descriptors of what is attached to `digest`, by the referrers API or else by the tag."""
    registry = Registry(target)
    found = registry.referrers(digest)
    if found is None:
        listed = registry.manifest(_tag(digest))
        found = listed.data.get("manifests", []) if listed else []
    return found


def fetch(target: Ref, digest: str, artifact_type: str) -> list[bytes]:
    """Return the documents of a type that are attached to `digest`, whose artifacts name it as their subject."""
    registry = Registry(target)
    bodies = []
    for entry in find(target, digest):
        if entry.get("artifactType") != artifact_type:
            continue
        manifest = registry.manifest(entry["digest"])
        if manifest is not None and manifest.data.get("subject", {}).get("digest") == digest:
            bodies += [registry.blob(layer["digest"]) for layer in manifest.data["layers"]]
    return bodies


def inputs_of(image: str, arch: Arch, backends: Sequence[str], root: Path = paths.ROOT) -> dict[str, str]:
    """Return name -> sha256 of the files that decide what an image holds: the matrix, the rendered files, the locks."""
    names = ["versions.yaml", "bake.hcl", f"images/{image}/Dockerfile"]
    names += [f"images/{backend}/lock.{arch}.txt" for backend in backends]
    names += sorted(str(path.relative_to(root)) for path in (root / "bases").glob(f"*/*.{arch}.txt"))
    return {name: sha256_file(root / name) for name in names if (root / name).is_file()}


def commit_of(root: Path = paths.ROOT) -> str:
    """Return the checkout's commit, with -dirty where tracked files differ from it; empty outside of git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and git("status", "--porcelain", "--untracked-files=no") else commit


def _artifact(layout: Layout, subject: Descriptor, document: Document) -> tuple[Descriptor, dict[str, Any]]:
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": document.media_type,
        "config": put_blob(layout, _EMPTY, _EMPTY_TYPE).to_json(),
        "layers": [put_blob(layout, document.body, document.media_type).to_json()],
        "subject": {"mediaType": subject.media_type, "digest": subject.digest, "size": subject.size},
        "annotations": dict(document.annotations),
    }
    descriptor = put_blob(layout, json.dumps(manifest, separators=(",", ":")).encode(), OCI_MANIFEST)
    return Descriptor(
        descriptor.media_type, descriptor.digest, descriptor.size, None, dict(document.annotations)
    ), manifest


def _list_under_tag(registry: Registry, subject: Descriptor, entries: list[dict[str, Any]]) -> None:
    """Add `entries` to the index under the referrers tag; what others listed there stays."""
    before = registry.manifest(_tag(subject.digest))
    listed: dict[str, dict[str, Any]] = {}
    for each in (before.data.get("manifests", []) if before else []) + entries:
        listed[each["digest"]] = each
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(listed.values())}
    body = json.dumps(index, separators=(",", ":")).encode()
    if before is None or before.body != body:
        registry.put_index(_tag(subject.digest), body)
        console.note(f"the registry has no referrers API; they are listed under the tag {_tag(subject.digest)}")


def _tag(digest: str) -> str:
    return digest.replace(":", "-")
