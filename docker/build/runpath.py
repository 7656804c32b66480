"""Turn the search path of a shared object that names the build's own folder into one relative to the object.

A build may link with `-rpath <site-packages>/nvidia/…/lib` of the environment that it is built in. That folder is in no
image: there the same libraries lie beside the object, in whichever venv it is installed.
"""

from __future__ import annotations

import os
import struct
from pathlib import PurePosixPath

_DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 5, 15, 29
_PT_LOAD, _PT_DYNAMIC = 1, 2


def relocate(data: bytes, member: str, site: str) -> bytes:
    """Return the object with each entry below `site` made relative to `member`, its path in the wheel.

    The string is overwritten in place, which the shorter text always allows (elf.h; 64-bit little-endian objects, as
    both architectures have). An object that names nothing below `site` comes back as it is.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        return data
    changed = bytearray(data)
    for start in _search_paths(data):
        end = data.index(b"\0", start)
        entries = data[start:end].decode().split(":")
        folder = PurePosixPath(site) / PurePosixPath(member).parent
        new = ":".join(
            "$ORIGIN/" + os.path.relpath(entry, folder) if entry == site or entry.startswith(f"{site}/") else entry
            for entry in entries
        ).encode()
        if len(new) <= end - start:
            changed[start:end] = new.ljust(end - start, b"\0")
    return bytes(changed)


def _search_paths(data: bytes) -> list[int]:
    """Return where in the file the texts of DT_RPATH and DT_RUNPATH begin."""
    table, size, number = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * index) for index in range(number)]
    loads = [(virtual, offset, length) for kind, _, offset, virtual, _, length in headers if kind == _PT_LOAD]
    entries = [
        struct.unpack_from("<QQ", data, at)
        for kind, _, offset, _, _, length in headers
        if kind == _PT_DYNAMIC
        for at in range(offset, offset + length, 16)
    ]
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        return []
    base = next(
        (strings - virtual + offset for virtual, offset, length in loads if virtual <= strings < virtual + length)
    )
    return [base + value for tag, value in entries if tag in (_DT_RPATH, _DT_RUNPATH)]
