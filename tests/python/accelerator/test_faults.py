"""Small models whose device calls fail, one after the other, once and for ever.

Each model is built, run and read from the same seed every time. A run without faults counts its calls: allocations,
copies, launches and events of the accelerator, allocations of the CPU, reads and writes of spill files. Then every call
in turn (an even spread of them where there are many) fails in a run of its own. Such a run ends with the right error of
one sentence, or with the right bits where the failure can be made good; memory and files are back where they were; and
the next run, without a fault, has the bits of the first.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from counters import counting, snapshot
from helpers import DEVICE, assert_same, fresh, needs_hetero
from torch import nn
from torch.nn import functional

pytestmark = needs_hetero

KIB = 1 << 10
MOST_FAULTS = 1000  # of a kind, each once and for ever: all that these programs have
HANGS_AFTER = 120.0  # seconds; no test takes near as long
KINDS = ("allocation", "copy", "launch", "event record", "event wait")

Results = list[torch.Tensor]


@pytest.fixture(autouse=True)
def failing_devices() -> Iterator[None]:
    """Devices that fail on demand; a run that hangs ends the process with the stacks of its threads."""
    core, config = torch.hetero._C, torch.hetero.config
    cache_bytes = config.cache_bytes
    config.memory_budget = 0
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    core.heal("cpu")
    core.set_spill_faults(-1, False)
    core.remove_faults()
    config.cache_bytes = cache_bytes


def use_two_devices() -> None:
    """Each operator runs on a device of its own choice, by eager's kernels, so no failure changes bits."""
    config = torch.hetero.config
    config.fusion = False
    config.accelerator = "sim"
    config.placement = "mixed"
    interpose("cpu", "accelerator")


def use_the_cpu() -> None:
    """The CPU alone, with fused kernels."""
    torch.hetero.config.fusion = True
    torch.hetero.config.accelerator = "none"
    interpose("cpu")


def interpose(*devices: str) -> None:
    for device in devices:
        torch.hetero._C.interpose_faults(device)


# -- The models --------------------------------------------------------------------------------------------------------


def read(*tensors: torch.Tensor) -> Results:
    return [tensor.detach().cpu() for tensor in tensors]


def data(*sizes: int) -> torch.Tensor:
    return fresh(torch.randn(*sizes))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)).to(DEVICE)


def mlp_forward() -> Results:
    with torch.no_grad():
        return read(mlp()(data(8, 12)))


def mlp_training() -> Results:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(data(8, 12)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return read(*losses, *model.parameters())


def convolutions() -> Results:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 5)
    ).to(DEVICE)
    loss = functional.cross_entropy(model(data(2, 3, 8, 8)), fresh(torch.tensor([1, 3])))
    loss.backward()
    return read(loss, *(parameter.grad for parameter in model.parameters()), *model.buffers())


def transformer_layer() -> Results:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(DEVICE)
    output = layer(data(2, 5, 16))
    output.pow(2).sum().backward()
    return read(output, *(parameter.grad for parameter in layer.parameters()))


def embedding_and_loss() -> Results:
    table, head = nn.Embedding(30, 8).to(DEVICE), nn.Linear(8, 30).to(DEVICE)
    tokens = fresh(torch.randint(30, (2, 6)))
    loss = functional.cross_entropy(head(table(tokens)).flatten(0, 1), tokens.flatten())
    loss.backward()
    return read(loss, table.weight.grad, head.weight.grad)


def lstm() -> Results:
    model = nn.LSTM(6, 8, batch_first=True).to(DEVICE)
    output, (hidden, cell) = model(data(2, 4, 6))
    output.sum().backward()
    return read(output, hidden, cell, *(parameter.grad for parameter in model.parameters()))


def writes_through_views() -> Results:
    x, y = data(6, 6), data(6, 6)
    x[1].add_(1)
    x.t()[2:4].mul_(y[2:4])
    y[:, 0] = x.sum(1)
    window = y.view(36)[::7]
    window.copy_(x.diagonal() @ y)
    x.cumsum_(0)
    return read(x, y, window)


def streamed_weights() -> Results:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8))).to(DEVICE)
    with torch.no_grad(), torch.hetero.placement("accelerator"):
        for _ in range(2):
            result = model(data(4, 32))
    return read(result, model[0].weight)


def spilled_tensors() -> Results:
    kept = []
    for i in range(8):
        kept.append(fresh(torch.full((128 * KIB // 4,), float(i))) + 1)
        torch.hetero.flush()
    pairs = [(kept[i] * kept[7 - i]).sum().item() for i in range(4)]
    return [torch.tensor(pairs), *(read(tensor[:8])[0] for tensor in kept)]


def autocast() -> Results:
    model = mlp()
    with torch.autocast("hetero", dtype=torch.bfloat16):
        loss = functional.mse_loss(model(data(8, 12)).float(), data(8, 4))
    loss.backward()
    return read(loss, *(parameter.grad for parameter in model.parameters()))


def random_numbers() -> Results:
    noise = torch.randn(5, 5, device=DEVICE)
    kept = functional.dropout(data(40), 0.5)
    order = torch.randperm(9, device=DEVICE)
    drawn = torch.multinomial(noise.softmax(-1), 2)
    return read(noise, kept, order, drawn, torch.rand(3, device=DEVICE))


def loop_until_small() -> Results:
    x = data(6, 6)
    steps = 0
    while x.norm().item() > 0.1 and steps < 4:
        x = (x @ x.t()).tanh() * 0.2
        if bool((x > 0.15).any()):
            x = x - x.mean()
        steps += 1
    return [*read(x), torch.tensor(steps)]


MODELS: dict[str, Callable[[], Results]] = {
    "mlp": mlp_forward,
    "mlp training with Adam": mlp_training,
    "convolutions": convolutions,
    "transformer layer": transformer_layer,
    "embedding and loss": embedding_and_loss,
    "lstm": lstm,
    "writes through views": writes_through_views,
    "streamed weights": streamed_weights,
    "spilled tensors": spilled_tensors,
    "autocast": autocast,
    "random numbers": random_numbers,
    "loop until small": loop_until_small,
}


# -- The sweep ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One kind of call of one device; the disk is a device whose calls are reads and writes of spill files."""

    device: str
    kind: str

    def calls(self) -> int:
        core = torch.hetero._C
        return core.spill_operations() if self.device == "disk" else core.fault_counts(self.device)[self.kind][0]

    def fail(self, nth: int, for_ever: bool) -> None:
        core = torch.hetero._C
        if self.device == "disk":
            core.set_spill_faults(nth - 1, for_ever)
        else:
            core.fail(self.device, self.kind, nth, for_ever)

    def heal(self) -> None:
        core = torch.hetero._C
        core.set_spill_faults(-1, False) if self.device == "disk" else core.heal(self.device)

    def check(self, error: Exception) -> None:
        """The class and the sentence are those of the failure."""
        text = str(error)
        name = {"cpu": "cpu", "accelerator": "sim", "disk": "spill"}[self.device]
        assert text.strip() and "\n" not in text.strip(), text
        # A tensor that cannot leave the memory leaves too little of it.
        if self.kind == "allocation" or (self.device == "disk" and isinstance(error, torch.OutOfMemoryError)):
            assert type(error) is torch.OutOfMemoryError, repr(error)
            assert "out of memory. Tried to allocate" in text
            assert self.device == "disk" or name in text, text
            return
        assert type(error) is RuntimeError, repr(error)
        assert name in text and (self.device == "disk" or f"injected failure of a {self.kind}" in text), text


PLACES = (
    *(Place("accelerator", kind) for kind in KINDS),
    Place("cpu", "allocation"),
    Place("disk", "transfer"),
)


def resources() -> tuple[int, int, int]:
    """Bytes that live on each device, and open files, when nothing is pending."""
    memory, accelerator = torch.hetero._C.memory_stats(), torch.hetero._C.accelerator_stats()
    return memory["allocated_bytes"], accelerator["allocated_bytes"], len(os.listdir("/proc/self/fd"))


def assert_back_at(start: tuple[int, int, int]) -> None:
    if resources() != start:
        gc.collect()  # which takes as long as a run
    assert resources() == start


@dataclass
class Sweep:
    """All faults of one model, and what they did."""

    run: Callable[[], Results]
    places: tuple[Place, ...] = PLACES
    most: int = MOST_FAULTS
    # Fused kernels that get no memory are run one by one, which sums in another order.
    exact: bool = True
    injected: dict[Place, int] = field(default_factory=dict)
    errors: dict[Place, int] = field(default_factory=dict)

    def healthy(self) -> Results:
        torch.manual_seed(7)
        return self.run()

    def faulty(self, place: Place, nth: int, for_ever: bool) -> tuple[Results | None, Exception | None]:
        torch.manual_seed(7)
        place.fail(nth, for_ever)
        try:
            return self.run(), None
        except Exception as error:
            return None, error.with_traceback(None)
        finally:
            place.heal()

    def settle(self, place: Place) -> None:
        """What nobody read is run; the failure may be told here once more."""
        try:
            torch.hetero.flush()
        except Exception as error:
            place.check(error)

    def sweep(self) -> None:
        for _ in range(3):  # seen for the first time, planned, replayed
            expected = self.healthy()
        torch.hetero.flush()
        gc.collect()
        start = resources()
        for place in self.places:
            before = place.calls()
            assert_same(self.healthy(), expected)
            calls = place.calls() - before
            for nth in spread(calls, self.most):
                for for_ever in (False, True):
                    self.one(place, nth, for_ever, expected, start)

    def one(self, place: Place, nth: int, for_ever: bool, expected: Results, start: tuple[int, int, int]) -> None:
        about = f"{place.device}: {place.kind} {nth}{' and all later' if for_ever else ''}"
        before = place.calls()
        results, error = self.faulty(place, nth, for_ever)
        self.injected[place] = self.injected.get(place, 0) + (place.calls() - before >= nth)
        try:
            if error is None:
                assert_same(results, expected) if self.exact else torch.testing.assert_close(results, expected)
            else:
                self.errors[place] = self.errors.get(place, 0) + 1
                place.check(error)
            del results, error
            self.settle(place)
            assert_back_at(start)
            assert_same(self.healthy(), expected)
            torch.hetero.flush()
            assert_back_at(start)
        except Exception as failure:
            failure.add_note(about) if hasattr(failure, "add_note") else None
            raise


def spread(count: int, most: int) -> list[int]:
    """1 to count, or as many of them, evenly."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(i * (count - 1) / (most - 1)) for i in range(most)})


def limit(name: str, folder: str) -> None:
    config = torch.hetero.config
    if name == "streamed weights":
        config.placement = "accelerator"
        config.memory_budget = 8 * 32 * 33 * 4 // 3
    elif name == "spilled tensors":
        torch.hetero.empty_cache()
        config.placement = "cpu"
        config.spill = folder
        config.memory_limit = torch.hetero._C.memory_stats()["allocated_bytes"] + 512 * KIB


@pytest.mark.parametrize("name", MODELS)
def test_whatever_call_fails_the_error_is_right_nothing_leaks_and_the_next_run_is_right(name: str) -> None:
    use_two_devices()
    with tempfile.TemporaryDirectory() as folder:
        limit(name, folder)
        sweep = Sweep(MODELS[name])
        with counting() as seen:
            sweep.sweep()
        assert os.listdir(folder) == []
    injected = {f"{place.device} {place.kind}": sweep.injected.get(place, 0) for place in PLACES}
    if name == "spilled tensors":
        assert seen.storages_spilled > 0
        assert injected["disk transfer"] > 8 and injected["cpu allocation"] > 0
    else:
        assert all(injected[f"accelerator {kind}"] > 0 for kind in ("allocation", "copy", "launch")), injected
        assert injected["cpu allocation"] > 0, injected
    # Events are made good: the host waits in their stead.
    assert not any("event" in place.kind for place in sweep.errors)
    assert any(sweep.errors.values())


@pytest.mark.parametrize("name", MODELS)
def test_whatever_call_fails_in_a_program_that_was_never_seen_the_same_holds(name: str) -> None:
    use_two_devices()
    torch.hetero.config.cache_bytes = 0  # nothing is remembered
    with tempfile.TemporaryDirectory() as folder:
        limit(name, folder)
        sweep = Sweep(MODELS[name], most=4)
        with counting() as seen:
            sweep.sweep()
    assert seen.plans_replayed == 0
    assert any(sweep.errors.values())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("streamed weights", "spilled tensors")])
def test_whatever_allocation_fails_where_kernels_are_fused_the_same_holds(name: str) -> None:
    use_the_cpu()
    sweep = Sweep(MODELS[name], places=(Place("cpu", "allocation"),), exact=False)
    sweep.sweep()
    assert sum(sweep.injected.values()) > 0


def test_the_sweep_notices_wrong_results() -> None:
    use_two_devices()
    results = [torch.zeros(2)]
    sweep = Sweep(lambda: results)
    with pytest.raises(AssertionError):
        sweep.one(Place("cpu", "allocation"), 1, False, [torch.ones(2)], resources())


def test_faults_are_told_by_their_counts() -> None:
    use_two_devices()
    place = Place("accelerator", "launch")
    before = snapshot()["kernels"]["accelerator"]
    with torch.hetero.placement("accelerator"):
        (data(4, 4) @ data(4, 4)).cpu()
    assert place.calls() > 0 and snapshot()["kernels"]["accelerator"] > before
    failed = torch.hetero._C.fault_counts("accelerator")["launch"][1]
    place.fail(1, False)
    with torch.hetero.placement("accelerator"), pytest.raises(RuntimeError, match="sim: injected failure of a launch"):
        (data(4, 4) @ data(4, 4)).cpu()
    assert torch.hetero._C.fault_counts("accelerator")["launch"][1] == failed + 1
