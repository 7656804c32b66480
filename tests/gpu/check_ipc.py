"""What torch 2.11 makes of CUDA IPC handles of each version and kind, with the runtime package and without it.

Run by run.sh in an environment that has the package. One process keeps a tensor on the GPU and writes its handle as
torch 2.13 would (version byte 3; the payload of a cudaMalloc handle is the same in both); other processes open it.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

VALUES = 1 << 16

# Opens a handle as torch.multiprocessing does and prints the sum of what it finds, or the error.
CONSUMER = """
import pickle, sys
import torch
device, *rest = pickle.load(sys.stdin.buffer)
torch.cuda.init()
try:
    storage = torch.UntypedStorage._new_shared_cuda(device, *rest)
    tensor = torch.empty(0, dtype=torch.int64, device="cuda").set_(storage)
    print("sum", int(tensor.sum()))
except RuntimeError as error:
    print("error", str(error).splitlines()[0])
"""


def share(tensor: torch.Tensor, change: Callable[[bytes], bytes]) -> tuple[Any, ...]:
    """Share a tensor's storage and return the arguments that a consumer gets, the handle changed."""
    device, handle, *rest = tensor.untyped_storage()._share_cuda_()
    return (device, change(handle), *rest)


def newer(handle: bytes) -> bytes:
    """Return the handle as torch 2.13 writes it."""
    return b"\x03" + handle[1:]


def expandable(handle: bytes) -> bytes:
    """Return a handle with the header that torch 2.13 gives an expandable segment's."""
    return b"\x03e" + handle[2:]


def consume(python: str, arguments: tuple[Any, ...]) -> str:
    """Open the handle in a new process of the given interpreter and return what it printed."""
    done = subprocess.run(
        [python, "-c", CONSUMER], input=pickle.dumps(arguments), capture_output=True, check=False, timeout=120
    )
    return done.stdout.decode().strip() or f"exit {done.returncode}: {done.stderr.decode()[-300:]}"


def receive(queue: Any, answer: Any) -> None:
    """Take a tensor from a torch.multiprocessing queue and answer with its sum: the ordinary consumer."""
    try:
        answer.put(int(queue.get().sum()))
    except RuntimeError as error:
        answer.put(str(error).splitlines()[0])


def through_queue(tensor: torch.Tensor) -> object:
    """Send the tensor to a spawned process as a trainer on torch 2.13 would, and return the answer."""
    # The C method lies on the base class; only this process, which plays the trainer, writes version 3.
    plain = torch.UntypedStorage._share_cuda_

    def as_newer(self: Any, *args: Any) -> Any:
        device, handle, *rest = plain(self, *args)
        return (device, b"\x03" + handle[1:], *rest)

    context = mp.get_context("spawn")
    queue, answer = context.Queue(), context.Queue()
    torch.UntypedStorage._share_cuda_ = as_newer
    try:
        child = context.Process(target=receive, args=(queue, answer))
        child.start()
        queue.put(tensor)
        got = answer.get(timeout=120)
        child.join(60)
    finally:
        torch.UntypedStorage._share_cuda_ = plain
    return got


def main() -> int:
    """Print one line per case and return the number of cases that went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", required=True, help="an interpreter with torch and without the package")
    without = parser.parse_args().without
    tensor = torch.arange(VALUES, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    right = f"sum {VALUES * (VALUES - 1) // 2}"
    handle = share(tensor, bytes)[1]
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    print(f"  writes handles of {len(handle)} bytes, version {handle[0]}, kind {chr(handle[1])}")
    cases: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
        ("version 3 c, without the package", without, newer, "from a future version of torch"),
        ("version 3 c", sys.executable, newer, right),
        ("version 2 c", sys.executable, bytes, right),
        ("version 2 c, without the package", without, bytes, right),
        ("raw 64 bytes", sys.executable, lambda handle: handle[2:], right),
        ("version 3 e, without the package", without, expandable, "from a future version"),
        ("version 3 e", sys.executable, expandable, "Switch expandable segments off"),
    ]
    wrong = 0
    for name, python, change, expected in cases:
        got = consume(python, share(tensor, change))
        wrong += expected not in got
        print(f"  {'ok   ' if expected in got else 'WRONG'} {name}: {got}")
    got = through_queue(tensor)
    wrong += got != VALUES * (VALUES - 1) // 2
    print(f"  {'WRONG' if wrong else 'ok   '} version 3 c through a torch.multiprocessing queue, spawned: {got}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
