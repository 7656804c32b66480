"""Import hooks for the virtual environments of a Lockstep image.

lockstep_runtime.pth, which the interpreter runs at every start, puts a finder first on sys.meta_path that does no more
than compare names, and imports this module when one of HOOKS is first asked for. It holds its few lines itself: with
`import lockstep_runtime` in it, every start of Python would list site-packages. Its line is short because every start
compiles it: twice the length cost another third of a millisecond. The hooks live in modules of their own.
"""

import sys
from os import environ

__version__ = "1.0.0"

# Module waited for -> the hooks to run once it is imported: each a module of this package, and a function in it that
# takes the imported module. Every hook decides by torch's installed version whether it has anything to do.
# lockstep_runtime.pth names the same modules.
HOOKS = {
    "torch": (("ipc", "on_torch"), ("user", "on_torch")),
    "torch.distributed.checkpoint._async_process_executor": (("checkpoint", "on_executor"),),
}


def is_ours(finder: object) -> bool:
    """Say whether a member of sys.meta_path is the finder of lockstep_runtime.pth. Python 3.11 reads that file twice
    in a venv, so there may be two; the first one that is asked serves."""
    return getattr(finder, "__name__", None) == "LockstepRuntime"


def switched_on() -> bool:
    """Say whether the finder is there and LOCKSTEP_RUNTIME=0 does not leave the hooks out."""
    return environ.get("LOCKSTEP_RUNTIME") != "0" and any(map(is_ours, sys.meta_path))


def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # typing would be an import
    """Return the spec that the other finders have for a module in HOOKS, its loader set to run the hooks; or None."""
    for finder in sys.meta_path if switched_on() else ():
        if is_ours(finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            from lockstep_runtime import loading

            loading.follow(spec, HOOKS[name])
            return spec
    return None
