"""What computed keys and values, and how their blocks are laid out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

HEADS_FIRST = "heads, tokens, size"


@dataclass(frozen=True)
class Spec:
    """The specification of a store's blocks. Stores share blocks only if all fields are equal.

    Attributes:
        model: the model's name.
        revision: of its weights.
        dtype: of keys and values.
        layers: how many of them have keys and values.
        kv_heads: heads of keys in a layer.
        head_size: elements of a head.
        block_tokens: tokens of a block; only whole blocks are kept.
        layout: of a layer's keys in a block: "heads, tokens, size" or "tokens, heads, size".
        tensor_parallel_rank: this process's part of the heads.
        tensor_parallel_size: the number of parts.
        adapter: the name of a LoRA adapter, if any.
        namespace: of a tenant; others never see its blocks.
    """

    model: str
    revision: str
    dtype: torch.dtype
    layers: int
    kv_heads: int
    head_size: int
    block_tokens: int = 16
    layout: str = HEADS_FIRST
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    adapter: str = ""
    namespace: str = ""

    @classmethod
    def from_model(cls, model: torch.nn.Module, **fields: Any) -> Spec:
        """Returns the specification of a model of transformers.

        The revision is a digest of the configuration and of a part of each weight, so other weights are another
        revision. `fields` replaces what is found.

        Raises:
            ValueError: if the configuration lacks the number of layers, heads, or their size.
        """
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        heads = getattr(config, "num_attention_heads", None)
        found = {
            "model": fields.get("model") or config.name_or_path or type(model).__name__,
            "revision": fields.get("revision") or digest(model),
            "dtype": model.dtype,
            "layers": getattr(config, "num_hidden_layers", None),
            "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_size": getattr(config, "head_dim", None) or (heads and config.hidden_size // heads),
        }
        missing = [name for name in ("layers", "kv_heads", "head_size") if not (fields.get(name) or found[name])]
        if missing:
            raise ValueError(f"the model's configuration does not say: {', '.join(missing)}; give them by name")
        return cls(**(found | fields))

    @classmethod
    def from_tensors(cls, keys: Sequence[torch.Tensor], **fields: Any) -> Spec:
        """Returns the specification of caches in pages: a tensor for each layer, [blocks, heads, tokens, size].

        `fields` must have `model` and `revision`.
        """
        _, heads, tokens, size = keys[0].shape
        return cls(**({"dtype": keys[0].dtype, "layers": len(keys), "kv_heads": heads, "head_size": size,
                       "block_tokens": tokens} | fields))

    def fields(self) -> dict[str, Any]:
        """Returns all fields as text and numbers, as the store takes them."""
        values = dataclasses.asdict(self)
        values["dtype"] = str(self.dtype).removeprefix("torch.")
        values["element_bytes"] = self.dtype.itemsize
        return values


def digest(model: torch.nn.Module) -> str:
    """Returns a digest of a model's configuration, and of the shape and the first kilobytes of each weight."""
    seen = hashlib.sha256()
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_json_string"):
        seen.update(config.to_json_string().encode())
    for name, weight in model.state_dict().items():
        seen.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        part = weight.detach().reshape(-1)[:1024].cpu()
        seen.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()[:32]
