"""PyTorch's databases of modules and of optimizers: the cases of each entry."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from harness import Moved, attempt, call, move_sample, seed
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    OptimizerInfo,
    optim_db,
)
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_map
from ways import Case, Rules, Tally, differentiated, tensors

MODULES: dict[str, ModuleInfo] = {info.name: info for info in module_db}
OPTIMIZERS: dict[str, OptimizerInfo] = {info.name: info for info in optim_db}
STEPS = 4


def moved(arguments: Any, device: str) -> Moved:
    """The arguments of a FunctionInput on a device."""
    return move_sample(SampleInput(None, args=tuple(arguments.args), kwargs=dict(arguments.kwargs)), device)


def made(info: ModuleInfo, arguments: Any, device: str, dtype: torch.dtype) -> torch.nn.Module:
    arguments = moved(arguments, device)
    seed()
    module = call(lambda _, *args, **kwargs: info.module_cls(*args, **kwargs), arguments)
    return module.to(device=device, dtype=dtype)


def module_cases(info: ModuleInfo, dtype: torch.dtype) -> Iterator[Case]:
    """Each input while training and not: outputs, gradients of inputs and parameters, buffers; and errors."""
    for training in (True, False):
        mode = "training" if training else "evaluation"
        seed()
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for index, given in enumerate(inputs):
            if given.forward_input is None:
                continue
            module = made(info, given.constructor_input, "cpu", dtype)
            if info.is_lazy:
                arguments = moved(given.forward_input, "cpu")
                attempt(lambda module=module, arguments=arguments: module(*arguments.args, **arguments.kwargs))
            module.train(training)

            def run(device: str, second: bool = False, apart: bool = False, given: Any = given, module: Any = module) -> Any:
                here = copy.deepcopy(module).to(device)
                arguments = moved(given.forward_input, device)
                outputs = here(*arguments.args, **arguments.kwargs)
                leaves = [t for t in tensors(arguments.args, arguments.kwargs, list(here.parameters())) if t.requires_grad]
                return outputs, dict(here.named_buffers()), differentiated(outputs, leaves, second, apart)

            yield Case(f"{mode}, input {index}", run)
            if info.supports_gradgrad:
                yield Case(
                    f"{mode}, input {index}, second order",
                    lambda device, run=run: run(device, second=True),
                    lambda run=run: run("cpu", second=True, apart=True),
                )
        if info.module_error_inputs_func is None:
            continue
        errors = info.module_error_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=training)
        for index, error in enumerate(errors):

            def fail(device: str, given: Any = error.module_error_input, training: bool = training) -> Any:
                module = made(info, given.constructor_input, device, dtype).train(training)
                arguments = moved(given.forward_input, device)
                return module(*arguments.args, **arguments.kwargs)

            yield Case(f"{mode}, error {index}", fail)


class Problem:
    """Parameters that an optimizer is to make small in a fixed problem."""

    def __init__(self, info: OptimizerInfo, device: str, dtype: torch.dtype, differentiable: bool = False) -> None:
        numbers = torch.Generator().manual_seed(2)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=numbers, dtype=dtype).to(device)

        self.device = device
        self.sparse = info.only_supports_sparse_grads
        shapes = [(5, 4)] if self.sparse or info.name == "Muon" else [(5, 4), (4,), ()]
        self.parameters = [torch.nn.Parameter(draw(*shape)) for shape in shapes]
        if differentiable:  # steps are differentiated through, which leaves cannot be
            self.parameters = [parameter.clone() for parameter in self.parameters]
        self.differentiable = differentiable
        self.inputs = draw(7, 5)
        self.rows = torch.tensor([3, 1, 3]).to(device)

    def loss(self) -> torch.Tensor:
        first, *others = self.parameters
        if self.sparse:
            return torch.nn.functional.embedding(self.rows, first, sparse=True).square().sum()
        result = self.inputs @ first
        for other in others:
            result = (result + other).sin()
        return result.abs().square().sum()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            if self.differentiable:
                gradients = torch.autograd.grad(loss, self.parameters)
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    parameter.grad = gradient
            else:
                loss.backward()
            return loss

        optimizer.step(closure)

    def load(self, parameters: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for mine, other in zip(self.parameters, parameters, strict=True):
                mine.copy_(other)


def through_a_file(state: Any, device: str) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, map_location=device)


def optimizer_cases(info: OptimizerInfo, dtype: torch.dtype) -> Iterator[Case]:
    """Each configuration with each implementation for some steps, through a file, with schedulers; and errors."""

    def make(problem: Problem, kwargs: dict[str, Any]) -> torch.optim.Optimizer:
        return info.optim_cls(problem.parameters, **copy.deepcopy(kwargs))

    def trained(device: str, kwargs: dict[str, Any], loaded_from: str = "", schedulers: Any = ()) -> Any:
        differentiable = bool(kwargs.get("differentiable"))
        problem = Problem(info, loaded_from or device, dtype, differentiable)
        optimizer = make(problem, kwargs)
        scheduled = [scheduler(optimizer) for scheduler in schedulers]
        for _ in range(STEPS):
            problem.step(optimizer)
            for scheduler in scheduled:
                scheduler.step(*([problem.loss()] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
        if loaded_from:
            before, state = problem, through_a_file(optimizer.state_dict(), device)
            problem = Problem(info, device, dtype, differentiable)
            problem.load(before.parameters)
            optimizer = make(problem, kwargs)
            optimizer.load_state_dict(state)
            for _ in range(STEPS):
                problem.step(optimizer)
        assert all(parameter.device.type == device for parameter in problem.parameters)
        state = optimizer.state_dict()
        for group in state["param_groups"]:
            group.pop("foreach", None)  # the implementation, which need not be the CPU's
        return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, (problem.parameters, state))

    base = dict.fromkeys(info.supported_impls, False)
    implementations = [base, *({**base, name: True} for name in info.supported_impls)]
    for given in info.optim_inputs_func("cpu"):
        for flags in implementations:
            kwargs = given.kwargs | flags
            label = ", ".join([given.desc, *(name for name, chosen in flags.items() if chosen)])
            yield Case(label, lambda device, kwargs=kwargs: trained(device, kwargs))
            yield Case(f"{label}, loaded", lambda device, kwargs=kwargs: trained(device, kwargs, device))
            yield Case(f"{label}, loaded from the CPU", lambda device, kwargs=kwargs: trained(device, kwargs, "cpu"))
        # An accelerator's default is foreach, where the class has it.
        foreach = {"foreach": True} if "foreach" in info.supported_impls else {}
        yield Case(
            f"{given.desc}, default implementation",
            lambda device, kwargs=given.kwargs: trained(device, kwargs),
            lambda kwargs=given.kwargs | foreach: trained("cpu", kwargs),
        )
    for index, schedulers in enumerate(info.scheduler_inputs):
        kwargs = {**base, "lr": 0.01}
        yield Case(f"schedulers {index}", lambda device, kwargs=kwargs, chosen=schedulers: trained(device, kwargs, "", chosen))
    for error in info.optim_error_inputs_func("cpu", dtype):
        yield Case(f"error: {error.optimizer_error_input.desc}", _failing(info, error, dtype))


def _failing(info: OptimizerInfo, error: Any, dtype: torch.dtype) -> Callable[[str], Any]:
    def run(device: str) -> None:
        problem = Problem(info, device, dtype)
        given = error.optimizer_error_input
        parameters = move_sample(SampleInput(given.params), device).first
        optimizer = info.optim_cls(problem.parameters if parameters is None else parameters, **copy.deepcopy(given.kwargs))
        if error.error_on == OptimizerErrorEnum.STEP_ERROR:
            problem.step(optimizer)

    return run


class Entries(NamedTuple):
    """A way to run the entries of a database of modules or optimizers."""

    title: str
    entries: dict[str, Any]
    cases: Callable[[Any, torch.dtype], Iterator[Case]]
    dtypes: Callable[[Any], Any]
    rules: Rules = Rules()

    def names(self) -> list[str]:
        return [f"{name} {str(dtype)[6:]}" for name, info in self.entries.items() for dtype in self.dtypes(info)]

    def run(self, task: str, device: str, most: int) -> Tally:
        """Runs all cases of an entry in a dtype, or so many."""
        name, dtype = task.split(" ")
        tally = Tally()
        cases = self.cases(self.entries[name], getattr(torch, dtype))
        for _, case in zip(range(most or 10**6), cases, strict=False):
            tally.judge(case, f"{task}, {case.label}", device, self.rules)
        return tally


def _optimizer_dtypes(info: OptimizerInfo) -> list[torch.dtype]:
    return [torch.float32, torch.float64, *([torch.complex64] if info.supports_complex else [])]


DATABASES = {
    "modules": Entries("`module_db`", MODULES, module_cases, lambda info: info.dtypes),
    "optimizers": Entries("`optim_db`", OPTIMIZERS, optimizer_cases, _optimizer_dtypes, Rules(results_on="cpu")),
}
