"""`engine-cli bench`: how fast the engine is here, measured and not promised."""

from .command import bench

__all__ = ["bench"]
