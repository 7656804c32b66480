"""Stands for the engine in vLLM's HTTP server, and asks a remote one."""


class RemoteEngine:
    pass
