"""Merge an image's layers into one tar stream, reading each layer once and writing nothing to disk.

The layers are read from the top down. A path is written the first time it is met, so whatever an upper layer brought or
took away is known before a lower layer's file comes by, and nothing needs to be unpacked, overwritten or removed. The
rules are those of https://github.com/opencontainers/image-spec/blob/v1.1.0/layer.md: a whiteout hides the path in lower
layers only, an opaque whiteout hides what lower layers have in that folder, a folder in two layers is merged with the
upper one's owner and mode, and anything else replaces.

Two things cannot be told while streaming: a hard link whose first name an upper layer hides, and a path that one layer
holds twice. Image builders write neither. Where one turns up, the headers of all layers are read once more to plan, and
the stream starts over.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.ship.tarstream import DIRECTORY, LINK, Entry, Reader, Writer

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)
PIPE_BYTES = 1 << 20
"""The largest pipe that an unprivileged user may ask for (pipe(7), /proc/sys/fs/pipe-max-size)."""
_UNPACK = {"zstd": ["zstd", "-dcq"], "gzip": ["gzip", "-dc"]}


@dataclass(frozen=True)
class LayerFile:
    """A layer on disk: its file, how it is packed (`none`, `gzip` or `zstd`), and its digest for messages."""

    path: Path
    compression: str
    digest: str

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size


class NeedsPlanError(Exception):
    """The stream met something that must be known beforehand."""


@dataclass
class Plan:
    """What the headers told: hard links to write as files, and members to leave out, by (layer, …)."""

    promote: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    """(layer, hidden first name) -> the visible name to write the data under."""
    superseded: set[tuple[int, int]] = field(default_factory=set)
    """(layer, position of a member that the same layer brings again later)."""


@contextlib.contextmanager
def opened(layer: LayerFile) -> Iterator[tuple[int, Callable[[], int]]]:
    """Yield a file descriptor of the layer's tar stream, and a function that says how many packed bytes are used up."""
    with layer.path.open("rb", buffering=0) as packed:
        if layer.compression == "none":
            yield packed.fileno(), packed.tell
            return
        argv = _UNPACK[layer.compression]
        try:
            process = subprocess.Popen(argv, stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except FileNotFoundError:
            raise LockstepError(
                f"the program {argv[0]} is not installed", fix=f"install the package {argv[0]}"
            ) from None
        assert process.stdout is not None
        assert process.stderr is not None
        widen(process.stdout.fileno())
        try:
            # The child shares our file's offset, so tell() follows its reading.
            yield process.stdout.fileno(), packed.tell
        except BaseException:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
            raise
        process.stdout.close()
        words = process.stderr.read().decode(errors="replace").strip()
        process.stderr.close()
        if process.wait():
            raise LockstepError(
                f"{argv[0]} cannot unpack the layer {layer.digest}: {words}",
                where=str(layer.path),
                fix="build or fetch the image again",
            )


def widen(fd: int) -> None:
    """Make a pipe as large as allowed: fewer switches between the programs at its ends."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)


@dataclass
class _Open:
    """What is known of the layer being read."""

    number: int
    own: dict[bytes, bytes] = field(default_factory=dict)
    """Every path it holds, with its tar type."""
    shown: dict[bytes, bytes] = field(default_factory=dict)
    """Those that are in the image."""
    hidden: dict[bytes, bool] = field(default_factory=dict)
    """Folder -> whether upper layers hide what is inside."""
    names: dict[bytes, bytes] = field(default_factory=dict)
    """Hidden first name of a hard-linked file -> the name that its data was written under."""


class Flattener:
    """One walk over the layers; `writer` None reads headers only and fills the plan."""

    def __init__(
        self,
        layers: Sequence[LayerFile],
        writer: Writer | None,
        plan: Plan,
        change: Callable[[Entry], bool],
        progress: Callable[[int], None],
    ) -> None:
        self._layers = layers
        self._writer = writer
        self._plan = plan
        self._change = change
        self._progress = progress
        self.seen: dict[bytes, bytes] = {}
        """Every path written, with its tar type."""
        self._gone: set[bytes] = set()
        self._opaque: set[bytes] = set()
        self._parents: set[bytes] = set()
        self._waiting: dict[bytes, list[Entry]] = {}
        """Hard links to a path of a lower layer, by that path."""

    def add(self, entry: Entry, data: bytes = b"") -> None:
        """Write a member that stands above every layer."""
        self.seen[entry.path] = entry.kind
        self._parents.add(_parent(entry.path))
        if self._writer is not None:
            self._writer.file(entry, data)

    def run(self) -> None:
        """Walk all layers from the top, then write the folders that no layer names."""
        used = 0
        for number in range(len(self._layers) - 1, -1, -1):
            self._layer(number, used)
            used += self._layers[number].size
        for target, links in self._waiting.items():
            raise LockstepError(
                f"{_show(links[0].path)} is a hard link to {_show(target)}, which no layer holds",
                fix="build the image again",
            )
        for path in sorted(self._missing_folders()):
            self.add(Entry(path, DIRECTORY, 0o755))

    def _missing_folders(self) -> set[bytes]:
        missing: set[bytes] = set()
        for parent in self._parents:
            path = parent
            while path and path not in self.seen and path not in missing:
                missing.add(path)
                path = _parent(path)
        return missing

    def _layer(self, number: int, used: int) -> None:
        layer = _Open(number)
        position_of: dict[bytes, int] = {}
        gone: set[bytes] = set()
        opaque: set[bytes] = set()
        with opened(self._layers[number]) as (fd, tell):
            reader = Reader(fd)
            for position, entry in enumerate(reader):
                if not position % 256:
                    self._progress(used + tell())
                path = entry.path
                parent, _, name = path.rpartition(b"/")
                if name.startswith(WHITEOUT):
                    if name == OPAQUE:
                        opaque.add(parent)
                    else:
                        bare = name.removeprefix(WHITEOUT)
                        gone.add(parent + b"/" + bare if parent else bare)
                    continue
                if (number, position) in self._plan.superseded:
                    continue
                if path in layer.own:
                    self._again(layer, position_of[path], entry)
                layer.own[path] = entry.kind
                position_of[path] = position
                shown = self._shows(layer, path)
                if shown:
                    layer.shown[path] = entry.kind
                elif entry.kind != DIRECTORY and self.seen.get(path) == DIRECTORY:
                    # A folder above this file replaced it, and the file had replaced whatever was below.
                    opaque.add(path)
                self._place(layer, entry, shown, reader)
        self.seen.update(layer.shown)
        self._gone |= gone
        self._opaque |= opaque

    def _shows(self, layer: _Open, path: bytes) -> bool:
        """Whether this layer's `path` is in the image, by what upper layers hold."""
        if path in self.seen or path in self._gone:
            return False
        parent = _parent(path)
        if parent not in layer.hidden:
            layer.hidden[parent] = self._hides(parent)
        return not layer.hidden[parent]

    def _place(self, layer: _Open, entry: Entry, shown: bool, reader: Reader) -> None:
        """Write one member, if it is to be seen, under the name that is right for it."""
        waiting = self._waiting.pop(entry.path, [])
        if entry.kind == LINK:
            if shown:
                self._place_link(layer, entry, entry.link)
            for each in waiting:
                self._place_link(layer, each, entry.link)
            return
        promoted = None if shown else self._plan.promote.get((layer.number, entry.path))
        if shown:
            if self._change(entry):
                self._write(entry, reader)
        elif promoted is not None or waiting:
            name = promoted if promoted is not None else waiting.pop(0).path
            layer.names[entry.path] = name
            moved = replace(entry, path=name)
            if self._change(moved):
                self._write(moved, reader)
        for each in waiting:
            self._link(each, layer.names.get(entry.path, entry.path))

    def _place_link(self, layer: _Open, entry: Entry, target: bytes) -> None:
        """Write a hard link that is to be seen, to the name under which its target's data was written."""
        if target not in layer.own:
            # A link into a lower layer: Docker makes it, enroot's tar refuses ("Cannot hard link"). Wait for the file.
            self._waiting.setdefault(target, []).append(entry)
        elif target in layer.names:
            if layer.names[target] != entry.path:
                self._link(entry, layer.names[target])
        elif self._shows(layer, target):
            self._link(entry, target)
        else:
            # The first name is hidden and its data has gone by.
            if self._writer is not None:
                raise NeedsPlanError
            self._plan.promote[(layer.number, target)] = layer.names[target] = entry.path

    def _link(self, entry: Entry, target: bytes) -> None:
        entry.link = target
        if self._change(entry):
            self._write(entry, None)

    def _write(self, entry: Entry, reader: Reader | None) -> None:
        self._parents.add(_parent(entry.path))
        if self._writer is None:
            return
        self._writer.header(entry)
        if reader is not None and entry.size:
            reader.copy_data(self._writer)

    def _again(self, layer: _Open, before: int, entry: Entry) -> None:
        """One layer brings a path twice: the later one counts, as tar would have it."""
        if DIRECTORY in {entry.kind, layer.own[entry.path]} and entry.kind != layer.own[entry.path]:
            raise LockstepError(
                f"the layer {self._layers[layer.number].digest} holds {_show(entry.path)} as a folder and as a file",
                fix="build the image with BuildKit",
            )
        if self._writer is not None:
            raise NeedsPlanError
        self._plan.superseded.add((layer.number, before))

    def _hides(self, path: bytes) -> bool:
        """Whether upper layers hide what lower layers have inside the folder `path`."""
        while True:
            if path in self._opaque or path in self._gone or self.seen.get(path, DIRECTORY) != DIRECTORY:
                return True
            if not path:
                return False
            path = _parent(path)


def flatten(
    layers: Sequence[LayerFile],
    start: Callable[[], Writer],
    *,
    top: Sequence[tuple[Entry, bytes]] = (),
    folders: Sequence[bytes] = (),
    change: Callable[[Entry], bool] = lambda _entry: True,
    progress: Callable[[int], None] = lambda _used: None,
) -> int:
    """Write the merged tree of `layers` (lowest first) as one tar archive; return the number of members.

    start: gives the writer; called again, after the first output was thrown away, where planning turned out necessary.
    top: members above all layers, with their data. folders: paths that must exist, made with mode 0755 if missing.
    change: may change a member before it is written, and returns whether it is written at all.
    progress: told now and then how many packed bytes are used up.
    """
    plan = Plan()
    for _attempt in range(2):
        walk = Flattener(layers, start(), plan, change, progress)
        try:
            return _walk(walk, top, folders)
        except NeedsPlanError:
            plan = Plan()
            _walk(Flattener(layers, None, plan, lambda _entry: True, progress), top, folders)
    raise LockstepError("the layers cannot be merged", fix="report the image")


def _walk(walk: Flattener, top: Sequence[tuple[Entry, bytes]], folders: Sequence[bytes]) -> int:
    for entry, data in top:
        walk.add(entry, data)
    walk.run()
    for path in folders:
        parts = path.split(b"/") if path else []
        for depth in range(1, len(parts) + 1):
            folder = b"/".join(parts[:depth])
            if walk.seen.get(folder, DIRECTORY) != DIRECTORY:
                break
            if folder not in walk.seen:
                walk.add(Entry(folder, DIRECTORY, 0o755))
    if walk._writer is not None:
        walk._writer.finish()
    return len(walk.seen)


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _show(path: bytes) -> str:
    return "/" + path.decode(errors="replace")
