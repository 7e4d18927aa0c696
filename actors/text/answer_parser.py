"""The parts of an answer, told apart while it is written. Pure: no awaits, no clock.

Nothing is lost: the sources of all parts in a row are the text. What begins like a call and turns
out to be none is text. Space next to a marker belongs to it and is in no part's text.
"""

from collections.abc import Iterator
from hashlib import blake2b

from ...messages import AnswerPart, ChatFormat, ReasoningDelta, TextDelta, ToolCallDelta
from .answer_formats import THINK_CLOSE, THINK_OPEN, TOOL_FORMATS
from .markers import MarkerFinder, Piece
from .tool_calls import CallText, ParsedCall

_BEHIND_MARKERS = "\n"  # what is trimmed there, and
_BEHIND_BARE_CALLS = " \n\t;"


class AnswerParser:
    """Takes text and markers in their order, and gives typed parts.

    It is in the reasoning, in a call, or, in neither, in what the user is to see.
    """

    def __init__(self, chat: ChatFormat, id_prefix: str = "") -> None:
        self._tools = None if chat.tools is None else TOOL_FORMATS[chat.tools]
        self._thinks = (THINK_OPEN, THINK_CLOSE) if chat.reasoning else ()
        self._reasoning: _Reasoning | None = None
        self._call: CallText | None = None
        self._source: list[str] = []  # of the call
        self._trimmed = ""  # what is trimmed from the text that comes next
        self._may_begin_call = self._calls_are_bare
        self._id_prefix = id_prefix
        self._call_ids: set[str] = set()
        self._go_on_from(chat.begun)

    @property
    def markers(self) -> tuple[str, ...]:
        """What has to be found in the text for this."""
        return (*self._thinks, *(self._tools.markers if self._tools else ()))

    @property
    def is_plain(self) -> bool:
        """Whether a text that comes now is said as it stands."""
        return not (
            self._call is not None
            or self._reasoning is not None
            or self._trimmed
            or self._may_begin_call
        )

    def push(self, piece: Piece) -> Iterator[AnswerPart]:
        """Take the next text or marker."""
        text, marker = piece
        if self._call is not None:
            return self._call_marker(text, marker) if marker else self._call_text(text)
        if self._reasoning is not None:
            return self._reasoning_piece(self._reasoning, text, marker)
        if marker is not None and marker == THINK_OPEN:
            return self._begin_reasoning(text)
        if marker is not None and self._tools is not None and marker == self._tools.open:
            return self._begin_call(text)
        return self._text(text)

    def _go_on_from(self, begun: str) -> None:
        """What is in the prompt was said, and is no part's source any more."""
        finder = MarkerFinder(self.markers)
        for piece in (*finder.push(begun), *finder.finish()):
            for _ in self.push(piece):
                pass
        self._source.clear()
        if self._reasoning is not None:
            self._reasoning.forget_space()

    def finish(self) -> Iterator[AnswerPart]:
        """The answer is over: give what was held back."""
        if self._call is not None:
            yield from self._end_call()
        elif self._reasoning is not None:
            yield from self._reasoning.cut_off()

    # What the user sees

    def _text(self, text: str) -> Iterator[AnswerPart]:
        said = text.lstrip(self._trimmed)
        if len(said) < len(text):
            yield TextDelta("", text[: len(text) - len(said)])
        if not said:
            return
        self._trimmed = ""
        begun = said.lstrip() if self._may_begin_call else ""
        if begun:
            self._may_begin_call = False
        if not begun.startswith("{"):
            yield TextDelta(said, said)
            return
        if len(begun) < len(said):
            space = said[: len(said) - len(begun)]
            yield TextDelta(space, space)
        yield from self._begin_call("")
        yield from self._call_text(begun)

    # Reasoning

    def _begin_reasoning(self, source: str) -> Iterator[AnswerPart]:
        self._reasoning = _Reasoning()
        yield from _hidden_reasoning(source)

    def _reasoning_piece(
        self, reasoning: "_Reasoning", text: str, marker: str | None
    ) -> Iterator[AnswerPart]:
        if marker == THINK_CLOSE:
            yield from reasoning.close(text)
            self._reasoning = None
            self._trimmed = _BEHIND_MARKERS
        elif marker == THINK_OPEN and reasoning.is_empty:  # the prompt has opened it, too
            yield from _hidden_reasoning(text)
        else:
            yield from reasoning.say(text)

    # Calls

    @property
    def _calls_are_bare(self) -> bool:
        return self._tools is not None and self._tools.may_be_bare

    def _begin_call(self, source: str) -> Iterator[AnswerPart]:
        assert self._tools is not None
        self._call = CallText(self._tools)
        self._source = [source]
        return iter(())

    def _call_text(self, text: str) -> Iterator[AnswerPart]:
        assert self._call is not None
        rest = self._call.add(text)
        self._source.append(text[: len(text) - len(rest)])
        if self._call.is_complete:
            yield from self._end_call()
            yield from self._text(rest)
        elif not self._call.may_be_call:
            yield from self._call_as_text()

    def _call_marker(self, text: str, marker: str) -> Iterator[AnswerPart]:
        assert self._call is not None
        assert self._tools is not None
        if marker == self._tools.open:
            yield from self._end_call()
            yield from self._begin_call(text)
            return
        self._source.append(text)
        if marker == self._tools.close:
            yield from self._end_call()
            return
        self._call.add_marker(marker)
        if not self._call.may_be_call:
            yield from self._call_as_text()

    def _end_call(self) -> Iterator[AnswerPart]:
        assert self._call is not None
        calls = self._call.calls()
        if calls is None:
            yield from self._call_as_text()
            return
        self._call, source = None, "".join(self._source)
        self._trimmed = _BEHIND_BARE_CALLS if self._calls_are_bare else _BEHIND_MARKERS
        self._may_begin_call = self._calls_are_bare
        for call in calls:
            yield ToolCallDelta(self._id_of(call), call.name, call.arguments, source)
            source = ""

    def _call_as_text(self) -> Iterator[AnswerPart]:
        self._call, source = None, "".join(self._source)
        self._trimmed, self._may_begin_call = "", False
        if source:
            yield TextDelta(source, source)

    def _id_of(self, call: ParsedCall) -> str:
        """Nine letters and digits, which is what some templates insist on."""
        call_id = call.call_id
        if not call_id or call_id in self._call_ids:
            call_id = blake2b(f"{self._id_prefix}/{len(self._call_ids)}".encode()).hexdigest()[:9]
        self._call_ids.add(call_id)
        return call_id


class _Reasoning:
    """One stretch of reasoning. The space at its ends belongs to its markers."""

    def __init__(self) -> None:
        self.is_empty = True  # but for space
        self._space = ""  # at its end so far

    def say(self, text: str) -> Iterator[AnswerPart]:
        if self.is_empty:
            kept = text.lstrip()
            yield from _hidden_reasoning(text[: len(text) - len(kept)])
            self.is_empty = not kept
            text = kept
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            yield ReasoningDelta(said, said)

    def forget_space(self) -> None:
        self._space = ""

    def close(self, marker: str) -> Iterator[AnswerPart]:
        return _hidden_reasoning(self._space + marker)

    def cut_off(self) -> Iterator[AnswerPart]:
        if self._space:
            yield ReasoningDelta(self._space, self._space)


def _hidden_reasoning(source: str) -> Iterator[AnswerPart]:
    if source:
        yield ReasoningDelta("", source)
