"""BuildKit caches that a build may read: leave out the dead ones before it starts (CASES D10).

BuildKit takes a cache's manifest first and its blobs only when a step needs them, so a cache whose blobs were collected
is not a miss but a failure in the middle of a build (moby/buildkit#2836; Docker 26.1 does so too). Whether it is whole
is asked here, of the registry or the folder. What cannot be asked stays in: BuildKit only warns about a cache that it
cannot reach.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lockstep.console import warn
from lockstep.errors import LockstepError
from lockstep.ship import refs
from lockstep.ship.layout import INDEX_TYPES, MANIFEST_TYPES

if TYPE_CHECKING:
    from lockstep.ship.registry import Manifest, Registry

_LOST = re.compile(
    r"httpReadSeeker|from remote: not found|blob (?:sha256:\w+ )?not found|content digest sha256:\w+: not found|"
    # A file that COPY does not find is no lost blob.
    r"failed to compute cache key: (?!failed to calculate checksum).*not found"
)
"""What BuildKit says when a blob of an imported cache is gone (moby/buildkit#2332, #2836, docker/buildx#3374)."""
_CONFIG = "application/vnd.buildkit.cacheconfig.v0"
"""The type of a cache's configuration, which nothing else has."""
_PARALLEL = 8
_SETTLED = 3600.0
"""Seconds after which a blob that no index names is taken for left over, not for one that is being written."""


_ODD = (AttributeError, KeyError, TypeError, ValueError)
"""What reading an answer raises that is a proxy's page, or a manifest that is none."""


@dataclass(frozen=True)
class Verdict:
    """One cache: its words as given, whether it can be used, and why not. `unknown`: it could not be asked."""

    entry: str
    state: Literal["live", "dead", "unknown"]
    why: str = ""


def usable(cache_from: str) -> list[str]:
    """Return the entries of CACHE_FROM (separated by spaces) without the dead ones; a warning names each of those."""
    kept = []
    for entry in cache_from.split():
        verdict = judge(entry)
        if verdict.state == "dead":
            warn(f"the cache {entry} is left out: {verdict.why}")
        else:
            kept.append(entry)
    return kept


def lost(text: str) -> bool:
    """Tell whether a build failed because a blob of an imported cache was gone, by what BuildKit said."""
    return _LOST.search(text) is not None


def judge(entry: str) -> Verdict:
    """Look at one cache in buildx's words: `type=registry,ref=…`, `type=local,src=…`, or a bare reference."""
    words = _words(entry)
    if words.get("type") == "registry":
        return _registry(entry, words.get("ref", ""))
    if words.get("type") == "local":
        return _local(entry, Path(words.get("src", "")))
    return Verdict(entry, "unknown", f"caches of type {words.get('type')} cannot be asked")


def _words(entry: str) -> dict[str, str]:
    if "=" not in entry:
        return {"type": "registry", "ref": entry}
    return {name.strip(): value for name, _, value in (part.partition("=") for part in entry.split(","))}


def _registry(entry: str, text: str) -> Verdict:
    try:
        ref = refs.parse(text)
    except LockstepError as error:
        return Verdict(entry, "dead", error.what)
    try:
        return in_registry(entry, ref)
    except LockstepError as error:
        return Verdict(entry, "unknown", error.what)
    except _ODD:
        return Verdict(entry, "unknown", "the registry's answer is no manifest")


def in_registry(entry: str, ref: refs.Ref) -> Verdict:
    """Look at a cache in a registry. LockstepError where the registry does not answer or wants another login."""
    from lockstep.ship.registry import Registry

    registry = Registry(ref)
    top = registry.manifest(ref.reference)
    if top is None:
        return Verdict(entry, "dead", "the registry has no such reference")
    missing, digests = _contents(registry, top)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        missing += sum(not there for there in pool.map(registry.has_blob, digests))
    if missing:
        return Verdict(entry, "dead", f"{missing} of its {len(digests) + 1} blobs are no longer in the registry")
    return Verdict(entry, "live")


def prune_registry(text: str, *, dry_run: bool = False) -> list[Verdict]:
    """Remove the dead caches of a repository (`HOST/PATH`), or the one of `HOST/PATH:TAG`; return what was found.

    Only what is a BuildKit cache by its own configuration is looked at, so no image is ever removed, and only one with
    blobs missing is removed: another tag of the same digest is as dead. LockstepError where the registry does not
    answer, or does not allow deleting.
    """
    from lockstep.ship.registry import Registry

    ref = refs.parse(text)
    registry = Registry(ref)
    found = []
    for tag in [ref.tag] if ref.tag else registry.tags():
        named = ref.with_tag(tag)
        try:
            top = registry.manifest(tag)
            if top is None or all(item.get("mediaType") != _CONFIG for item in _entries(top.data)):
                continue
            found.append(in_registry(str(named), named))
        except _ODD:
            found.append(Verdict(str(named), "unknown", "the registry's answer is no manifest"))
            continue
        if found[-1].state == "dead" and not dry_run:
            registry.delete(top.digest)
    return found


def _contents(registry: Registry, top: Manifest) -> tuple[int, list[str]]:
    """Return how many manifests below `top` are gone, and the blobs that it and they name."""
    gone, digests = 0, []
    for item in _entries(top.data):
        if item.get("mediaType") in MANIFEST_TYPES | INDEX_TYPES:
            below = registry.manifest(item["digest"])
            if below is None:
                gone += 1
                continue
            more, found = _contents(registry, below)
            gone += more
            digests += found
        else:
            digests.append(str(item["digest"]))
    return gone, list(dict.fromkeys(digests))


def _entries(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a manifest names. A cache in the older form is an index that lists blobs beside its configuration."""
    config = [data["config"]] if "config" in data else []
    return [*data.get("manifests", []), *config, *data.get("layers", [])]


def _local(entry: str, folder: Path) -> Verdict:
    if not (folder / "index.json").is_file():
        return Verdict(entry, "dead", f"there is no cache in {folder}")
    try:
        named = list(_named(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return Verdict(entry, "dead", f"the cache in {folder} is damaged")
    missing = sum(not path.is_file() for path in named)
    return (
        Verdict(entry, "dead", f"{missing} of its {len(named)} blobs are gone") if missing else Verdict(entry, "live")
    )


def _named(folder: Path) -> Iterator[Path]:
    """Yield the path of every blob that a local cache's index names, there or not."""
    waiting = list(json.loads((folder / "index.json").read_bytes())["manifests"])
    while waiting:
        item = waiting.pop()
        path = folder / "blobs" / Path(*str(item["digest"]).split(":", 1))
        yield path
        if item.get("mediaType") in MANIFEST_TYPES | INDEX_TYPES and path.is_file():
            waiting += _entries(json.loads(path.read_bytes()))


def prune_local(cache_to: str, *, dry_run: bool = False) -> int:
    """Remove what earlier builds left in the folders of `type=local` caches; return the bytes.

    BuildKit adds to such a folder and never removes anything (docker/buildx#310). Kept is what the index names, and
    what is younger than an hour, since another build may be writing it. Nothing is removed of a folder without an
    index that can be read. A cache is never worth a build: errors are ignored.
    """
    freed = 0
    for entry in cache_to.split():
        words = _words(entry)
        folder = Path(words.get("dest", ""))
        if words.get("type") != "local" or not words.get("dest") or not (folder / "index.json").is_file():
            continue
        try:
            kept, before = set(_named(folder)), time.time() - _SETTLED
            for path in (folder / "blobs").glob("sha256/*"):
                if path not in kept and path.stat().st_mtime < before:
                    freed += path.stat().st_size
                    if not dry_run:
                        path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return freed
