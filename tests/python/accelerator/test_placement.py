"""One graph on two devices: where operators run and why, within a budget of bytes, on the simulated accelerator."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from torch import nn

from torch_hetero import _C

pytestmark = needs_hetero

MIB = 1 << 20


@pytest.fixture(autouse=True)
def simulated_accelerator(unfused: None) -> Iterator[None]:
    """An accelerator, and planning decides; clean_state gives the options back, this the rules and the profile."""
    torch.hetero.config.accelerator = "sim"
    torch.hetero.config.placement = "auto"
    torch.hetero.config.memory_budget = 0
    yield
    torch.hetero.set_placement_rules()
    torch.hetero.use_profile(None)


class Layers(nn.Module):
    """Equal layers, each with one large weight."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def accelerator_peak() -> int:
    return torch.hetero._C.accelerator_stats()["peak_bytes"]


# -- Fused kernels and overlap -----------------------------------------------------------------------------------------


class Block(nn.Module):
    """A product, and pointwise work and a norm behind it that fuse."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.linear(x)) * 0.5 + x
        return self.norm(y * y.sigmoid())


@pytest.mark.parametrize("placement", ["accelerator", "mixed", "auto"])
def test_fused_kernels_run_on_the_accelerator_too(placement: str) -> None:
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = placement
    model = nn.Sequential(Block(96), Block(96))
    x = torch.randn(32, 96)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        hetero = x.to(DEVICE)
        for _ in range(3):
            with counting() as seen:
                got = model(hetero).cpu()
            torch.testing.assert_close(got, expected)
    assert seen.fused_nodes > 0
    if placement == "accelerator":
        assert seen.kernels_on("cpu") == 0
        assert seen.kernels_on("accelerator") < seen.recorded


def classifier(features: int) -> nn.Module:
    torch.manual_seed(models.SEED)
    hidden = [nn.Linear(features, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(48, 10))


def convolutions() -> nn.Module:
    torch.manual_seed(models.SEED)
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    second = [nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(8 * 5 * 5, 16), nn.GELU(), nn.Linear(16, 10))


# Models and their inputs. All have biases and are trained with a cross entropy, which checks indices; so does the
# transformer's embedding.
FUSED_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = {
    "perceptron": (lambda: classifier(20), lambda: (torch.randn(16, 20), torch.randint(0, 10, (16,)))),
    "transformer": (
        models.transformer,
        lambda: (torch.randint(0, 40, (3, 12)), torch.randint(0, 40, (3, 12))),
    ),
    "convolutions": (convolutions, lambda: (torch.randn(4, 3, 12, 12), torch.randint(0, 10, (4,)))),
}


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def trained(build: Callable[[], nn.Module], inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Losses of five steps, which are programs of their own, parameters, buffers and last gradients."""
    model = build().to(DEVICE)
    inputs, targets = fresh(inputs), fresh(targets)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = {}
    for step in range(5):
        optimizer.zero_grad()
        loss = models.classification_loss(model(inputs).unflatten(0, (1, -1)), targets)
        loss.backward()
        optimizer.step()
        state[f"loss {step}"] = loss.detach().cpu()
    state |= {name: value.cpu() for name, value in model.state_dict().items()}
    return state | {f"gradient of {name}": p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", FUSED_MODELS)
def test_placement_does_not_change_a_bit_of_what_is_fused(name: str, deterministic: None) -> None:
    torch.hetero.config.fusion = True
    build, make = FUSED_MODELS[name]
    inputs, targets = make()
    states = {}
    torch.hetero.config.placement = "cpu"
    trained(build, inputs, targets)  # what is seen for the first time runs unfused
    for placement in ("cpu", "accelerator", "mixed", "auto"):
        torch.hetero.config.placement = placement
        with counting() as seen:
            states[placement] = trained(build, inputs, targets)
        assert seen.fused_nodes > 0
        assert seen.fusion["tail joined"] > 0
        assert (seen.kernels_on("accelerator") > 0) == (placement != "cpu")
        assert (seen.kernels_on("cpu") > 0) == (placement != "accelerator")
        assert_same(states[placement], states["cpu"])


def test_biases_are_added_by_fused_kernels_on_the_accelerator() -> None:
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = "accelerator"
    model = classifier(20).to(DEVICE)
    x = torch.randn(16, 20).to(DEVICE)
    with torch.no_grad(), counting() as seen:
        for _ in range(4):
            model(x).cpu()
    assert seen.fusion["tail joined"] > 0
    assert seen.kernels_on("cpu") == 0


def test_an_index_out_of_range_in_a_fused_kernel_on_the_accelerator_is_the_cpus_error() -> None:
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = "accelerator"
    table = torch.randn(10, 16)

    def run(table: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.embedding(tokens, table)
        beside = (table * 2 + 1).tanh()
        return torch.nn.functional.layer_norm(hidden * 0.5, (16,)), beside

    good = torch.randint(0, 10, (4, 6))
    bad = good.clone()
    bad[2, 3] = 11
    with pytest.raises(IndexError) as expected:
        run(table, bad)
    there = table.to(DEVICE)
    for _ in range(3):
        with counting() as seen:
            torch.testing.assert_close(run(there, good.to(DEVICE))[0].cpu(), run(table, good)[0])
    assert seen.fused_nodes > 0
    assert seen.kernels_on("cpu") == 0
    hidden, beside = run(there, bad.to(DEVICE))
    with pytest.raises(IndexError) as got:
        hidden.cpu()
    assert str(got.value) == str(expected.value)
    assert_same(beside.cpu(), run(table, good)[1])


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 16)

    def forward(self, tokens: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return torch.tanh(gate) * self.table(tokens)


@pytest.mark.parametrize("placement", ["cpu", "accelerator"])
def test_an_index_out_of_range_in_a_program_names_the_operator(placement: str) -> None:
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = placement
    model = Gated().eval()
    tokens, gate = torch.randint(0, 10, (4, 6)), torch.randn(4, 6, 16)
    program = torch.hetero.compile(model, (tokens, gate))
    with pytest.raises(IndexError, match=r"index out of range in self \(hetero: in aten::embedding\)"):
        program(tokens + 10, gate)
    torch.testing.assert_close(program(tokens, gate), model(tokens, gate).detach())


def test_training_with_fused_kernels_under_a_budget_matches_the_cpu() -> None:
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("1MiB")
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(128) for _ in range(6)), nn.Linear(128, 4))
    copy = nn.Sequential(*(Block(128) for _ in range(6)), nn.Linear(128, 4))
    copy.load_state_dict(model.state_dict())
    copy.to(DEVICE)
    data = [(torch.randn(16, 128), torch.randint(0, 4, (16,))) for _ in range(4)]

    def train(net: nn.Module, device: str) -> list[float]:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        losses = []
        for x, target in data:
            loss = nn.functional.cross_entropy(net(x.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train(model, "cpu")
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        got = train(copy, DEVICE)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert seen.fused_nodes > 0
    assert seen.kernels_on("accelerator") > 0
    assert accelerator_peak() <= MIB


def test_the_next_batch_is_uploaded_while_this_one_is_computed() -> None:
    model = Layers(4, 256).to(DEVICE)
    batches = [torch.randn(2048, 256) for _ in range(3)]

    def run() -> list[torch.Tensor]:
        with torch.no_grad(), torch.hetero.placement("accelerator"):
            results = [model(batch.to(DEVICE)) for batch in batches]
        torch.hetero.flush()
        return [result.cpu() for result in results]

    predicted = torch.hetero.simulate(run, profile="rtx4090")
    spans = [span for program in predicted.programs for span in program["spans"]]
    uploads = [s for s in spans if s["kind"] == "copy" and s["bytes"] == batches[0].nbytes and "h2d" in s["queue"]]
    runs = [s for s in spans if s["kind"] != "copy" and s["queue"] == "accelerator compute"]
    assert len(uploads) == len(batches)
    for upload in uploads[1:]:
        assert any(r["begin"] < upload["end"] and upload["begin"] < r["end"] for r in runs)


# -- Policies, blocks and rules ----------------------------------------------------------------------------------------


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


# -- Budget ------------------------------------------------------------------------------------------------------------


def test_a_model_five_times_the_budget_infers_within_it() -> None:
    model = Layers(20, 512)
    size = sum(p.nbytes for p in model.parameters())
    x = torch.randn(16, 512)
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget(size // 5)
    torch.hetero.reset_peak_memory_stats()
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for _ in range(6):
            with counting() as seen:
                assert_same(model(x.to(DEVICE)).cpu(), expected)
    assert 0 < accelerator_peak() <= size // 5
    assert seen.kernels_on("accelerator") >= 20
    # What has a place there is not copied again and again.
    assert seen.copies["bytes_to_accelerator"] < size
    assert seen.copies["bytes_to_cpu"] < MIB


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("policy", ["auto", "accelerator", "mixed"])
def test_a_model_five_times_the_budget_trains_within_it(optimizer: str, policy: str) -> None:
    inputs, targets = torch.randint(40, (2, 8)), torch.randint(40, (2, 8))
    expected = models.train(models.transformer, inputs, targets, optimizer, "cpu")
    size = sum(p.nbytes for p in models.transformer().parameters())
    torch.hetero.config.placement = policy
    torch.hetero.set_memory_budget(size // 5)
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        actual = models.train(models.transformer, inputs, targets, optimizer, DEVICE)
    assert_same(actual, expected)
    assert accelerator_peak() <= size // 5
    if policy != "auto":
        # Not the optimizer's operators on all parameters at once, which do not fit.
        assert seen.kernels_on("accelerator") > 20


def test_the_budget_changes_between_iterations() -> None:
    model = Layers(8, 256)
    size = sum(p.nbytes for p in model.parameters())
    x = torch.randn(4, 256)
    torch.hetero.config.placement = "accelerator"
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for budget in (size // 3, 0, size // 2, 2 * size, 64 * 1024, size // 4):
            torch.hetero.set_memory_budget(budget)
            torch.hetero.reset_peak_memory_stats()
            for _ in range(3):
                assert_same(model(x.to(DEVICE)).cpu(), expected)
            assert budget == 0 or accelerator_peak() <= budget
        with torch.hetero.memory_budget("256KiB"):
            assert torch.hetero.get_memory_budget() == 256 * 1024
            assert_same(model(x.to(DEVICE)).cpu(), expected)
        assert torch.hetero.get_memory_budget() == size // 4
    with pytest.raises(ValueError, match="memory_budget"):
        torch.hetero.set_memory_budget("much")


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def trained_with_budgets(optimizer: str, device: str, budgets: list[int]) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of a step under each of the budgets, which none exceeds, and the parameters afterwards."""
    torch.manual_seed(0)
    model = Layers(8, 128)
    batches = [torch.randn(16, 128) for _ in budgets]
    model.to(device)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for batch, budget in zip(batches, budgets, strict=True):
        torch.hetero.set_memory_budget(budget)
        torch.hetero.reset_peak_memory_stats()
        stepper.zero_grad()
        loss = model(batch.to(device)).square().mean()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
        torch.hetero.synchronize()
        assert budget == 0 or accelerator_peak() <= budget
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("placement", ["auto", "accelerator"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_budget_changes_between_iterations_of_training(optimizer: str, placement: str) -> None:
    torch.hetero.config.placement = placement
    size = sum(p.nbytes for p in Layers(8, 128).parameters())
    budgets = [size // 5, size // 3, 0, size // 10, 2 * size, 64 * 1024, size // 2, size // 5]
    expected = trained_with_budgets(optimizer, "cpu", budgets)
    with counting() as seen:
        actual = trained_with_budgets(optimizer, DEVICE, budgets)
    assert_same(actual, expected)
    assert placement == "auto" or seen.kernels_on("accelerator") > 100


def test_the_budget_of_a_block_holds_for_the_process() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("8MiB")
    x = torch.randn(256, 512)
    first_is_inside, second_has_begun, first_has_ended = (threading.Event() for _ in range(3))
    seen: dict[str, Any] = {}

    def first() -> None:
        with torch.hetero.memory_budget("1MiB"):
            first_is_inside.set()
            second_has_begun.wait(60)
        seen["after the first"] = torch.hetero.get_memory_budget()
        first_has_ended.set()

    def second() -> None:
        first_is_inside.wait(60)
        seen["inside the first"] = torch.hetero.get_memory_budget()
        torch.hetero.reset_peak_memory_stats()
        seen["sum"] = ((fresh(x) * 2).relu() + 1).sum().item()
        seen["peak"] = accelerator_peak()
        with torch.hetero.memory_budget("2MiB"):
            second_has_begun.set()
            first_has_ended.wait(60)
            seen["inside the second"] = torch.hetero.get_memory_budget()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.pop("sum") == ((x * 2).relu() + 1).sum().item()
    assert 0 < seen.pop("peak") <= MIB
    assert seen == {"inside the first": MIB, "after the first": 2 * MIB, "inside the second": 2 * MIB}
    assert torch.hetero.get_memory_budget() == 8 * MIB


def test_what_was_used_long_ago_makes_room() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("4MiB")
    torch.hetero.reset_peak_memory_stats()
    with counting() as seen:
        kept = [(fresh(torch.full((256, 1024), float(i))) * 2).relu() for i in range(8)]
        for tensor in kept:
            torch.hetero.flush()
            (tensor + 1).sum().item()
        for i, tensor in enumerate(kept):
            assert tensor.sum().item() == 2.0 * i * 256 * 1024
    assert seen.kernels_on("accelerator") > 16
    assert accelerator_peak() <= 4 * MIB


def evicted_by_a_large_program(share: float) -> int:
    """How many of seven tensors of 512 KiB leave 4 MiB of the accelerator to a program that can use all of it."""
    torch.hetero.config.memory_pressure = share
    kept = []
    for i in range(7):
        kept.append(fresh(torch.full((128, 1024), float(i))) + 1)
        torch.hetero.flush()
    assert torch.hetero._C.accelerator_stats()["allocated_bytes"] >= 3 * MIB
    before = torch.hetero._C.counters()["storages_evicted"]
    made = fresh(torch.ones(512, 1024)) * 2
    torch.hetero.flush()
    evicted = torch.hetero._C.counters()["storages_evicted"] - before
    assert made.sum().item() == 2 * 512 * 1024
    for i, tensor in enumerate(kept):
        assert tensor.sum().item() == (i + 1) * 128 * 1024
    return evicted


def test_a_program_claims_the_share_of_memory_that_the_option_says_from_others_also_when_it_changes() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("4MiB")
    # There are 512 KiB free, and each tensor that leaves frees as much.
    for _ in range(2):
        assert [evicted_by_a_large_program(share) for share in (0.0, 0.5, 0.8, 1.0)] == [0, 3, 6, 7]


@pytest.mark.parametrize(("share", "on_cpu"), [(0.0, True), (0.8, False)])
def test_a_program_that_may_not_claim_the_memory_of_others_computes_on_the_cpu(share: float, on_cpu: bool) -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.config.memory_pressure = share
    torch.hetero.set_memory_budget("8MiB")
    kept = [fresh(torch.full((256, 1024), float(i))) + 1 for i in range(7)]
    torch.hetero.flush()
    x = torch.randn(512, 1024)
    before = torch.hetero.explain()
    total = ((fresh(x) * 2 + fresh(x)).relu()).sum().item()
    seen = torch.hetero.explain() - before
    assert total == (x * 2 + x).relu().sum().item()
    assert (seen.kernels["cpu"] > 0) == on_cpu
    assert (seen.storages_evicted == 0) == on_cpu
    for i, tensor in enumerate(kept):
        assert tensor.sum().item() == (i + 1) * 256 * 1024


def test_a_budget_that_holds_nothing_leaves_all_to_the_cpu() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget(64)
    x = torch.randn(64, 64)
    with counting() as seen:
        assert_same((fresh(x) @ fresh(x)).relu().cpu(), (x @ x).relu())
    assert seen.kernels_on("accelerator") == 0


# -- Plans and costs ---------------------------------------------------------------------------------------------------


def test_plans_are_kept_with_an_accelerator() -> None:
    torch.hetero.config.placement = "mixed"
    model = Layers(3, 64).to(DEVICE)
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(2, 64).to(DEVICE)).cpu()
        with counting() as seen:
            for _ in range(5):
                model(torch.randn(2, 64).to(DEVICE)).cpu()
    assert seen.plans_made == 0


def test_a_machine_that_is_slower_than_its_profile_is_found_out() -> None:
    model = Layers(4, 1024)
    x = torch.randn(128, 1024)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        torch.hetero.use_profile("h200", slowdown=5000)
        on_accelerator = []
        for _ in range(40):
            with counting() as seen:
                assert_same(model(x.to(DEVICE)).cpu(), expected)
            on_accelerator.append(seen.kernels_on("accelerator"))
    assert max(on_accelerator) >= 4
    assert on_accelerator[-1] == 0


def test_a_machine_that_becomes_slower_is_found_out_however_late() -> None:
    model = Layers(4, 1024)
    x = torch.randn(128, 1024)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)

        def kernels_there(runs: int) -> int:
            with counting() as seen:
                for _ in range(runs):
                    assert_same(model(x.to(DEVICE)).cpu(), expected)
            return seen.kernels_on("accelerator")

        torch.hetero.use_profile("h200", slowdown=5000, slowdown_after=0.01)
        assert kernels_there(40) >= 4 * 40
        with counting() as seen:
            kernels_there(400)
        assert seen.plans_made > 0
        assert kernels_there(10) == 0


def virtual_step(step: Callable[[], Any]) -> float:
    """Seconds of the simulated machine's clock."""
    torch.hetero.synchronize()
    before = _C.virtual_seconds()
    step()
    return _C.virtual_seconds() - before


def steady_step(step: Callable[[], Any], placement: str, **machine: float) -> float:
    """What a step comes to take on a machine of which nothing is known."""
    torch.hetero.config.placement = placement
    torch.hetero.use_profile("h200", **machine)
    return [virtual_step(step) for _ in range(60)][-1]


@pytest.mark.parametrize("slowdown", [1.7, 10.0])
def test_what_is_predicted_converges_to_what_a_slower_machine_takes(slowdown: float) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    model = Layers(4, 512).to(DEVICE)
    x = torch.randn(64, 512)

    def run() -> dict[str, Any]:
        with torch.no_grad():
            model(x.to(DEVICE)).cpu()
        return torch.hetero.explain().program

    torch.hetero.use_profile("h200", schedule_seed=31)
    as_described = [run() for _ in range(3)][-1]["measured_seconds"]
    torch.hetero.use_profile("h200", slowdown=slowdown, schedule_seed=31)
    programs = [run() for _ in range(80)]
    # What was learned does not change what the machine does.
    for program in programs[3:]:
        assert program["measured_seconds"] == pytest.approx(slowdown * as_described, rel=0.02)
    for program in programs[20:]:
        assert program["predicted_seconds"] == pytest.approx(program["measured_seconds"], rel=0.1)
    for node in programs[-1]["nodes"]:
        if node["live"]:
            assert node["predicted"] == pytest.approx(node["measured"], rel=0.1)


@pytest.mark.parametrize("slowdown", [1.2, 1.7, 3.0])
def test_work_stays_where_it_is_faster_on_a_machine_that_is_slower_than_its_profile(slowdown: float) -> None:
    model = Layers(4, 1024).to(DEVICE)
    x = torch.randn(128, 1024)

    def step() -> None:
        with torch.no_grad():
            model(x.to(DEVICE)).cpu()

    on_cpu = steady_step(step, "cpu", slowdown=slowdown, schedule_seed=41)
    there = steady_step(step, "accelerator", slowdown=slowdown, schedule_seed=42)
    chosen = steady_step(step, "auto", slowdown=slowdown, schedule_seed=43)
    assert there < on_cpu
    assert chosen <= 1.05 * min(on_cpu, there)
    with counting() as seen:
        step()
    assert seen.kernels_on("accelerator") >= 4


@pytest.mark.parametrize("slowdown", [0.5, 1.0, 1.3, 3.0, 10.0])
def test_kernels_that_run_beside_each_other_are_measured_alone_where_the_prediction_is_wrong(slowdown: float) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.use_profile("h200", slowdown=slowdown)
    model = Heads(4, 64).to(DEVICE)
    x = fresh(torch.randn(8, 64))
    for tensor in (x, *model.parameters()):
        tensor.sum().item()  # comes to the accelerator
    queues, ratios, made = [], [], []
    for _ in range(30):
        with counting() as seen, torch.no_grad():
            model(x).cpu()
        program = torch.hetero.explain().program
        kernels = [span for span in program["spans"] if span["kind"] in ("run", "fused")]
        queues.append(len({span["queue"] for span in kernels}))
        ratios.append(program["predicted_seconds"] / program["measured_seconds"])
        made.append(seen.plans_made)
    alone = queues.count(1)
    if slowdown == 1.0:
        assert alone == 0 and sum(made[3:]) == 0 and ratios == pytest.approx([1] * 30, rel=0.01)
    else:
        assert alone == 5
        assert ratios[3] == pytest.approx(1, abs=0.6) and ratios[3] != pytest.approx(1, rel=0.1)
        assert sum(made[20:]) == 0
    assert queues[0] == queues[-1] == 4
    assert ratios[12:] == pytest.approx([1] * 18, rel=0.1)


@pytest.mark.parametrize("slowdown", [1.3, 1.7, 3.0])
def test_how_much_kernels_are_in_each_others_way_is_learned(slowdown: float) -> None:
    """Of other sizes, whose kernels are not known though the trace is, and of kernels that fill much of the machine."""
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.use_profile("h200", slowdown=slowdown, schedule_seed=61)
    first_ratios = []
    for count, size, batch in ((4, 64, 8), (4, 512, 128), (8, 512, 256), (4, 1024, 256), (4, 1024, 1024)):
        model = Heads(count, size).to(DEVICE)
        x = fresh(torch.randn(batch, size))
        for tensor in (x, *model.parameters()):
            tensor.sum().item()  # comes to the accelerator
        ratios, queues = [], []
        for _ in range(30):
            with torch.no_grad():
                model(x).cpu()
            program = torch.hetero.explain().program
            ratios.append(program["predicted_seconds"] / program["measured_seconds"])
            queues.append(len({span["queue"] for span in program["spans"] if span["kind"] in ("run", "fused")}))
        assert queues.count(1) <= 5 and queues[-1] >= 2
        assert ratios[20:] == pytest.approx([1] * 10, rel=0.1)
        first_ratios.append(ratios[0])
    assert first_ratios[0] != pytest.approx(1, rel=0.1)


def test_a_placement_is_doubted_anew_on_another_machine() -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "accelerator"
    model = Heads(4, 64).to(DEVICE)
    x = torch.randn(8, 64)

    def last_ratio() -> float:
        for _ in range(30):
            with torch.no_grad():
                model(x.to(DEVICE)).cpu()
        program = torch.hetero.explain().program
        return program["predicted_seconds"] / program["measured_seconds"]

    # On each of them less than a surprise would be, after the one before.
    for slowdown in (1.0, 1.4, 1.9, 1.4):
        torch.hetero.use_profile("h200", slowdown=slowdown)
        assert last_ratio() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("slowdown", "size"), [(4.0, 513), (10.0, 512)])
def test_a_placement_gives_way_when_kernels_are_found_to_be_in_each_others_way(slowdown: float, size: int) -> None:
    """As few elements as the profile says fill the machine, all kernels would run beside each other; they do not."""
    torch.hetero.config.keep_plans = True
    x, *weights = (torch.randn(size, size).to(DEVICE) for _ in range(9))

    def step() -> None:
        torch.stack([x @ weight @ weight @ weight for weight in weights]).sum(0).cpu()

    def run(placement: str) -> tuple[list[int], list[float], list[float]]:
        torch.hetero.use_profile("h200", slowdown=slowdown, schedule_seed=51, copy_latency=1e-7, parallelism=1e12)
        torch.hetero.config.placement = "accelerator"
        for tensor in (x, *weights):
            tensor.sum().item()  # comes to the accelerator
        torch.hetero.config.placement = placement
        kernels, seconds, surprises = [], [], []
        for _ in range(30):
            with counting() as seen:
                seconds.append(virtual_step(step))
            kernels.append(seen.kernels_on("accelerator"))
            program = torch.hetero.explain().program
            surprises.append(program["measured_seconds"] / program["predicted_seconds"])
        return kernels, seconds, surprises

    kernels, seconds, surprises = run("auto")
    assert kernels[0] == kernels[3] == 26
    assert surprises[0] > 1.5
    assert surprises[-10:] == pytest.approx([1] * 10, rel=0.1)
    there, elsewhere = run("accelerator")[1][-1], run("cpu")[1][-1]
    assert seconds[-1] <= 1.02 * min(there, elsewhere)
    if slowdown == 4.0:
        assert kernels[-10:] == [26] * 10
    else:
        assert max(kernels[-10:]) <= 20
        assert seconds[-1] < 0.8 * seconds[3]


@pytest.mark.parametrize("placement", ["accelerator", "mixed"])
def test_batch_norm_in_inference_runs_on_the_accelerator(placement: str) -> None:
    torch.hetero.config.placement = placement
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()).eval()
    x = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        model.to(DEVICE)
        for _ in range(3):
            assert_same(model(x.to(DEVICE)).cpu(), expected)


# -- What is told ------------------------------------------------------------------------------------------------------


def planned_program() -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "mixed"
    x = fresh(torch.randn(32, 32))
    ((x @ x).relu().sin() + x).sum(0).cpu()


def test_explain_tells_device_reason_times_and_bytes() -> None:
    planned_program()
    report = torch.hetero.explain()
    program = report.program
    assert program["measured_seconds"] == pytest.approx(program["predicted_seconds"], rel=0.1)
    live = [node for node in program["nodes"] if node["live"]]
    assert {node["device"] for node in live} == {"cpu", "accelerator"}
    for node in live:
        assert node["reason"] == "requested" and node["bytes"] > 0
        assert node["measured"] == pytest.approx(node["predicted"], rel=0.1)
    text = str(report)
    assert "last program" in text and "accelerator h2d" in text and "aten::mm" in text
    assert "placements that were considered" in text


@pytest.mark.parametrize("fusion", [False, True])
def test_explain_agrees_with_itself_about_programs_of_the_cpu(fusion: bool) -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.placement = "cpu"
    torch.hetero.config.fusion = fusion
    model = Layers(3, 256).to(DEVICE)
    with torch.no_grad():
        for rows in (16, 16, 16, 64, 64, 64):  # also of sizes to which a plan was taken over
            before = _C.virtual_seconds()
            model(torch.randn(rows, 256).to(DEVICE)).cpu()
            passed = _C.virtual_seconds() - before
            program = torch.hetero.explain().program
            assert program["measured_seconds"] == pytest.approx(program["predicted_seconds"], rel=1e-4)
            assert passed == pytest.approx(program["measured_seconds"], rel=1e-4)
            spans = [span["measured_end"] - span["measured_begin"] for span in program["spans"]]
            assert sum(spans) == pytest.approx(program["measured_seconds"], rel=1e-4)
            for node in program["nodes"]:
                if node["live"] and node["measured"] is not None:
                    assert node["measured"] == pytest.approx(node["predicted"], rel=1e-4)


def test_explain_tells_what_a_fused_group_and_a_wait_for_a_weight_take() -> None:
    torch.hetero.config.keep_plans = True
    torch.hetero.config.fusion = True
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("1MiB")
    model = nn.Sequential(*(Block(256) for _ in range(10))).to(DEVICE)
    with torch.no_grad():
        for _ in range(3):  # what is seen for the first time runs unfused
            model(torch.randn(8, 256).to(DEVICE)).cpu()
    report = torch.hetero.explain()
    spans, nodes = report.program["spans"], {node["id"]: node for node in report.program["nodes"]}
    lines = [" ".join(line.split()) for line in str(report).splitlines()]
    groups = [span for span in spans if span["kind"] == "fused"]
    assert len(groups) == 10
    for span in groups:
        node = nodes[span["node"]]
        assert node["group"] is not None and node["device"] == "accelerator"
        seconds, measured = span["end"] - span["begin"], span["measured_end"] - span["measured_begin"]
        assert 0 < seconds == pytest.approx(measured, rel=0.1)
        figures = f"{1e6 * seconds:,.1f} us {1e6 * measured:,.1f} us {node['bytes']:,} bytes"
        stall = f"{1e6 * span['stall']:,.1f} us"
        assert f"accelerator compute {span['name']} requested {figures} {stall}" in lines
    # Weights have no place there: a product that does not find its own yet waits for the link.
    stalled = max((span for span in spans if span["kind"] == "run"), key=lambda span: span["stall"])
    assert stalled["stall"] > 0
    assert any(span["kind"] == "copy" and span["end"] == stalled["begin"] for span in spans)
    assert any(stalled["name"] in line and line.endswith(f" {1e6 * stalled['stall']:,.1f} us") for line in lines)


def test_report_and_trace_are_written(tmp_path: Path) -> None:
    torch.hetero._C.clear_program_log()
    torch.hetero.config.keep_plans = False
    with pytest.raises(RuntimeError, match="keep_plans"):
        torch.hetero.report(tmp_path / "none.html")
    planned_program()
    torch.hetero.report(tmp_path / "out.html")
    assert "aten::mm" in (tmp_path / "out.html").read_text()
    torch.hetero.trace(tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and event["name"] == "aten::mm" for event in events)


def test_simulate_predicts_time_and_memory_of_other_machines() -> None:
    model = Layers(8, 512).to(DEVICE)
    x = torch.randn(512, 512)
    size = sum(p.nbytes for p in model.parameters())

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(x.to(DEVICE)).cpu()

    expected = step()
    before = torch.hetero.config.as_dict()
    fast = torch.hetero.simulate(step, profile="h200")
    slow = torch.hetero.simulate(step, profile="pcie3-slow")
    assert torch.hetero.config.as_dict() == before
    with pytest.raises(ValueError, match="the profile of a machine, not None"):
        torch.hetero.simulate(step, profile=None)
    assert torch.hetero.config.as_dict() == before
    assert_same(fast.result, expected)
    assert 0 < fast.seconds < slow.seconds
    assert fast.peak_bytes >= size and fast.bytes_to_cpu >= expected.nbytes
    assert "h200" in str(fast) and "accelerator compute" in fast.queue_seconds
    tight = torch.hetero.simulate(step, profile="h200", budget=size // 3)
    assert tight.peak_bytes <= size // 3 and tight.seconds >= fast.seconds
    # The same program twice takes the same virtual time.
    assert torch.hetero.simulate(step, profile="h200").seconds == pytest.approx(fast.seconds, rel=1e-6)
    with pytest.raises(ValueError, match="no profile"):
        torch.hetero.simulate(step, profile="h9000")
    with pytest.raises(ZeroDivisionError):
        torch.hetero.simulate(lambda: 1 / 0, profile="tiny")
    assert torch.hetero.config.as_dict() == before


class Heads(torch.nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 8))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(x) for head in self.heads], dim=1)


def test_independent_branches_run_beside_each_other_on_compute_queues() -> None:
    model, x = Heads(4, 64), torch.randn(8, 64)
    with torch.no_grad():
        expected = model(x)
    model.to(DEVICE)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(x.to(DEVICE)).cpu()

    with torch.hetero.config.override(placement="accelerator", verify_plans=True, fusion=False):
        spread = torch.hetero.simulate(step, profile="h200")
        with torch.hetero.config.override(compute_queues=1):
            serial = torch.hetero.simulate(step, profile="h200")
    assert_same(spread.result, expected)
    assert_same(serial.result, expected)
    sides = [name for name in spread.queue_seconds if name.startswith("accelerator compute ")]
    assert len(sides) == 3
    assert not any(name.startswith("accelerator compute ") for name in serial.queue_seconds)
    # Four heads of some launches each take about as long as one; the copies stay.
    assert spread.queue_seconds["accelerator compute"] < 0.5 * serial.queue_seconds["accelerator compute"]
    assert spread.seconds < 0.7 * serial.seconds
    for wrong in ("0", "5", "many"):
        with pytest.raises(ValueError, match="from 1 to 4"):
            torch.hetero.config.compute_queues = wrong


def test_profiles_change_the_simulated_machine() -> None:
    profile = torch.hetero.use_profile("tiny")
    assert profile is not None
    assert torch.hetero._C.accelerator_stats()["limit_bytes"] == profile.accelerator.capacity_bytes
    x = fresh(torch.ones(4))
    for bad in ({"flop": 1.0}, {"slowdown": 0.0}, {"duration_spread": 2.0}):
        with pytest.raises(ValueError):
            torch.hetero.use_profile("tiny", **bad)
    assert_same((x + 1).cpu(), torch.full((4,), 2.0))


# -- What simulations leave behind, and what they see -----------------------------------------------------------------


def test_programs_of_the_cpu_move_the_virtual_clock_in_every_run() -> None:
    x = fresh(torch.randn(8, 8))
    times = []
    for _ in range(20):
        before = torch.hetero._C.virtual_seconds()
        (x @ x).tanh().cpu()
        times.append(torch.hetero._C.virtual_seconds() - before)
    assert min(times) > 0


@pytest.mark.parametrize("operator", (torch.unique, torch.nonzero, lambda x: torch.linalg.svd(x)[1]))
def test_operators_that_run_straight_take_simulated_time(operator: Callable[[torch.Tensor], torch.Tensor]) -> None:
    small, large = (fresh(torch.randn(n, n)) for n in (10, 300))
    seconds = [torch.hetero.simulate(lambda x=x: operator(x).cpu(), profile="tiny").seconds for x in (small, large)]
    assert 0 < seconds[0] < seconds[1]


def test_saved_programs_are_simulated_and_come_back() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    x = torch.randn(256, 512)
    torch.hetero.config.accelerator = "none"
    program = torch.hetero.compile(model, (x,))
    expected = program(x)
    there = torch.hetero.simulate(lambda: program(x), profile="rtx4090")
    assert there.seconds > 0 and there.bytes_to_accelerator == x.nbytes and there.bytes_to_cpu == expected.nbytes
    assert there.queue_seconds["accelerator compute"] > 0 and there.peak_bytes > 8 * 512 * 512 * 4
    on_cpu = torch.hetero.simulate(lambda: program(x), profile="rtx4090", budget="16KiB")
    assert on_cpu.seconds > there.seconds
    assert_same(program(x), expected)


def test_a_simulation_leaves_the_log_of_programs_and_the_peak() -> None:
    torch.hetero.config.keep_plans = True
    x = fresh(torch.randn(64, 64))
    (x @ x).cpu()
    before = torch.hetero.programs(), torch.hetero.explain().plan
    peak = torch.hetero.max_memory_allocated()
    predicted = torch.hetero.simulate(lambda: (x + 1).cpu(), profile="tiny")
    assert len(predicted.programs) == 1
    assert (torch.hetero.programs(), torch.hetero.explain().plan) == before
    assert torch.hetero.max_memory_allocated() >= peak


def test_simulations_on_two_threads_wait_for_each_other() -> None:
    x = fresh(torch.randn(128, 128))
    alone = {name: torch.hetero.simulate(lambda: (x @ x).cpu(), profile=name).seconds for name in ("h200", "tiny")}
    together: dict[str, float] = {}

    def simulate(name: str) -> None:
        together[name] = torch.hetero.simulate(lambda: (x @ x).cpu(), profile=name).seconds

    threads = [threading.Thread(target=simulate, args=(name,)) for name in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == pytest.approx(alone, rel=1e-6)
    assert (torch.hetero.config.accelerator, torch.hetero.config.keep_plans) == ("sim", False)


@pytest.mark.parametrize("profile", ["h200", "rtx4090"])
def test_a_step_whose_state_lies_on_the_host_comes_to_be_as_fast_as_on_the_accelerator_alone(profile: str) -> None:
    width, steps = 1024, 8

    def seconds_of_a_step(placement: str) -> float:
        torch.hetero.config.placement = placement
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(3)]
        model = nn.Sequential(*layers).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(32, width)

        def step() -> float:
            torch.hetero.synchronize()
            begin = torch.hetero._C.virtual_seconds()
            optimizer.zero_grad()
            model(x.to(DEVICE)).square().mean().backward()
            optimizer.step()
            torch.hetero.synchronize()
            return torch.hetero._C.virtual_seconds() - begin

        step()  # parameters, moments: on the host
        return torch.hetero.simulate(lambda: [step() for _ in range(steps)], profile=profile, warmup=0).result[-1]

    assert seconds_of_a_step("auto") <= 1.05 * seconds_of_a_step("accelerator")


# -- Batches that are made ahead ---------------------------------------------------------------------------------------


def look_at_each(model: nn.Module, batches: list[torch.Tensor], ahead: bool, device: str) -> tuple[list[float], float]:
    """Something of each batch, read before the next is computed, and the virtual seconds of the last one."""
    found, seconds = [], 0.0
    batch = batches[0].to(device)
    for following in [*batches[1:], batches[0]]:
        begin = _C.virtual_seconds()
        with torch.no_grad():
            mean = model(batch).mean()
        if ahead:
            batch = following.to(device)
        found.append(mean.item())
        if not ahead:
            batch = following.to(device)
        seconds = _C.virtual_seconds() - begin
    return found, seconds


@pytest.mark.parametrize("placement", ["accelerator", "auto"])
def test_a_batch_that_is_made_ahead_is_uploaded_while_the_one_before_is_computed(placement: str) -> None:
    torch.hetero.config.placement = placement
    batches = [torch.randn(4096, 256) for _ in range(12)]
    model = Layers(16, 256)
    expected, _ = look_at_each(model, batches, True, "cpu")
    model.to(DEVICE)
    results = {}
    for ahead in (False, True):
        torch.hetero.use_profile("rtx4090")
        with counting() as seen:
            results[ahead] = look_at_each(model, batches, ahead, DEVICE)
        assert seen.copies.get("uploads_ahead", 0) == (len(batches) if ahead else 0)
    assert results[True][0] == results[False][0]
    torch.testing.assert_close(results[True][0], expected, rtol=1e-4, atol=1e-6)
    upload = 6e-6 + batches[0].nbytes / 25e9
    assert results[True][1] < max(upload, results[False][1] - upload) * 1.1


def test_batches_that_are_made_ahead_stay_within_the_budget() -> None:
    torch.hetero.config.placement = "accelerator"
    torch.hetero.set_memory_budget("10MiB")
    batches = [torch.randn(1024, 256) for _ in range(6)]
    model = Layers(2, 256).to(DEVICE)
    with torch.no_grad():
        arrived = [batch.to(DEVICE) for batch in batches]
        torch.hetero.reset_peak_memory_stats()
        for batch, here in zip(batches, arrived, strict=True):
            assert_same(model(here).cpu(), copy.deepcopy(model).cpu()(batch))
    assert accelerator_peak() <= 10 * MIB


def test_a_batch_that_was_uploaded_ahead_may_be_changed_replaced_and_dropped() -> None:
    torch.hetero.config.placement = "accelerator"
    model = Layers(2, 128).to(DEVICE)
    with torch.no_grad():
        for round_ in range(6):
            first, second = torch.randn(64, 128), torch.randn(64, 128)
            here, ahead = first.to(DEVICE), second.to(DEVICE)
            model(here).sum().item()
            if round_ == 0:
                ahead += 1
                second += 1
            elif round_ == 1:
                ahead.copy_(first)
                second = first
            elif round_ == 2:
                ahead.resize_(32, 128)
                second = second[:32]
            elif round_ == 3:
                ahead.numpy()[:] = 3.0  # the bytes themselves
                second.fill_(3.0)
            elif round_ == 4:
                ahead.untyped_storage().copy_(first.untyped_storage())
                second = first
            else:
                del ahead
                ahead = second.to(DEVICE)
            assert_same((ahead * 2).cpu(), second * 2)
