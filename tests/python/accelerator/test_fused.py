"""Fused kernels on the simulated accelerator: the same bits and errors as on the CPU, within a budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import models
import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, fresh, needs_hetero
from simulated import MIB, Block, Layers, accelerator_peak
from torch import nn

pytestmark = [needs_hetero, pytest.mark.usefixtures("simulated_accelerator")]


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
