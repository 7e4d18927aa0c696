"""The native decoder: quantised weights in plain C, compiled for this processor at first use."""

from .compiling import NoCompiler
from .decoder import KV_DTYPE, NativeDecoder, default_threads, why_not
from .library import load_library as prepare

__all__ = ["KV_DTYPE", "NativeDecoder", "NoCompiler", "default_threads", "prepare", "why_not"]
