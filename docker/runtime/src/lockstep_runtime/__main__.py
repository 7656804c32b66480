"""`python -m lockstep_runtime`: which hooks are active in this environment, and why."""

from __future__ import annotations

import importlib
import sys

import lockstep_runtime
from lockstep_runtime import HOOKS, kernel, loading, switched_on

REMEDY = (
    "senders that use it (expandable segments of torch's allocator, for one) fail or fall back to a slower way: "
    "use a mechanism that sends descriptors over a Unix socket, or start the container with CAP_SYS_PTRACE, or have "
    "the exporting process call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) where Yama alone refuses"
)


def main() -> int:
    """Print the report; 0, or 1 where a hook failed or descriptors cannot be passed over a socket."""
    print(f"lockstep_runtime {lockstep_runtime.__version__} in {sys.prefix}, Python {sys.version.split()[0]}")
    print(f"  switched {'on' if switched_on() else 'off: LOCKSTEP_RUNTIME=0, or no lockstep_runtime.pth'}")
    failed = False
    exchanges = kernel.exchanges()  # before torch is imported: it starts threads, and these checks fork
    for module, hook in ((module, hook) for module, hooks in HOOKS.items() for hook, _ in hooks):
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"  {hook}: not active: {module} cannot be imported ({error})")
            continue
        said = loading.said.get(hook, "not active: the package is switched off")
        failed |= said.startswith("failed")
        print(f"  {hook}: {said}")
    for exchange in exchanges:
        if exchange.works:
            print(f"  {exchange.way}: works between sibling processes")
            continue
        why = ", ".join(kernel.reasons()) or "no reason that this process can see"
        print(f"  {exchange.way}: refused ({exchange.said}; {why})")
        if exchange.way == "pidfd_getfd":
            print(f"    {REMEDY}")
        else:
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
