"""accelerate: programs that name no device run on hetero, and those that ask for the CPU do not."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DynamoBackend, find_executable_batch_size
from tiny import devices, recording
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 32


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """accelerate keeps its choice for the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))


def data(count: int = 26) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(count, WIDTH, generator=generator), torch.randint(3, (count,), generator=generator)
    )


def train(accelerator: Accelerator, steps: int = 6) -> tuple[nn.Module, list[float]]:
    """The loop of accelerate's documentation, with gradients of two batches."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, DataLoader(data(), 4), scheduler)
    losses = []
    for x, y in list(loader)[:steps]:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return accelerator.unwrap_model(net, keep_torch_compile=False), losses


def on_cpu(**chosen: Any) -> tuple[nn.Module, list[float]]:
    AcceleratorState._reset_state(reset_partial_state=True)
    result = train(Accelerator(cpu=True, **chosen))
    AcceleratorState._reset_state(reset_partial_state=True)
    return result


def test_accelerator_picks_hetero_and_trains_as_on_the_cpu() -> None:
    expected, expected_losses = on_cpu(gradient_accumulation_steps=2)
    assert devices(expected) == {"cpu"}
    accelerator = Accelerator(gradient_accumulation_steps=2)
    assert accelerator.device == torch.device("hetero")
    with recording(100):
        trained, losses = train(accelerator)
    assert devices(trained) == {"hetero"}
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(trained.cpu().state_dict(), expected.state_dict())


def test_a_program_that_asks_for_the_cpu_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Accelerator(cpu=True).device == torch.device("cpu")
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert Accelerator().device == torch.device("cpu")
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert PartialState().device == torch.device("cpu")


@pytest.mark.parametrize("precision, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_mixed_precision_computes_in_that_type(precision: str, dtype: torch.dtype) -> None:
    accelerator = Accelerator(mixed_precision=precision)
    assert (accelerator.scaler is not None) == (precision == "fp16")
    seen = []
    net = model()
    net[0].register_forward_hook(lambda module, inputs, output: seen.append((output.dtype, output.device.type)))
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(data(), 4))
    first = last = None
    with recording(100):
        for _ in range(4):
            for x, y in loader:
                output = net(x)
                assert output.dtype == torch.float32  # accelerate converts what a prepared model returns
                loss = nn.functional.cross_entropy(output, y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                first, last = loss.item() if first is None else first, loss.item()
    assert set(seen) == {(dtype, "hetero")}
    assert last < first
    assert not accelerator.optimizer_step_was_skipped
    with torch.no_grad(), accelerator.autocast():
        assert accelerator.unwrap_model(net)[2].weight.matmul(torch.ones(WIDTH, device="hetero")).dtype == dtype
    with torch.autocast("cpu", dtype):
        expected = model()(data()[:][0][:4])
    torch.testing.assert_close(
        model().to("hetero")(data()[:][0][:4].to("hetero")).cpu(), expected.float(), rtol=0.05, atol=0.05
    )


def test_the_gradient_scaler_is_hetero_s_and_its_state_is_saved(tmp_path: Path) -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    net, optimizer = accelerator.prepare(net := model(), torch.optim.SGD(net.parameters(), lr=0.1))
    assert accelerator.scaler._device == "hetero"
    # A gradient that overflows: the step is skipped and the scale halved.
    before = accelerator.scaler.get_scale()
    accelerator.backward(net(torch.full((2, WIDTH), 60000.0, device="hetero")).sum() * 1e4)
    optimizer.step()
    assert accelerator.optimizer_step_was_skipped
    assert accelerator.scaler.get_scale() == before / 2
    accelerator.save_state(tmp_path)
    accelerator.scaler.update(8.0)
    accelerator.load_state(tmp_path)
    assert accelerator.scaler.get_scale() == before / 2


@pytest.mark.parametrize("backend", ["hetero", "inductor"])
def test_dynamo_backends_compile_for_hetero(backend: str) -> None:
    expected, expected_losses = on_cpu()
    accelerator = Accelerator(dynamo_backend=backend)
    assert DynamoBackend(backend.upper()) in DynamoBackend.list()
    with recording():
        before = torch.hetero.explain().compiled["calls"]
        trained, losses = train(accelerator)
        assert torch.hetero.explain().compiled["calls"] > before
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(trained.cpu().state_dict(), expected.state_dict())


def test_the_batch_size_is_lowered_until_it_fits() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=64)
    def run(batch_size: int) -> float:
        tried.append(batch_size)
        x = torch.ones(batch_size, 1 << 18, device="hetero")
        return (x * 2).cumsum(1)[0, 0].item()

    with torch.hetero.config.override(memory_limit=torch.hetero.memory_allocated() + (100 << 20)):
        assert run() == 2
    assert tried[0] == 64 and 1 < tried[-1] < 64


def test_other_errors_do_not_lower_the_batch_size() -> None:
    @find_executable_batch_size(starting_batch_size=64)
    def run(batch_size: int) -> None:
        torch.ones(batch_size, device="hetero") + torch.ones(batch_size + 1, device="hetero")

    with pytest.raises(RuntimeError, match="must match"):
        run()


def test_save_state_and_load_state_restore_all(tmp_path: Path) -> None:
    accelerator = Accelerator()
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(data(), 4))

    def steps() -> dict[str, torch.Tensor]:
        for x, y in loader:
            accelerator.backward(nn.functional.cross_entropy(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
        return {name: tensor.cpu() for name, tensor in copy.deepcopy(net).state_dict().items()}

    steps()
    accelerator.save_state(tmp_path)
    expected = steps()
    accelerator.load_state(tmp_path)
    assert devices(net) == {"hetero"}
    assert {tensor.device.type for state in optimizer.state.values() for tensor in state.values() if tensor.dim()} == {
        "hetero"
    }
    # Dropout too: the checkpoint has the device's random state.
    torch.testing.assert_close(steps(), expected, rtol=0, atol=0)


def test_gather_for_metrics_gives_each_sample_once() -> None:
    accelerator = Accelerator()
    net, loader = accelerator.prepare(model().eval(), DataLoader(data(), 4))
    seen = []
    with torch.no_grad():
        for x, y in loader:
            predictions, references = accelerator.gather_for_metrics((net(x).argmax(-1), y))
            assert predictions.device.type == references.device.type == "hetero"
            seen.append((predictions, references))
    predictions, references = (torch.cat(parts).cpu() for parts in zip(*seen, strict=True))
    x, y = data()[:]
    torch.testing.assert_close(references, y)
    torch.testing.assert_close(predictions, model()(x).argmax(-1))
    assert accelerator.reduce(torch.ones(2, device="hetero")).tolist() == [1, 1]
    assert accelerator.pad_across_processes(torch.ones(2, device="hetero")).tolist() == [1, 1]


def test_the_device_map_that_is_found_is_hetero() -> None:
    with accelerate.init_empty_weights():
        empty = model()
    assert accelerate.infer_auto_device_map(empty) == {"": 0}
    sizes = accelerate.utils.get_max_memory()
    assert sizes[0] == pytest.approx(torch.hetero.mem_get_info()[0], rel=0.1)
    assert "cpu" not in sizes  # the same memory
    assert list(accelerate.utils.get_max_memory({"cpu": "1GB", 0: "5KB"}).items()) == [(0, 5000), ("cpu", 10**9)]
    # Room for the largest layer is kept free.
    split = accelerate.infer_auto_device_map(empty, {0: "8.5KB", "cpu": "1GB"})
    assert split == {"0": 0, "1": 0, "2": "cpu", "3": "cpu", "4": "cpu"}
    assert accelerate.utils.get_balanced_memory(empty)[0] > 0


@pytest.mark.parametrize("where", [{"": 0}, {"": "hetero"}, {"0": 0, "1": 0, "2": "hetero", "3": 0, "4": 0},
                                   {"0": 0, "1": 0, "2": "cpu", "3": "cpu", "4": "disk"}])
def test_a_dispatched_model_computes_on_hetero(where: dict[str, Any], tmp_path: Path) -> None:
    x = torch.randn(4, WIDTH)
    expected = model()(x)
    net = accelerate.dispatch_model(model(), where, offload_dir=tmp_path, main_device=0)
    with recording(3):
        result = net(x.to("hetero"))
    assert result.device.type == "hetero"
    torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.parametrize("offload", [accelerate.cpu_offload, accelerate.disk_offload])
def test_offloaded_models_compute_on_hetero(offload: Any, tmp_path: Path) -> None:
    x = torch.randn(4, WIDTH)
    expected = model()(x)
    where = {} if offload is accelerate.cpu_offload else {"offload_dir": tmp_path}
    net = offload(model(), execution_device=torch.device("hetero"), **where)
    assert devices(net) == {"meta"}
    with recording(3):
        for _ in range(2):
            torch.testing.assert_close(net(x).cpu(), expected)
    assert devices(net) == {"meta"}


@pytest.mark.parametrize("where", ["auto", {"": "hetero"}, {"0": 0, "1": 0, "2": 0, "3": 0, "4": "cpu"}])
def test_load_checkpoint_and_dispatch_places_the_weights(where: Any, tmp_path: Path) -> None:
    Accelerator().save_model(model(), tmp_path)
    with accelerate.init_empty_weights():
        empty = model()
    net = accelerate.load_checkpoint_and_dispatch(empty, tmp_path, device_map=where)
    assert net[0].weight.device.type == "hetero"
    x = torch.randn(4, WIDTH)
    torch.testing.assert_close(net(x.to("hetero")).cpu(), model()(x))


def test_hooks_are_removed_with_hetero_s_own_method() -> None:
    net = accelerate.dispatch_model(model(), {"0": 0, "1": 0, "2": 0, "3": 0, "4": "cpu"})
    accelerate.hooks.remove_hook_from_module(net, recurse=True)
    assert devices(net.hetero()) == {"hetero"}


def test_split_processes_and_seeds_are_those_of_one_process() -> None:
    state = PartialState()
    with state.split_between_processes([1, 2, 3]) as mine:
        assert mine == [1, 2, 3]
    accelerate.utils.set_seed(3)
    first = torch.rand(3, device="hetero").tolist()
    accelerate.utils.set_seed(3)
    assert torch.rand(3, device="hetero").tolist() == first


@pytest.mark.parametrize("chosen, expected", [
    ([], "hetero no NO"),
    (["--cpu"], "cpu no NO"),
    (["--mixed_precision", "bf16", "--dynamo_backend", "hetero"], "hetero bf16 HETERO"),
], ids=["nothing chosen", "the CPU", "options"])
def test_accelerate_launch_starts_programs_on_hetero(chosen: list[str], expected: str, tmp_path: Path) -> None:
    # The program imports accelerate first, which imports torch while it is being imported.
    program = tmp_path / "program.py"
    program.write_text(
        "from accelerate import Accelerator\n"
        "made = Accelerator()\n"
        "print('made:', made.device, made.mixed_precision, made.state.dynamo_plugin.backend)\n"
    )
    assert f"made: {expected}" in run("-m", "accelerate.commands.launch", *chosen, str(program))


def test_without_adapters_nothing_is_changed() -> None:
    program = "from accelerate import Accelerator; print('made:', Accelerator().device)"
    assert "made: cpu" in run("-c", program, HETERO_ADAPTERS="0")


def run(*arguments: str, **environment: str) -> str:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": root, **environment}, capture_output=True,
        text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
