"""Run in an interpreter with torch: many processes build real MessageQueues at once. Prints one JSON line.

    queue_driver.py VLLM_SOURCES PROCESSES [probe-together]

Each process builds a queue with one remote reader, holds it until all have built theirs or failed, then reads a
message from the queue of the next process that came up. With `probe-together`, whoever searches a port with
get_open_port waits until every process has found one: the schedule in which the published 0.25 loses.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from multiprocessing.synchronize import Barrier
from typing import Any

sys.path.insert(0, sys.argv[1])

from vllm.distributed.device_communicators import shm_broadcast  # type: ignore[import-not-found]

TIMEOUT = 120.0
HOST = os.environ.get("QUEUE_HOST", "127.0.0.1")


def build(number: int, start: Barrier, probed: Barrier | None, pipe: Any) -> None:
    """Build a queue, tell its handle or the error, and then be the reader of the queue whose handle comes back."""
    if probed is not None and hasattr(shm_broadcast, "get_open_port"):
        search = shm_broadcast.get_open_port

        def together() -> int:
            port: int = search()
            probed.wait(TIMEOUT)
            return port

        shm_broadcast.get_open_port = together
    start.wait(TIMEOUT)
    try:
        queue = shm_broadcast.MessageQueue(n_reader=1, n_local_reader=0, connect_ip=HOST)
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("handle", queue.export_handle()))
    other = pipe.recv()
    reader = shm_broadcast.MessageQueue.create_from_handle(other, rank=0)
    queue.wait_until_ready()
    reader.wait_until_ready()
    queue.enqueue(f"from {number}")
    pipe.send(("got", reader.dequeue(timeout=TIMEOUT)))


def main() -> None:
    """Start the processes, pass the handles around, and print ports, errors and messages."""
    count, together = int(sys.argv[2]), "probe-together" in sys.argv[3:]
    context = multiprocessing.get_context("fork")
    start = context.Barrier(count)
    probed = context.Barrier(count) if together else None
    ends, children = [], []
    for number in range(count):
        ours, theirs = context.Pipe()
        child = context.Process(target=build, args=(number, start, probed, theirs))
        child.start()
        ends.append(ours)
        children.append(child)
    answers = [end.recv() for end in ends]
    up = [number for number, (kind, _) in enumerate(answers) if kind == "handle"]
    for at, number in enumerate(up):
        ends[number].send(answers[up[(at + 1) % len(up)]][1])
    got = [ends[number].recv()[1] for number in up]
    for child in children:
        child.join()
    print(
        json.dumps(
            {
                "ports": sorted(int(answers[number][1].remote_subscribe_addr.rsplit(":", 1)[1]) for number in up),
                "errors": [text for kind, text in answers if kind == "error"],
                "messages": sorted(got),
            }
        )
    )


if __name__ == "__main__":
    main()
