"""One graph on two devices: policies, blocks, modules and rules say where operators run."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from simulated import Layers
from torch import nn

from torch_hetero import _C

pytestmark = [needs_hetero, pytest.mark.usefixtures("simulated_accelerator")]


def test_small_work_stays_on_the_cpu_and_large_work_on_resident_weights_leaves_it() -> None:
    with counting() as small:
        (fresh(torch.randn(8, 8)) + 1).cpu()
    assert small.kernels_on("accelerator") == 0
    model = Layers(4, 512)
    x = torch.randn(64, 512)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for _ in range(6):
            actual = model(x.to(DEVICE)).cpu()
        with counting() as large:
            actual = model(x.to(DEVICE)).cpu()
    assert_same(actual, expected)
    assert large.kernels_on("accelerator") >= 4
    # The weights are there by now.
    assert large.copies["bytes_to_accelerator"] < 2 * x.nbytes


@pytest.mark.parametrize("policy", ["cpu", "accelerator", "mixed"])
def test_a_policy_decides_for_all_operators(policy: str) -> None:
    torch.hetero.config.placement = policy
    x = torch.randn(32, 32)
    with counting() as seen:
        actual = ((fresh(x) @ fresh(x)).relu().sin() + 1).cumsum(0).cpu()
    assert_same(actual, ((x @ x).relu().sin() + 1).cumsum(0))
    on_cpu, on_accelerator = seen.kernels_on("cpu"), seen.kernels_on("accelerator")
    assert (on_accelerator == 0) == (policy == "cpu")
    assert (on_cpu == 0) == (policy == "accelerator")


@pytest.mark.parametrize(("policy", "name"), [("cpu", "all on the CPU"), ("accelerator", "all on the accelerator")])
def test_a_decision_of_a_policy_has_its_name(policy: str, name: str) -> None:
    torch.hetero.config.placement = policy
    torch.hetero.config.keep_plans = True
    x = torch.randn(32, 32)
    assert_same((fresh(x) @ fresh(x)).relu().cpu(), (x @ x).relu())
    decisions = torch.hetero.explain().program["decisions"]
    assert [(one["candidate"], one["chosen"]) for one in decisions] == [(name, True)]


def test_thresholds_decide_instead_of_the_search() -> None:
    torch.hetero.config.placement = "thresholds"
    torch.hetero.config.keep_plans = True

    def reasons_of(size: int) -> set[str]:
        x = torch.randn(size, size)
        with torch.hetero.placement("cpu"):
            first = fresh(x) @ fresh(x)
        assert_same((first.cumsum(0) @ first).cpu(), (x @ x).cumsum(0) @ (x @ x))
        return {node["reason"] for node in torch.hetero.explain().program["nodes"]}

    # Launching it takes the accelerator longer than the CPU takes for all of it.
    assert reasons_of(8) == {"requested", "threshold"}
    assert reasons_of(1024) >= {"requested", "faster"}


def test_rules_by_name_and_blocks_before_rules() -> None:
    x = fresh(torch.randn(32, 32))

    def run() -> tuple[int, int]:
        with counting() as seen:
            ((x @ x).relu()).cpu()
        return seen.kernels_on("cpu"), seen.kernels_on("accelerator")

    torch.hetero.set_placement_rules({"aten::mm*": "accelerator", "aten::*": "cpu"})
    assert run() == (1, 1)
    torch.hetero.set_placement_rules([("aten::*", "accelerator"), ("aten::mm*", "cpu")])
    assert run() == (0, 2)
    with torch.hetero.placement("cpu"):
        assert run() == (2, 0)
    torch.hetero.set_placement_rules()
    assert run() == (2, 0)
    with pytest.raises(ValueError, match="'auto', 'cpu' or 'accelerator'"):
        torch.hetero.set_placement_rules({"aten::mm": "gpu"})


def test_auto_is_as_outside_of_all_blocks() -> None:
    x = fresh(torch.randn(32, 32))

    def on_accelerator() -> int:
        with counting() as seen:
            (x @ x).cpu()
        return seen.kernels_on("accelerator")

    with torch.hetero.placement("cpu"), torch.hetero.placement("auto"), torch.hetero.config.override(placement="cpu"):
        assert on_accelerator() == 0
        torch.hetero.set_placement_rules({"aten::mm*": "accelerator"})
        assert on_accelerator() == 1


def test_a_decorated_generator_is_placed_while_it_runs() -> None:
    x = fresh(torch.randn(32, 32))
    where = []

    @torch.hetero.placement("accelerator")
    def products() -> Iterator[torch.Tensor]:
        for _ in range(3):
            where.append(_C.get_placement())
            yield x @ x

    with counting() as seen:
        for product in products():
            assert _C.get_placement() == "auto"
            (product.relu() @ x).cpu()
    assert where == ["accelerator"] * 3
    assert seen.kernels_on("accelerator") == 3


def test_a_module_has_a_place_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).to(DEVICE)
    assert torch.hetero.place(model[0], "accelerator") is model[0]
    torch.hetero.place(model[2], "cpu")
    x = torch.randn(4, 16)
    with torch.no_grad(), counting() as seen:
        model(x.to(DEVICE)).cpu()
    assert seen.kernels_on("accelerator") == 1
    torch.hetero.place(model[0], "auto")
    with torch.no_grad(), counting() as seen:
        model(x.to(DEVICE)).cpu()
    assert seen.kernels_on("accelerator") == 0
    torch.hetero.place(model[0], "accelerator")
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 3, device=DEVICE))
    assert torch.hetero._C.get_placement() == "auto"
    with pytest.raises(ValueError, match="placement takes"):
        torch.hetero.place(model, "gpu")


def kernels_of(function: Callable[[], Any]) -> tuple[int, int]:
    """Kernels of a call on the CPU and on the accelerator."""
    with counting() as seen:
        result = function()
        torch.hetero.flush()
    del result
    return seen.kernels_on("cpu"), seen.kernels_on("accelerator")


def test_a_block_places_the_backward_pass_that_it_starts() -> None:
    torch.hetero.config.placement = "cpu"
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE)
    x = fresh(torch.randn(4, 8))

    def backward(where: str) -> None:
        model.zero_grad()
        loss = model(x).square().sum()
        torch.hetero.flush()
        with torch.hetero.placement(where):
            loss.backward()

    forward, everywhere = kernels_of(lambda: model(x).square().sum())[0], sum(kernels_of(lambda: backward("auto")))
    assert kernels_of(lambda: backward("accelerator")) == (forward, everywhere - forward)
    # No thread of autograd's remembers the block.
    assert kernels_of(lambda: backward("auto")) == (everywhere, 0)


class Broken(torch.autograd.Function):
    """Computes on the device in its backward pass, and raises."""

    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(torch.hetero._C.get_placement())


def test_a_placed_module_places_its_backward_pass_and_no_other() -> None:
    torch.hetero.config.placement = "cpu"
    before, inner, after = (nn.Linear(8, 8) for _ in range(3))
    placed = nn.Sequential(nn.ReLU(), inner, nn.Tanh())
    model = nn.Sequential(before, placed, after)
    x = torch.randn(4, 8)

    def gradients(device: str) -> list[torch.Tensor]:
        model.to(device).zero_grad()
        model(x.to(device)).sum().backward()
        return [p.grad.cpu() for p in model.parameters() if p.grad is not None]

    expected = gradients("cpu")
    everywhere = kernels_of(lambda: gradients(DEVICE))
    assert everywhere[1] == 0
    torch.hetero.place(placed, "accelerator")
    there = kernels_of(lambda: gradients(DEVICE))
    # relu, addmm, tanh; of the backward pass those of tanh, relu and linear: two products, a sum.
    assert there == (everywhere[0] - 8, 8)
    assert_same(gradients(DEVICE), expected)
    torch.hetero.place(inner, "cpu")
    assert kernels_of(lambda: gradients(DEVICE)) == (everywhere[0] - 4, 4)
    torch.hetero.place(inner, "auto")
    placed[0].forward = Broken.apply  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="accelerator"):
            gradients(DEVICE)
    torch.hetero.place(placed, "auto")
    with pytest.raises(ArithmeticError, match="auto"):
        gradients(DEVICE)


class Placed(nn.Module):
    """Tells where its forward pass is recorded, when all others have begun theirs."""

    together: threading.Barrier | None = None

    def forward(self, seconds: float) -> str:
        if Placed.together is not None:
            Placed.together.wait()
        time.sleep(seconds)
        return torch.hetero._C.get_placement()


def test_threads_in_one_placed_module_keep_their_own_placement() -> None:
    module = torch.hetero.place(Placed(), "accelerator")
    seen = []

    def run(before: str, seconds: float) -> None:
        torch.hetero._C.set_placement(before)
        seen.append((module(seconds), torch.hetero._C.get_placement() == before))

    Placed.together = threading.Barrier(2)
    try:
        threads = [threading.Thread(target=run, args=arguments) for arguments in (("auto", 0.1), ("cpu", 0.0))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        Placed.together = None
    assert seen == [("accelerator", True)] * 2


@pytest.mark.parametrize("duplicate", (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))))
def test_copies_of_a_placed_module_are_placed(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    module = torch.hetero.place(Placed(), "accelerator")
    other = duplicate(module)
    assert other(0) == "accelerator"
    torch.hetero.place(other, "auto")
    assert (other(0), module(0)) == ("auto", "accelerator")


@pytest.mark.parametrize(
    ("selection", "rules", "expected"),
    [
        ("static", {"aten::mm*": "accelerator", "aten::*": "cpu"}, {"aten::mm": "requested", "others": "requested"}),
        ("dynamic", {}, {"aten::mm": "predicted", "others": "predicted"}),
        ("hybrid", {"aten::mm*": "accelerator"}, {"aten::mm": "requested", "others": "predicted"}),
    ],
)
def test_selection_is_static_dynamic_or_hybrid(selection: str, rules: dict[str, str], expected: dict[str, str]) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.set_placement_rules(rules)
    x = torch.randn(8, 8)
    with counting() as seen:
        small = ((fresh(x) @ fresh(x)).relu() + 1).cpu()
    assert_same(small, (x @ x).relu() + 1)
    how = {}
    for node in torch.hetero.explain().program["nodes"]:
        name = "aten::mm" if node["op"] == "aten::mm" else "others"
        how[name] = "requested" if node["reason"] == "requested" else "predicted"
    assert how == expected
    # So small a product pays on the accelerator for none but a rule.
    assert seen.kernels_on("accelerator") == (0 if selection == "dynamic" else 1)
    x = torch.randn(1024, 1024)
    with counting() as seen:
        (fresh(x) @ fresh(x)).relu().cpu()
    assert (seen.kernels_on("cpu"), seen.kernels_on("accelerator")) == ((1, 1) if selection == "static" else (0, 2))


def test_rules_take_operators() -> None:
    x = fresh(torch.randn(32, 32))
    for operator in (torch.ops.aten.mm, torch.ops.aten.mm.default):
        for where in ("accelerator", "cpu"):
            torch.hetero.set_placement_rules({operator: where})
            with counting() as seen:
                (x @ x).cpu()
            assert seen.kernels_on(where) == 1


@pytest.mark.parametrize("rules", ("cpu", ["cpu"], [("aten::mm", "cpu", "cpu")], {5: "cpu"}))
def test_what_is_no_rule_is_refused(rules: Any) -> None:
    with pytest.raises(TypeError, match="placement rule"):
        torch.hetero.set_placement_rules(rules)


def test_a_name_without_an_overload_stands_for_all_of_them() -> None:
    x = fresh(torch.randn(32, 32))
    for where in ("accelerator", "cpu"):
        torch.hetero.set_placement_rules({"aten::add": where})
        with counting() as seen:
            ((x + x) + 1).cpu()
        assert seen.kernels_on(where) >= 1 and seen.kernels == seen.kernels_on(where)
    torch.hetero.set_placement_rules({"aten::add.Tensor": "cpu"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("relu", "aten::relu"),
        ("aten::addm", "aten::addmm"),
        ("aten::add.Tenser", "aten::add"),
        ("no::such_operator_at_all", "explain"),
    ],
)
def test_a_rule_for_an_operator_that_is_not_there_is_refused_and_the_rules_stay(name: str, hint: str) -> None:
    torch.hetero.set_placement_rules({"aten::mm": "accelerator"})
    with pytest.raises(ValueError, match=f"no operator is named .*{hint}"):
        torch.hetero.set_placement_rules({"aten::mm": "cpu", name: "cpu"})
    x = fresh(torch.randn(32, 32))
    with counting() as seen:
        (x @ x).cpu()
    assert seen.kernels_on("accelerator") == 1


def test_wildcards_that_match_nothing_yet_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"'mylib::\*' matches no operator"):
        torch.hetero.set_placement_rules({"mylib::*": "cpu"})
