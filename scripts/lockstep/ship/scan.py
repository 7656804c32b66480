"""Find in an image's layers what trips other runtimes when they unpack layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.ship.flatten import OPAQUE, WHITEOUT, LayerFile, opened
from lockstep.ship.tarstream import DIRECTORY, LINK, SYMLINK, Reader


@dataclass(frozen=True)
class Finding:
    """One thing found. layer counts from 0 at the bottom; kind is cross-layer-hard-link, folder-to-link or whiteout."""

    kind: str
    layer: int
    path: str
    detail: str


def scan(layers: Sequence[LayerFile], first: int = 0) -> list[Finding]:
    """Return the findings in the layers from number `first` on; those below are read only as what they lie upon.

    - A hard link to a file of a lower layer: enroot unpacks each layer apart, so tar says "Cannot hard link"
      (NVIDIA/enroot#69).
    - A folder that an upper layer turns into a symbolic link: tools that unpack over each other write through it or
      stop with "File exists" (appc/docker2aci#98).
    - A whiteout: making one needs rights that an unprivileged runtime may lack ("EPERM", NERSC/shifter#50), and what it
      hides is carried along for ever.
    """
    found: list[Finding] = []
    folders: set[bytes] = set()
    for number, layer in enumerate(layers):
        own: set[bytes] = set()
        own_folders: set[bytes] = set()
        with opened(layer) as (fd, _tell):
            for entry in Reader(fd):
                parent, _, name = entry.path.rpartition(b"/")
                own.add(entry.path)
                if entry.kind == DIRECTORY:
                    own_folders.add(entry.path)
                hit: tuple[str, str] | None = None
                if name == OPAQUE:
                    hit = ("whiteout", "hides everything that lower layers have in the folder")
                    entry.path = parent
                elif name.startswith(WHITEOUT):
                    hit = ("whiteout", "removes it from lower layers")
                    entry.path = (parent + b"/" if parent else b"") + name.removeprefix(WHITEOUT)
                elif entry.kind == LINK and entry.link not in own:
                    hit = ("cross-layer-hard-link", f"links to /{_text(entry.link)} of a lower layer")
                elif entry.kind == SYMLINK and entry.path in folders:
                    hit = ("folder-to-link", f"was a folder, points to {_text(entry.link)}")
                if hit and number >= first:
                    found.append(Finding(hit[0], number, "/" + _text(entry.path), hit[1]))
        folders |= own_folders
    return found


def _text(path: bytes) -> str:
    return path.decode(errors="replace")
