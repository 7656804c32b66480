"""Build an image again from what its provenance recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.arch import Arch
from lockstep.build import Options
from lockstep.image import make_image
from lockstep.matrix import load
from lockstep.narrow import narrow, split_name
from lockstep.ship import attest
from lockstep.ship.verify import same_inputs


def rebuild(definition: Mapping[str, Any]) -> str:
    """Build without any cache from the build definition of a provenance; return the manifest's digest.

    LockstepError where the checkout does not hold the inputs that were recorded.
    """
    asked = definition["externalParameters"]
    matrix, arch = load(), Arch(asked["arch"])
    image, part = split_name(matrix, str(asked["image"]))
    with_part, name = narrow(matrix, image, part)
    same_inputs(definition, attest.inputs_of(image, arch, with_part.images[name].backends))
    options = Options(
        base=str(asked["base"]), compression=str(asked["compression"]), no_cache=True, fresh_bytecode=True
    )
    return make_image(matrix, image, arch, options, part).digest
