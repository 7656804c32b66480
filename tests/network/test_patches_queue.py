"""vLLM's message queue: the real modules on CPU, many processes contending for one VLLM_PORT band.

Needs an interpreter with torch; vllmkit.torch_python makes one or takes LOCKSTEP_TORCH_PYTHON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from vllmkit import patched, plain, torch_python

DRIVER = Path(__file__).with_name("queue_driver.py")
PROCESSES = 16
WIDTH = 64


@pytest.fixture
def band() -> Iterator[int]:
    """The first port of a free band below the ephemeral range."""
    for base in range(11000, 20000, 500):
        with ExitStack() as stack:
            try:
                for port in range(base, base + WIDTH):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
        yield base
        return
    pytest.skip("no free band of ports")


def _run(sources: Path, *options: str, processes: int = PROCESSES, **environment: str) -> dict[str, Any]:
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": "", **environment}
    for name in ("VLLM_DP_MASTER_PORT", "VLLM_PORT", "LOCKSTEP_VLLM_PORT_BAND"):
        if name not in environment:
            env.pop(name, None)
    words = [torch_python(), str(DRIVER), str(sources), str(processes), *options]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=500)
    assert not done.returncode, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _all_messages(count: int) -> list[str]:
    return sorted(f"from {number}" for number in range(count))


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0"])
def test_published_0_25_and_0_26_lose_the_port_between_probe_and_bind(version: str, band: int) -> None:
    found = _run(plain(version), "probe-together", VLLM_PORT=str(band))
    # Two that probe at the same instant see each other, so a few ports may be found; each has one winner.
    assert found["errors"]
    assert len(found["ports"]) == len(set(found["ports"])) == PROCESSES - len(found["errors"])
    assert all("Address already in use" in error for error in found["errors"])


def test_published_0_29_comes_up_but_outside_the_band(band: int) -> None:
    found = _run(plain("0.29.0"), VLLM_PORT=str(band))
    assert found["errors"] == []
    assert not set(found["ports"]) & set(range(band, band + WIDTH))


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.29.0"])
def test_patched_all_come_up_inside_the_band_and_carry_messages(version: str, band: int) -> None:
    found = _run(patched(version), "probe-together", VLLM_PORT=str(band), LOCKSTEP_VLLM_PORT_BAND=str(WIDTH))
    assert found["errors"] == []
    assert found["ports"] == list(range(band, band + PROCESSES))
    assert found["messages"] == _all_messages(PROCESSES)


@pytest.mark.parametrize("version", ["0.25.1", "0.29.0"])
def test_ports_that_others_hold_and_those_of_the_data_parallel_master_are_passed_over(version: str, band: int) -> None:
    with ExitStack() as stack:
        for port in (band, band + 2):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", port))
            taken.listen()
        found = _run(patched(version), processes=4, VLLM_PORT=str(band), VLLM_DP_MASTER_PORT=str(band + 4))
    assert found["errors"] == []
    assert found["ports"] == [band + offset for offset in (1, 3, 14, 15)]


@pytest.mark.parametrize("version", ["0.25.1", "0.29.0"])
def test_a_band_that_is_full_is_an_error_that_names_it(version: str, band: int) -> None:
    found = _run(patched(version), processes=3, VLLM_PORT=str(band), LOCKSTEP_VLLM_PORT_BAND="2")
    assert found["ports"] == [band, band + 1]
    assert found["errors"] == [
        f"RuntimeError: All ports from VLLM_PORT={band} to {band + 1} are in use. "
        "Reserve another band, or widen it with LOCKSTEP_VLLM_PORT_BAND."
    ]


@pytest.mark.parametrize("version", ["0.25.1", "0.29.0"])
def test_without_vllm_port_the_kernel_chooses_and_ipv6_works(version: str, band: int) -> None:
    found = _run(patched(version), processes=4, QUEUE_HOST="::1")
    assert found["errors"] == []
    assert found["messages"] == _all_messages(4)
    assert len(set(found["ports"])) == 4
    assert _run(patched(version), processes=2, QUEUE_HOST="::1", VLLM_PORT=str(band))["ports"] == [band, band + 1]
