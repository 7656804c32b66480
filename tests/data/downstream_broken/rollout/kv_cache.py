"""A simplified copy of vLLM's handling of key and value scales, for weights that arrive while the engine runs."""

from typing import Any

from vllm.utils.torch_utils import is_quantized_kv_cache


def load_scales(self: Any, layer: Any) -> None:
    if not hasattr(layer, "q_scale"):
        return
    if is_quantized_kv_cache(layer.kv_cache_dtype) and (not layer.calculate_kv_scales):
        layer._k_scale.copy_(layer.k_scale)
        layer._v_scale.copy_(layer.v_scale)
    layer.calculate_kv_scales = False
