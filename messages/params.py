"""How one request is sampled and when it stops: one table, of which each field is a row.

A row has the name, the type, the default, what the value must be, what it means and who applies
it. Validation, docs/sampling.md and the command line's options are made from the same rows.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from .errors import RequestRejected
from .param_rules import Biases, Flag, Number, Param, Texts, TokenIds, Whole, shown
from .structure import Structure, StructuredOutput
from .token_bias import NO_BIAS

MAX_STOPS = 64  # each is looked for in every piece of the answer, beside everybody's steps
MAX_STOP_CHARACTERS = 1_024
MAX_PROCESSORS = 16
MAX_ANSWERS = 1_024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops; the defaults are literal.

    Raises RequestRejected when a value has no meaning, whatever the model. A list is taken for a
    tuple, and a single text for a tuple of one.
    """

    # How long the answer is.

    max_tokens: Annotated[
        int | None,
        Param(
            Whole(1, or_none=True, hint=" (engine.score tells logprobs without an answer)"),
            "Tokens of the answer at most; without it, up to the context.",
            "Scheduler",
        ),
    ] = None
    min_tokens: Annotated[
        int,
        Param(
            Whole(0),
            "EOS, stop ids and stop strings do not count before that many tokens, and a structure "
            "that can go on does not end.",
            "device",
        ),
    ] = 0

    n: Annotated[
        int,
        Param(
            Whole(1, most=MAX_ANSWERS),
            "Answers to the same prompt, each with noise of its own.",
            "Intake",
        ),
    ] = 1

    # What is drawn.

    temperature: Annotated[
        float,
        Param(
            Number("a finite number of at least 0"),
            "What logits are divided by; 0 takes the likeliest token.",
            "device",
        ),
    ] = 1.0
    top_k: Annotated[
        int, Param(Whole(0), "Keep the k likeliest tokens; 0 keeps all.", "device")
    ] = 0
    top_p: Annotated[
        float,
        Param(
            Number("above 0 and at most 1", most=1, is_above=True),
            "Keep the likeliest tokens that reach this probability; 1 keeps all.",
            "device",
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        Param(
            Number("from 0 to 1", most=1),
            "Drop tokens less likely than this times the likeliest; 0 drops none.",
            "device",
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        Param(
            Whole(0, or_none=True),
            "Draw the same answer again; without it, a fresh one per request.",
            "device",
        ),
    ] = None

    typical_p: Annotated[
        float,
        Param(
            Number("above 0 and at most 1", most=1, is_above=True),
            "Keep the tokens whose surprise is nearest to what is expected, up to this "
            "probability; 1 keeps all.",
            "device",
        ),
    ] = 1.0

    # How logits are changed before that, in the order of docs/sampling.md.

    presence_penalty: Annotated[
        float,
        Param(
            Number("from -2 to 2", least=-2, most=2),
            "What a token loses that stands in the answer.",
            "device",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Param(
            Number("from -2 to 2", least=-2, most=2),
            "What a token loses for each time it stands in the answer.",
            "device",
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Param(
            Number("from 0.01 to 100", least=0.01, most=100),
            "A token in the prompt or the answer has its logit divided by this if that is above "
            "0, else multiplied.",
            "device",
        ),
    ] = 1.0
    logit_bias: Annotated[
        Mapping[int, float],
        Param(
            Biases(-100, 100),
            "What is added to the logits of token ids; minus infinity bans a token.",
            "device",
        ),
    ] = NO_BIAS
    logits_processors: Annotated[
        tuple[str, ...],
        Param(
            Texts("logits processor", MAX_PROCESSORS, MAX_STOP_CHARACTERS),
            "Functions that the engine was given, each as `name` or `name=argument`.",
            "device",
            has_option=False,
        ),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        Param(TokenIds(or_none=True), "Only these ids can be sampled.", "device"),
    ] = None
    bad_words: Annotated[
        tuple[str, ...],
        Param(
            Texts("bad word", MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS),
            "Texts that the answer does not say, with or without a space before them: of a word "
            "of several tokens the last is banned where the others stand.",
            "device",
        ),
    ] = ()
    no_repeat_ngram_size: Annotated[
        int,
        Param(
            Whole(0),
            "No so many tokens in a row occur twice in prompt and answer; 0 allows all.",
            "device",
        ),
    ] = 0

    # Where the answer stops.

    stop: Annotated[
        tuple[str, ...],
        Param(
            Texts("stop string", MAX_STOPS, MAX_STOP_CHARACTERS),
            "End the answer at any of these texts, which are not shown.",
            "Detokenizer",
        ),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        Param(TokenIds(), "End the answer at any of these ids, which have no text.", "Scheduler"),
    ] = ()
    include_stop_str_in_output: Annotated[
        bool, Param(Flag(), "Show the stop string that ended the answer.", "Detokenizer")
    ] = False
    ignore_eos: Annotated[
        bool, Param(Flag(), "Go on behind the model's own end of sequence.", "Scheduler")
    ] = False

    # What it looks like.

    structured_output: Annotated[
        StructuredOutput | None,
        Param(
            Structure(),
            "The answer follows this schema, expression or grammar, and ends whole.",
            "Scheduler",
            has_option=False,
        ),
    ] = None

    # How it is shown.

    skip_special_tokens: Annotated[
        bool, Param(Flag(), "Special tokens have no text.", "Detokenizer")
    ] = True
    detokenize: Annotated[
        bool,
        Param(Flag(), "The answer has a text; without it there are token ids only.", "Detokenizer"),
    ] = True

    # What is told of it.

    logprobs: Annotated[
        int | None,
        Param(
            Whole(-1, or_none=True),
            "Tell the logprob of each token of the answer, and of the k likeliest beside it; -1 "
            "tells of the whole vocabulary.",
            "device",
        ),
    ] = None
    logprob_token_ids: Annotated[
        tuple[int, ...],
        Param(TokenIds(), "Tell the logprobs of these ids, too, at each token.", "device"),
    ] = ()
    prompt_logprobs: Annotated[
        int | None,
        Param(
            Whole(-1, or_none=True),
            "The same of the prompt's tokens; they are computed, also where the prefix is cached.",
            "device",
        ),
    ] = None
    prompt_logprobs_start: Annotated[
        int,
        Param(
            Whole(0),
            "The first position of the prompt that is told of: what is before may be cached.",
            "device",
        ),
    ] = 0

    def __post_init__(self) -> None:
        for name, param, default in _CHECKED:
            given = getattr(self, name)
            if given is not default:
                object.__setattr__(self, name, param.rule.read(name, given))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestRejected(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}"
            )
        if self.stop and not self.detokenize:
            raise RequestRejected(
                f"stop is {shown(self.stop)}, and detokenize is False; stop strings are found in "
                "the text, so leave one of them out, or use stop_token_ids"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Parameters by name, as they come from JSON. Raises RequestRejected, also for a name
        that is none."""
        for name in values:
            if name not in PARAMETERS:
                raise RequestRejected(f"{shown(name)} is not a sampling parameter{_meant(name)}")
        return cls(**values)


PARAMETERS: Mapping[str, Param] = {
    name: hint.__metadata__[0] for name, hint in SamplingParams.__annotations__.items()
}
"""The row of each field, in order."""

_CHECKED = tuple(
    (field.name, PARAMETERS[field.name], field.default) for field in fields(SamplingParams)
)


def _meant(name: object) -> str:
    close = difflib.get_close_matches(str(name), PARAMETERS, n=1)
    return f"; did you mean {close[0]}?" if close else ""
