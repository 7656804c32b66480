"""Mixed into vLLM's worker by name, so that weights can be sent to it."""

import torch


class WeightSync:
    device: torch.device

    def load_weights_from(self, names: list[str]) -> int:
        return len(names)

    def wait_for_transfers(self) -> None:
        torch.accelerator.synchronize(self.device)
