"""What the last build of an image left behind: build/records/IMAGE.ARCH.json, written by lockstep.build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from lockstep.arch import Arch
from lockstep.layers import Layer
from lockstep.paths import BUILD

RECORDS = BUILD / "records"


class Record(BaseModel):
    """The record. layers holds lockstep.build.layer_key of each layer; seconds, how long each step last took."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    digest: str = ""
    layers: list[str] = []
    seconds: dict[str, float] = {}
    wall: float = 0.0

    def names(self) -> dict[str, frozenset[str]]:
        """Return the layers' names and the short hashes (or name==version) of the wheels that each held."""
        return {key.split(" ", 1)[0]: frozenset(key.split(" ")[1:]) for key in self.layers}

    def seconds_of(self, layer: Layer, size_before: int) -> tuple[float | None, str]:
        """Return how long a layer's stage will take, in seconds, and what that is taken from.

        size_before: the bytes that the layer had when it was built, where it was.
        """
        took = self.seconds.get(layer.name)
        if took is not None:
            scale = layer.size / size_before if size_before and layer.size else 1.0
            return took * scale, "its last build" if scale == 1.0 else "its last build, by size"
        return None, "it has never been built here"


def record_path(image: str, arch: Arch) -> Path:
    """Return where the record of an image's last build lies."""
    return RECORDS / f"{image}.{arch}.json"


def last_record(image: str, arch: Arch, path: Path | None = None) -> Record | None:
    """Return the record of an image's last build, or None where there is none that can be read."""
    try:
        data: Any = json.loads((path or record_path(image, arch)).read_text(encoding="utf-8"))
        return Record.model_validate(data)
    except (OSError, ValueError, ValidationError):
        return None
