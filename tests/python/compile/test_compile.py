"""torch.compile(backend="hetero"): programs that are captured once give what the lazy device and eager give."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import threading
from collections.abc import Callable, Iterator
from typing import Any

import models
import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from counters import COMPILED, counting
from helpers import assert_same, needs_hetero, run_python_ok
from torch import nn

import torch_hetero

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):  # without it TorchDynamo leaves models with an LSTM alone
        yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="hetero", fullgraph=True, **arguments)


def assert_steady(function: Callable[[], Any], programs: int = 1) -> None:
    """Repeated calls are calls of programs that were captured, and nothing else."""
    function()
    with counting() as seen:
        function()
        torch.hetero.flush()
    assert seen.recorded == 0, seen.recorded
    assert seen.captures == 0
    # With an accelerator a plan is made anew when what is learned of costs speaks for another.
    if torch.hetero.config.accelerator == "none":
        assert seen.plans_made == seen.plans_resized == 0
    assert seen.compiled_calls == programs
    assert seen.flushes == {COMPILED: programs}


# ---- models --------------------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


def conv_net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(12, 5)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(5))


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (linear, numbers(4, 12)),
    "mlp": (mlp, numbers(4, 12)),
    "conv net": (conv_net, numbers(3, 3, 8, 8)),
    "resnet18": (models.resnet18, numbers(4, 3, 48, 48)),
    "transformer": (models.transformer, tokens(40, 3, 7)),
    "vit": (models.vit, numbers(1, 3, 32, 32)),
    "lstm": (models.language_model, tokens(50, 3, 9)),
}

# And those of transformers.
ALL_MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    **MODELS,
    "minilm": (models.encoder, tokens(20000, 2, 9)),
    **{name: (functools.partial(models.decoder, name), tokens(64, 2, 7)) for name in ("gpt2", "llama", "qwen3")},
}


@pytest.mark.parametrize("fusion", (True, False))
@pytest.mark.parametrize("name", ALL_MODELS)
def test_inference_has_the_lazy_devices_bits_and_eagers_values(name: str, fusion: bool) -> None:
    torch.hetero.config.fusion = fusion
    build, inputs = ALL_MODELS[name]
    expected = build().eval()(inputs).detach()
    model = build().eval().to("hetero")
    there = inputs.to("hetero")
    with torch.no_grad():
        for _ in range(2):  # a plan is fused from the second time on
            lazy = model(there).cpu()
        fast = compiled(model)
        for _ in range(2):
            # Another kernel for a convolution may turn out to be the faster one. Where transformers may look at values
            # it leaves out a mask that hides nothing.
            if fusion and ("net" in name or name not in MODELS):
                torch.testing.assert_close(fast(there).cpu(), lazy)
            else:
                assert_same(fast(there).cpu(), lazy)
        torch.testing.assert_close(fast(there).cpu(), expected)
        assert_steady(lambda: fast(there))


def step(model: Callable[..., torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    loss = model(inputs).float().square().mean()
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.grad.cpu() for name, value in model.named_parameters() if value.grad is not None}


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ALL_MODELS)
def test_training_without_fusion_has_the_bits_of_the_same_graphs_on_the_cpu(name: str, unfused: None) -> None:
    if name == "lstm":
        pytest.skip("the CPU's graph lacks what the kernel keeps for the backward pass")
    build, inputs = ALL_MODELS[name]
    oracle, model = build().train(), build().train().to("hetero")
    fast, same = compiled(model), torch.compile(oracle, backend="aot_eager")
    for _ in range(3):
        for one in (oracle, model):
            one.zero_grad()
        assert_same(step(fast, inputs.to("hetero")).cpu(), step(same, inputs))
        assert_same(gradients(model), gradients(oracle))
    assert_same(state(model), state(oracle))


@pytest.mark.parametrize("name", ALL_MODELS)
def test_training_is_close_to_eager_and_records_nothing_but_the_loss(name: str) -> None:
    build, inputs = ALL_MODELS[name]
    oracle, model = build().train(), build().train().to("hetero")
    fast = compiled(lambda values: model(values).float().square().mean())
    there = inputs.to("hetero")
    for _ in range(2):
        for one in (oracle, model):
            one.zero_grad()
        expected = step(oracle, inputs)
        loss = fast(there)
        loss.backward()
        torch.testing.assert_close(loss.detach().cpu(), expected)
        torch.testing.assert_close(gradients(model), gradients(oracle), rtol=1e-3, atol=1e-4)
    for _ in range(3):
        model.zero_grad()
        with counting() as seen:
            fast(there).backward()
            torch.hetero.flush()
    assert seen.compiled_calls == 2
    assert seen.plans_made == seen.captures == 0
    # The gradient that backward() begins with. A layer of an LSTM has one gradient for both of its biases, and autograd
    # copies it for one of them, unless the graph was traced with outputs from a cache, which are not one tensor.
    assert seen.recorded <= (3 if name == "lstm" else 1)


def test_minilm_with_real_weights_is_one_program() -> None:
    model, tokenize = models.minilm()
    batch = tokenize(["How do I read a file?", "sort"])
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        model.to("hetero")
        there = {name: value.to("hetero") for name, value in batch.items()}
        fast = compiled(model)
        torch.testing.assert_close(fast(**there).last_hidden_state.cpu(), expected, rtol=1e-4, atol=1e-4)
        assert_steady(lambda: fast(**there))


@pytest.mark.parametrize("mode", ("eval", "train"))
@pytest.mark.parametrize("name", ALL_MODELS)
def test_no_model_breaks_the_graph(name: str, mode: str) -> None:
    build, inputs = ALL_MODELS[name]
    told = torch._dynamo.explain(build().train(mode == "train").to("hetero"))(inputs.to("hetero"))
    assert told.graph_break_count == 0, told.break_reasons
    assert told.graph_count == 1


# ---- devices of the arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_cpu_runs_on_the_device_and_its_results_come_back(name: str) -> None:
    build, inputs = MODELS[name]
    model = build().eval()
    fast = compiled(model)
    with torch.no_grad():
        expected = model(inputs)
        actual = fast(inputs)
        assert actual.device.type == "cpu"
        torch.testing.assert_close(actual, expected)
        assert_steady(lambda: fast(inputs))


def test_a_model_on_the_cpu_trains_on_the_device(unfused: None) -> None:
    build, inputs = MODELS["conv net"]
    oracle, model = build().train(), build().train()
    fast = compiled(model)
    for _ in range(2):
        for one in (oracle, model):
            one.zero_grad()
        assert_same(step(fast, inputs), step(oracle, inputs))
        assert_same(gradients(model), gradients(oracle))
    assert_same(state(model), state(oracle))  # the statistics of batch norm, written where they lie
    assert all(value.device.type == "cpu" for value in model.state_dict().values())


def test_a_cpu_argument_is_not_copied() -> None:
    x = torch.zeros(1 << 20)
    fast = compiled(lambda value: value.add_(1))
    fast(x)
    before = torch.hetero.explain().memory
    address = x.data_ptr()
    fast(x)
    after = torch.hetero.explain().memory
    assert x.data_ptr() == address and x.sum().item() == 2 << 20
    assert after["allocated_bytes"] == before["allocated_bytes"]


def test_arguments_may_lie_on_both_devices() -> None:
    x, y = numbers(3, 4), numbers(4, 5)
    fast = compiled(lambda a, b: (a.cpu() @ b, a.sin()))
    product, sine = fast(x.to("hetero"), y)
    assert product.device.type == "cpu" and sine.device.type == "hetero"
    torch.testing.assert_close(product, x @ y)
    torch.testing.assert_close(sine.cpu(), x.sin())


# ---- mutation, aliasing, odd results -------------------------------------------------------------------------------


def both(function: Callable[..., Any], *inputs: torch.Tensor, calls: int = 2, **arguments: Any) -> None:
    """The compiled function does to hetero tensors what the function does to CPU tensors, arguments included."""
    fast = compiled(function, **arguments)
    here = [value.clone() for value in inputs]
    there = [value.to("hetero") for value in inputs]
    for _ in range(calls):
        expected = function(*here)
        actual = fast(*there)
        assert_same(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, actual), expected)
        assert_same([value.cpu() for value in there], here)


def test_arguments_are_written() -> None:
    both(lambda x, y: (x.add_(y), y.mul_(2))[0] * 3, numbers(3, 4), numbers(3, 4))


def test_an_argument_is_written_through_a_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[:, 1].zero_()
        x.t()[0] += 1
        return x.sum()

    both(function, numbers(3, 4))


def test_arguments_that_share_memory_see_each_others_writes() -> None:
    def function(base: torch.Tensor) -> torch.Tensor:
        part = base[1:]
        part.add_(1)
        return base * part[0]

    both(function, numbers(3, 4))
    fast = compiled(lambda x, y: (x.add_(1), x + y)[1])
    for device in ("hetero", "cpu"):
        base = torch.zeros(4, device=device)
        assert_same(fast(base[:2], base[:2]).cpu(), torch.full((2,), 2.0))
        assert_same(base.cpu(), torch.tensor([1.0, 1, 0, 0]))


def test_results_may_be_arguments_views_constants_and_none() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        return x, x.t(), x[1:], None, 7, torch.arange(3, device=x.device), x + 1

    fast = compiled(function)
    x = numbers(3, 4).to("hetero")
    for _ in range(2):
        same, turned, part, nothing, seven, counted, more = fast(x)
        assert same is x and nothing is None and seven == 7
        for view in (turned, part):
            assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert_same(counted.cpu(), torch.arange(3))
        assert_same(more.cpu(), x.cpu() + 1)
    turned.zero_()
    assert x.cpu().abs().sum() == 0


def test_results_may_be_views_of_each_other() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y[0]

    fast = compiled(function)
    for _ in range(2):
        whole, part = fast(numbers(3, 4).to("hetero"))
        part.fill_(5)
        assert whole.cpu()[0].eq(5).all()


def test_a_constant_tensor_stays_the_same() -> None:
    table = torch.arange(4.0)
    both(lambda x: x + torch.tensor([1.0, 2, 3, 4], device=x.device), torch.ones(4))
    there = table.to("hetero")
    fast = compiled(lambda x: x * there)
    for _ in range(2):
        assert_same(fast(torch.ones(4, device="hetero")).cpu(), table)
    there.add_(1)
    assert_same(fast(torch.ones(4, device="hetero")).cpu(), table + 1)


def test_a_parameter_is_updated_in_place_by_compiled_code() -> None:
    torch.manual_seed(0)
    oracle = nn.Linear(4, 3)
    model = copy.deepcopy(oracle).to("hetero")

    def update(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            layer.weight.sub_(0.1 * layer.weight.sign())
        return layer(x).sum()

    fast = compiled(update)
    x = numbers(2, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(model, x.to("hetero")).cpu(), update(oracle, x))
    assert_same(state(model), state(oracle))


# ---- what autograd sees --------------------------------------------------------------------------------------------

MODIFIED = "has been modified by an inplace operation"


def write(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


@pytest.mark.parametrize("device", ("cpu", "hetero"))
@pytest.mark.parametrize(
    "function", (lambda x, w: (x * w).sum(), lambda x, w: (x @ w.t()).sum()), ids=("itself", "view")
)
def test_an_argument_that_is_written_before_its_backward_is_an_error(
    function: Callable[..., torch.Tensor], device: str
) -> None:
    x, w = numbers(4, 4).to(device).requires_grad_(), numbers(4, 4).to(device)
    loss = compiled(function)(x, w)
    write(w)
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_result_that_is_written_before_its_backward_is_an_error(device: str) -> None:
    result = compiled(torch.exp)(numbers(4).to(device).requires_grad_())
    write(result)
    with pytest.raises(RuntimeError, match=MODIFIED):
        result.sum().backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_step_between_two_backwards_is_an_error(device: str) -> None:
    model = linear().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast = compiled(model)
    x = numbers(4, 12).to(device).requires_grad_()
    first, second = fast(x).sum(), fast(x).square().sum()
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=MODIFIED):
        second.backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_what_a_program_writes_has_a_new_version(device: str) -> None:
    x, w = numbers(4).to(device), numbers(4).to(device).requires_grad_()
    loss = (x * w).sum()
    compiled(lambda x: x.add_(1))(x)
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_double_backward_is_refused_in_pytorchs_words(device: str) -> None:
    x = numbers(4).to(device).requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


def test_a_result_that_is_an_argument_is_that_tensor() -> None:
    program = torch_hetero._C.CompiledProgram()
    for device in ("cpu", "hetero"):
        argument = numbers(4).to(device)
        (stand_in,) = program.begin_capture([argument])
        made = stand_in + 1
        program.end_capture([stand_in, made, made], [device] * 3)
        same, first, second = program.run([argument])
        assert same is argument
        assert first is second
        assert_same(first.cpu(), numbers(4) + 1)


def test_pending_work_that_the_arguments_wait_for_runs_first() -> None:
    fast = compiled(lambda x: x.add_(1))
    x = torch.zeros(4, device="hetero")
    fast(x)
    x.mul_(10)
    seen = x + 1  # pending, and reads what the program writes
    fast(x)
    assert_same(seen.cpu(), torch.full((4,), 11.0))
    assert_same(x.cpu(), torch.full((4,), 11.0))


# ---- random numbers ------------------------------------------------------------------------------------------------


def test_random_numbers_are_those_of_the_lazy_device() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = nn.functional.dropout(x, 0.3)
        return y, torch.rand(5, device=x.device), torch.randn_like(x), torch.bernoulli(torch.full_like(x, 0.5))

    x = torch.ones(64, device="hetero")
    fast = compiled(function)
    fast(x)
    torch.manual_seed(7)
    lazy = [[value.cpu() for value in function(x)] for _ in range(3)]
    state = torch.hetero.get_rng_state()
    torch.manual_seed(7)
    assert_same([[value.cpu() for value in fast(x)] for _ in range(3)], lazy)
    assert_same(torch.hetero.get_rng_state(), state)
    assert not torch.equal(lazy[0][1], lazy[1][1])


def test_dropout_in_training_drops_what_the_lazy_device_drops(unfused: None) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2)).to("hetero")
    fast = compiled(model)
    x = numbers(4, 8).to("hetero")
    step(fast, x)
    results = []
    for forward in (model, fast):
        torch.manual_seed(3)
        model.zero_grad()
        results.append((step(forward, x).cpu(), gradients(model)))
    assert_same(results[1], results[0])


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_dropout_under_checkpointing_drops_the_same_in_the_backward_pass(device: str) -> None:
    layer = linear().to(device)

    def block(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(layer(x).sigmoid(), 0.5)

    fast = torch.compile(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False), backend="hetero")
    x = numbers(8, 12).to(device).requires_grad_()
    state = torch.hetero.get_rng_state()
    result = fast(x)
    result.sum().backward()
    with torch.no_grad():
        slopes = layer(x).sigmoid()
        expected = ((result != 0) * 2 * slopes * (1 - slopes)).sum(0)
    torch.testing.assert_close(layer.bias.grad, expected)
    if device == "hetero":
        assert not torch.equal(torch.hetero.get_rng_state(), state)


# ---- custom operators, refusals, graph breaks ----------------------------------------------------------------------


@torch.library.custom_op("hetero_compile_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("hetero_compile_test::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("hetero_compile_test::fail_on_negative", mutates_args=())
def fail_on_negative(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        raise ValueError("a negative number")
    return x.clone()


@fail_on_negative.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operators_are_part_of_a_program() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = scale(x + 1, 3.0)
        bump(y)
        return y.relu()

    both(function, numbers(3, 4))
    x = numbers(3, 4).to("hetero")
    fast = compiled(function)
    assert_steady(lambda: fast(x))


@pytest.fixture
def counted() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """A custom operator of Python for all devices that counts its calls and uses numpy, and one that writes so."""
    calls = 0
    with torch.library._scoped_library("hetero_compile_test", "FRAGMENT"):

        @torch.library.custom_op("hetero_compile_test::count", mutates_args=())
        def count(x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return torch.from_numpy(x.cpu().numpy() + calls).to(x.device)

        @count.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x)

        @torch.library.custom_op("hetero_compile_test::count_into", mutates_args=("x",))
        def count_into(x: torch.Tensor) -> None:
            nonlocal calls
            calls += 1
            x.fill_(calls)

        yield count, count_into


@pytest.mark.parametrize("device", ("cpu", "hetero"))
def test_a_custom_operator_of_python_is_called_in_each_run(
    device: str, counted: tuple[Callable[..., Any], Callable[..., Any]]
) -> None:
    count, count_into = counted

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        count_into(y)
        return y + count(y)  # of y: two calls at the same time would count as one

    fast = compiled(function)
    before = torch.hetero.explain()
    assert [fast(torch.zeros(1, device=device)).item() for _ in range(3)] == [4.0, 10.0, 16.0]
    told = (torch.hetero.explain() - before).compiled
    assert told["calls"] == 3 and not any(told["refused"].values()), told
    x = torch.zeros(1, device="hetero")
    assert count(x).item() == 7.0
    program = torch.hetero.compile(lambda x: count(x) * 1, (x,))
    first = program(x).item()
    assert [program(x).item() for _ in range(2)] == [first + 1, first + 2]


def test_a_custom_operator_with_a_kernel_for_the_device_runs_lazily() -> None:
    calls = 0

    @torch.library.custom_op("hetero_compile_test::on_device", mutates_args=(), device_types=("cpu", "hetero"))
    def on_device(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x + calls

    @on_device.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    fast = compiled(lambda x: on_device(x) * 1)
    before = torch.hetero.explain()
    x = torch.zeros(1, device="hetero")
    assert [fast(x).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    refused = (torch.hetero.explain() - before).compiled["refused"]
    assert any("on_device" in reason and "a kernel of its own for the device" in reason for reason in refused), refused


def test_an_error_of_an_operator_is_its_own_and_the_next_call_works() -> None:
    fast = compiled(lambda x: fail_on_negative(x * 2) + 1)
    x = torch.ones(3, device="hetero")
    fast(x)
    with pytest.raises(ValueError, match="a negative number"):
        fast(-x)
    assert_same(fast(x).cpu(), torch.full((3,), 3.0))


def test_an_index_out_of_range_raises_what_the_lazy_device_raises_and_names_the_operator() -> None:
    table = numbers(5, 2).to("hetero")
    fast = compiled(nn.functional.embedding)
    fast(torch.tensor([1, 2], device="hetero"), table)
    wrong = torch.tensor([1, 9], device="hetero")
    with pytest.raises(IndexError) as lazy:
        nn.functional.embedding(wrong, table).cpu()
    with pytest.raises(IndexError) as seen:
        fast(wrong, table)
    assert str(seen.value) == f"{lazy.value} (hetero: in aten::embedding)"


def test_what_depends_on_values_runs_lazily_and_explain_says_why() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    before = torch.hetero.explain()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        both(function, numbers(3, 4), calls=4)
    told = (torch.hetero.explain() - before).compiled
    assert told["calls"] == 0
    assert any("data-dependent shape" in reason for reason in told["refused"]), told
    assert "data-dependent shape" in str(torch.hetero.explain())


def test_recording_goes_on_across_a_graph_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        torch._dynamo.graph_break()
        return (y * y).sum()

    fast = torch.compile(function, backend="hetero")
    x = numbers(3, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x.to("hetero")).cpu(), function(x))
    there = x.to("hetero")
    assert_steady(lambda: fast(there), programs=2)


def test_default_settings_capture_the_layers_of_a_transformer_and_leave_an_lstm_to_the_lazy_device() -> None:
    with torch._dynamo.config.patch(allow_rnn=False), torch.no_grad():
        for name, captures in (("transformer", 1), ("lstm", 0)):
            assert torch.backends.mha.get_fastpath_enabled()
            build, inputs = MODELS[name]
            expected = build().eval()(inputs)
            fast = torch.compile(build().eval().to("hetero"), backend="hetero")
            there = inputs.to("hetero")
            before = torch.hetero.explain()
            for _ in range(3):
                torch.testing.assert_close(fast(there).cpu(), expected)
            seen = torch.hetero.explain() - before
            assert (seen.compiled["captures"], seen.compiled["calls"]) == (captures, 3 * captures)
            assert not seen.compiled["refused"]
            assert not seen.fallbacks
            assert seen.nodes["straight"] == 0


def test_what_is_recorded_in_a_graph_break_runs_with_the_graphs_around_it() -> None:
    @torch._dynamo.disable
    def between(x: torch.Tensor) -> torch.Tensor:
        return x * 3 + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        return between(x.sin()).cos().sum()

    fast = torch.compile(function, backend="hetero")
    x = numbers(3, 4)
    there = x.to("hetero")
    for _ in range(2):
        torch.testing.assert_close(fast(there).cpu(), function(x))
    with counting() as seen:
        fast(there)
        torch.hetero.flush()
    # The two operators between run when the second graph needs them, as one program.
    assert (seen.recorded, seen.straight, seen.captures) == (2, 0, 0)
    assert seen.compiled_calls == 2
    assert seen.flushes == {COMPILED: 3}


# ---- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", (True, None))
def test_another_batch_size_does_not_plan_anew(dynamic: bool | None) -> None:
    model, oracle = mlp().to("hetero"), mlp()
    fast = compiled(model, dynamic=dynamic)
    with torch.no_grad():
        for size in (4, 6):
            fast(numbers(size, 12).to("hetero"))
        with counting() as seen:
            for size in (5, 9, 17):
                inputs = numbers(size, 12)
                torch.testing.assert_close(fast(inputs.to("hetero")).cpu(), oracle(inputs))
    assert (seen.plans_made, seen.plans_resized, seen.captures, seen.compiled_calls) == (0, 3, 3, 3)


def test_another_sequence_length_does_not_plan_anew() -> None:
    model, oracle = models.transformer().eval().to("hetero"), models.transformer().eval()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        fast(tokens(40, 2, 5).to("hetero"))
        with counting() as seen:
            for length in (6, 9, 7):
                inputs = tokens(40, 2, length)
                torch.testing.assert_close(fast(inputs.to("hetero")).cpu(), oracle(inputs))
        assert (seen.plans_made, seen.plans_resized) == (0, 3)
        with counting() as seen:
            fast(tokens(40, 2, 9).to("hetero"))
        assert seen.recorded == seen.plans_resized == 0  # sizes that come back find their program


# Inputs by batch and length.
RESIZABLE: dict[str, Callable[[int, int], torch.Tensor]] = {
    "resnet18": lambda batch, length: numbers(batch, 3, 48, 48),
    "vit": lambda batch, length: numbers(batch, 3, 32, 32),
    "transformer": lambda batch, length: tokens(40, batch, length),
    # PyTorch takes an LSTM apart into operators for each step, so each length has a graph of its own.
    "lstm": lambda batch, length: tokens(50, batch, 5),
    "minilm": lambda batch, length: tokens(20000, batch, length),
    "gpt2": lambda batch, length: tokens(64, batch, length),
    "llama": lambda batch, length: tokens(64, batch, length),
    "qwen3": lambda batch, length: tokens(64, batch, length),
}
# What is fused depends on sizes in two places (docs/compile.md): a mask joins what it is broadcast over for up to four
# sequences, and with an odd batch these heads are so small that eager's loop over them ends within a vector.
FIRST_SIZE, OTHER_SIZES = (6, 5), ((8, 7), (10, 9), (6, 3))


@pytest.mark.parametrize("name", RESIZABLE)
def test_other_batches_and_lengths_of_a_model_do_not_plan_anew(name: str) -> None:
    build, inputs = ALL_MODELS[name][0], RESIZABLE[name]
    model, oracle = build().eval().to("hetero"), build().eval()
    known = set(torch.hetero.compiled_graphs())  # of other tests
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        fast(inputs(*FIRST_SIZE).to("hetero"))
        for size in OTHER_SIZES:
            with counting() as seen:
                actual = fast(inputs(*size).to("hetero")).cpu()
            torch.testing.assert_close(actual, oracle(inputs(*size)))
            assert (seen.compiled_calls, seen.plans_made, seen.plans_resized) == (1, 0, seen.captures)
        assert len(set(torch.hetero.compiled_graphs()) - known) == 1


# It was seen in every second run, and in none of the last eighteen, beside other load too. Why is not known.
SOMETIMES = pytest.mark.xfail(strict=False, reason="resnet18's training is sometimes planned anew for another batch")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SOMETIMES) if name == "resnet18" else name for name in RESIZABLE])
def test_training_with_other_batches_and_lengths_does_not_plan_anew(name: str) -> None:
    build, inputs = ALL_MODELS[name][0], RESIZABLE[name]
    model, oracle = build().train().to("hetero"), build().train()
    known = set(torch.hetero.compiled_graphs())  # of other tests
    fast = compiled(lambda values: model(values).float().square().mean(), dynamic=True)
    for size in (FIRST_SIZE, *OTHER_SIZES):
        for one in (oracle, model):
            one.zero_grad()
        there = inputs(*size).to("hetero")
        with counting() as seen:
            loss = fast(there)
            loss.backward()
        torch.testing.assert_close(loss.detach().cpu(), step(oracle, inputs(*size)))
        torch.testing.assert_close(gradients(model), gradients(oracle), rtol=1e-3, atol=1e-4)
        assert seen.compiled_calls == 2
        if size in OTHER_SIZES[1:]:  # the gradient that backward() begins with is planned at second sight
            assert seen.plans_made == 0
    assert len(set(torch.hetero.compiled_graphs()) - known) == 2


def test_training_with_other_sizes_does_not_plan_anew() -> None:
    model = mlp().to("hetero")
    fast = compiled(lambda x: model(x).square().mean(), dynamic=True)
    for size in (4, 6):
        model.zero_grad()
        fast(numbers(size, 12).to("hetero")).backward()
    with counting() as seen:
        for size in (5, 9):
            model.zero_grad()
            fast(numbers(size, 12).to("hetero")).backward()
    assert seen.compiled_calls == 4
    assert seen.plans_made == 0


@pytest.mark.parametrize("device", ["cpu", "hetero"])
def test_a_backward_pass_views_what_a_kernel_lays_out_otherwise_than_traced(device: str) -> None:
    """The gradient of a batch norm of a transposed input is transposed; a layer's gradient views it as rows."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return self.norm((y + y.sigmoid()).transpose(1, 2)).transpose(1, 2)

    torch.manual_seed(0)
    oracle = Normed()
    model = copy.deepcopy(oracle).to(device)
    fast = compiled(model)
    for _ in range(3):
        x = torch.randn(4, 5, 6)
        expected = step(oracle, x)
        torch.testing.assert_close(step(fast, x.to(device)).cpu(), expected)
        torch.testing.assert_close(gradients(model), gradients(oracle), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state(model), state(oracle))


def test_sizes_may_be_results() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * x.shape[0], x.shape[0] + 1

    fast = compiled(function, dynamic=True)
    for size in (3, 5, 4):
        x = numbers(size, 2)
        values, count = fast(x.to("hetero"))
        assert count == size + 1
        assert_same(values.cpu(), x * size)


def test_more_sizes_than_are_kept_still_run() -> None:
    fast = compiled(lambda x: (x * 2).sum(), dynamic=True)
    for size in [*range(2, 30), *range(2, 30)]:
        x = numbers(size)
        torch.testing.assert_close(fast(x.to("hetero")).cpu(), (x * 2).sum())


# ---- options, other backends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"))
def test_the_modes_of_torch_compile_are_taken(mode: str) -> None:
    both(lambda x: x.exp().sum(0), numbers(3, 4), mode=mode)


def test_max_autotune_plans_each_size() -> None:
    fast = compiled(lambda x: (x * 2).sum(0), dynamic=True, mode="max-autotune")
    fast(numbers(3, 4).to("hetero"))
    with counting() as seen:
        fast(numbers(5, 4).to("hetero"))
    assert (seen.plans_made, seen.plans_resized) == (1, 0)


@pytest.mark.parametrize(("mode", "searches"), ((None, False), ("reduce-overhead", False), ("max-autotune", True)))
def test_max_autotune_searches_longer(mode: str | None, searches: bool) -> None:
    torch.hetero.config.keep_plans = True
    compiled(lambda x: (x * 2).sum(0), mode=mode)(numbers(3, 4).to("hetero")).cpu()
    assert ("searched 8 times as long as usual" in torch.hetero.explain().plan) == searches


def test_no_process_is_started() -> None:
    code = """
        import sys
        import torch

        started = []
        events = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "os.forkpty")
        import models

        model = models.transformer().to(DEVICE)
        tokens = torch.randint(40, (3, 7)).to(DEVICE)
        sys.addaudithook(lambda event, arguments: started.append((event, arguments)) if event in events else None)
        fast = torch.compile(model, backend="hetero")
        for mode in (True, False):
            model.train(mode)
            fast(tokens).sum().backward()
            torch.hetero.flush()
        torch.compile(model, backend="hetero", mode="max-autotune")(tokens).cpu()
        print(torch.hetero.explain().compiled["captures"], started)
    """
    captures, started = run_python_ok(code).split(maxsplit=1)
    assert int(captures) >= 5
    assert started.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    (
        ({"mode": "fastest"}, "knows the modes .*, not 'fastest'"),
        ({"options": {"speed": True}}, "knows the options plan_each_size, search_longer, not 'speed'"),
        ({"options": {"plan_each_size": 3}}, "takes True or False for plan_each_size, not 3"),
    ),
)
def test_an_unknown_mode_or_option_is_one_clear_error(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        compiled(lambda x: x + 1, **arguments)(torch.ones(2, device="hetero"))


def test_inductor_says_in_one_sentence_that_it_does_not_know_the_device() -> None:
    with pytest.raises(Exception, match='use torch.compile\\(backend="hetero"\\)'):
        torch.compile(lambda x: x.sin() + 1, backend="inductor")(torch.ones(4, device="hetero"))


def test_autocast_is_what_it_was_when_the_graph_was_made() -> None:
    model = mlp().to("hetero")
    fast = compiled(model)
    x = numbers(4, 12).to("hetero")
    with torch.no_grad(), torch.autocast("hetero", torch.bfloat16):
        for _ in range(2):
            lazy, quick = model(x), fast(x)
            assert quick.dtype == lazy.dtype
            torch.testing.assert_close(quick, lazy)


def test_sync_mode_runs_every_operator_on_its_own_line() -> None:
    fast = compiled(lambda x: x.sin() * 2)
    x = numbers(3).to("hetero")
    fast(x)
    torch.hetero.config.sync = True
    with counting() as seen:
        fast(x)
    assert seen.compiled_calls == 0 and seen.recorded == 2


def test_a_source_tree_and_an_import_of_torch_alone_know_the_backend() -> None:
    code = """
    import sys, torch
    assert not any(name.startswith("torch._dynamo") for name in sys.modules)
    fast = torch.compile(lambda x: x * 2 + 1, backend="hetero")
    assert fast(torch.ones(3, device="hetero")).tolist() == [3.0, 3.0, 3.0]
    """
    run_python_ok(code)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_an_exported_program_is_compiled(name: str) -> None:
    build, inputs = ALL_MODELS[name]
    model = build().eval()
    fast = compiled(torch.export.export(model, (inputs,)).module())
    with torch.no_grad():
        torch.testing.assert_close(fast(inputs), model(inputs))
        assert_steady(lambda: fast(inputs))


def test_an_exported_lstm_without_biases_is_compiled() -> None:
    model = nn.LSTM(5, 7, num_layers=2, bias=False).eval()
    inputs = numbers(4, 2, 5)
    fast = compiled(torch.export.export(model, (inputs,)).module())
    with torch.no_grad():
        torch.testing.assert_close(fast(inputs)[0], model(inputs)[0])
        assert_steady(lambda: fast(inputs))


# ---- threads, lines, memory ---------------------------------------------------------------------------------


def test_threads_may_call_and_capture_while_others_record() -> None:
    model, oracle = mlp().to("hetero"), mlp()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        fast(numbers(3, 12).to("hetero"))  # torch 2.11 crashes where TorchDynamo begins on a thread that ends
    wrong: list[str] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            for i in range(20):
                x = numbers(2 + i * seed % 7, 12)
                for forward in (fast, model):
                    why = (forward(x.to("hetero")).cpu() - oracle(x)).abs().max().item()
                    if why > 1e-5:
                        wrong.append(f"{seed} {i} {why}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_traceback_names_the_line_that_called_the_program() -> None:
    torch.hetero.config.traceback = True
    fast = compiled(lambda index, table: nn.functional.embedding(index, table))
    table = numbers(5, 2).to("hetero")
    fast(torch.tensor([1], device="hetero"), table)
    with pytest.raises(IndexError, match="test_compile.py"):
        fast(torch.tensor([7], device="hetero"), table)


def test_training_leaves_no_memory_behind_and_takes_about_what_the_lazy_device_takes() -> None:
    inputs = numbers(2048, 64).to("hetero")
    peaks = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))).to("hetero")
        forward = compiled(model) if compile_it else model
        held = 0
        for _ in range(4):
            model.zero_grad()
            torch.hetero.flush()
            torch.hetero.reset_peak_memory_stats()
            before = held
            held = torch.hetero.memory_allocated()
            step(forward, inputs)
            torch.hetero.flush()
        assert held == before
        peaks.append(torch.hetero.max_memory_allocated() - held)
        del model, forward
    assert peaks[1] < 1.25 * peaks[0], peaks


def test_an_installed_package_is_found_by_its_entry_point() -> None:
    installed = importlib.metadata.entry_points(group="torch_dynamo_backends", name="hetero")
    if not installed:
        pytest.skip("the package was not installed since it has this entry point")
    code = """
    import torch
    assert "hetero" in torch._dynamo.list_backends()
    fast = torch._dynamo.optimize("hetero")(lambda x: x * 2 + 1)
    assert fast(torch.ones(3, device="hetero")).tolist() == [3.0, 3.0, 3.0]
    """
    run_python_ok(code)
