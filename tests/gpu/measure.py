"""What the runtime package costs: a rewritten handle, and the start of an interpreter. Bars: 1 µs and 1 ms."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from types import SimpleNamespace

from lockstep_runtime import ipc

CALLS = 20_000
STARTS = 50


def per_call(function: object, handle: bytes) -> float:
    """Return the median time of one call in nanoseconds, over nine rounds."""
    rounds = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            function(0, handle, 8, 0, b"", 0, b"", True)  # type: ignore[operator]
        rounds.append((time.perf_counter_ns() - begin) / CALLS)
    return statistics.median(rounds)


def start(python: str) -> float:
    """Return how long `python -c pass` takes, in milliseconds."""
    begin = time.perf_counter()
    subprocess.run([python, "-c", "pass"], check=True)
    return (time.perf_counter() - begin) * 1e3


def main() -> int:
    """Print both costs; 1 where one is over its bar."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--with-package", required=True)
    parser.add_argument("--without", required=True)
    arguments = parser.parse_args()

    # A stand-in for torch whose constructor does nothing, so that only the shim's own work is timed.
    storage = type("UntypedStorage", (), {"_new_shared_cuda": staticmethod(lambda *_args: None)})
    plain = storage._new_shared_cuda
    ipc.on_torch(SimpleNamespace(__version__="2.11.0", UntypedStorage=storage))  # type: ignore[arg-type]
    handle = b"\x03c" + bytes(64)
    cost = per_call(storage._new_shared_cuda, handle) - per_call(plain, handle)
    print(f"  a rewritten handle costs {cost:.0f} ns (bar: 1000)")

    times: dict[str, list[float]] = {arguments.with_package: [], arguments.without: []}
    for _ in range(STARTS):
        for python, found in times.items():
            found.append(start(python))
    with_package, without = (statistics.median(found) for found in times.values())
    print(
        f"  python -c pass: {with_package:.2f} ms with the package, {without:.2f} ms without: "
        f"{with_package - without:.2f} ms more (bar: 1; medians of {STARTS}, taken in turns)"
    )
    return int(cost > 1000 or with_package - without > 1)


if __name__ == "__main__":
    sys.exit(main())
