"""The library's structures and functions, as decoder.c declares them."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_void_p
from functools import cache

from .compiling import NoCompiler, compiled_library


class Matrix(Structure):
    _fields_ = [
        ("rows", c_int32),
        ("cols", c_int32),
        ("bits", c_int32),
        ("quants", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
    ]


class Layer(Structure):
    _fields_ = [
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int32),
    ]


class Model(Structure):
    _fields_ = [
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("dim", c_int32),
        ("vocab", c_int32),
        ("block_size", c_int32),
        ("most_planes", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("embedding", c_void_p),
        ("embedding_kind", c_int32),
        ("norm", c_void_p),
        ("head", Matrix),
        ("layers", POINTER(Layer)),
    ]


class Plan(Structure):
    _fields_ = [
        ("num_rows", c_int32),
        ("num_slots", c_int32),
        ("token_width", c_int32),
        ("table_width", c_int32),
        ("slots", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("samples", c_void_p),
        ("drafts", c_void_p),
        ("tokens", c_void_p),
        ("tables", c_void_p),
        ("logits", c_void_p),
        ("likeliest", c_void_p),
    ]


@cache
def load_library() -> ctypes.CDLL:
    """The functions, typed. Raises NoCompiler."""
    path = compiled_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoCompiler(f"{path} cannot be loaded: {error}") from error
    signatures: dict[str, tuple[object, list[object]]] = {
        "stepahead_team_new": (c_void_p, [c_int32]),
        "stepahead_team_free": (None, [c_void_p]),
        "stepahead_scratch_new": (c_void_p, []),
        "stepahead_scratch_free": (None, [c_void_p]),
        "stepahead_forward": (c_int32, [c_void_p, c_void_p, POINTER(Model), POINTER(Plan)]),
        "stepahead_logits_behind": (
            None,
            [c_void_p, c_void_p, POINTER(Model), c_void_p, c_int32, c_void_p],
        ),
        "stepahead_pack": (c_int32, [c_int32] * 3 + [c_void_p] * 4),
        "stepahead_rate": (c_int32, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
