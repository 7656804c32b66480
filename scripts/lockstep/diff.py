"""What changed between two images: packages, layers and bytes, settings, patches, symbols, probe results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockstep.arch import Arch
from lockstep.audit.finding import Finding
from lockstep.audit.integrity import PATCHES
from lockstep.audit.layers import merge, scan_image
from lockstep.audit.oci import ImageSource, LayerBlob, is_image, open_image
from lockstep.audit.run import Options, Subject, check
from lockstep.audit.tree import Tree
from lockstep.audit.venv import find_venvs
from lockstep.errors import LockstepError
from lockstep.paths import BUILD

CLASSES = ("B fails and A passes", "B fails, A has no usable result", "both fail", "B passes and A fails")
"""The four classes of a probe's result that differ in what to do: a regression comes first."""


@dataclass(frozen=True)
class Side:
    """One image, as the comparison needs it.

    packages maps (`deb` or a venv, name) to a version; layers a digest to its compressed bytes; symbols `venv: path` to
    its unresolved symbols and missing libraries; probes (module, user) to pass, needs-driver or fail.
    """

    label: str
    digest: str
    arch: str
    packages: Mapping[tuple[str, str], str]
    layers: Mapping[str, int]
    settings: Mapping[str, str]
    patches: Mapping[str, str]
    symbols: Mapping[str, frozenset[str]]
    probes: Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Change:
    """One line of the report: before is "" for what is new, after "" for what is gone."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """All that differs. layer counts and bytes are of compressed blobs; kept layers need no pull."""

    a: str
    b: str
    packages: tuple[Change, ...]
    layers_kept: int
    layers_gone: int
    layers_new: int
    bytes_a: int
    bytes_b: int
    bytes_new: int
    settings: tuple[Change, ...]
    patches: tuple[Change, ...]
    symbols: tuple[Change, ...]
    probes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def compare(a: Side, b: Side) -> Difference:
    """Return what changed from `a` to `b`. Pure."""
    kept = a.layers.keys() & b.layers.keys()
    return Difference(
        a=a.label,
        b=b.label,
        packages=_changes(_named(a.packages), _named(b.packages)),
        layers_kept=len(kept),
        layers_gone=len(a.layers) - len(kept),
        layers_new=len(b.layers) - len(kept),
        bytes_a=sum(a.layers.values()),
        bytes_b=sum(b.layers.values()),
        bytes_new=sum(size for digest, size in b.layers.items() if digest not in kept),
        settings=_changes(a.settings, b.settings),
        patches=_changes(a.patches, b.patches),
        symbols=_symbols(a.symbols, b.symbols),
        probes=classify(a.probes, b.probes),
    )


def classify(a: Mapping[tuple[str, str], str], b: Mapping[tuple[str, str], str]) -> dict[str, tuple[str, ...]]:
    """Return the probes of each class. "needs-driver" is no usable result: it says nothing about the import itself.

    One that fails in B and was not run in A has no usable result in A.
    """
    found: dict[str, list[str]] = {name: [] for name in CLASSES}
    for key in sorted(a.keys() | b.keys()):
        name = f"{key[0]} as {key[1]}" if key[1] else key[0]
        before, after = a.get(key, "none"), b.get(key, "none")
        if after == "fail":
            found[{"pass": CLASSES[0], "fail": CLASSES[2]}.get(before, CLASSES[1])].append(name)
        elif after == "pass" and before == "fail":
            found[CLASSES[3]].append(name)
    return {name: tuple(probes) for name, probes in found.items()}


def _named(packages: Mapping[tuple[str, str], str]) -> dict[str, str]:
    return {f"{place}: {name}": version for (place, name), version in packages.items()}


def _changes(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Change, ...]:
    names = sorted(a.keys() | b.keys())
    return tuple(Change(name, a.get(name, ""), b.get(name, "")) for name in names if a.get(name) != b.get(name))


def _symbols(a: Mapping[str, frozenset[str]], b: Mapping[str, frozenset[str]]) -> tuple[Change, ...]:
    changes = []
    for path in sorted(a.keys() | b.keys()):
        before, after = a.get(path, frozenset()), b.get(path, frozenset())
        if before != after:
            changes.append(Change(path, ", ".join(sorted(before - after)), ", ".join(sorted(after - before))))
    return tuple(changes)


def read_side(text: str, arch: Arch | None, probes: Path | None = None) -> Side:
    """Read one image: an OCI layout, a tar, or a reference in a registry, which is fetched to a temporary layout.

    probes is the record of `make probe`, if there is one. LockstepError where the image cannot be read.
    """
    with _source(text, arch) as source:
        layers = scan_image(source)
        tree = merge(layers)
        venvs = find_venvs(tree)
        target = arch or {item.docker: item for item in Arch}.get(source.architecture) or Arch.X86_64
        subject = Subject(tree, layers, venvs, target)
        findings = check(subject, Options(checks=("abi",), hashed=False), {})
        packages = {("deb", name): version for name, version in deb_versions(tree).items()}
        packages |= {(venv.name, dist.name): dist.version for venv in venvs for dist in venv.dists}
        return Side(
            label=text,
            digest=source.digest,
            arch=target.value,
            packages=packages,
            layers={layer.digest: layer.size for layer in source.layers},
            settings=settings_of(source.config),
            patches=patches_of(tree.text(PATCHES)),
            symbols=symbols_of(findings),
            probes=read_probes(probes) if probes else {},
        )


@contextmanager
def _source(text: str, arch: Arch | None) -> Iterator[ImageSource]:
    path = Path(text)
    if path.exists():
        if not is_image(path):
            raise LockstepError("is no image", where=text, fix="name an OCI layout, an image's tar or a reference")
        yield open_image(path, arch.docker if arch else "")
        return
    from lockstep.arch import host_arch
    from lockstep.ship.source import open_source

    with (
        TemporaryDirectory(dir="/var/tmp", prefix="lockstep-diff-") as scratch,
        open_source(text, arch or host_arch(), Path(scratch)) as fetched,
    ):
        blobs = tuple(LayerBlob(layer.digest, "", layer.size, str(layer.path)) for layer in fetched.layers)
        yield ImageSource(Path(scratch), fetched.provenance, fetched.config, blobs)


def deb_versions(tree: Tree) -> dict[str, str]:
    """Return the installed Debian packages of a tree, from dpkg's status file."""
    text = tree.text("var/lib/dpkg/status") or ""
    found = {}
    for part in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", part, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and "Package" in fields:
            found[fields["Package"]] = fields.get("Version", "")
    return found


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return an image configuration's settings by name: ENV variables, labels, entrypoint, command, user, workdir."""
    inner = config.get("config") or {}
    found = {f"env {item.partition('=')[0]}": item.partition("=")[2] for item in inner.get("Env") or ()}
    found |= {f"label {name}": value for name, value in (inner.get("Labels") or {}).items()}
    for key in ("Entrypoint", "Cmd", "User", "WorkingDir", "StopSignal"):
        value = inner.get(key)
        if value:
            found[key.lower()] = value if isinstance(value, str) else json.dumps(value)
    return found


def patches_of(text: str | None) -> dict[str, str]:
    """Return what the image's own record says about patches: `venv package id file` to status and content."""
    if text is None:
        return {}
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return {"record": "unreadable"}
    rows = data if isinstance(data, list) else next((value for value in data.values() if isinstance(value, list)), [])
    found = {}
    for row in rows:
        if isinstance(row, dict):
            name = " ".join(str(row.get(key, "")) for key in ("venv", "package", "id", "file")).strip()
            found[name] = f"{row.get('status', '')} {str(row.get('sha256_after', ''))[:12]}".strip()
    return found


def symbols_of(findings: Sequence[Finding]) -> dict[str, frozenset[str]]:
    """Return the unresolved symbols and missing libraries of each file that an abi check named."""
    found: dict[str, frozenset[str]] = {}
    for item in findings:
        if item.level == "fail":
            key = f"{item.venv}: {item.path}"
            found[key] = found.get(key, frozenset()) | set(item.symbols) | set(item.libraries)
    return found


def read_probes(path: Path) -> dict[tuple[str, str], str]:
    """Return the results that `make probe` recorded, by (module, user): pass, needs-driver or fail."""
    try:
        data = json.loads(path.read_text("utf-8"))
        return {
            (module, user): str(answer["result"])
            for module, users in data["modules"].items()
            for user, answer in users.items()
        }
    except FileNotFoundError:
        raise LockstepError(
            "there is no probe record", where=str(path), fix="run `make probe`, or leave it out"
        ) from None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise LockstepError("is no probe record", where=str(path), fix="run `make probe` again") from None


def probe_record(image: str) -> Path | None:
    """Return the probe record of an image built here (build/oci/NAME to build/probe/NAME.json), if there is one."""
    path = BUILD / "probe" / f"{Path(image).name}.json"
    return path if Path(image).is_dir() and path.is_file() else None
