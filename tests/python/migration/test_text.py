"""Batches of token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from strategy_checks import check_one_batch, reason_of, shared_tests, strategies_of

from torch_hetero.migration.strategy import find
from torch_hetero.migration.trial import trial

STRATEGIES = strategies_of("strategies.text")
TARGET = "torch.nn.utils.rnn.pad_sequence"
IDS = torch.arange(6)


test_random_sequences_are_padded_as_torch_does, test_calls_share_batches = shared_tests(STRATEGIES, on_hetero=2)


def test_sequences_of_other_lengths_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their number and the longest length must be equal."""
    calls = [(([IDS, IDS[:size], IDS[size:]],), {"batch_first": True}) for size in range(6)]
    check_one_batch(TARGET, calls, monkeypatch)


@pytest.mark.parametrize("side", ["left", "right"])
def test_empty_sequences_are_only_padding(side: str) -> None:
    calls = [(([IDS[:0], IDS[:2], IDS[:0]],), {"padding_side": side, "padding_value": 7}), (([IDS[:0], IDS[:0]],), {})]
    assert all(outcome.reason is None and outcome.accepted for outcome in trial(find(TARGET), calls))


@pytest.mark.parametrize(
    ("target", "positional", "keywords", "reason"),
    [
        (TARGET, (IDS,), {}, "sequences is no list"),
        (TARGET, ([IDS, np.arange(3)],), {}, "not all sequences are tensors"),
        (TARGET, ([IDS, IDS.float()],), {}, "the sequences differ in more than their lengths"),
        (TARGET, ([IDS, IDS[None]],), {}, "the sequences differ in more than their lengths"),
        (TARGET, ([IDS, IDS[:2]],), {"padding_side": "middle"}, "padding_side 'middle' is none of torch's"),
        (TARGET, ([IDS, IDS[:2]],), {"padding_value": 0.5}, "padding_value is no value of the sequences"),
        (TARGET, ([IDS, IDS[:2]],), {"padding_value": IDS}, "padding_value is no number"),
    ],
)
def test_calls_that_stay_on_the_cpu_say_why(
    target: str, positional: tuple[Any, ...], keywords: dict[str, Any], reason: str
) -> None:
    assert reason_of(target, *positional, **keywords) == reason


@pytest.mark.parametrize("target", ["tokenizers.Tokenizer.encode", "tokenizers.Tokenizer.encode_batch"])
def test_tokenizers_stay_on_the_cpu(target: str) -> None:
    pytest.importorskip("tokenizers")
    reason = "tokenizers stay on the CPU: text is no array, and they use several threads there"
    assert reason_of(target, None, ["some text"]) == reason


@pytest.mark.parametrize(
    "target", ["transformers.PreTrainedTokenizerBase.pad", "transformers.DataCollatorWithPadding.__call__"]
)
def test_lists_of_ids_are_padded_on_the_cpu(target: str) -> None:
    pytest.importorskip("transformers")
    reason = "lists of token ids are padded on the CPU: tensors are padded by torch.nn.utils.rnn.pad_sequence"
    assert reason_of(target, None, [{"input_ids": [1, 2]}]) == reason
