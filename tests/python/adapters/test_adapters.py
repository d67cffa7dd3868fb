"""What other code assumes of a machine is true of hetero; CPU programs are what they are without it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, needs_hetero, run_python, run_python_ok
from torch import nn

# Programs that only use the CPU, and print.
CPU_PROGRAMS = {
    "data parallel": """
        torch.manual_seed(0)
        model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
        print(model(torch.ones(1, 2)), model.device_ids, model.module.weight.device)
        model(torch.ones(3, 2)).sum().backward()
        print(model.module.weight.grad, sorted(model.state_dict()))
    """,
    "process group": """
        import os
        import torch.distributed as dist
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
        dist.init_process_group(rank=0, world_size=1, store=dist.HashStore())
        x = torch.ones(3)
        dist.all_reduce(x)
        print(x, dist.get_backend(), dist.get_backend_config(), dist.group.WORLD._device_types)
        gathered = [None]
        dist.all_gather_object(gathered, {"a": 1})
        print(gathered)
        dist.destroy_process_group()
    """,
    "compile": """
        print(torch.compile(lambda x: x * 2 + 1, backend="eager")(torch.ones(3)))
    """,
}


@needs_hetero
@pytest.mark.parametrize("name", CPU_PROGRAMS)
def test_programs_that_use_the_cpu_are_what_they_are_without_hetero(name: str) -> None:
    lines = CPU_PROGRAMS[name].splitlines()
    code = "import torch\n" + "\n".join(line[8:] for line in lines)
    assert run_python_ok(code) == run_python_ok(code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


@needs_hetero
def test_a_version_that_has_other_names_is_imported_and_said_to_be_unknown(tmp_path: Path) -> None:
    package = tmp_path / "ultralytics"
    for folder in (package, package / "engine"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "engine" / "trainer.py").write_text("complete = True\n")
    out = run_python_ok(
        """
        import warnings
        import torch
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import ultralytics.engine.trainer
        print(ultralytics.engine.trainer.complete, *(warning.message for warning in seen))
        """,
        {"PYTHONPATH": str(tmp_path)},
    )
    assert out.startswith("True torch_hetero does not know this version of ultralytics.engine.trainer"), out


@needs_hetero
def test_each_row_of_the_table_names_a_function_of_an_adapter() -> None:
    from torch_hetero import adapters

    for row in set(adapters.ADAPTERS.values()):
        name, _, function = row.partition(":")
        assert callable(getattr(importlib.import_module(f"torch_hetero.adapters.{name}"), function or "apply")), row


@needs_hetero
def test_data_parallel_brings_inputs_to_a_model_on_hetero() -> None:
    plain = nn.Linear(3, 2)
    model = nn.DataParallel(nn.Linear(3, 2).to(DEVICE))
    model.module.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3)
    result = model(x)
    assert result.device.type == DEVICE
    torch.testing.assert_close(result.cpu(), plain(x))
    torch.testing.assert_close(nn.parallel.data_parallel(model.module, x, [0]).cpu(), plain(x))
    result.sum().backward()
    plain(x).sum().backward()
    torch.testing.assert_close(model.module.weight.grad.cpu(), plain.weight.grad)


@needs_hetero
def test_the_default_backend_of_compile_is_hetero_for_its_tensors() -> None:
    @torch.compile
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu() + torch.ones(3, device=x.device)

    x, y = torch.randn(3, 3), torch.randn(3, 3)
    expected = (x @ y).relu() + 1
    result = step(x.to(DEVICE), y.to(DEVICE))
    assert result.device.type == DEVICE
    torch.testing.assert_close(result.cpu(), expected)

    compiled = torch.compile(nn.Linear(3, 2).to(DEVICE), mode="max-autotune", dynamic=True)
    compiled(x.to(DEVICE)).sum().backward()
    made = torch.compile(lambda: torch.arange(5, device=DEVICE) * 2)
    assert made().tolist() == [0, 2, 4, 6, 8]


@needs_hetero
def test_without_adapters_nothing_is_changed() -> None:
    code = "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(4, device='hetero'))"
    done = run_python(code, {"HETERO_ADAPTERS": "0"})
    assert done.returncode != 0
    # Inductor of torch 2.15 looks the device up in a table before it asks the device's module.
    assert 'use torch.compile(backend="hetero")' in done.stderr or "KeyError: 'hetero'" in done.stderr


@needs_hetero
def test_safetensors_are_read_to_hetero(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file, load_model, save_file, save_model

    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.randn(4, 3), "b": torch.arange(5)}
    save_file({name: tensor.to(DEVICE) for name, tensor in tensors.items()}, path)
    for device in (DEVICE, f"{DEVICE}:0", torch.device(DEVICE)):
        loaded = load_file(path, device=device)
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].device.type == DEVICE
            assert loaded[name].cpu().equal(tensor)
    assert load_file(path)["a"].device.type == "cpu"
    with safetensors.safe_open(path, framework="pt", device=DEVICE) as file:
        assert sorted(file.keys()) == ["a", "b"]
        part = file.get_slice("a")
        assert part.get_shape() == [4, 3]
        assert part[1:3].device.type == DEVICE
        assert part[1:3].cpu().equal(tensors["a"][1:3])
    model = nn.Linear(3, 2).to(DEVICE)
    save_model(model, str(path))
    other = nn.Linear(3, 2).to(DEVICE)
    load_model(other, path, device=DEVICE)
    assert other.weight.cpu().equal(model.weight.cpu())


SEND = """
import torch, torch.multiprocessing as mp

def work(inbox, outbox):
    x, p = inbox.get()
    outbox.put((x.device.type, x.sum().item(), type(p).__name__, p.requires_grad, p.device.type))
    outbox.put(x * 2)
    inbox.get()

if __name__ == "__main__":
    context = mp.get_context("{method}")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(inbox, outbox))
    if "{order}" == "first":
        process.start()
    x = torch.arange(6.).to("{device}").view(2, 3).t()
    if "{order}" != "first":
        process.start()
    inbox.put((x, torch.nn.Parameter(x)))
    print(outbox.get(timeout=100))
    result = outbox.get(timeout=100)
    print(result.device.type, result.cpu().tolist())
    inbox.put(None)
    process.join()
    print(process.exitcode)
"""


@needs_hetero
@pytest.mark.parametrize(
    ("method", "order", "there"), [("spawn", "then", "hetero"), ("fork", "first", "hetero"), ("fork", "then", "cpu")]
)
def test_tensors_sent_to_another_process_arrive(method: str, order: str, there: str, tmp_path: Path) -> None:
    # A child that was forked after the device was used has no device: it gets tensors of the CPU.
    script = tmp_path / "send.py"
    script.write_text(SEND.format(method=method, order=order, device=DEVICE))
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, timeout=170)
    first, second, last = done.stdout.splitlines()
    assert first == str((there, 15.0, "Parameter", True, there))
    assert second == f"{there} {[[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]}"
    assert last == "0"


@needs_hetero
def test_a_loader_with_workers_gives_tensors_of_the_device() -> None:
    out = run_python_ok("""
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index), device=DEVICE)

total = 0
for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
    total += batch.sum().item()
print(batch.device.type, total)
""")
    assert out == f"{DEVICE} 56.0\n"


@needs_hetero
def test_a_module_that_imports_torch_first_is_adapted_when_it_is_complete(tmp_path: Path) -> None:
    library = tmp_path / "peft" / "utils"
    library.mkdir(parents=True)
    (library / "other.py").write_text("import torch\n\ndef infer_device():\n    return 'cpu'\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import peft.utils.other as other
print(other.infer_device(), type(other.__spec__).__name__)
"""
    assert run_python_ok(code).split() == ["hetero", "ModuleSpec"]
    assert run_python_ok(code, {"HETERO_ADAPTERS": "0"}).split() == ["cpu", "ModuleSpec"]
    (library / "other.py").write_text("import torch\n\nraise ValueError('not this one')\n")
    assert "not this one" in run_python(code).stderr
