"""How a slot is sampled, as a line of 32-bit words: which word says what.

A line is 64 bytes, so a kernel that looks at a slot fetches it once. Floats are kept as their bits.
"""

import torch
import triton.language as tl
from torch import Tensor

TEMPERATURE = tl.constexpr(0)  # float
TOP_P = tl.constexpr(1)  # float; 1: off
LEAST_LOG_SHARE = tl.constexpr(2)  # float: the logarithm of min_p; minus infinity: off
TOP_K = tl.constexpr(3)  # 0: off
SEED = tl.constexpr(4)  # two words
INDEX = tl.constexpr(6)
MIN_END = tl.constexpr(7)  # while a position is below it, what the row of bans says is banned
PROMPT = tl.constexpr(8)  # tokens of the prompt
COUNTED = tl.constexpr(9)  # tokens that the row of counts has taken in; kept by the device itself
REPETITION = tl.constexpr(10)  # float
FREQUENCY = tl.constexpr(11)  # float
PRESENCE = tl.constexpr(12)  # float
COUNTS_ROW = tl.constexpr(13)  # in the pool of counts; -1: none, as the two that follow
BIASES_ROW = tl.constexpr(14)
BANS_ROW = tl.constexpr(15)
WIDTH = tl.constexpr(16)


def ints(lines: Tensor, word: tl.constexpr) -> Tensor:
    """A word of every line as it is.  # [slots] of int32, a view"""
    return lines[:, word.value]


def floats(lines: Tensor, word: tl.constexpr) -> Tensor:
    """A word of every line as a number.  # [slots] of float32, a view"""
    return lines.view(torch.float32)[:, word.value]


def seeds(lines: Tensor) -> Tensor:
    """The seed of every line.  # [slots] of int64, a view"""
    return lines.view(torch.int64)[:, SEED.value // 2]
