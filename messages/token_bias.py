"""TokenBias: what is added to the logits of some tokens, as a value that cannot change."""

from collections.abc import Iterator, Mapping


class TokenBias(Mapping[int, float]):
    """A frozen mapping from token id to bias. Equal to any mapping that says the same."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[int, float] | None = None) -> None:
        self._values = dict(sorted((values or {}).items()))

    def __getitem__(self, token_id: int) -> float:
        return self._values[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


NO_BIAS = TokenBias()
