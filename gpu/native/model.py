"""A model's weights bound to the library's structures."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ..loading.account import Account, WeightSource
from ..loading.dequantise import F16, F32, Q4_0, Q4_1, Q8_0
from ..loading.gguf_weights import GgufWeights
from ..models.config import ModelConfig
from .kv import HalfKV
from .library import Layer, Model
from .packing import (
    GROUP,
    Blocks,
    Bytes,
    Packed,
    halves_apart,
    in_order,
    quantised_4,
    quantised_8,
)

Floats = NDArray[np.float32]


def bind_model(
    config: ModelConfig,
    weights: WeightSource,
    kv: HalfKV,
    max_model_len: int,
    *,
    bits: int,
    most_planes: int,
    threads: int,
) -> tuple[Model, list[object]]:
    """The library's model, and the memory that it points to: the caller keeps both.

    Raises ModelError where tensors are missing, misshapen or left over.
    """
    binder = _Binder(config, weights, kv, bits)
    model = binder.model(max_model_len, threads)
    model.most_planes = most_planes if binder.fits_tiles else -1
    return model, binder.kept


class _Binder:
    def __init__(self, config: ModelConfig, weights: WeightSource, kv: HalfKV, bits: int) -> None:
        self._config = config
        self._packed = weights if isinstance(weights, GgufWeights) else None
        self._account = Account(weights)
        self._bits = bits
        self._kv = kv
        self._source = weights
        self.kept: list[object] = [kv, weights]
        self.fits_tiles = True

    def model(self, max_model_len: int, threads: int) -> Model:
        config = self._config
        with ThreadPoolExecutor(threads, "stepahead-packing") as packing:
            found = packing.map(self._layer, range(config.num_layers))
            layers = (Layer * config.num_layers)(*found)
        cosines, sines = config.rope.turns(config.head_dim, max_model_len)
        kind, data = self._embedding()
        self.kept += [layers, cosines, sines, data]
        model = Model(
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            dim=config.head_dim,
            vocab=config.vocab_size,
            block_size=self._kv.block_size,
            eps=config.rms_eps,
            scale=config.head_dim**-0.5,
            cosines=cosines.ctypes.data,
            sines=sines.ctypes.data,
            embedding=data.ctypes.data,
            embedding_kind=kind,
            norm=self._address("model.norm.weight", config.hidden_size),
            head=self._head().matrix,
            layers=layers,
        )
        self._account.finish()
        return model

    def _embedding(self) -> tuple[int, Bytes]:
        """Rows as the file packs them where the library can look them up, else in float16."""
        config, name = self._config, "model.embed_tokens.weight"
        kind = None if self._packed is None else self._packed.tensor(name).type_id
        if self._packed is not None and kind in (F32, F16, Q4_0, Q4_1, Q8_0):
            if not self._is_tied:
                self._account.claim(name, config.vocab_size, config.hidden_size)
            return kind, self._packed.tensor(name).data
        shape = config.vocab_size, config.hidden_size
        self._account.require(name, *shape)
        values = self._source.floats(name)
        if not self._is_tied:
            self._account.claim(name, *shape)
        return F16, values.astype(np.float16).view(np.uint8).reshape(-1)

    @property
    def _is_tied(self) -> bool:
        return self._config.tied_embeddings and "lm_head.weight" not in self._account

    def _head(self) -> Packed:
        """Never in fewer bits than 8, unless the file has fewer: each token's logit is one row."""
        name = "model.embed_tokens.weight" if self._is_tied else "lm_head.weight"
        rows = {name: self._config.vocab_size}
        return self._pack(self._blocks(rows, self._config.hidden_size, bits=8))

    def _layer(self, number: int) -> Layer:
        config, kv = self._config, self._kv
        prefix, hidden, dim = f"model.layers.{number}.", config.hidden_size, config.head_dim
        q_norm = k_norm = None
        if config.qk_norm:
            q_norm = self._address(f"{prefix}self_attn.q_norm.weight", dim)
            k_norm = self._address(f"{prefix}self_attn.k_norm.weight", dim)
        inner = config.intermediate_size
        out = {f"{prefix}self_attn.o_proj": hidden}
        down = {f"{prefix}mlp.down_proj": hidden}
        return Layer(
            input_norm=self._address(f"{prefix}input_layernorm.weight", hidden),
            mlp_norm=self._address(f"{prefix}post_attention_layernorm.weight", hidden),
            q_norm=q_norm,
            k_norm=k_norm,
            qkv=self._qkv(prefix).matrix,
            out=self._stacked(out, config.num_heads * dim, config.output_bias).matrix,
            gate_up=self._gate_up(prefix).matrix,
            down=self._stacked(down, inner, config.mlp_bias).matrix,
            keys=kv.keys[number].ctypes.data,
            values=kv.values[number].ctypes.data,
            window=config.windows[number] or 0,
        )

    def _qkv(self, prefix: str) -> Packed:
        config = self._config
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        rows = {
            f"{prefix}self_attn.{n}_proj": count * config.head_dim for n, count in heads.items()
        }
        return self._stacked(rows, config.hidden_size, config.qkv_bias)

    def _stacked(self, rows: dict[str, int], cols: int, has_bias: bool) -> Packed:
        """Matrices below one another, with their biases."""
        weights = {f"{name}.weight": count for name, count in rows.items()}
        packed = self._pack(self._blocks(weights, cols, self._bits))
        if has_bias:
            biases = [self._floats(f"{name}.bias", count) for name, count in rows.items()]
            packed.bias = np.concatenate(biases)
        return packed

    def _gate_up(self, prefix: str) -> Packed:
        """32 rows of the gate, then the same 32 of up: both are wanted at once."""
        inner, hidden = self._config.intermediate_size, self._config.hidden_size
        names = [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")]
        parts = self._blocks({f"{name}.weight": inner for name in names}, hidden, self._bits)
        rows = [np.arange(g, g + GROUP, dtype=np.int32) for g in range(0, inner, GROUP)]
        packed = self._pack([(blocks, own) for own in rows for blocks, _ in parts])
        if self._config.mlp_bias:
            biases = [self._floats(f"{name}.bias", inner) for name in names]
            packed.bias = np.concatenate([bias[own] for own in rows for bias in biases])
        return packed

    def _pack(self, parts: list[tuple[Blocks, NDArray[np.int32]]]) -> Packed:
        packed = Packed(parts)
        self.kept.append(packed)
        if not packed.fits_tiles:
            self.fits_tiles = False
        return packed

    def _blocks(
        self, rows: dict[str, int], cols: int, bits: int
    ) -> list[tuple[Blocks, NDArray[np.int32]]]:
        """Matrices that are multiplied as one, each with the order of its rows: as the file packs
        them where they all have the same bits, and no more than wanted."""
        packed = self._as_packed(rows, bits)
        if packed is not None:
            for name, count in rows.items():
                self._account.claim(name, count, cols)
            return packed
        quantise = quantised_8 if bits == 8 else quantised_4
        values = [self._floats(name, count, cols) for name, count in rows.items()]
        return [(quantise(value), in_order(len(value))) for value in values]

    def _as_packed(
        self, rows: dict[str, int], bits: int
    ) -> list[tuple[Blocks, NDArray[np.int32]]] | None:
        file = self._packed
        if file is None or not all(name in self._account for name in rows):
            return None
        tensors = [file.tensor(name) for name in rows]
        kinds = {tensor.type_id for tensor in tensors}
        if not (kinds <= {Q4_0, Q4_1} or (kinds == {Q8_0} and bits == 8)):
            return None
        dim = self._config.head_dim
        orders = [
            halves_apart(count, dim) if file.is_interleaved(name) else in_order(count)
            for name, count in rows.items()
        ]
        blocks = [Blocks(t.type_id, t.shape[0], t.shape[-1], t.data) for t in tensors]
        return list(zip(blocks, orders, strict=True))

    def _address(self, name: str, size: int) -> int:
        values = self._floats(name, size)
        self.kept.append(values)
        return int(values.ctypes.data)

    def _floats(self, name: str, *shape: int) -> Floats:
        self._account.claim(name, *shape)
        return self._source.floats(name)
