"""A Tokenizer over the `tokenizers` library, which is used read-only so that threads can share it.

Where a token is a run of bytes (byte-level BPE) decoding needs no library at all: each id has its
bytes in a table that fills as ids are seen.
"""

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from .detokenize import ByteDetokenizer, IncrementalDetokenizer, WindowDetokenizer
from .tokenizer import ChatTemplate, Tokenizer

if TYPE_CHECKING:
    import tokenizers


class FastTokenizer(Tokenizer):
    """Takes over a `tokenizers.Tokenizer`, which must not be changed afterwards."""

    def __init__(
        self,
        library: "tokenizers.Tokenizer",
        *,
        eos_token_ids: Collection[int],
        prompt_prefix: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        added = library.get_added_tokens_decoder()
        super().__init__(
            vocab_size=library.get_vocab_size(with_added_tokens=True),
            eos_token_ids=eos_token_ids,
            special_token_ids={token_id for token_id, token in added.items() if token.special},
            added_tokens={token.content: token_id for token_id, token in added.items()},
            prompt_prefix=prompt_prefix,
            chat_template=chat_template,
        )
        self._library = library
        self._tables: tuple[_Pieces, _Pieces] | None = None  # special tokens shown, and skipped
        self._byte_tokens: dict[int, int] = {}  # byte fallback: the byte of an id
        if _joins_bytes(library):
            self._tables = (_Pieces(library), _Pieces(library, hidden=self.special_token_ids))
        else:
            self._byte_tokens = _byte_fallback(library)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self._tables is None:
            return self._library.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        pieces = self._tables[skip_special_tokens]
        return b"".join([pieces[token_id] for token_id in token_ids]).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if self._tables is not None:
            return self._tables[False][token_id]
        if token_id in self._byte_tokens:
            return bytes([self._byte_tokens[token_id]])
        return super().token_bytes(token_id)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        if self._tables is not None:
            return ByteDetokenizer(self._tables[skip_special_tokens])
        return WindowDetokenizer(
            lambda ids: self._library.decode(ids, skip_special_tokens=False),
            hidden=self.special_token_ids if skip_special_tokens else frozenset(),
            byte_tokens=self._byte_tokens,
        )

    def description(self) -> str:
        """All of it, as the tokenizers library writes it."""
        return self._library.to_str()

    def _encode_plain(self, text: str) -> list[int]:
        return self._library.encode(text, add_special_tokens=False).ids


class _Pieces(dict[int, bytes]):
    """The bytes of each id of a byte-level vocabulary, looked up when they are first needed."""

    def __init__(
        self, library: "tokenizers.Tokenizer", *, hidden: Collection[int] = frozenset()
    ) -> None:
        super().__init__(dict.fromkeys(hidden, b""))
        self._token_of = library.id_to_token

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id) if token_id >= 0 else None
        piece = b"" if token is None else token_bytes(token)
        self[token_id] = piece
        return piece


def token_bytes(token: str) -> bytes:
    """Return the bytes that a byte-level token spells; one written plainly stands for itself."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def _byte_alphabet() -> dict[str, int]:
    """Map the characters in which byte-level vocabularies are written to their bytes.

    Printable Latin-1 characters stand for their own code; the other bytes, in order, are written
    as the characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(plain))
    alphabet = {chr(byte): byte for byte in plain}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _joins_bytes(library: "tokenizers.Tokenizer") -> bool:
    """Whether the text is nothing but the tokens' bytes in a row."""
    if library.decoder is None:
        return False
    state = json.loads(library.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps] == ["ByteLevel"]


def _byte_fallback(library: "tokenizers.Tokenizer") -> dict[int, int]:
    ids = {library.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {token_id: byte for token_id, byte in ids.items() if token_id is not None}
