"""Programs by ``torch.hetero.compile``: calls, files, and what is refused."""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import json
import os
import random
import re
import struct
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from helpers import assert_same, run_python, run_python_ok
from torch import nn
from torch.testing import assert_close

from torch_hetero import _C
from torch_hetero.program.calling import CompiledModel


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


@pytest.fixture
def program() -> CompiledModel:
    return torch.hetero.compile(small_model(), (torch.zeros(3, 16),))


def nodes_recorded() -> int:
    nodes = _C.counters()["nodes"]
    return nodes["typed"] + nodes["boxed"] + nodes["straight"]


def tokens(*sizes: int) -> torch.Tensor:
    return torch.randint(0, 40, sizes, generator=torch.Generator().manual_seed(2))


MODELS = {
    "resnet18": lambda: (models.resnet18(), (torch.randn(2, 3, 64, 64),)),
    "vit": lambda: (models.vit(), (torch.randn(2, 3, 32, 32),)),
    "transformer": lambda: (models.transformer(), (tokens(2, 12),)),
    "language_model": lambda: (models.language_model(), (tokens(2, 7),)),
    "minilm": lambda: (models.minilm()[0], (tokens(2, 9) + 1000, torch.ones(2, 9, dtype=torch.long))),
    **{name: lambda name=name: (models.causal_lm(name), (tokens(1, 6),)) for name in ("gpt2", "llama", "qwen3")},
}


def example(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, bool]]:
    """A model and the arguments of a call."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    kwargs = {"use_cache": False} if hasattr(model, "generate") and name != "minilm" else {}
    return model.eval(), args, kwargs


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_same_results_as_programs_and_from_their_files(name: str, tmp_path: Path) -> None:
    model, args, kwargs = example(name)
    expected = model(*args, **kwargs)
    program = torch.hetero.compile(model, args, kwargs)
    assert_close(program(*args, **kwargs), _plain(expected), rtol=1e-4, atol=1e-5)
    program.save(tmp_path / "model.hetero")
    del program  # and what it holds of a small accelerator
    loaded = torch.hetero.load(tmp_path / "model.hetero")
    assert loaded.plan_origin == "saved with the program"
    before = nodes_recorded()
    results = [loaded(*args, **kwargs) for _ in range(3)]
    assert nodes_recorded() == before
    for result in results:
        assert_close(result, _plain(expected), rtol=1e-4, atol=1e-5)


def test_a_call_records_and_plans_nothing_and_takes_no_memory_of_its_own(program: CompiledModel) -> None:
    x = torch.randn(3, 16)
    program(x)
    before = _C.counters()
    for _ in range(5):
        program(x)
    after = _C.counters()
    assert before["nodes"] == after["nodes"]
    assert before["plans"] == after["plans"]
    assert program.counts["runs"] == 6
    assert program.counts["allocations"] == 0


def minilm_call(batch: int, length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return models.minilm()[0], (tokens(batch, length) + 1000, torch.ones(batch, length, dtype=torch.long))


# Models, and two values of each that cannot but exist at the same time: MiniLM's hidden state and what its feed-forward
# network makes of it, of 384 and 1,536 floats for each token; resnet18's first convolution and its batch norm.
PLANNED = {
    "minilm, 1 x 8": (lambda: minilm_call(1, 8), 8 * (384 + 1536) * 4),
    "minilm, 8 x 32": (lambda: minilm_call(8, 32), 8 * 32 * (384 + 1536) * 4),
    "minilm, 32 x 128": (lambda: minilm_call(32, 128), 32 * 128 * (384 + 1536) * 4),
    "resnet18, 8 x 64 x 64": (
        lambda: (models.resnet18().eval(), (torch.randn(8, 3, 64, 64),)), 2 * 8 * 64 * 32 * 32 * 4
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_planned_memory_is_at_most_two_percent_over_its_lower_bound(name: str) -> None:
    build, least = PLANNED[name]
    text = str(torch.hetero.compile(*build()))
    arena, bound = (int(number) for number in re.search(r"arena cpu: (\d+) bytes, lower bound (\d+)", text).groups())
    assert least <= bound <= arena <= 1.02 * bound


def test_results_are_where_the_inputs_are(program: CompiledModel) -> None:
    x = torch.randn(3, 16)
    here = program(x)
    there = program(x.to("hetero"))
    assert here.device.type == "cpu"
    assert there.device.type == "hetero"
    assert_same(there.cpu(), here)


def test_results_are_the_callers_own(program: CompiledModel) -> None:
    first = program(torch.ones(3, 16))
    kept = first.clone()
    program(torch.zeros(3, 16))
    assert_same(first, kept)


def test_inputs_of_any_strides_are_taken(program: CompiledModel) -> None:
    x = torch.randn(16, 3)
    assert_same(program(x.t()), program(x.t().contiguous()))
    wide = torch.randn(3, 32)
    assert_same(program(wide[:, ::2]), program(wide[:, ::2].contiguous()))


@pytest.mark.parametrize(("call", "words"), [
    (lambda f: f(torch.zeros(4, 16)), r"input 'input' is f32\[3,16\] in this program, not f32\[4,16\]"),
    (lambda f: f(torch.zeros(3, 16, dtype=torch.float64)), r"not f64\[3,16\]"),
    (lambda f: f(), "as in the example: 1 by position, not 0 by position"),
    (lambda f: f(other=torch.zeros(3, 16)), "1 by position, not 'other' by name"),
    (lambda f: f(torch.zeros(3, 16), input=torch.zeros(3, 16)), "not 1 by position and 'input' by name"),
    (lambda f: f([torch.zeros(3, 16)]), "nested otherwise"),
    (lambda f: f(3), "is a tensor, not a int"),
])
def test_other_arguments_are_refused_and_the_next_call_works(program: CompiledModel, call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(program)
    program(torch.zeros(3, 16))


class Nested(nn.Module):
    def forward(self, x: dict[str, Any], flag: bool, *, scale: float = 1.0) -> Any:
        a, b = x["pair"]
        total = a + scale * b
        return {"total": total if flag else -total, "rest": (a * 2, None, [b, 3])}


def test_arguments_and_results_are_nested_as_the_models_are(tmp_path: Path) -> None:
    a, b = torch.randn(4), torch.randn(4)
    program = torch.hetero.compile(Nested(), ({"pair": (a, b)}, True), {"scale": 2.0})
    program.save(tmp_path / "m.hetero")
    program = torch.hetero.load(tmp_path / "m.hetero")
    assert [name for name, _ in program.inputs] == ["x.pair.0", "x.pair.1"]
    assert [name for name, _ in program.outputs] == ["total", "rest.0", "rest.2.0"]
    result = program({"pair": (a, b)}, True, scale=2.0)
    assert_close(result["total"], a + 2 * b)
    assert result["rest"][1] is None
    assert result["rest"][2][1] == 3
    with pytest.raises(ValueError, match="made for True and was given False"):
        program({"pair": (a, b)}, False, scale=2.0)
    with pytest.raises(ValueError, match=r"made for 2.0 and was given 3.0"):
        program({"pair": (a, b)}, True, scale=3.0)


def test_a_mapping_of_example_inputs_is_keyword_arguments() -> None:
    x, y = torch.rand(3), torch.rand(3)
    batch = collections.UserDict({"x": x, "y": y})  # as tokenizers give
    program = torch.hetero.compile(lambda x, y, scale: (x - y) * scale, batch, {"scale": 2.0})
    assert torch.equal(program(y=y, x=x, scale=2.0), (x - y) * 2)


def test_arguments_of_other_classes_are_taken_for_tuples_and_dictionaries(tmp_path: Path) -> None:
    pair = namedtuple("pair", "a b")  # noqa: PYI024
    given = (pair(torch.ones(2), 3), collections.OrderedDict(x=torch.ones(2)), {1: [torch.ones(2)], "k": None})
    path = tmp_path / "m.hetero"
    torch.hetero.compile(lambda p, d, e: p.a * p.b + d["x"] + e[1][0], given).save(path)
    program = torch.hetero.load(path)
    for _ in range(2):
        assert_close(program(*given), torch.full((2,), 5.0))
        assert_close(program(tuple(given[0]), dict(given[1]), given[2]), torch.full((2,), 5.0))
    with pytest.raises(ValueError, match=r"expected \(\(\(\*, \*\), \{'x': \*\}, \{1: \[\*\], 'k': \*\}\), \{\}\)"):
        program(given[0], {"y": torch.ones(2)}, given[2])


def test_arguments_in_what_a_file_cannot_describe_are_refused() -> None:
    with pytest.raises(ValueError, match="whose keys are strings and integers"):
        torch.hetero.compile(lambda d: d[(1, 2)] + 1, ({(1, 2): torch.ones(2)},))


def test_arguments_by_position_and_by_name_are_the_same_ones(tmp_path: Path) -> None:
    def model(x: torch.Tensor, y: torch.Tensor, *, scale: float) -> torch.Tensor:
        return (x - y) * scale

    x, y = torch.rand(3), torch.rand(3)
    for args, kwargs in (((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})):
        torch.hetero.compile(model, args, {**kwargs, "scale": 2.0}).save(tmp_path / "m.hetero")
        program = torch.hetero.load(tmp_path / "m.hetero")
        for result in (program(x, y, scale=2.0), program(x, scale=2.0, y=y), program(scale=2.0, y=y, x=x)):
            assert torch.equal(result, model(x, y, scale=2.0))


def test_the_keys_of_a_dictionary_come_in_any_order() -> None:
    x, y = torch.rand(3), torch.rand(3)
    program = torch.hetero.compile(lambda given: given["x"] - given["y"][0], ({"x": x, "y": [y]},))
    assert torch.equal(program({"y": [y], "x": x}), x - y)
    for wrong in ({"y": [y]}, {"y": [y], "z": x}, {"y": [[y]], "x": x}, {"y": y, "x": x}):
        with pytest.raises(ValueError, match="nested otherwise"):
            program(wrong)


def test_nan_is_the_value_for_which_a_program_was_made() -> None:
    program = torch.hetero.compile(lambda x, fill: x + 1, (torch.ones(2), float("nan")))
    assert torch.equal(program(torch.ones(2), float("nan")), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match=r"made for nan and was given 1.0"):
        program(torch.ones(2), 1.0)


@pytest.mark.parametrize("device", ["cpu", "hetero"])
def test_conjugate_and_negative_views_are_taken_by_their_values(device: str) -> None:
    x = torch.randn(6, dtype=torch.complex64)
    conjugate, negative = x.to(device).conj(), x.to(device).conj().imag
    assert conjugate.is_conj() and negative.is_neg()
    expected, opposite = x.conj().resolve_conj() * 2, -x.imag.clone() * 2
    for given in (torch.zeros(6, dtype=torch.complex64), conjugate):  # examples
        program = torch.hetero.compile(lambda a: a * 2, (given,))
        assert_close(program(conjugate).cpu(), expected)
        assert_close(program(x.to(device)).cpu(), x * 2)
    with program.serve() as server, program.stage_pipeline(stages=1) as pipeline:
        assert_close(server.submit(conjugate).result(60).cpu(), expected)
        assert_close(pipeline.submit(conjugate).result(60).cpu(), expected)
    program = torch.hetero.compile(lambda a: a * 2, (torch.zeros(12)[::2],))
    assert_close(program(negative).cpu(), opposite)


def test_an_argument_that_is_updated_shares_memory_with_none() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    program = torch.hetero.compile(model, (torch.ones(3), torch.ones(3)))
    for given in (torch.ones(6), torch.ones(6, device="hetero")):
        with pytest.raises(ValueError, match="updates 'a', which shares memory with 'b': .*clone"):
            program(given[:3], given[2:5])
        assert torch.equal(program(given[:3], given[3:]).cpu(), torch.full((3,), 3.0))
    both = torch.ones(3)
    with pytest.raises(ValueError, match="updates 'a', which shares memory with 'b'"):
        torch.hetero.compile(model, (both, both))


SHARING = {
    "the same tensor": lambda x: (x[:4], x[:4]),
    "the same object": lambda x: (x, x),
    "overlapping views": lambda x: (x[:4], x[2:]),
    "each with itself": lambda x: (x[:1].expand(4, 3), x[0].expand(4, 3)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("device", ["cpu", "hetero"])
@pytest.mark.parametrize("sharing", SHARING)
def test_examples_that_share_memory_are_inputs_of_their_own(sharing: str, device: str, dynamic: bool | None) -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + 10 * b

    examples = SHARING[sharing](torch.randn(6, 3, device=device))
    program = torch.hetero.compile(model, examples, dynamic=dynamic)
    given = [torch.randn(example.shape) for example in examples]
    assert_same(program(*given), model(*given))
    nested = torch.hetero.compile(lambda a, b: model(a[0], b["x"]), ([examples[0]], {"x": examples[1]}))
    assert_same(nested([given[0]], {"x": given[1]}), model(*given))


def test_examples_keep_their_values_and_their_order_of_axes() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.nonzero_static(x, size=4)  # which has to run once before it can be recorded

    for x in (torch.ones(2, 3), torch.ones(2, 3, device="hetero")):
        torch.hetero.compile(model, (x,))
        assert torch.equal(x.cpu(), torch.ones(2, 3))
    turned = torch.hetero.compile(lambda x: x + 1, (torch.ones(2, 3, device="hetero").t(),))
    assert turned.inputs == [("x", "f32[3,2]{1,3}+0")]


class Name(str, enum.Enum):
    LOGITS = "logits"


def test_results_keep_the_keys_of_their_dictionaries(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> dict[Any, Any]:
        return {"x": x, 1: x + 1, "1": x + 2, 5: {-7: x + 3, False: 4}, Name.LOGITS: x + 5}

    x = torch.rand(2)
    torch.hetero.compile(model, (x,)).save(tmp_path / "m.hetero")
    program = torch.hetero.load(tmp_path / "m.hetero")
    assert [name for name, _ in program.outputs] == ["x", "1", "1.2", "5.-7", "logits"]
    for made in (program, torch.hetero.compile(model, (x,), dynamic=True)):
        result = made(x)
        assert [(type(key), key) for key in result] == [(str, "x"), (int, 1), (str, "1"), (int, 5), (str, "logits")]
        assert [(type(key), key) for key in result[5]] == [(int, -7), (bool, False)]
        assert_close(result, model(x))
    for key in ((1, 2), 1.5, None):
        with pytest.raises(ValueError, match="whose keys are strings and integers"):
            torch.hetero.compile(lambda x, key=key: {key: x + 1}, (x,))


def test_a_namedtuple_becomes_a_tuple() -> None:
    pair = namedtuple("pair", "a b")  # noqa: PYI024
    program = torch.hetero.compile(lambda x: pair(x + 1, x * 2), (torch.ones(2),))
    result = program(torch.ones(2))
    assert type(result) is tuple
    assert_close(result[1], torch.full((2,), 2.0))


def test_what_is_updated_in_place_is_updated(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x
            x.mul_(2)
            return self.count + 0

    model = Counter()
    program = torch.hetero.compile(model, (torch.ones(4),))
    for x in (torch.ones(4), torch.ones(4, device="hetero"), torch.ones(8)[::2]):
        given = x.clone() if x.is_contiguous() else x
        program(given)
        assert_close(given.cpu(), torch.full((4,), 2.0))
    assert_close(program(torch.ones(4)), torch.full((4,), 4.0))
    assert_close(model.count, torch.zeros(4))
    program.save(tmp_path / "m.hetero")
    # A file holds what the model had when it was compiled.
    assert_close(torch.hetero.load(tmp_path / "m.hetero")(torch.ones(4)), torch.ones(4))


def test_random_numbers_are_drawn_anew_and_follow_the_seed() -> None:
    program = torch.hetero.compile(nn.Dropout(0.5).train(), (torch.ones(1000),))
    torch.hetero.manual_seed(3)
    first, second = program(torch.ones(1000)), program(torch.ones(1000))
    assert not torch.equal(first, second)
    torch.hetero.manual_seed(3)
    assert torch.equal(program(torch.ones(1000)), first)
    torch.hetero.manual_seed(3)
    lazy = nn.functional.dropout(torch.ones(1000, device="hetero"), 0.5)
    assert torch.equal(lazy.cpu(), first)


def test_what_depends_on_values_is_refused_with_the_reason_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ValueError, match="cannot be a program: .*read scalar"):
        torch.hetero.compile(branches, (torch.ones(3),))
    with pytest.raises(ValueError, match="cannot be a program for several sizes: "):
        torch.hetero.compile(branches, (torch.ones(3),), dynamic=True)
    assert capfd.readouterr() == ("", "")
    assert_close((torch.ones(3, device="hetero") * 2).cpu(), torch.full((3,), 2.0))


class Looks(nn.Module):
    """Looks at its mask, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and bool(mask.all()):
            return self.layer(x)
        return self.layer(x).masked_fill(~mask[:, None], 0.0)


@pytest.mark.parametrize("device", ["cpu", "hetero"])
def test_a_model_that_looks_at_values_is_exported_wherever_it_is(device: str) -> None:
    x, mask = torch.randn(3, 4), torch.tensor([True, False, True])
    expected = Looks()(x, mask)
    program = torch.hetero.compile(Looks().to(device), (x.to(device), mask.to(device)))
    assert_close(program(x, mask), expected)


class Forces(torch.nn.Module):
    """An energy and its gradient with respect to the argument, as molecular dynamics wants them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.energy = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            energy = self.energy(positions).sum()
            (gradient,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -gradient


@pytest.mark.parametrize("device", ["cpu", "hetero"])
def test_a_model_may_compute_gradients(tmp_path: Path, device: str) -> None:
    model = Forces().eval()
    positions = torch.randn(5, 4)
    program = torch.hetero.compile(copy.deepcopy(model).to(device), (positions,))
    program.save(tmp_path / "forces.hetero")
    for made in (program, torch.hetero.load(tmp_path / "forces.hetero")):
        torch.testing.assert_close(made(positions), model(positions))

    slope = torch.func.grad(lambda x: x.sin().sum())
    torch.testing.assert_close(torch.hetero.compile(slope, (positions,))(positions), positions.cos())


def test_operators_that_pytorch_describes_to_nobody_are_saved(tmp_path: Path) -> None:
    def model(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, ...]:
        each = torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -8, 7)
        one = torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0], -8, 7)
        return each, one, torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7), x.logcumsumexp(1)

    inputs = (torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, -2], dtype=torch.int32))
    torch.hetero.compile(model, inputs).save(tmp_path / "program.hetero")
    torch.testing.assert_close(torch.hetero.load(tmp_path / "program.hetero")(*inputs), model(*inputs), rtol=0, atol=0)


def test_memory_without_values_may_be_written_by_index() -> None:
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))

    def inverse(order: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(order)
        made[order] = torch.arange(order.size(0), device=order.device)
        return made

    x = torch.randn(6, 3)
    index = order[:, None].expand(-1, 3).contiguous()
    for function, given in (
        (inverse, (order,)),
        (lambda x, i: torch.empty_like(x).index_copy_(0, i, x), (x, order)),
        (lambda x, i: torch.empty_like(x).scatter_(0, i, x) + 1, (x, index)),
        (lambda x: torch.empty(6, 3).masked_fill_(x < 9, 2.0).mul_(x), (x,)),
        (lambda x: torch.histc(x, 4, -1, 1), (x,)),
    ):
        assert_close(torch.hetero.compile(function, given)(*given), function(*given))


def test_what_cannot_be_in_a_program_says_where_it_is_and_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"test_saved.py:\d+ in <lambda>.*linalg.inv_ex"):
        torch.hetero.compile(lambda x: torch.linalg.inv(x) + 1, (torch.eye(3),))
    inverse = torch.hetero.compile(lambda x: torch.linalg.inv_ex(x).inverse, (torch.eye(3),))
    assert_close(inverse(2 * torch.eye(3)), torch.eye(3) / 2)
    for name in ("gpt2", "llama"):
        with pytest.raises(ValueError, match=r"[cC]ache.*use_cache=False"):
            torch.hetero.compile(models.causal_lm(name).eval(), (tokens(1, 6),))


class Positions(nn.Module):
    """Makes tensors on the CPU, without saying so, and has one that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(40, 8), nn.Embedding(20, 8)
        self.scale = torch.randn(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (self.tokens(ids) + self.places(torch.arange(ids.shape[1]))) * self.scale


@torch.no_grad()
def test_a_model_on_the_cpu_may_make_and_hold_tensors_there(tmp_path: Path) -> None:
    model, ids = Positions(), tokens(2, 5)
    torch.hetero.compile(model, (ids,)).save(tmp_path / "m.hetero")
    program = torch.hetero.load(tmp_path / "m.hetero")
    before = nodes_recorded()
    assert_close(program(ids + 1), model(ids + 1))
    assert nodes_recorded() == before
    offset = torch.randn(3)
    program = torch.hetero.compile(lambda x: x * offset, (torch.ones(3),))
    assert torch.equal(program(torch.full((3,), 2.0)), 2 * offset)


def test_a_model_that_fails_on_its_examples_says_how() -> None:
    with pytest.raises(ValueError, match="fails on its example inputs: .*mat1 and mat2"):
        torch.hetero.compile(nn.Linear(3, 4), (torch.zeros(2, 5),))


@torch.no_grad()
def test_empty_inputs_and_outputs_are_taken() -> None:
    program = torch.hetero.compile(lambda x: (x[:, 1:] - x[:, :-1], x * 2), (torch.ones(3, 1),))
    steps, doubled = program(torch.ones(3, 1))
    assert steps.shape == (3, 0) and (doubled == 2).all()
    program = torch.hetero.compile(lambda x: x + 1, (torch.ones(0, 4),))
    assert program(torch.ones(0, 4)).shape == (0, 4)


@torch.no_grad()
@pytest.mark.parametrize(("model", "sizes"), [
    (lambda: nn.Linear(0, 3), (2, 0)),
    (lambda: nn.Linear(3, 0), (2, 3)),
    (lambda: nn.Sequential(nn.Linear(3, 0, bias=False), nn.ReLU(), nn.Linear(0, 2)), (2, 3)),
])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_may_have_weights_without_elements(model: Any, sizes: tuple[int, ...], tmp_path: Path) -> None:
    layer, x = model(), torch.randn(sizes)
    program = torch.hetero.compile(layer, (x,))
    assert_same(program(x), layer(x))
    program.save(tmp_path / "m.hetero")
    assert_same(torch.hetero.load(tmp_path / "m.hetero")(x), layer(x))


def test_an_exported_program_of_one_tensor_given_twice_is_refused() -> None:
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + 10 * b

    x = torch.ones(3)
    with pytest.raises(ValueError, match="exported with one tensor for 'a' and 'b'.*a tensor for each"):
        torch.hetero.compile(torch.export.export(Sum(), (x, x)), (x, x))
    program = torch.hetero.compile(torch.export.export(Sum(), (x, x.clone())), (x, x))
    assert_same(program(x, 5 * x), 51 * x)


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_program_can_be_compiled(name: str) -> None:
    model, args, kwargs = example(name)
    program = torch.hetero.compile(torch.export.export(model, args, kwargs), args, kwargs)
    before = nodes_recorded()
    assert_close(program(*args, **kwargs), _plain(model(*args, **kwargs)), rtol=1e-4, atol=1e-5)
    assert nodes_recorded() == before


def test_an_error_names_the_operator_and_the_next_call_works() -> None:
    model = nn.Sequential(nn.Embedding(5, 2), nn.ReLU()).eval()
    program = torch.hetero.compile(model, (torch.tensor([0, 1]),))
    with pytest.raises(IndexError, match=r"index out of range in self \(hetero: in aten::embedding\)"):
        program(torch.tensor([1, 9]))
    good = torch.tensor([1, 4])
    assert_close(program(good), model(good).detach())


def test_a_model_on_hetero_can_be_compiled_and_is_left_as_it_is() -> None:
    model = small_model()
    expected = model(torch.ones(3, 16)).detach()
    model.to("hetero")
    program = torch.hetero.compile(model, (torch.ones(3, 16, device="hetero"),))
    assert_close(program(torch.ones(3, 16)), expected)
    assert next(model.parameters()).device.type == "hetero"


def test_bfloat16_halves_the_file_and_is_close(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).eval()
    x = torch.randn(4, 256)
    full = torch.hetero.compile(model, (x,))
    half = torch.hetero.compile(model, (x,), precision="bfloat16")
    assert_close(half(x).float(), full(x), rtol=0.05, atol=0.05)
    full.save(tmp_path / "full.hetero")
    half.save(tmp_path / "half.hetero")
    assert (tmp_path / "half.hetero").stat().st_size < 0.6 * (tmp_path / "full.hetero").stat().st_size
    with pytest.raises(ValueError, match="one of float32, bfloat16, not 'int8'"):
        torch.hetero.compile(model, (x,), precision="int8")


def test_what_depends_on_weights_only_is_computed_when_the_program_is_made() -> None:
    model = nn.Linear(8, 8).to("hetero")
    program = torch.hetero.compile(lambda x: x @ (model.weight * 2 + 1), (torch.ones(2, 8),))
    assert "folded" in str(program)
    assert program.counts["kernels"] == 0
    program(torch.ones(2, 8))
    assert program.counts["kernels"] == 1


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 64)
            self.head = nn.Linear(64, 1000, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids))

    model = Tied()
    ids = torch.arange(6)
    torch.hetero.compile(model, (ids,)).save(tmp_path / "m.hetero")
    assert (tmp_path / "m.hetero").stat().st_size < 1.5 * 1000 * 64 * 4
    assert_close(torch.hetero.load(tmp_path / "m.hetero")(ids), model(ids).detach())


def test_threads_may_call_one_program(program: CompiledModel) -> None:
    inputs = [torch.full((3, 16), float(i)) for i in range(8)]
    expected = [program(x) for x in inputs]
    wrong = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.equal(program(inputs[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_link_leads_to_is_replaced_and_what_is_no_file_is_not(program: CompiledModel, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.hetero", tmp_path / "there" / "m.hetero"
    link.symlink_to("there/m.hetero")
    for _ in range(2):  # at first it leads nowhere
        program.save(link)
        assert link.is_symlink() and not target.is_symlink()
        torch.hetero.load(target)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    for name, words in (("pipe", "it is not a file"), ("there", "it is not a file"), ("round", "symbolic links")):
        with pytest.raises(RuntimeError, match=f"cannot write .*{name}: .*{words}"):
            program.save(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert {entry.name for entry in tmp_path.iterdir()} == {"there", "link.hetero", "pipe", "round"}


def test_a_file_is_a_zip_that_other_tools_read(program: CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {"version", "program.json", "graph.txt", "plan.txt", "weights.safetensors"} <= set(archive.namelist())
        assert "aten::addmm" in archive.read("graph.txt").decode()
        assert json.loads(archive.read("program.json"))["metadata"]["made_by"] == f"torch {torch.__version__}"


def rewrite(path: Path, changes: dict[str, bytes]) -> None:
    """Replaces entries of a saved file, checksums included."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**entries, **changes}.items():
            entry = zipfile.ZipInfo(name)
            # Tensors are mapped, so they lie at multiples of 64 bytes.
            missing = -(archive.fp.tell() + 30 + len(name) + 4) % 64
            entry.extra = struct.pack("<HH", 0xBEEF, missing) + bytes(missing)
            archive.writestr(entry, data)


def graph_of(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read("graph.txt").decode()


@pytest.mark.parametrize(("old", "new", "words"), [
    ("aten::addmm", "aten::nothing_like_it", "a registered operator, not aten::nothing_like_it"),
    ("aten::addmm", "aten::mm", "aten::mm"),
    ("f32[3,32], b", "f32[3,31], b", "n2"),
    ("f32[3,32] {", "f32[4,32] {", "n0"),
    ("{07000000", "{f7ffff7f", "attributes end too early"),
    ("{07000000", "{06000000", "n0"),
])
def test_nodes_that_no_recorder_would_write_are_refused(
    program: CompiledModel, tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    graph = graph_of(path)
    assert old in graph
    rewrite(path, {"graph.txt": graph.replace(old, new, 1).encode()})
    with pytest.raises((ValueError, RuntimeError), match=words):
        torch.hetero.load(path)


def test_damaged_attributes_never_crash(program: CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    graph = graph_of(path)
    start = graph.index("{07")
    generator = torch.Generator().manual_seed(1)
    for _ in range(150):
        place = int(torch.randint(start, len(graph), (1,), generator=generator))
        digit = "0123456789abcdef"[int(torch.randint(0, 16, (1,), generator=generator))]
        if graph[place] not in "0123456789abcdef":
            continue
        rewrite(path, {"graph.txt": (graph[:place] + digit + graph[place + 1:]).encode()})
        try:
            torch.hetero.load(path)(torch.ones(3, 16))
        except (ValueError, RuntimeError, IndexError):
            pass


# Layers whose Meta kernels describe CUDA's kernels, or do not look at their arguments.
LAYERS = {
    "embedding_bag": lambda: (nn.EmbeddingBag(20, 6, mode="mean"), torch.randint(20, (5, 7))),
    "largest embedding": lambda: (nn.EmbeddingBag(20, 6, mode="max"), torch.randint(20, (5, 7))),
    "lstm": lambda: (nn.LSTM(4, 5), torch.randn(3, 2, 4)),
    "convolution": lambda: (nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.randn(2, 3, 9, 9)),
    "batch_norm": lambda: (nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4)),
    "batch_norm in training": lambda: (nn.BatchNorm2d(3).train(), torch.randn(2, 3, 4, 4)),
    **{
        f"{name}, {half}": lambda make=make, half=half: (make().to(half), torch.randn(2, 4, 4).to(half))
        for half in (torch.bfloat16, torch.float16)
        for name, make in {
            "layer_norm": lambda: nn.LayerNorm(4),
            "group_norm": lambda: nn.GroupNorm(2, 4),
            "batch_norm": lambda: nn.BatchNorm1d(4),
            "batch_norm without weights": lambda: nn.BatchNorm1d(4, affine=False),
            "instance_norm": lambda: nn.InstanceNorm1d(4),
        }.items()
    },
}


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_loaded_though_their_meta_kernels_describe_others(name: str, tmp_path: Path) -> None:
    model, x = LAYERS[name]()
    if "training" not in name:
        model.eval()
    torch.hetero.compile(model, (x,)).save(tmp_path / "m.hetero")
    assert_close(torch.hetero.load(tmp_path / "m.hetero")(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["embedding_bag", "lstm", "convolution", "batch_norm"])
def test_damaged_attributes_of_layers_never_crash(name: str, tmp_path: Path) -> None:
    model, x = LAYERS[name]()
    path = tmp_path / "m.hetero"
    torch.hetero.compile(model.eval(), (x,)).save(path)
    graph = graph_of(path)
    attributes = list(re.finditer(r"\{([0-9a-f]+)\}", graph))
    numbers = random.Random(3)
    loaded = 0
    for _ in range(120):
        found = numbers.choice(attributes)
        changed = bytearray.fromhex(found[1])
        place = numbers.randrange(len(changed))
        changed[place] = numbers.choice((0, 1, 2, 3, 127, 255, changed[place] ^ 1 << numbers.randrange(8)))
        rewrite(path, {"graph.txt": (graph[:found.start(1)] + changed.hex() + graph[found.end(1):]).encode()})
        try:
            torch.hetero.load(path)(x)
            loaded += 1
        except (ValueError, RuntimeError, IndexError):
            pass
    assert 0 < loaded < 120


def string(text: str) -> bytes:
    return b"\x0e" + struct.pack("<I", len(text)) + text.encode()


@pytest.mark.parametrize("inspects", [False, True])
def test_loading_a_file_runs_no_operator_that_it_names(inspects: bool, tmp_path: Path) -> None:
    path, victim = tmp_path / "m.hetero", tmp_path / "made_by_load"
    torch.hetero.compile(lambda x: x + 1, (torch.ones(4),)).save(path)
    node = next(line for line in graph_of(path).splitlines() if line.startswith("n0"))
    arguments = string(str(victim)) + b"\x0b\x01\x05" + struct.pack("<q", 4) + b"\x00\x00\x10\x00"
    attributes = struct.pack("<II", len(arguments), 0) + arguments
    made = f"n0: aten::from_file() -> b1:f32[4] {{{attributes.hex()}}}"
    rewrite(path, {"graph.txt": graph_of(path).replace(node, made).encode()})
    if inspects:
        assert run_python(f"from torch_hetero.inspect import main; exit(main([{str(path)!r}]))").returncode == 1
    else:
        with pytest.raises(ValueError, match=r"n0 \(aten::from_file\) what it makes is not known"):
            torch.hetero.load(path)
    assert not victim.exists()


def test_an_operator_that_would_resize_an_operand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    torch.hetero.compile(lambda x, out: torch.add(x, x, out=out), (torch.ones(4), torch.ones(4))).save(path)
    assert "write b1:f32[4]" in graph_of(path)
    rewrite(path, {"graph.txt": graph_of(path).replace("write b1:f32[4]", "write b1:f32[2]").encode()})
    with pytest.raises(ValueError, match=r"n0 \(aten::add.out\) it resizes an operand"):
        torch.hetero.load(path)


@pytest.mark.parametrize("name", ["aten::set_.source_Tensor", "aten::resize_", "aten::view", "aten::linear",
                                  "aten::empty.memory_format"])
def test_operators_that_no_recorder_records_are_refused(program: CompiledModel, tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    rewrite(path, {"graph.txt": graph_of(path).replace("aten::addmm", name, 1).encode()})
    with pytest.raises(ValueError, match=f"n0 \\({name}\\) it is an operator that no program has"):
        torch.hetero.load(path)


@pytest.mark.parametrize(("key", "text"), [
    *itertools.product(("arguments", "inputs", "outputs", "results", "updates"),
                       ("", "{", "1", "[[0,999]]", '[{"tensor":99}]', "[" * 5000 + "]" * 5000, None)),
    ("arguments", "null"), ("arguments", '{"tuple": [{"tuple": [null]}, {"dict": [[1, null]]}]}'),
    ("arguments", '{"tuple": [{"tuple": [null]}, {"dict": [["x", null]]}]}'), ("inputs", '[{"tensor": "other"}]'),
    ("outputs", '[{"tensor": -1}]'), ("outputs", '[{"tensor": true}]'), ("results", '{"dict": [[[], null]]}'),
    ("results", '{"set": [null]}'), ("updates", "[[0, 0]]"), ("updates", "null"),
    ("parameters", ""), ("parameters", "1"), ("parameters", "[1]"), ("parameters", '{"x": 0}'),
])
def test_damaged_metadata_is_refused_at_load(
    program: CompiledModel, tmp_path: Path, key: str, text: str | None
) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    with zipfile.ZipFile(path) as archive:
        contents = json.loads(archive.read("program.json"))
    contents["metadata"].pop(f"python.{key}")
    if text is not None:
        contents["metadata"][f"python.{key}"] = text
    rewrite(path, {"program.json": json.dumps(contents).encode()})
    foreign = (key, text) == ("arguments", None)
    words = "not saved by torch.hetero.compile" if foreign else r"damaged: python\.\w+ in its"
    with pytest.raises(ValueError, match=rf"m\.hetero: the file .*{words}"):
        torch.hetero.load(path)


def test_a_file_that_is_none_or_of_another_kind_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing.hetero"):
        torch.hetero.load(tmp_path / "nothing.hetero")
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(RuntimeError, match="other.pt"):
        torch.hetero.load(tmp_path / "other.pt")


def _plain(result: Any) -> Any:
    from torch_hetero.program.leaves import plain

    return plain(result)


def test_inspect_prints_inputs_memory_placement_and_graph(program: CompiledModel, tmp_path: Path) -> None:
    program.save(tmp_path / "m.hetero")
    text = run_python_ok(f"from torch_hetero.inspect import main; main([{str(tmp_path / 'm.hetero')!r}])")
    for words in ("0 input: f32[3,16]", "weights: 6", "memory:", "on the cpu", "n0: aten::addmm", "plan: "):
        assert words in text
    (tmp_path / "empty.hetero").write_bytes(b"")
    done = run_python(f"from torch_hetero.inspect import main; exit(main([{str(tmp_path / 'empty.hetero')!r}]))")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_inspect_ends_quietly_where_nobody_reads_on(program: CompiledModel, tmp_path: Path) -> None:
    program.save(tmp_path / "m.hetero")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "torch_hetero.inspect", str(tmp_path / "m.hetero")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=180)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["resnet18", "vit", "language_model", "minilm"])
def test_loading_a_file_imports_nothing(name: str, tmp_path: Path) -> None:
    model, args, kwargs = example(name)
    torch.hetero.compile(model, args, kwargs).save(tmp_path / "m.hetero")
    said = run_python_ok(
        "import sys, torch; torch.hetero; before = set(sys.modules)\n"
        f"torch.hetero.load({str(tmp_path / 'm.hetero')!r}).plan_origin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    assert said.split() == []


def test_a_call_after_the_budget_was_lowered_keeps_it() -> None:
    config = torch.hetero.config
    model, x = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), torch.randn(256, 512)
    with config.override(accelerator="sim"):
        torch.hetero.use_profile("rtx4090")
        try:
            program = torch.hetero.compile(model, (x,))
            expected = program(x)
            assert torch.hetero.accelerator_memory_stats()["allocated_bytes.all.current"] > 8 * 512 * 512 * 4
            with torch.hetero.memory_budget("1MiB"):
                assert_close(program(x), expected)
                torch.hetero.reset_peak_memory_stats()
                program(x)
                stats = torch.hetero.accelerator_memory_stats()
                assert stats["limit_bytes"] == 1 << 20
                assert stats["allocated_bytes.all.peak"] <= stats["limit_bytes"]
        finally:
            torch.hetero.use_profile(None)
    assert set(torch.hetero.accelerator_memory_stats().values()) == {0}


def test_a_program_with_a_state_keeps_it_when_the_budget_changes() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x + self.calls

    with torch.hetero.config.override(accelerator="sim"):
        program = torch.hetero.compile(Counter(), (torch.zeros(4),))
        first = program(torch.zeros(4))
        with torch.hetero.memory_budget("1MiB"):
            assert_same(program(torch.zeros(4)), first + 1)


def test_calls_are_in_the_log_of_programs(program: CompiledModel, tmp_path: Path) -> None:
    with torch.hetero.config.override(keep_plans=True):
        _C.clear_program_log()
        for _ in range(2):
            program(torch.zeros(3, 16))
        logged = torch.hetero.programs()
        assert len(logged) == 2 and all("saved program" in one["name"] for one in logged)
        assert logged[0]["predicted_seconds"] > 0 and logged[0]["measured_seconds"] is None
        assert "saved program" in str(torch.hetero.explain())
        torch.hetero.report(tmp_path / "page.html")
        torch.hetero.trace(tmp_path / "trace.json")
    assert "saved program" in (tmp_path / "page.html").read_text()
