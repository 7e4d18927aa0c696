"""Random JSON schemas of the subset that is supported, from seeds."""

import random
from collections.abc import Callable
from typing import Any

Kind = Callable[[random.Random, int], dict[str, Any]]
FORMATS = ("date", "date-time", "email", "ipv4", "time", "uuid")
PATTERNS = ("^[A-Z]{3}-[0-9]{2}$", "^(red|green|blue)$", "^[a-z]+$", "^x{2,5}y?$")
WORDS = ("name", "age", "tags", "id", "a b", "größe", 'quo"te', "x", "value", "next")


def random_schema(seed: int) -> dict[str, Any]:
    """An object at the top, as is usual, or now and then something else."""
    rng = random.Random(f"schema {seed}")
    schema = _object(rng, 3) if rng.random() < 0.8 else _any(rng, 3)
    if rng.random() < 0.15:
        schema = {**schema, "$defs": {"more": _any(rng, 1)}}
        if "properties" in schema:
            schema["properties"]["more"] = {"$ref": "#/$defs/more"}
    return schema


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds: list[Kind] = [_string, _string, _integer, _number, _constant, _plain]
    if depth > 0:
        kinds += [_object, _array, _union]
    return rng.choice(kinds)(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    more = rng.choice([False, False, None, {"type": "integer"}])
    if more is not None:
        schema["additionalProperties"] = more
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": _any(rng, depth)}
    least = rng.choice([None, 0, 1, 2, 3])
    if least is not None:
        schema["minItems"] = least
        if rng.random() < 0.5:
            schema["maxItems"] = least + rng.randint(0, 3)
    if rng.random() < 0.2:
        schema["prefixItems"] = [_any(rng, 0)]
    return schema


def _union(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(1, 3))]}


def _string(rng: random.Random, _: int) -> dict[str, Any]:
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 1:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 2:
        least = rng.randint(0, 6)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 20)}
    return {"type": "string"}


def _integer(rng: random.Random, _: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    if rng.random() < 0.5:
        schema["minimum"] = rng.randint(-50, 2_000)
        if rng.random() < 0.5:
            schema["maximum"] = schema["minimum"] + rng.randint(0, 500)
    return schema


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "number"}
    if rng.random() < 0.3:
        schema["exclusiveMinimum"] = rng.choice([0, 1.5, -3])
    return schema


def _constant(rng: random.Random, _: int) -> dict[str, Any]:
    values = [None, True, 3, -1.5, "red", "a\\b", ["x", 1], {"k": "v"}]
    if rng.random() < 0.4:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randint(1, 4))}


def _plain(rng: random.Random, _: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null", ["string", "null"], "object", "array"])}
