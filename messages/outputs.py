"""What a caller gets back."""

from dataclasses import dataclass

from .answers import AnswerPart, ReasoningDelta, TextDelta, ToolCallDelta
from .blocks import PrefixAccount
from .logprobs import PositionLogprobs
from .requests import FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `completion_tokens` is the number of sampled ids, a final EOS included."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose KV came from the prefix cache
    prefix: PrefixAccount | None = None  # why no more were; None: it never started, or no cache


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in seconds; they are measured on the engine's clock."""

    queue_s: float  # until it was first scheduled
    ttft_s: float | None  # until its first token; None if there was none
    decode_s: float  # from the first token to the last
    total_s: float
    preemptions: int
    gap_p50_s: float | None = None  # between one token and the next; None below two tokens
    gap_p99_s: float | None = None

    @property
    def prefill_s(self) -> float | None:
        """From when it was first scheduled until its first token; None if there was none."""
        return None if self.ttft_s is None else max(self.ttft_s - self.queue_s, 0.0)


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of one output. Exactly one delta per index has a `finish_reason`, the last one.

    `stop_reason` is the stop id or stop string that ended it, or what went wrong.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None  # on the last delta
    timings: Timings | None = None  # on the last delta
    parts: tuple[AnswerPart, ...] = ()  # of a chat: `text`, told apart; their sources join to it
    logprobs: tuple[PositionLogprobs, ...] | None = None  # of each of `token_ids`, if asked for
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None  # once, as Result has them


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer is over: Detokenizer → log. One for each that a request wants, whatever ended it.

    Each tells of the prompt, which is one: who sums up takes it from the first.
    """

    serial: int
    request_id: str
    index: int  # which of the request's answers it is
    finish_reason: FinishReason
    stop_reason: int | str | None
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Output:
    """One finished answer. `token_ids` holds every sampled token; `text` excludes EOS and stops."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None  # the stop id or stop string that ended it
    parts: tuple[AnswerPart, ...] = ()  # of a chat: `text`, told apart
    logprobs: tuple[PositionLogprobs, ...] | None = None  # of each of `token_ids`, if asked for

    @property
    def cumulative_logprob(self) -> float | None:
        """Of all its tokens together; None where no logprobs were asked for."""
        if self.logprobs is None:
            return None
        return sum(position.token.logprob for position in self.logprobs)

    @property
    def content(self) -> str:
        """What the user is to see: the text without reasoning and calls."""
        if not self.parts:
            return self.text
        return "".join([part.text for part in self.parts if isinstance(part, TextDelta)])

    @property
    def reasoning(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, ReasoningDelta)])

    @property
    def tool_calls(self) -> tuple[ToolCallDelta, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallDelta))

    @property
    def message(self) -> dict[str, object]:
        """The answer as a message, for the next turn of the conversation."""
        message: dict[str, object] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request; the properties speak of its first output, usage and timings of all."""

    request_id: str
    outputs: tuple[Output, ...]
    usage: Usage
    timings: Timings
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    """Of the prompt's tokens from `prompt_logprobs_start` on, where asked for; None for the very
    first token, which nothing precedes. Fewer where the request ended before all were known."""

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return self.outputs[0].stop_reason

    @property
    def content(self) -> str:
        return self.outputs[0].content

    @property
    def reasoning(self) -> str:
        return self.outputs[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCallDelta, ...]:
        return self.outputs[0].tool_calls

    @property
    def message(self) -> dict[str, object]:
        return self.outputs[0].message


@dataclass(frozen=True, slots=True)
class Score:
    """How likely given tokens are behind a prompt."""

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]  # one for each of `token_ids`
    usage: Usage  # of the request that computed them: prompt and completion are its prompt

    @property
    def logprob(self) -> float:
        """Of all tokens together."""
        return sum(position.token.logprob for position in self.logprobs)
