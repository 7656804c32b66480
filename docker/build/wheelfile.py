"""Make a wheel the same bytes each time, and stamp it with what it was built for. Runs inside a compile stage."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import time
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from runpath import relocate

# Name of the file in .dist-info that says which torch, CUDA, Python and GPUs a wheel was built for (CASES A4).
STAMP = "lockstep.json"


def rewrite(wheel: Path, into: Path, stamp: dict, epoch: int, site: str) -> Path:
    """Write `wheel` again below `into`: members sorted, one time, plain modes, our stamp, and a RECORD that fits.

    `site` is the site-packages folder of the build, which no search path of a shared object may name.
    """
    when = time.gmtime(max(epoch, 315532800))[:6]  # zip knows no time before 1980
    with zipfile.ZipFile(wheel) as archive:
        members = {item.filename: item for item in archive.infolist() if not item.is_dir()}
        info = next(name.split("/")[0] for name in members if name.endswith(".dist-info/WHEEL"))
        record = f"{info}/RECORD"
        stamp_text = json.dumps(stamp, sort_keys=True, indent=1) + "\n"
        target = into / wheel.name
        into.mkdir(parents=True, exist_ok=True)
        rows: list[tuple[str, str, str]] = []
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
            for name in sorted(
                {*members, f"{info}/{STAMP}"} - {record}, key=lambda name: (name.startswith(info), name)
            ):
                data = stamp_text.encode() if name == f"{info}/{STAMP}" else relocate(archive.read(name), name, site)
                executable = name in members and bool(members[name].external_attr >> 16 & 0o111)
                _add(out, name, data, 0o755 if executable else 0o644, when)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                rows.append((name, f"sha256={digest}", str(len(data))))
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
            _add(out, record, text.getvalue().encode(), 0o644, when)
    return target


def _add(out: zipfile.ZipFile, name: str, data: bytes, mode: int, when: tuple) -> None:
    item = zipfile.ZipInfo(name, when)
    item.compress_type = zipfile.ZIP_DEFLATED
    item.create_system = 3  # Unix, so that the mode counts
    item.external_attr = (0o100000 | mode) << 16
    out.writestr(item, data)


def metadata(wheel: Path) -> tuple[str, str, list[str]]:
    """Return name, version and requirements of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    return (
        str(headers["Name"]),
        str(headers["Version"]),
        [str(value) for value in headers.get_all("Requires-Dist") or []],
    )


def install(wheel: Path, site: Path) -> None:
    """Unpack a wheel into a site-packages folder, for the import check alone."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
