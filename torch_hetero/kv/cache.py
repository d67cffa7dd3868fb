"""Caches of transformers that begin with what a store knows, and are kept in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig


def _check(cache: DynamicCache) -> None:
    for number, layer in enumerate(cache.layers):
        if getattr(layer, "is_sliding", False) or not hasattr(layer, "keys"):
            raise ValueError(f"layer {number} does not keep all keys ({type(layer).__name__}); the store needs them")


def load(store: Any, input_ids: torch.Tensor, config: PreTrainedConfig | None) -> DynamicCache:
    """`Store.load`."""
    ids = input_ids.reshape(-1) if input_ids.dim() == 2 and input_ids.shape[0] == 1 else input_ids
    if ids.dim() != 1:
        raise ValueError(f"one prompt at a time: input_ids of shape [tokens] or [1, tokens], not {list(input_ids.shape)}")
    cache = DynamicCache(config=config)
    _check(cache)
    spec = store.spec
    with store.match(ids[:-1]) as match:
        if match.tokens == 0:
            return cache
        shape = (1, spec.kv_heads, match.tokens, spec.head_size)
        # Where the model reads them: no copy is made of what arrives.
        device = input_ids.device
        keys, values = ([torch.empty(shape, dtype=spec.dtype, device=device) for _ in range(spec.layers)] for _ in range(2))
        tokens = store.get(match, [k[0] for k in keys], [v[0] for v in values]).wait()
    for number in range(spec.layers if tokens else 0):
        k, v = (side[number][:, :, :tokens] for side in (keys, values))
        cache.update(k[:, :, :0], v[:, :, :0], number)  # makes the layer
        cache.layers[number].keys, cache.layers[number].values = k, v
    return cache


def save(store: Any, tokens: Sequence[int] | torch.Tensor, cache: DynamicCache) -> Any:
    """`Store.save`."""
    _check(cache)
    if isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and tokens.shape[0] == 1:
        tokens = tokens[0]
    ids = tokens if isinstance(tokens, torch.Tensor) else list(tokens)
    if isinstance(ids, torch.Tensor) and ids.dim() != 1:
        raise ValueError(f"one sequence at a time: tokens of shape [tokens] or [1, tokens], not {list(ids.shape)}")
    known = min(len(ids), cache.get_seq_length())
    if cache.layers[0].keys.shape[0] != 1:
        raise ValueError(f"one sequence at a time: the cache has {cache.layers[0].keys.shape[0]}")
    sides = [[getattr(layer, side)[0, :, :known] for layer in cache.layers] for side in ("keys", "values")]
    # A head's tokens must be neighbours; a cache that was cut is not so.
    sides = [[t if t.stride(-2) == t.shape[-1] and t.stride(-1) == 1 else t.contiguous() for t in side] for side in sides]
    return store.put(ids[:known], *sides)
