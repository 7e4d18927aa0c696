"""Tokenizers that only transformers can read: SentencePiece files, tiktoken files, Python classes.

Most of them stand on the `tokenizers` library and are used through it; the rest are called under
a lock, because they make no promise to threads.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

from ...messages import ModelError
from .detokenize import WindowDetokenizer
from .fast_tokenizer import FastTokenizer
from .templates import JinjaTemplate
from .tokenizer import ChatTemplate, Tokenizer


class SlowLibrary(Protocol):
    """What is asked of a tokenizer of transformers."""

    all_special_ids: list[int]
    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: object
    special_tokens_map: dict[str, object]

    def __len__(self) -> int: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...


class SlowTokenizer(Tokenizer):
    """Takes over a tokenizer of transformers; one call at a time."""

    def __init__(self, library: SlowLibrary) -> None:
        super().__init__(
            vocab_size=len(library),
            eos_token_ids=() if library.eos_token_id is None else (library.eos_token_id,),
            special_token_ids=library.all_special_ids,
            added_tokens=library.get_added_vocab(),
            prompt_prefix=_prompt_prefix(library),
            chat_template=_chat_template(library),
        )
        self._library = library
        self._lock = Lock()

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        hidden = self.special_token_ids if skip_special_tokens else frozenset()
        return self._decode([i for i in token_ids if i not in hidden and 0 <= i < self.vocab_size])

    def detokenizer(self, *, skip_special_tokens: bool = True) -> WindowDetokenizer:
        return WindowDetokenizer(
            self._decode,
            hidden=self.special_token_ids if skip_special_tokens else frozenset(),
            byte_tokens=frozenset(),
        )

    def _encode_plain(self, text: str) -> list[int]:
        with self._lock:
            return self._library.encode(text, add_special_tokens=False)

    def _decode(self, token_ids: Sequence[int]) -> str:
        with self._lock:
            return self._library.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )


def make_transformers_tokenizer(folder: Path) -> Tokenizer:
    """Return the folder's tokenizer as transformers reads it, or raise ModelError."""
    import tokenizers
    from transformers import AutoTokenizer

    try:
        library = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # it raises whatever its many readers raise
        raise ModelError(f"{folder} has no tokenizer that can be read: {error}") from error
    fast = getattr(library, "backend_tokenizer", None)
    if not isinstance(fast, tokenizers.Tokenizer):
        return SlowTokenizer(library)
    return FastTokenizer(
        tokenizers.Tokenizer.from_str(fast.to_str()),
        eos_token_ids=() if library.eos_token_id is None else (library.eos_token_id,),
        prompt_prefix=_prompt_prefix(library),
        chat_template=_chat_template(library),
    )


def _prompt_prefix(library: SlowLibrary) -> tuple[int, ...]:
    """Return the BOS if this tokenizer puts one before a prompt."""
    bos = library.bos_token_id
    first = library.encode("a", add_special_tokens=True)[:1]
    return (bos,) if bos is not None and first == [bos] else ()


def _chat_template(library: SlowLibrary) -> ChatTemplate | None:
    source = library.chat_template
    if isinstance(source, dict):
        source = source.get("default", next(iter(source.values()), None))
    named = {key: str(token) for key, token in library.special_tokens_map.items()}
    return JinjaTemplate(source, named) if isinstance(source, str) else None
