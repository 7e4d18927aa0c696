"""A tokenizer without files: one id per byte, a few special tokens, and words to fill up.

For the simulated device and for tests; every text survives the way to ids and back.
"""

import re
from collections.abc import Mapping, Sequence

from ...messages import RequestRejected
from .conversation import checked_messages
from .detokenize import ByteDetokenizer
from .tokenizer import Tokenizer

EOS = 256
BOS = 257
END_OF_TURN = 258
_SPECIAL_TOKENS = {
    "<eos>": EOS,
    "<bos>": BOS,
    "<end>": END_OF_TURN,
    "<system>": 259,
    "<user>": 260,
    "<assistant>": 261,
}
_NUM_RESERVED = 256 + len(_SPECIAL_TOKENS)
_SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, _SPECIAL_TOKENS)) + ")")


class ToyTemplate:
    """`<role>text<end>` for each message, then `<assistant>`."""

    source = ""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        options: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        if tools or options:
            raise RequestRejected("the toy's chats know neither tools nor template_options")
        turns = [self._turn(message) for message in checked_messages(messages)]
        text = "<end>".join(turns)
        if continue_final_message:
            return text
        return text + "<end>" + ("<assistant>" if add_generation_prompt else "")

    def _turn(self, message: Mapping[str, object]) -> str:
        role = f"<{message['role']}>"
        if role not in ("<system>", "<user>", "<assistant>"):
            raise RequestRejected(
                f"role is {message['role']!r}; it must be system, user or assistant"
            )
        return f"{role}{message['content']}"


class ToyTokenizer(Tokenizer):
    """Ids 0 to 255 are bytes, then come the special tokens, then short words such as ` w300`."""

    def __init__(self, vocab_size: int = 512, *, add_bos: bool = False) -> None:
        super().__init__(
            vocab_size=vocab_size,
            eos_token_ids={EOS, END_OF_TURN},
            special_token_ids=_SPECIAL_TOKENS.values(),
            added_tokens=_SPECIAL_TOKENS,
            prompt_prefix=(BOS,) if add_bos else (),
            chat_template=ToyTemplate(),
        )
        self._shown = _ToyPieces(vocab_size, {i: s.encode() for s, i in _SPECIAL_TOKENS.items()})
        self._skipped = _ToyPieces(vocab_size, dict.fromkeys(_SPECIAL_TOKENS.values(), b""))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        pieces = self._skipped if skip_special_tokens else self._shown
        return b"".join([pieces[token_id] for token_id in token_ids]).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._shown[token_id]

    def detokenizer(self, *, skip_special_tokens: bool = True) -> ByteDetokenizer:
        return ByteDetokenizer(self._skipped if skip_special_tokens else self._shown)

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._shown[token_id]

    def _encode_plain(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for part in _SPECIAL_PATTERN.split(text):
            special = _SPECIAL_TOKENS.get(part)
            if special is None:
                token_ids.extend(part.encode())
            else:
                token_ids.append(special)
        return token_ids


class _ToyPieces(dict[int, bytes]):
    """The bytes of every id, for any size of vocabulary."""

    def __init__(self, vocab_size: int, special_pieces: Mapping[int, bytes]) -> None:
        super().__init__({i: bytes([i]) for i in range(256)})
        self.update(special_pieces)
        self._vocab_size = vocab_size

    def __missing__(self, token_id: int) -> bytes:
        if _NUM_RESERVED <= token_id < self._vocab_size:
            return f" w{token_id}".encode()
        return b""
