"""Extension points of PyTorch: custom operators, autograd functions, hooks, function transforms."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.utils.checkpoint
from counters import NO_META_KERNEL, counting
from helpers import DEVICE, assert_same, check, check_gradients, needs_hetero
from torch import nn

_names = itertools.count()


def define_scale(with_fake: bool) -> Callable[..., torch.Tensor]:
    """A custom operator `x * factor` that computes with numpy, on CPU memory."""

    @torch.library.custom_op(f"hetero_tests::scale_{next(_names)}", mutates_args=())
    def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.from_numpy(x.cpu().numpy() * factor).to(x.dtype).to(x.device)

    if with_fake:

        @scale.register_fake
        def _(x: torch.Tensor, factor: float) -> torch.Tensor:
            return torch.empty_like(x)

    return scale


@pytest.mark.parametrize("with_fake", (True, False))
def test_a_custom_operator_gives_cpu_values(with_fake: bool) -> None:
    scale = define_scale(with_fake)
    check(lambda x: scale(x + 1, 2.5) * 2, torch.randn(3, 4))


@pytest.mark.parametrize("with_fake", (True, False))
def test_a_custom_operator_written_for_cpu_only_runs_on_the_device(with_fake: bool) -> None:
    name = f"double_{next(_names)}"
    with torch.library._scoped_library("hetero_tests", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
        if with_fake:
            library.impl(name, lambda x: torch.empty_like(x), "Meta")
        double = getattr(torch.ops.hetero_tests, name)
        check(lambda x: double(x.t() + 1), torch.randn(3, 4))


@needs_hetero
def test_a_custom_operator_with_a_meta_kernel_is_recorded() -> None:
    name = f"double_{next(_names)}"
    with torch.library._scoped_library("hetero_tests", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x * 2, "CPU")
        library.impl(name, lambda x: torch.empty_like(x), "Meta")
        value = torch.ones(3, device=DEVICE)
        torch.hetero.flush()
        with counting() as seen:
            doubled = getattr(torch.ops.hetero_tests, name)(value)
        assert seen.boxed == 1 and seen.kernels == 0 and seen.flushes == {}
        assert doubled.tolist() == [2.0] * 3


@needs_hetero
def test_a_custom_operator_without_meta_kernel_flushes_under_that_name() -> None:
    name = f"double_{next(_names)}"
    with torch.library._scoped_library("hetero_tests", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x * 2, "CPU")
        value = torch.ones(3, device=DEVICE)
        with counting() as seen:
            doubled = getattr(torch.ops.hetero_tests, name)(value + 1)
        assert seen.flushes.get(NO_META_KERNEL) == 1
        assert doubled.tolist() == [4.0] * 3
        assert any(name in operator for operator in seen.fallbacks)


@needs_hetero
@pytest.mark.parametrize("keys", [("CPU", "CompositeExplicitAutograd"), ("CompositeExplicitAutograd", "CPU")])
@pytest.mark.parametrize("with_fake", (True, False))
def test_a_custom_operator_with_a_kernel_of_the_cpu_does_not_take_its_default_kernel(
    keys: tuple[str, str], with_fake: bool
) -> None:
    name = f"fill_{next(_names)}"
    value = torch.ones(3, device=DEVICE)
    kernels = {
        "CPU": lambda x: torch.from_numpy(x.numpy() + 1),  # needs memory of the CPU
        "CompositeExplicitAutograd": lambda x: x - 1,
    }
    for _ in range(2):  # an operator can go, and come again
        with torch.library._scoped_library("hetero_tests", "FRAGMENT") as library:
            library.define(f"{name}(Tensor x) -> Tensor")
            for key in keys:
                library.impl(name, kernels[key], key)
            if with_fake:
                library.impl(name, lambda x: torch.empty_like(x), "Meta")
            with counting() as seen:
                filled = getattr(torch.ops.hetero_tests, name)(value * 2)
            assert filled.tolist() == [3.0] * 3
            assert seen.boxed == (1 if with_fake else 0)
            assert seen.fallbacks == ({} if with_fake else {f"hetero_tests::{name}": 1})

    # The kernel goes with the library.
    with torch.library._scoped_library("hetero_tests", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernels["CompositeExplicitAutograd"], "CompositeExplicitAutograd")
        assert getattr(torch.ops.hetero_tests, name)(value).tolist() == [0.0] * 3


@needs_hetero
def test_a_kernel_that_is_registered_for_the_device_stays() -> None:
    name = f"own_{next(_names)}"
    with torch.library._scoped_library("hetero_tests", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x + 1, "CompositeExplicitAutograd")
        library.impl(name, lambda x: x + 10, "PrivateUse1")
        library.impl(name, lambda x: x + 100, "CPU")
        assert getattr(torch.ops.hetero_tests, name)(torch.zeros(2, device=DEVICE)).tolist() == [10.0] * 2


def test_a_custom_operator_that_mutates_its_argument_does() -> None:
    @torch.library.custom_op(f"hetero_tests::bump_{next(_names)}", mutates_args={"x"})
    def bump(x: torch.Tensor, by: int) -> None:
        x.add_(by)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        early = x * 2
        bump(x[1], 5)
        return early, x.clone()

    check(run, torch.zeros(3, 2))


def test_a_custom_operator_with_registered_autograd_differentiates() -> None:
    @torch.library.custom_op(f"hetero_tests::cube_{next(_names)}", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @cube.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> object:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2

    def setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: object) -> None:
        ctx.save_for_backward(*inputs)

    cube.register_autograd(backward, setup_context=setup)
    check_gradients(lambda x: cube(x * 2), torch.randn(4))


def test_a_custom_operator_with_lists_and_several_outputs() -> None:
    @torch.library.custom_op(f"hetero_tests::sums_{next(_names)}", mutates_args=())
    def sums(tensors: list[torch.Tensor], scale: float) -> list[torch.Tensor]:
        return [tensor.sum() * scale for tensor in tensors]

    @sums.register_fake
    def _(tensors: list[torch.Tensor], scale: float) -> list[torch.Tensor]:
        return [tensor.new_empty(()) for tensor in tensors]

    check(lambda x, y: sums([x, y, x + y], 0.5), torch.randn(3), torch.randn(3))


class ScaledExp(torch.autograd.Function):
    """exp(x) whose gradient is doubled, so that only this backward explains the result."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (result,) = context.saved_tensors
        return 2 * gradient * result


def test_an_autograd_function_runs_its_own_backward() -> None:
    check_gradients(lambda x: ScaledExp.apply(x * 0.5), torch.randn(5))


def test_tensor_hooks_see_and_change_gradients() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = []
        leaf = x.detach().requires_grad_()
        middle = leaf * 3
        middle.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 10)
        leaf.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
        (middle**2).sum().backward()
        return (leaf.grad, *seen)

    check(run, torch.randn(4))


def test_module_hooks_run_in_order_with_device_values() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(7)
        layer = nn.Linear(3, 2).to(x.device)
        x = x.detach().requires_grad_()
        seen: list[torch.Tensor] = []
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
        layer.register_forward_hook(lambda _, inputs, output: output * 2)
        layer.register_full_backward_hook(lambda _, before, after: seen.append(after[0].clone()))
        output = layer(x)
        output.sum().backward()
        return output.detach(), layer.weight.grad, *seen

    check(run, torch.randn(2, 3))


def test_saved_tensor_hooks_pack_and_unpack() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(x.device))
        with hooks:
            loss = (leaf.sin() * leaf).sum()
        loss.backward()
        return leaf.grad

    check(run, torch.randn(4))


def test_save_on_cpu_and_checkpoint_give_the_same_gradients() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.detach().requires_grad_()
        torch.utils.checkpoint.checkpoint(lambda t: (t.sin() * t).tanh(), first, use_reentrant=False).sum().backward()
        second = x.detach().requires_grad_()
        torch.utils.checkpoint.checkpoint(lambda t: (t.sin() * t).tanh(), second, use_reentrant=True).sum().backward()
        third = x.detach().requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            loss = (third.sin() * third).tanh().sum()
        loss.backward()
        return first.grad, second.grad, third.grad

    check(run, torch.randn(4))


def test_double_backward_equals_cpu() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        loss = ((x @ w).tanh() ** 2).sum()
        first = torch.autograd.grad(loss, (x, w), create_graph=True)
        penalty = sum((gradient**2).sum() for gradient in first)
        second = torch.autograd.grad(penalty, (x, w))
        return (*[gradient.detach() for gradient in first], *second)

    check(run, torch.randn(3, 4), torch.randn(4, 2))


def test_double_backward_through_convolution_equals_cpu() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        loss = (nn.functional.conv2d(x, w, padding=1) ** 2).sum()
        (first,) = torch.autograd.grad(loss, w, create_graph=True)
        return torch.autograd.grad((first**2).sum(), (x, w))

    check(run, torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum() + (x**2).mean()


TRANSFORMS: dict[str, Callable[[torch.Tensor], object]] = {
    "grad": lambda x: torch.func.grad(function)(x),
    "grad_and_value": lambda x: torch.func.grad_and_value(function)(x),
    "grad_of_grad": lambda x: torch.func.grad(lambda t: torch.func.grad(function)(t).sum())(x),
    "vmap": lambda x: torch.func.vmap(lambda t: t.cos() * t.sum())(x),
    "vmap_in_dims": lambda x: torch.func.vmap(torch.dot, in_dims=(0, 1))(x, x.t()),
    "vmap_of_grad": lambda x: torch.func.vmap(torch.func.grad(function))(x),
    "jvp": lambda x: torch.func.jvp(lambda t: t.sin() * t, (x,), (torch.ones_like(x),)),
    "vjp": lambda x: torch.func.vjp(lambda t: t.sin() * t, x)[1](torch.ones_like(x)),
    "jacrev": lambda x: torch.func.jacrev(lambda t: t[0].sin())(x),
    "jacfwd": lambda x: torch.func.jacfwd(lambda t: t[0].sin())(x),
    "hessian": lambda x: torch.func.hessian(lambda t: (t[0] ** 3).sum())(x),
    "functionalize": lambda x: torch.func.functionalize(lambda t: t.clone().view(-1).add_(1))(x),
    "linearize": lambda x: torch.func.linearize(lambda t: t.sin(), x)[1](x),
}


# Autograd runs the inner backward of these on the device's thread, whose nodes it numbers apart: as on
# CUDA, the outer backward may sum gradients in another order than on CPU.
SUMMED_IN_ANOTHER_ORDER = {"grad_of_grad", "hessian"}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transform_equals_cpu(transform: str, unfused: None) -> None:
    x = torch.randn(3, 4)
    if transform in SUMMED_IN_ANOTHER_ORDER:
        actual = TRANSFORMS[transform](x.to(DEVICE)).cpu()
        torch.testing.assert_close(actual, TRANSFORMS[transform](x), rtol=1e-6, atol=0)
    else:
        check(TRANSFORMS[transform], x)


def test_functional_call_and_per_sample_gradients_equal_cpu() -> None:
    def run(inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        torch.manual_seed(8)
        model = nn.Linear(4, 2).to(inputs.device)
        parameters = {name: value.detach() for name, value in model.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, parameters, (sample,)).pow(2).sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)

    check(run, torch.randn(5, 4))


def test_forward_mode_differentiation_equals_cpu() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            return tuple(torch.autograd.forward_ad.unpack_dual(dual.tanh() * dual))

    check(run, torch.randn(4))


def test_a_dispatch_mode_sees_the_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            names.append(str(op))
            return op(*args, **(kwargs or {}))

    names: list[str] = []
    value = torch.ones(2, device=DEVICE)
    with Names():
        result = value.mul(2).view(1, 2)
    assert names == ["aten.mul.Tensor", "aten.view.default"]
    assert result.tolist() == [[2.0, 2.0]]


def test_a_tensor_subclass_wraps_device_tensors() -> None:
    class Counting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
            Counting.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    value = torch.ones(3, device=DEVICE).as_subclass(Counting)
    result = (value + 1) * 2
    assert isinstance(result, Counting) and Counting.calls >= 2
    assert_same(result.as_subclass(torch.Tensor).cpu(), torch.full((3,), 4.0))


def test_anomaly_mode_names_the_forward_line_of_a_nan() -> None:
    leaf = torch.zeros(1, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="returned nan values in its 0th output"):
            (leaf.sqrt() * 0).sum().backward()


def test_gradcheck_passes_in_double_precision() -> None:
    inputs = torch.randn(3, dtype=torch.float64).to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (x.sin() * x).tanh(), (inputs,))
    assert torch.autograd.gradgradcheck(lambda x: (x.sin() * x).tanh(), (inputs,))
