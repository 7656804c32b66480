"""Stands for the engine in vLLM's HTTP server, and asks a remote one."""

from typing import Any


class RemoteEngine:
    errored = False
    dead_error = RuntimeError("the remote engine died")
    is_running = True

    def __init__(self, remote: Any, vllm_config: Any, renderer: Any, input_processor: Any) -> None:
        self._remote = remote
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer
        self.input_processor = input_processor

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """The remote engine has no limit of its own."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote.generate(*args, **kwargs)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote.encode(*args, **kwargs)

    async def abort(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.abort(*args, **kwargs)

    async def check_health(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.check_health(*args, **kwargs)

    async def collective_rpc(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.collective_rpc(*args, **kwargs)

    async def do_log_stats(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.do_log_stats(*args, **kwargs)

    async def get_supported_tasks(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.get_supported_tasks(*args, **kwargs)

    async def is_sleeping(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.is_sleeping(*args, **kwargs)

    async def is_tracing_enabled(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.is_tracing_enabled(*args, **kwargs)

    async def reset_encoder_cache(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.reset_encoder_cache(*args, **kwargs)

    async def reset_mm_cache(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.reset_mm_cache(*args, **kwargs)

    async def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.reset_prefix_cache(*args, **kwargs)

    async def sleep(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.sleep(*args, **kwargs)

    async def start_profile(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.start_profile(*args, **kwargs)

    async def stop_profile(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.stop_profile(*args, **kwargs)

    async def wake_up(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote.wake_up(*args, **kwargs)
