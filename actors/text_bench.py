"""What text costs per token: decoded, with stop strings looked for, and told apart as a chat."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..messages import ChatFormat, SamplingParams
from .text.chat_text import ChatText
from .text.output import OutputText
from .text.tokenizer import Tokenizer

T = TypeVar("T")

_LINES = (
    "The answer, in short, is yes; here is why it holds.\n",
    "def mean(values):\n    return sum(values) / len(values)  # of any size\n",
    "naïve café, Łódź, straße. Привет, мир! Καλημέρα σας.\n",
    "日本語のテキストと中文和한국어。 नमस्ते दुनिया, สวัสดีชาวโลก\n",
    "مرحبا بالعالم, שלום עולם: 👨\u200d👩\u200d👧 and 🏳\ufe0f\u200d🌈.\n",
)
_STOPS = ("\n\nUser:", "###")


def measure(tokenizer: Tokenizer, num_tokens: int) -> dict[str, float]:
    """CPU microseconds per token, where each comes by itself as in steady decoding."""
    ids = tokenizer.encode("".join(_LINES))
    token_ids = (ids * (num_tokens // len(ids) + 1))[:num_tokens]
    plain, stopping = SamplingParams(), SamplingParams(stop=_STOPS)
    chat = ChatText(tokenizer, plain, ChatFormat("think", "hermes"), "")

    def told(token_ids: Sequence[int]) -> None:
        chat.take(token_ids)
        chat.take_parts()

    push = tokenizer.detokenizer().push
    return {
        "decoded_us": _micros(push, token_ids),
        "output_us": _micros(OutputText(tokenizer, plain).take, [[i] for i in token_ids]),
        "with_stops_us": _micros(OutputText(tokenizer, stopping).take, [[i] for i in token_ids]),
        "chat_us": _micros(told, [[i] for i in token_ids]),
    }


def _micros(take: Callable[[T], object], items: Sequence[T]) -> float:
    start = time.thread_time_ns()
    for item in items:
        take(item)
    return (time.thread_time_ns() - start) / len(items) / 1e3
