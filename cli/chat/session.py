"""A conversation: what was asked and answered, and which of it is still sent to the model.

Pure: no engine, no screen, no files. It changes only when an answer has come, so that a question
that was stopped or refused leaves it as it was.
"""

from dataclasses import dataclass, field, replace

from ...messages import FinishReason

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn: one question and its answer."""

    question: str
    answer: str
    ending: FinishReason | None = None  # why the answer ended; None: not known


@dataclass(slots=True)
class Session:
    """Turns under a system prompt. The whole of it is sent each time, but for what was dropped."""

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    num_dropped: int = 0  # of the oldest exchanges, which are not sent any more
    name: str | None = None  # under which it was saved

    # What is sent

    def asking(self, question: str) -> list[Message]:
        """The messages that ask a new question."""
        return [*self._messages(self.exchanges), _message("user", question)]

    def asking_again(self) -> list[Message]:
        """The messages that ask the last question once more."""
        last = self.exchanges[-1]
        return [*self._messages(self.exchanges[:-1]), _message("user", last.question)]

    def going_on(self) -> list[Message]:
        """The messages that end with the last answer, to be continued."""
        return self._messages(self.exchanges)

    def _messages(self, exchanges: list[Exchange]) -> list[Message]:
        head = [_message("system", self.system)] if self.system else []
        return head + [
            message
            for exchange in exchanges[self.num_dropped :]
            for message in (
                _message("user", exchange.question),
                _message("assistant", exchange.answer),
            )
        ]

    # What came of it

    def add(self, question: str, answer: str, ending: FinishReason | None) -> None:
        self.exchanges.append(Exchange(question, answer, ending))

    def replace_answer(self, answer: str, ending: FinishReason | None) -> None:
        self.exchanges[-1] = replace(self.exchanges[-1], answer=answer, ending=ending)

    def extend_answer(self, text: str, ending: FinishReason | None) -> None:
        self.replace_answer(self.exchanges[-1].answer + text, ending)

    def undo(self) -> Exchange | None:
        """Take the last turn back; None where there is none."""
        if not self.exchanges:
            return None
        last = self.exchanges.pop()
        self.num_dropped = min(self.num_dropped, len(self.exchanges))
        return last

    def clear(self) -> None:
        self.exchanges.clear()
        self.num_dropped = 0
        self.name = None

    def fork(self) -> "Session":
        """The same conversation without a name; what happens to either leaves the other."""
        return replace(self, exchanges=list(self.exchanges), name=None)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
