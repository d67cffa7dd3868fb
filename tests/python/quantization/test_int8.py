"""Programs whose products are in whole numbers of 8 bits: ``torch.hetero.compile(..., precision="int8")``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from counters import counting
from torch import nn

import models

PRODUCTS = "products with a quantized weight"
TEXTS = [
    "Run the program and return what it prints.",
    "Return a new list with the elements of the iterable in ascending order. The sort is stable.",
    "Open a file and return a stream. Raises OSError upon failure.",
    "Wait until another thread has finished, or until the timeout has passed.",
    "Compress data, returning a bytes object that contains the compressed form.",
]


def pooled(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The embeddings of texts: unit vectors."""
    weights = mask.unsqueeze(-1)
    return nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def test_embeddings_of_minilm_stay_close_and_its_file_is_a_quarter(tmp_path: Path) -> None:
    model, tokenize = models.minilm()
    inputs = tokenize(TEXTS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    program = torch.hetero.compile(model, (), inputs, precision="int8")
    with counting() as seen:
        states = program(**inputs)["last_hidden_state"]
    assert seen.own_kernels[PRODUCTS] == 37  # six for each layer, and the pooler's
    with torch.inference_mode():
        expected = pooled(model(**inputs).last_hidden_state, inputs["attention_mask"])
    assert (pooled(states, inputs["attention_mask"]) * expected).sum(-1).min() >= 0.997
    # The model itself is as it was.
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    program.save(tmp_path / "int8.hetero")
    torch.hetero.compile(model, (), inputs).save(tmp_path / "float32.hetero")
    embeddings = sum(tensor.numel() * 4 for name, tensor in before.items() if "embeddings" in name)
    sizes = {name: (tmp_path / f"{name}.hetero").stat().st_size - embeddings for name in ("int8", "float32")}
    assert sizes["int8"] <= 0.28 * sizes["float32"]
    loaded = torch.hetero.load(tmp_path / "int8.hetero")
    assert torch.equal(loaded(**inputs)["last_hidden_state"], states)


def test_sizes_may_be_dynamic() -> None:
    model, tokenize = models.minilm()
    inputs = tokenize(TEXTS)
    sizes = {name: {0: "batch", 1: "tokens"} for name in inputs}
    program = torch.hetero.compile(model, (), inputs, precision="int8", dynamic=sizes)
    for texts in (TEXTS[:1], TEXTS[1:4]):
        other = tokenize(texts)
        states = program(**other)["last_hidden_state"]
        with torch.inference_mode():
            expected = pooled(model(**other).last_hidden_state, other["attention_mask"])
        assert (pooled(states, other["attention_mask"]) * expected).sum(-1).min() >= 0.997


def test_what_has_no_linear_layers_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match='^precision="int8" takes a torch.nn.Module, whose linear layers it replaces'):
        torch.hetero.compile(lambda x: x + 1, (torch.ones(2),), precision="int8")
    with pytest.raises(ValueError, match="^the model has no torch.nn.Linear to quantize$"):
        torch.hetero.compile(nn.ReLU(), (torch.ones(2),), precision="int8")
    with pytest.raises(ValueError, match="^precision is one of float32, bfloat16, int8, not 'int4'$"):
        torch.hetero.compile(nn.ReLU(), (torch.ones(2),), precision="int4")
