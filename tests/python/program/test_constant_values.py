"""Programs of models that make tensors of their own and look at them: what is the same in every run is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import assert_same, call_of
from torch import nn


class Of(nn.Module):
    """A function as a model, with a weight and a count of calls."""

    def __init__(self, function: Callable[[Of, torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor([0.5, -2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> object:
        return self.function(self, x)


def of_host_tensor_that_is_written(model: Of, x: torch.Tensor) -> torch.Tensor:
    sums = torch.tensor([1.0, 2.0, 3.0]).to(x.device)
    sums[0] = 5
    sums.mul_(x)
    return sums


def of_part_that_is_written(model: Of, x: torch.Tensor) -> torch.Tensor:
    rows = torch.zeros(2, 3, device=x.device)
    rows[1].copy_(torch.arange(3.0))
    rows += x
    return rows


def of_result_without_inputs(model: Of, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, torch.tensor([1.0, 2.0], device=x.device)


def of_mask_looked_at(model: Of, x: torch.Tensor) -> torch.Tensor:
    mask = torch.full((3, 3), float("-inf"), device=x.device).triu(1)
    return x + mask.softmax(-1)[1] if bool((mask == 0).any()) else x


def of_value_looked_at_and_written(model: Of, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3, device=x.device)
    made[1] = 2
    factor = int(made.sum())
    made += x
    return made * factor


def of_filled_memory(model: Of, x: torch.Tensor) -> torch.Tensor:
    made = torch.empty(3, device=x.device)
    made[:2] = 1
    made[2:] = 3
    return x * made.tolist()[2]


def of_weight(model: Of, x: torch.Tensor) -> torch.Tensor:
    y = x * model.weight
    return y * model.weight.abs().max().item() if bool((model.weight > 0).any()) else y


def of_indices(model: Of, x: torch.Tensor) -> torch.Tensor:
    counts = torch.arange(6, device=x.device)
    return x + (counts % 2 == 0).nonzero().flatten()


def of_distinct_values_that_are_written(model: Of, x: torch.Tensor) -> torch.Tensor:
    distinct = torch.unique(torch.tensor([3.0, 1.0, 2.0, 1.0], device=x.device))
    distinct += x
    return distinct


def of_value_overwritten_behind_a_reader(model: Of, x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3, device=x.device)
    y = x + made
    made.fill_(1)
    return y * 2 if bool(made.all()) else y


def of_values_on_the_host(model: Of, x: torch.Tensor) -> torch.Tensor:
    made = torch.linspace(0, 1, 3, device=x.device).cpu() * 2
    return x + made.to(x.device)


KNOWN = [value for name, value in sorted(globals().items()) if name.startswith("of_")]


@torch.no_grad()
@pytest.mark.parametrize("function", KNOWN, ids=lambda function: function.__name__)
@pytest.mark.parametrize("way", ["saved", "compiled"])
def test_what_depends_on_constants_is_known_and_made_anew_in_each_run(
    function: Callable[[Of, torch.Tensor], object], way: str
) -> None:
    torch._dynamo.reset()
    model = Of(function).eval()
    x = torch.tensor([0.25, -1.0, 4.0])
    call = call_of(way, model, x)
    expected = model(x)
    for _ in range(3):
        results = call()
        assert_same(results, expected)
        # A caller may write what it got.
        for result in results if isinstance(results, tuple) else (results,):
            result.add_(7)


@torch.no_grad()
def test_a_file_has_what_was_known(tmp_path: Path) -> None:
    model = Of(of_value_looked_at_and_written).eval()
    torch.hetero.compile(model, (torch.ones(3),)).save(tmp_path / "model.hetero")
    loaded = torch.hetero.load(tmp_path / "model.hetero")
    for factor in (1.0, -2.0):
        x = torch.full((3,), factor)
        assert_same(loaded(x), model(x))


@torch.no_grad()
def test_a_transformer_with_a_mask_that_it_looks_at_is_a_program() -> None:
    class Translates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
            return self.transformer(source, target, tgt_mask=mask)

    torch.manual_seed(0)
    model = Translates().eval()
    inputs = (torch.randn(2, 9, 32), torch.randn(2, 7, 32))
    program = torch.hetero.compile(model, inputs)
    torch.testing.assert_close(program(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def looks_then_counts(model: Of, x: torch.Tensor) -> torch.Tensor:
    y = x * 2 if model.calls.item() < 2 else x
    model.calls += 1
    return y


def counts_then_looks(model: Of, x: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return x * 2 if model.calls.item() < 2 else x


def looks_at_random_numbers(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x * float(torch.rand(3, device=x.device).sum())


def looks_at_input(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum())


def looks_at_input_overwritten_in_part(model: Of, x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy[:2] = 0
    return x * float(copy.sum())


def finds_in_input(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x[: len((x > 0).nonzero())]


@torch.no_grad()
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (looks_then_counts, "looks at a value, and updates it in place later"),
        (counts_then_looks, "read scalar"),
        (looks_at_random_numbers, "read scalar"),
        (looks_at_input, "read scalar"),
        (looks_at_input_overwritten_in_part, "read scalar"),
        (finds_in_input, "aten::nonzero .data-dependent shape"),
    ],
)
def test_what_may_be_another_value_in_the_next_run_is_refused(
    function: Callable[[Of, torch.Tensor], object], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"cannot be a program: .*{reason}"):
        torch.hetero.compile(Of(function).eval(), (torch.ones(3),))
    assert_same((torch.ones(3, device="hetero") * 2).cpu(), torch.full((3,), 2.0))


@torch.no_grad()
def test_an_error_in_a_value_that_is_looked_at_is_raised_as_on_the_cpu() -> None:
    def forward(model: Of, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(3, device=x.device)[torch.tensor([5], device=x.device)]
        return x * float(made.sum())

    with pytest.raises(ValueError, match="index 5 is out of bounds for dimension 0 with size 3"):
        torch.hetero.compile(Of(forward).eval(), (torch.ones(3),))
    assert_same((torch.ones(3, device="hetero") * 2).cpu(), torch.full((3,), 2.0))


def saturates(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(x.shape[0], device=x.device).clamp(max=4).amax().item()


def counts_up_to_200(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.arange(x.shape[0], device=x.device) < 200).sum().item()


def looks_at_part_of_a_table(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x * (model.weight.repeat(99)[: x.shape[0]] > -9).all().float().item()


def looks_at_weight(model: Of, x: torch.Tensor) -> torch.Tensor:
    return x * model.weight.sum().item() + model.weight[1].item()


@torch.no_grad()
@pytest.mark.parametrize("function", [saturates, counts_up_to_200, looks_at_part_of_a_table])
def test_what_depends_on_sizes_cannot_be_looked_at_where_these_are_dynamic(
    function: Callable[[Of, torch.Tensor], object],
) -> None:
    with pytest.raises(ValueError, match="it looks at a value that depends on sizes"):
        torch.hetero.compile(Of(function).eval(), (torch.ones(8),), dynamic={"x": {0: "n"}})


@torch.no_grad()
def test_what_does_not_depend_on_sizes_can_be_looked_at_where_these_are_dynamic() -> None:
    model = Of(looks_at_weight).eval()
    program = torch.hetero.compile(model, (torch.ones(8),), dynamic={"x": {0: "n"}})
    for size in (1, 2, 3, 8, 300):
        x = torch.arange(float(size))
        assert_same(program(x), model(x))
