"""What only the host's NVIDIA driver provides: an image never holds it, so needing it is no fault (CASES E3)."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

LIBRARIES = (
    "libcuda.so*",
    "libcudadebugger.so*",
    "libnvidia-*.so*",
    "libnvcuvid.so*",
    "libnvoptix.so*",
    "libvdpau_nvidia.so*",
    "libGLX_nvidia.so*",
    "libEGL_nvidia.so*",
    "libGLESv1_CM_nvidia.so*",
    "libGLESv2_nvidia.so*",
)
"""Libraries that nvidia-container-toolkit and enroot mount into a container (libnvidia-container's own list)."""

# cuFile* is libcufile's, which is a wheel's and must be found there; the driver API is cu + capital (cuda.h).
_SYMBOL = re.compile(r"^(?:cu(?!File)[A-Z]\w+|cuvid[A-Z]\w+|nvml[A-Z]\w+|NvEncodeAPI\w+)$")


def is_driver_library(name: str) -> bool:
    """Tell whether a DT_NEEDED name is one of the driver's."""
    return any(fnmatchcase(name, pattern) for pattern in LIBRARIES)


def is_driver_symbol(name: str) -> bool:
    """Tell whether an undefined symbol belongs to the driver API, NVML, NVDEC or NVENC."""
    return _SYMBOL.match(name) is not None
