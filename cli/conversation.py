"""A chat as the messages said so far. The whole of it is sent again each turn."""

from dataclasses import dataclass, field

Message = dict[str, str]


@dataclass(slots=True)
class Conversation:
    """What the user and the model have said, under a system prompt."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    def ask(self, text: str) -> list[Message]:
        """Add the user's message; returns everything to send."""
        self.turns.append({"role": "user", "content": text})
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.turns]

    def answer(self, text: str) -> None:
        """Keep an answer, whole or stopped half-way; without one the question is taken back."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def clear(self) -> None:
        self.turns.clear()
