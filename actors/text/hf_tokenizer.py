"""Builds a tokenizer from a Hugging Face folder: tokenizer.json and the files around it.

transformers is imported only for folders without a tokenizer.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...messages import ModelError
from .fast_tokenizer import FastTokenizer
from .templates import JinjaTemplate
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def make_hf_tokenizer(folder: Path) -> Tokenizer:
    """Return the folder's tokenizer, or raise ModelError."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        from .transformers_tokenizer import make_transformers_tokenizer

        return make_transformers_tokenizer(folder)
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_file(str(file))
    except Exception as error:  # the library raises the bare class
        raise ModelError(f"{file} cannot be read: {error}") from error
    config = _read_object(folder / "tokenizer_config.json")
    named = _named_tokens(folder, config)
    _add_missing_tokens(library, config, named)
    eos = library.token_to_id(named.get("eos_token", ""))
    return FastTokenizer(
        library,
        eos_token_ids=() if eos is None else (eos,),
        prompt_prefix=_prompt_prefix(library, config, named),
        chat_template=read_chat_template(folder, config, named),
    )


def read_chat_template(
    folder: Path, config: Mapping[str, object], named: Mapping[str, str]
) -> JinjaTemplate | None:
    """Return the folder's template: a file of its own comes before a field of the configuration."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return JinjaTemplate(_read_text(file), named)
    source = config.get("chat_template")
    if source is None:
        source = _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):
        source = _default_of(source)
    return JinjaTemplate(source, named) if isinstance(source, str) else None


def _default_of(templates: list[object]) -> object:
    """Return the template named `default` of a list of named ones, or the first."""
    sources = {t.get("name"): t.get("template") for t in templates if isinstance(t, Mapping)}
    return sources.get("default", next(iter(sources.values()), None))


def _named_tokens(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Return `bos_token`, `eos_token` and so on as text, those that the folder names."""
    keys = [f"{name}_token" for name in _NAMED_TOKENS]
    values = {**_read_object(folder / "special_tokens_map.json"), **config}
    texts = {key: _token_text(values.get(key)) for key in keys}
    return {key: text for key, text in texts.items() if text is not None}


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_missing_tokens(
    library: "tokenizers.Tokenizer", config: Mapping[str, object], named: Mapping[str, str]
) -> None:
    """Add what the configuration names and tokenizer.json lacks, in the order of the ids."""
    from tokenizers import AddedToken

    known = {token.content for token in library.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder")
    specs = (
        sorted(listed.items(), key=lambda item: int(item[0])) if isinstance(listed, Mapping) else []
    )
    for _, spec in specs:
        content = _token_text(spec)
        if content is not None and content not in known:
            options = {key: bool(spec[key]) for key in _ADDED_OPTIONS if key in spec}
            library.add_tokens([AddedToken(content, **options)])
            known.add(content)
    missing = [text for text in named.values() if text not in known]
    library.add_special_tokens([AddedToken(text, normalized=False) for text in missing])


_ADDED_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _prompt_prefix(
    library: "tokenizers.Tokenizer", config: Mapping[str, object], named: Mapping[str, str]
) -> list[int]:
    """Return what goes before a prompt: BOS by the flag, or what tokenizer.json itself puts there.

    An end that tokenizer.json may put behind the text is left out: a prompt is to be continued.
    """
    adds_bos = config.get("add_bos_token")
    if isinstance(adds_bos, bool):
        bos = library.token_to_id(named.get("bos_token", ""))
        return [bos] if adds_bos and bos is not None else []
    plain = library.encode("a", add_special_tokens=False).ids
    whole = library.encode("a", add_special_tokens=True).ids
    starts = (i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[: next(starts, 0)]


def _read_object(file: Path) -> Mapping[str, object]:
    """Return a JSON object; an empty one when there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} holds {type(value).__name__}; it must hold an object")
    return value


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
