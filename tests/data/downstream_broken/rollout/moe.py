"""Kernels made again after the experts' weights changed."""

from typing import Any


def rebuild(layer: Any, quant_config: Any, moe_config: Any, experts: Any, backend: Any, fp8: bool) -> Any:
    if fp8:
        from vllm.model_executor.layers.fused_moe.oracle.fp8 import make_fp8_moe_kernel

        return make_fp8_moe_kernel(
            moe_quant_config=quant_config,
            moe_config=moe_config,
            experts_cls=experts,
            fp8_backend=backend,
            layer=layer,
        )
    from vllm.model_executor.layers.fused_moe.oracle import nvfp4

    return nvfp4.make_nvfp4_moe_kernel(
        moe_quant_config=quant_config,
        moe_config=moe_config,
        experts_cls=experts,
        backend=backend,
        layer=layer,
    )
