"""What `make bench` counts, and the table that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import imageblobs
import lockkit
import wheelkit
from lockstep import bench
from lockstep.arch import Arch
from lockstep.bench_peers import HostInstall, layer_bytes
from lockstep.lock import LockedWheel


def test_a_hard_link_is_no_file(tmp_path: Path) -> None:
    counted = layer_bytes(imageblobs.image(tmp_path / "image"))
    one = len(b"one\ntwo\nthree\n") + 4 * 64
    assert (counted.files, counted.base, counted.pyc) == (2 * one, one, 0)


def test_a_shared_wheel_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lockkit.wheel(tmp_path / "wheels", "some-thing", "1.0")
    with wheelkit.index([made]) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        wheel = LockedWheel("some-thing", "1.0", made.name, wheelkit.digest(made), made.stat().st_size)
        locks = [lockkit.lock("a", wheel), lockkit.lock("b", wheel)]
        host = HostInstall(tmp_path / "work", locks, Arch.X86_64, "3.13")
        host.folder.mkdir()
        top = host.install("plain", bytecode=False)
    site = top / "a"
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and path.name != ".lock")
    assert size > 0
    assert host.wheel_bytes(top) == size
    assert host.left_out() == 0


def test_the_nearest_other_release_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [lockkit.wheel(tmp_path, "pure", version) for version in ("1.0", "1.1", "1.2")]
    with wheelkit.index(made) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        other = bench.other_version(lockkit.locked("pure", "1.2"))
        assert other is not None
        assert (other.version, other.sha256) == ("1.1", wheelkit.digest(made[1]))
        assert bench.other_version(lockkit.locked("unheard-of")) is None


def test_the_page_keeps_the_tables_of_other_images(tmp_path: Path) -> None:
    page = tmp_path / "bench.md"

    def found(image: str, ours: float) -> bench.Bench:
        made = bench.Bench(image, Arch.X86_64, loads=[0.1])
        made.measures.append(bench.Measure("cold build", ours, 10.0, "s", "uv, tar | zstd", 1.5))
        made.measures.append(bench.Measure("no-op", 2.0, None, "s", "best of 2", 5.0))
        return made

    bench.write_bench(found("vllm", 12.0), page)
    bench.write_bench(found("smoke", 16.0), page)
    bench.write_bench(found("smoke", 17.0), page)
    text = page.read_text()
    assert text.count("# Measured") == 1
    assert text.index("## smoke on x86_64") < text.index("## vllm on x86_64")
    assert "| cold build | 12.0 s | 10.0 s | 1.20 | 1.5 (met) | uv, tar \\| zstd |" in text
    assert "| cold build | 17.0 s | 10.0 s | 1.70 | 1.5 (**missed**) | uv, tar \\| zstd |" in text
    assert "16.0 s" not in text
    assert "| no-op | 2.00 s |  |  | 5 (met) | best of 2 |" in text
