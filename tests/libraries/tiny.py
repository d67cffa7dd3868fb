"""Tiny models with random weights, a tokenizer of whole words, and what hetero recorded in a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

WORDS = [f"word{index}" for index in range(60)]
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]


def tokenizer() -> PreTrainedTokenizerFast:
    whole_words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    whole_words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=whole_words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.padding_side = "left"
    return made


def causal_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A Llama; the same seed gives the same weights."""
    torch.manual_seed(seed)
    config = dict(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    return LlamaForCausalLM(LlamaConfig(**{**config, **changes}))


def classifier(seed: int = 0, **changes: Any) -> BertForSequenceClassification:
    """A BERT for two classes, without dropout: random numbers of devices differ."""
    torch.manual_seed(seed)
    config = dict(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(BertConfig(**{**config, **changes}))


def sentences(count: int, length: int = 8, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    return [
        " ".join(WORDS[index] for index in torch.randint(len(WORDS), (length,), generator=generator).tolist())
        for _ in range(count)
    ]


def devices(model: nn.Module) -> set[str]:
    """The devices of a model's parameters and buffers."""
    return {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]}


@contextlib.contextmanager
def recording(at_least: int = 10, values: tuple[str, ...] = ()) -> Iterator[None]:
    """The block must record operators; none may fall back, except those of ``values``, which depend on values."""
    torch.hetero.flush()
    before = torch.hetero.explain()
    yield
    torch.hetero.flush()
    seen = torch.hetero.explain() - before
    recorded = seen.nodes["typed"] + seen.nodes["boxed"] + seen.compiled["calls"] * at_least
    assert recorded >= at_least, f"{recorded} operators were recorded"
    assert not {name for name in seen.fallbacks if name.removeprefix("aten::") not in values}, seen.fallbacks
