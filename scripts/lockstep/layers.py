"""Step 3: which wheels share a layer of an image. Pure and deterministic: locks in, plan out.

A wheel over 32 MB is a layer alone, and so is one that no index serves. The smaller ones are grouped by the set of
venvs that use them, and each group is split by extendible hashing over the package's name: a bucket that grows past
the limit splits by the next bit of the hash and leaves every other bucket alone. So a new package, or a new version,
touches one layer.

Order: runtimes unpack layers as a chain, so what is big and seldom changes lies below, and what a person bumps lies
above. The order depends on names alone, never on sizes, because a version's size must not move other layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from hashlib import sha256
from operator import attrgetter

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lockstep.lock import Lock, LockedWheel, carried
from lockstep.matrix import Matrix

ALONE = 32_000_000
"""Compressed bytes from which a wheel is a layer by itself, so that buckets hold only what is quick to rebuild."""

BUCKET = 32_000_000
"""Compressed bytes at which a bucket of small wheels splits: a bump of one must rebuild in seconds."""

MOST = 60
"""Wheel layers per image at most: container runtimes accept 127 in all, and a base brings its own."""


_NAME_AND_THE_REST = attrgetter(*(field.name for field in fields(LockedWheel)))
"""LockedWheel's own order, worked out once per wheel: comparing them pair by pair was half the time of a plan."""


@dataclass(frozen=True)
class Placed:
    """A wheel and the venvs (backends, sorted) that get a copy of it."""

    wheel: LockedWheel
    venvs: tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """Wheels that are installed by one stage. `name` is unique in the image and fit for a stage name."""

    name: str
    venvs: tuple[str, ...]
    wheels: tuple[LockedWheel, ...]

    @property
    def size(self) -> int:
        """The compressed bytes of its wheels, as far as they are known."""
        return sum(wheel.size for wheel in self.wheels)


def plan(matrix: Matrix, image: str, locks: Mapping[str, Lock]) -> tuple[Layer, ...]:
    """Return the layers of an image, bottom first.

    locks holds the lock of each of the image's backends. The limits grow until there are at most `MOST` layers.
    """
    backends = matrix.images[image].backends
    placed = place(carried(matrix, image, locks[name]) for name in backends)
    asked = {
        canonicalize_name(Requirement(text).name) for name in backends for text in matrix.backends[name].requires
    } | {package for name in backends for package in matrix.backends[name].mirror}
    for alone, bucket in _limits():
        large = [_alone(item) for item in placed if _is_alone(item.wheel, alone)]
        large.sort(key=lambda layer: (layer.wheels[0].name in asked, layer.name))
        layers = (*large, *_buckets([item for item in placed if not _is_alone(item.wheel, alone)], bucket))
        if len(layers) <= MOST or bucket > sum(item.wheel.size for item in placed):
            break
    return layers


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the sizes from which a wheel is alone and at which a bucket splits, finest first.

    Where wheels nearly as large as a bucket share it, splitting leaves crumbs; so from the second step on a bucket
    holds three times the largest wheel in it. Measured on four venvs: 54 layers at 64 MB, where equal sizes need 256.
    """
    yield ALONE, BUCKET
    alone = ALONE
    while True:
        alone *= 2
        yield alone, 3 * alone


def place(locks: Iterable[Lock]) -> list[Placed]:
    """Return each distinct wheel of the locks once, with the venvs that use it, sorted by name and version."""
    users: dict[LockedWheel, list[str]] = {}
    for lock in locks:
        for wheel in lock.wheels:
            users.setdefault(wheel, []).append(lock.backend)
    return [Placed(wheel, tuple(sorted(users[wheel]))) for wheel in sorted(users, key=_NAME_AND_THE_REST)]


def _is_alone(wheel: LockedWheel, limit: int) -> bool:
    """Tell whether a wheel is a layer by itself. A compiled one's size is not known when the plan is made."""
    return wheel.size >= limit or wheel.origin != "index"


def _alone(item: Placed) -> Layer:
    return Layer(f"{_short(item.venvs)}-{item.wheel.name}", item.venvs, (item.wheel,))


def _short(venvs: tuple[str, ...]) -> str:
    """Name a set of venvs by its members, or by their number and a hash where that would grow too long."""
    joined = "-".join(venvs)
    return joined if len(joined) <= 24 else f"{len(venvs)}venvs-{sha256(joined.encode()).hexdigest()[:6]}"


def _buckets(small: list[Placed], limit: int) -> list[Layer]:
    """Group the small wheels by their venvs, and split each group at the limit."""
    groups: dict[tuple[str, ...], list[LockedWheel]] = {}
    for item in small:
        groups.setdefault(item.venvs, []).append(item.wheel)
    layers = [
        Layer(f"{_short(venvs)}-g{prefix}", venvs, tuple(wheels))
        for venvs, members in groups.items()
        for prefix, wheels in _split(members, "", limit)
    ]
    # A group used by many venvs holds the common ground and changes least often: it lies lower.
    return sorted(layers, key=lambda layer: (-len(layer.venvs), layer.name))


def _split(wheels: list[LockedWheel], prefix: str, limit: int) -> list[tuple[str, list[LockedWheel]]]:
    """Split a bucket by the next bit of the names' hashes while it is over the limit and holds several packages."""
    if len(wheels) < 2 or sum(wheel.size for wheel in wheels) <= limit or len(prefix) >= 16:
        return [(prefix, wheels)] if wheels else []
    bit = len(prefix)
    halves = [(prefix + digit, [wheel for wheel in wheels if _bits(wheel.name)[bit] == digit]) for digit in ("0", "1")]
    return [bucket for name, members in halves for bucket in _split(members, name, limit)]


@cache
def _bits(name: str) -> str:
    return f"{int.from_bytes(sha256(name.encode()).digest()[:2], 'big'):016b}"
