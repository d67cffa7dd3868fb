"""Qwen3 checkpoints with random weights and the layout of published ones.

python tests/python/models/qwen3_checkpoints.py FOLDER [--shape small|0.6B|...] [--dtype bfloat16] [--experts 8]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from qwen3_files import ADDED, write_tokenizer
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

# hidden, intermediate, layers, heads, key and value heads, tied embeddings: as in the published config.json.
SHAPES = {
    "small": (128, 256, 4, 4, 2, True),
    "0.6B": (1024, 3072, 28, 16, 8, True),
    "1.7B": (2048, 6144, 28, 16, 8, True),
    "4B": (2560, 9728, 36, 32, 8, True),
    "8B": (4096, 12288, 36, 32, 8, False),
}
END = "<|im_end|>"
# Gives the results of requests, and the report.
Batch = Callable[..., tuple[list[dict[str, Any]], str]]


def build(
    *, shape: str = "small", dtype: torch.dtype = torch.float32, experts: int = 0, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """A model with random weights.

    Args:
        shape: A key of SHAPES.
        dtype: Of the weights.
        experts: A mixture of so many experts in each layer; 0 for a dense model.
        seed: Of the weights.
        changes: Other fields of the config.
    """
    hidden, intermediate, layers, heads, key_heads, tied = SHAPES[shape]
    vocabulary = 4096 + 64 if shape == "small" else 151936
    fields: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": 32 if shape == "small" else 128,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "eos_token_id": 4096 + [name for name, _ in ADDED].index(END),
    }
    if experts:
        fields |= {
            "num_experts": experts,
            "num_experts_per_tok": min(experts, 4),
            "norm_topk_prob": True,
            "moe_intermediate_size": intermediate // 4,
        }
    fields |= changes
    torch.manual_seed(seed)
    kinds = (Qwen3MoeConfig, Qwen3MoeForCausalLM) if experts else (Qwen3Config, Qwen3ForCausalLM)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # large models are made in their own dtype
    try:
        model = kinds[1](kinds[0](**fields, dtype=dtype))
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif shape == "small":
                weight.normal_(0, 0.08)  # attention that attends, and tokens that differ
    return model.eval()


def write(folder: Path, model: PreTrainedModel, shard: str = "5GB") -> Path:
    """Writes the model, a tokenizer and generation_config.json.

    Args:
        folder: Made where it is missing.
        model: Of build().
        shard: The most bytes of one file.
    """
    model.generation_config = GenerationConfig(eos_token_id=model.config.eos_token_id, do_sample=False)
    model.save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer", "eos_token": END}))
    return folder


class Checkpoint:
    """A small checkpoint and the model that it was written from."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        shard = changes.pop("shard", "5GB")
        self.model: PreTrainedModel = build(**changes)
        self.folder = write(folder, self.model, shard)

    def expected(self, prompt: list[int], tokens: int) -> tuple[list[int], torch.Tensor]:
        """Greedy tokens, which do not stop, and the logits of each, by transformers."""
        with torch.no_grad():
            self.model(torch.tensor([[0]]))  # dynamic rotary frequencies begin anew
            made = self.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt)),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        return made.sequences[0, len(prompt) :].tolist(), torch.cat(made.logits)


def prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of different lengths."""
    generator = random.Random(seed)
    return [[generator.randrange(4096) for _ in range(generator.randint(1, longest))] for _ in range(count)]


def greedy(prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 5, "ignore_eos": True} | more


def main() -> None:
    """Writes a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--shard", default="5GB", help="the most bytes of one file")
    args = parser.parse_args()
    model = build(shape=args.shape, dtype=getattr(torch, args.dtype), experts=args.experts)
    write(args.folder, model, args.shard)
    print(f"wrote {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M random weights to {args.folder}")


if __name__ == "__main__":
    main()
