"""Import hooks for the virtual environments of a Lockstep image.

lockstep_runtime.pth, which the interpreter runs at every start, puts a finder first on sys.meta_path that does no more
than compare names, and imports this module when one of HOOKS is first asked for. It holds its few lines itself: with
`import lockstep_runtime` in it, every start of Python would list the folders of sys.path up to site-packages, and a
millisecond of each `python` would go there. The hooks themselves live in modules of their own.
"""

import sys

__version__ = "1.0.0"

# Module waited for -> the hook to run once it is imported: a module of this package, and a function in it that takes
# the imported module. Every hook decides by torch's installed version whether it has anything to do.
# lockstep_runtime.pth names the same modules.
HOOKS = {
    "torch": ("ipc", "on_torch"),
    "torch.distributed.checkpoint._async_process_executor": ("checkpoint", "on_executor"),
}


def is_ours(finder: object) -> bool:
    """Say whether a member of sys.meta_path is the finder of lockstep_runtime.pth."""
    return getattr(finder, "lockstep_runtime", False) is True


def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # typing would be an import
    """Return the spec that the other finders have for a module in HOOKS, its loader set to run the hook; or None."""
    for finder in sys.meta_path:
        if is_ours(finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            from lockstep_runtime import loading

            loading.follow(spec, *HOOKS[name])
            return spec
    return None
