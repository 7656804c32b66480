"""Import hooks for the virtual environments of a Lockstep image.

This module is imported by lockstep_runtime.pth at every start of the interpreter, so it is kept small and imports
nothing that the interpreter has not loaded by then. The hooks themselves live in modules that are imported when the
module that they wait for is.
"""

import sys
from os import environ

__version__ = "1.0.0"

# Module waited for -> the hook to run once it is imported: a module of this package, and a function in it that takes
# the imported module. Every hook decides by torch's installed version whether it has anything to do.
HOOKS = {
    "torch": ("ipc", "on_torch"),
    "torch.distributed.checkpoint._async_process_executor": ("checkpoint", "on_executor"),
}


class Finder:
    """Stands first on sys.meta_path; finds nothing itself, but has a hook follow the import of a module in HOOKS."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # typing would be an import
        """Return the spec that the other finders have for a module in HOOKS, its loader set to run the hook."""
        if name not in HOOKS:
            return None
        for finder in sys.meta_path:
            if finder is Finder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                from lockstep_runtime import loading

                loading.follow(spec, *HOOKS[name])
                return spec
        return None


def install() -> None:
    """Register the finder, once however often it is called; LOCKSTEP_RUNTIME=0 leaves it out."""
    if Finder not in sys.meta_path and environ.get("LOCKSTEP_RUNTIME") != "0":
        sys.meta_path.insert(0, Finder)
        for name, hook in HOOKS.items():
            if name in sys.modules:  # a process that installs the package late
                from lockstep_runtime import loading

                loading.run(sys.modules[name], *hook)
