"""Byte-level vocabularies without merges: one id per byte, and markers with tokens of their own."""

from collections.abc import Collection

import tokenizers

from stepahead.actors.text.fast_tokenizer import FastTokenizer
from stepahead.actors.text.templates import JinjaTemplate

END = "<|im_end|>"


def byte_tokenizer(
    shown: Collection[str] = (),
    hidden: Collection[str] = (),
    template: str | None = None,
    *,
    adds_bos: bool = False,
) -> FastTokenizer:
    """A tokenizer with these added tokens; what is hidden is special and skipped in a text. Where
    it adds a BOS, that is the first hidden token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: token_id for token_id, token in enumerate(alphabet)}, [])
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_tokens(list(shown))
    library.add_special_tokens([END, *hidden])
    end = library.token_to_id(END)
    assert end is not None
    return FastTokenizer(
        library,
        eos_token_ids=(end,),
        prompt_prefix=library.encode(next(iter(hidden))).ids if adds_bos else (),
        chat_template=None if template is None else JinjaTemplate(template),
    )
