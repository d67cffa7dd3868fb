"""Programs by ``torch.hetero.compile``: what models they are made of, and what a call of them does and takes."""

from __future__ import annotations

import copy
import gc
import re
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from helpers import assert_close_in_scale, assert_same, in_threads
from saved_models import MODELS, example, nodes_recorded, small_model, tokens
from torch import nn
from torch.testing import assert_close

from torch_hetero import _C
from torch_hetero.program.calling import CompiledModel
from torch_hetero.program.leaves import plain


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_same_results_as_programs_and_from_their_files(name: str, tmp_path: Path) -> None:
    gc.collect()  # what earlier tests hold of a small accelerator, on which a plan depends
    model, args, kwargs = example(name)
    expected = model(*args, **kwargs)
    program = torch.hetero.compile(model, args, kwargs)
    assert_close(program(*args, **kwargs), plain(expected), rtol=1e-4, atol=1e-5)
    program.save(tmp_path / "model.hetero")
    del program  # and what it holds, too
    loaded = torch.hetero.load(tmp_path / "model.hetero")
    assert loaded.plan_origin == "saved with the program"
    before = nodes_recorded()
    results = [loaded(*args, **kwargs) for _ in range(3)]
    assert nodes_recorded() == before
    for result in results:
        assert_close(result, plain(expected), rtol=1e-4, atol=1e-5)


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


@torch.no_grad()
def test_a_module_with_two_names_keeps_its_weights() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    x = torch.randn(3, 4)
    weight = shared.weight
    program = torch.hetero.compile(model, (x,))
    assert shared.weight is weight and weight.device.type == "cpu"
    assert_close(program(x), model(x))


def minilm_call(batch: int, length: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return models.minilm()[0], (tokens(batch, length) + 1000, torch.ones(batch, length, dtype=torch.long))


# Models, and two values of each that cannot but exist at the same time: MiniLM's hidden state and what its feed-forward
# network makes of it, of 384 and 1,536 floats for each token; resnet18's first convolution, with the pool's maxima and
# their places.
PLANNED = {
    "minilm, 1 x 8": (lambda: minilm_call(1, 8), 8 * (384 + 1536) * 4),
    "minilm, 8 x 32": (lambda: minilm_call(8, 32), 8 * 32 * (384 + 1536) * 4),
    "minilm, 32 x 128": (lambda: minilm_call(32, 128), 32 * 128 * (384 + 1536) * 4),
    "resnet18, 8 x 64 x 64": (
        lambda: (models.resnet18().eval(), (torch.randn(8, 3, 64, 64),)), 8 * 64 * (32 * 32 * 4 + 16 * 16 * (4 + 8))
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
    assert_close(program(*args, **kwargs), plain(model(*args, **kwargs)), rtol=1e-4, atol=1e-5)
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
    assert_close_in_scale(half(x), full(x), 0.01)
    full.save(tmp_path / "full.hetero")
    half.save(tmp_path / "half.hetero")
    assert (tmp_path / "half.hetero").stat().st_size < 0.6 * (tmp_path / "full.hetero").stat().st_size
    with pytest.raises(ValueError, match="one of float32, bfloat16, int8, not 'int4'"):
        torch.hetero.compile(model, (x,), precision="int4")


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

    in_threads(8, work)
    assert not wrong


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
