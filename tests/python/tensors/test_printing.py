"""A device tensor prints like a CPU tensor, plus its device."""

from __future__ import annotations

import pytest
import torch
from counters import counting
from helpers import DEVICE, ON_HETERO, needs_hetero

CASES = {
    "floats": lambda: torch.tensor([[1.0, 2.5], [-3.25, 1e-8]]),
    "integers": lambda: torch.arange(6).reshape(2, 3),
    "bools": lambda: torch.tensor([True, False]),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "summarized": lambda: torch.arange(2000.0),
    "special": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "complex": lambda: torch.tensor([1 + 2j, -3j]),
    "half": lambda: torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    "view": lambda: torch.arange(12.0).reshape(3, 4)[:, 1::2],
    "requires_grad": lambda: torch.tensor([1.0], requires_grad=True),
}


def without_device(text: str) -> str:
    for tail in (", device='hetero:0'", ",\n       device='hetero:0'"):
        text = text.replace(tail, "")
    return " ".join(text.split())


@pytest.mark.parametrize("case", CASES)
def test_repr_is_that_of_cpu_plus_the_device(case: str) -> None:
    tensor = CASES[case]()
    there = tensor.detach().to(DEVICE).requires_grad_(tensor.requires_grad)
    text = repr(there)
    assert without_device(text) == without_device(repr(tensor))
    assert ("device='hetero:0'" in text) == ON_HETERO


def test_a_result_prints_its_grad_fn() -> None:
    leaf = torch.ones(2, device=DEVICE, requires_grad=True)
    assert "grad_fn=<MulBackward0>" in repr(leaf * 2)


def test_parameters_modules_and_str_print() -> None:
    layer = torch.nn.Linear(2, 1).to(DEVICE)
    assert repr(layer.weight).startswith("Parameter containing:\ntensor(")
    assert repr(layer) == "Linear(in_features=2, out_features=1, bias=True)"
    assert str(torch.ones(1, device=DEVICE)).startswith("tensor([1.]")


@needs_hetero
def test_printing_a_large_tensor_records_no_node() -> None:
    tensor = torch.arange(5000.0, device=DEVICE)
    torch.hetero.flush()
    with counting() as seen:
        text = repr(tensor)
    assert without_device(text) == without_device(repr(torch.arange(5000.0)))
    assert seen.recorded == 0
