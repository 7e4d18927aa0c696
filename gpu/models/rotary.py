"""Tables of rotary embeddings as torch's decoders and kernels read them."""

import torch
from torch import Tensor

from .rope import RopeConfig


def rotary_tables(
    rope: RopeConfig, head_dim: int, context: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of every position.  # two of [context, head_dim]

    The first half of the sines is negative: `x * cos + roll(x, head_dim / 2) * sin` rotates.
    """
    cos, sin = map(torch.from_numpy, rope.turns(head_dim, context))
    return torch.cat([cos, cos], dim=1).to(dtype), torch.cat([-sin, sin], dim=1).to(dtype)
