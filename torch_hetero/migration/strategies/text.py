"""Text: batches of token ids that tokenizers have made. Tokenizers themselves stay on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import Call, Mapped, OnHost, Strategy, register

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


@register
class PadSequence(Strategy):
    """All sequences as one, and for each element of the result its place there."""

    target = "torch.nn.utils.rnn.pad_sequence"
    parameters = "sequences, batch_first=False, padding_value=0.0, padding_side='right'"
    data = ("sequences",)
    ragged = True
    family = "text"
    library = "torch"
    versions = ("2.11.",)

    def supports(self, call: Call) -> str | None:
        sequences = call["sequences"]
        if not isinstance(sequences, (list, tuple)):
            return "sequences is no list"
        if any(not isinstance(entry, Spec) or entry.kind != "tensor" for entry in sequences):
            return "not all sequences are tensors"
        first = sequences[0]
        if not first.shape or any(
            (entry.dtype, len(entry.shape), entry.shape[1:]) != (first.dtype, len(first.shape), first.shape[1:])
            for entry in sequences
        ):
            return "the sequences differ in more than their lengths"
        if call["padding_side"] not in ("left", "right"):
            return f"padding_side {call['padding_side']!r} is none of torch's"
        if not isinstance(call["padding_value"], (bool, int, float)):
            return "padding_value is no number"
        if isinstance(call["padding_value"], float) and not first.dtype.is_floating_point:
            return None if call["padding_value"].is_integer() else "padding_value is no value of the sequences"
        return None

    def map(self, call: Call) -> Mapped:
        sequences, batch_first = call["sequences"], bool(call["batch_first"])
        lengths = [entry.shape[0] for entry in sequences]
        sizes = (len(lengths), max(lengths)) if batch_first else (max(lengths), len(lengths))
        first = sequences[0]
        static = batch_first, call["padding_side"], call["padding_value"], max(lengths)
        return Mapped(Spec("tensor", (*sizes, *first.shape[1:]), first.dtype), static, (np.array(lengths),))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        batch_first, side, value, longest = static
        lengths = sample[0]  # [batch, sequences]
        joined = torch.cat([entry for calls in zip(*inputs, strict=True) for entry in calls])
        if longest == 0:
            padded = joined.reshape(*lengths.shape, 0, *joined.shape[1:])
        else:
            ends = lengths.flatten().cumsum(0).reshape(lengths.shape)
            columns = torch.arange(longest, device=joined.device)
            if side == "right":
                is_token = columns < lengths[..., None]
                places = (ends - lengths)[..., None] + columns
            else:
                is_token = columns >= longest - lengths[..., None]
                places = ends[..., None] - longest + columns
            padded = joined[torch.where(is_token, places, 0)]
            is_token = is_token.reshape(*is_token.shape, *[1] * (joined.dim() - 1))
            padded = padded.masked_fill(~is_token, value)
        return padded if batch_first else padded.transpose(1, 2)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            dtype = [torch.int64, torch.float32, torch.bool][random.integers(3)]
            longest, trailing = [7, 12][random.integers(2)], [(), (3,)][random.integers(2)]
            lengths = [longest, *map(int, random.integers(0, longest + 1, random.integers(0, 4)))]
            sequences = [torch.from_numpy(random.integers(0, 9, (size, *trailing))).to(dtype) for size in lengths]
            options: dict[str, Any] = {"batch_first": True} if random.random() < 0.5 else {}
            if random.random() < 0.3:
                options["padding_side"] = "left"
            if random.random() < 0.5:
                options["padding_value"] = 1
            yield (sequences,), options


class Tokenizer(OnHost):
    """Functions that turn text into ids, or handle lists of ids."""

    family = "text"
    reason = "tokenizers stay on the CPU: text is no array, and they use several threads there"


@register
class Encode(Tokenizer):
    target = "tokenizers.Tokenizer.encode"
    parameters = "self, sequence, pair=None, is_pretokenized=False, add_special_tokens=True"
    data = ("sequence",)
    library = "tokenizers"


@register
class EncodeBatch(Tokenizer):
    target = "tokenizers.Tokenizer.encode_batch"
    parameters = "self, input, is_pretokenized=False, add_special_tokens=True"
    data = ("input",)
    library = "tokenizers"


@register
class PretrainedCall(Tokenizer):
    target = "transformers.PreTrainedTokenizerBase.__call__"
    parameters = "self, text=None, *arguments, **keywords"
    data = ("text",)
    library = "transformers"


class ListPadding(OnHost):
    """Padding of lists of ids."""

    family = "text"
    library = "transformers"
    reason = "lists of token ids are padded on the CPU: tensors are padded by torch.nn.utils.rnn.pad_sequence"


@register
class PretrainedPad(ListPadding):
    target = "transformers.PreTrainedTokenizerBase.pad"
    parameters = "self, encoded_inputs, *arguments, **keywords"
    data = ("encoded_inputs",)


@register
class CollatorWithPadding(ListPadding):
    target = "transformers.DataCollatorWithPadding.__call__"
    parameters = "self, features"
    data = ("features",)
