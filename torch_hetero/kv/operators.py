"""hetero::kv_gather and kv_scatter: blocks of caches in pages, as one tensor, also within torch.compile."""

from __future__ import annotations

import torch


@torch.library.custom_op("hetero::kv_gather", mutates_args=())
def kv_gather(keys: list[torch.Tensor], values: list[torch.Tensor], blocks: torch.Tensor) -> torch.Tensor:
    """Gathers blocks of all layers.

    Args:
        keys: a tensor for each layer, [all blocks, ...].
        values: likewise.
        blocks: numbers, [n].

    Returns:
        [n, layers, 2, ...]: for each block the keys and values of each layer, as a store keeps them.
    """
    pairs = [torch.stack((k.index_select(0, blocks), v.index_select(0, blocks)), 1) for k, v in zip(keys, values, strict=True)]
    return torch.stack(pairs, 1)


@kv_gather.register_fake
def _(keys: list[torch.Tensor], values: list[torch.Tensor], blocks: torch.Tensor) -> torch.Tensor:
    return keys[0].new_empty(blocks.shape[0], len(keys), 2, *keys[0].shape[1:])


@torch.library.custom_op("hetero::kv_scatter", mutates_args=("keys", "values"))
def kv_scatter(
    keys: list[torch.Tensor], values: list[torch.Tensor], blocks: torch.Tensor, gathered: torch.Tensor
) -> None:
    """Writes gathered blocks to places of the caches: the inverse of `kv_gather`."""
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        k.index_copy_(0, blocks, gathered[:, layer, 0])
        v.index_copy_(0, blocks, gathered[:, layer, 1])


@kv_scatter.register_fake
def _(keys: list[torch.Tensor], values: list[torch.Tensor], blocks: torch.Tensor, gathered: torch.Tensor) -> None:
    return None
