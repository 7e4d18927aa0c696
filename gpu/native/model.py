"""A model's weights bound to the library's structures."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..kv import PagedKV
from ..loading.dequantise import F16, F32, Q4_0, Q4_1, Q8_0
from ..loading.gguf_file import GgufTensor
from ..loading.gguf_weights import GgufWeights
from ..loading.weights import Weights
from ..models.config import ModelConfig
from .library import Layer, Model
from .packing import GROUP, Blocks, Packed, halves_apart, in_order, quantised_8

Floats = NDArray[np.float32]


def bind_model(
    config: ModelConfig, weights: GgufWeights, kv: PagedKV, max_model_len: int
) -> tuple[Model, list[object]]:
    """The library's model, and the memory that it points to: the caller keeps both.

    Raises ModelError where tensors are missing, misshapen or left over.
    """
    binder = _Binder(config, weights, kv)
    model = binder.model(max_model_len)
    return model, binder.kept


class _Binder:
    def __init__(self, config: ModelConfig, weights: GgufWeights, kv: PagedKV) -> None:
        self._config = config
        self._source = weights
        self._weights = Weights(weights, torch.float32)  # keeps the account of what was taken
        self._kv = kv
        self.kept: list[object] = [kv, weights]

    def model(self, max_model_len: int) -> Model:
        config = self._config
        layers = (Layer * config.num_layers)(*map(self._layer, range(config.num_layers)))
        cosines, sines = config.rope.tables(config.head_dim, max_model_len, torch.float32)
        half = config.head_dim // 2
        turns = [cosines[:, :half].contiguous().numpy(), sines[:, half:].contiguous().numpy()]
        embedding = self._take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        kind, data = embedding.type_id, embedding.data
        if kind not in (F32, F16, Q4_0, Q4_1, Q8_0):
            kind, data = F16, embedding.load().astype(np.float16).view(np.uint8).reshape(-1)
        self.kept += [layers, *turns, data]
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
            cosines=turns[0].ctypes.data,
            sines=turns[1].ctypes.data,
            embedding=data.ctypes.data,
            embedding_kind=kind,
            norm=self._vector("model.norm.weight", config.hidden_size),
            head=self._pack([self._head(embedding)]).matrix,
            layers=layers,
        )
        self._weights.finish()
        return model

    def _head(self, embedding: GgufTensor) -> tuple[Blocks, NDArray[np.int32]]:
        config = self._config
        tensor = embedding
        if not config.tied_embeddings:
            tensor = self._take("lm_head.weight", config.vocab_size, config.hidden_size)
        return self._blocks([tensor])[0], in_order(config.vocab_size)

    def _layer(self, number: int) -> Layer:
        config, kv = self._config, self._kv
        prefix, hidden, dim = f"model.layers.{number}.", config.hidden_size, config.head_dim
        q_norm = k_norm = None
        if config.qk_norm:
            q_norm = self._vector(f"{prefix}self_attn.q_norm.weight", dim)
            k_norm = self._vector(f"{prefix}self_attn.k_norm.weight", dim)
        inner = config.intermediate_size
        out = {f"{prefix}self_attn.o_proj": hidden}
        down = {f"{prefix}mlp.down_proj": hidden}
        return Layer(
            input_norm=self._vector(f"{prefix}input_layernorm.weight", hidden),
            mlp_norm=self._vector(f"{prefix}post_attention_layernorm.weight", hidden),
            q_norm=q_norm,
            k_norm=k_norm,
            qkv=self._qkv(prefix).matrix,
            out=self._stacked(out, config.num_heads * dim, config.output_bias).matrix,
            gate_up=self._gate_up(prefix).matrix,
            down=self._stacked(down, inner, config.mlp_bias).matrix,
            keys=kv.keys[number].data_ptr(),
            values=kv.values[number].data_ptr(),
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
        tensors = [self._take(f"{name}.weight", count, cols) for name, count in rows.items()]
        orders = [self._order(f"{name}.weight", count) for name, count in rows.items()]
        packed = self._pack(list(zip(self._blocks(tensors), orders, strict=True)))
        if has_bias:
            biases = [self._take(f"{name}.bias", count).load() for name, count in rows.items()]
            own = [
                bias[self._order(f"{name}.bias", len(bias))]
                for name, bias in zip(rows, biases, strict=True)
            ]
            packed.bias = np.concatenate(own).astype(np.float32)
        return packed

    def _gate_up(self, prefix: str) -> Packed:
        """32 rows of the gate, then the same 32 of up: both are wanted at once."""
        inner, hidden = self._config.intermediate_size, self._config.hidden_size
        names = [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")]
        parts = self._blocks([self._take(f"{name}.weight", inner, hidden) for name in names])
        rows = [np.arange(g, g + GROUP, dtype=np.int32) for g in range(0, inner, GROUP)]
        packed = self._pack([(blocks, own) for own in rows for blocks in parts])
        if self._config.mlp_bias:
            biases = [self._take(f"{name}.bias", inner).load() for name in names]
            packed.bias = np.concatenate([bias[own] for own in rows for bias in biases])
        return packed

    def _pack(self, parts: list[tuple[Blocks, NDArray[np.int32]]]) -> Packed:
        packed = Packed(parts)
        self.kept.append(packed)
        return packed

    def _order(self, name: str, rows: int) -> NDArray[np.int32]:
        if self._source.is_interleaved(name):
            return halves_apart(rows, self._config.head_dim)
        return in_order(rows)

    def _blocks(self, tensors: Sequence[GgufTensor]) -> list[Blocks]:
        """Matrices that are multiplied as one have the same number of bits."""
        kinds = {tensor.type_id for tensor in tensors}
        if kinds <= {Q4_0, Q4_1} or kinds == {Q8_0}:
            return [Blocks(t.type_id, t.shape[0], t.shape[1], t.data) for t in tensors]
        return [quantised_8(tensor.load()) for tensor in tensors]

    def _vector(self, name: str, size: int) -> int:
        values: Floats = np.ascontiguousarray(self._take(name, size).load(), dtype=np.float32)
        self.kept.append(values)
        return int(values.ctypes.data)

    def _take(self, name: str, *shape: int) -> GgufTensor:
        self._weights.claim(name, *shape)
        return self._source.tensor(name)
