"""Importing: found by `import torch` alone, harmless to other programs, clear when it cannot be."""

from __future__ import annotations

import statistics
import time

import pytest
from helpers import needs_hetero, run_python, run_python_ok

pytestmark = needs_hetero


def test_import_torch_alone_is_enough() -> None:
    out = run_python_ok("import torch; print(torch.ones(2, device='hetero').sum().item())")
    assert out == "2.0\n"


def test_autoload_can_be_turned_off() -> None:
    code = """
    import sys, torch
    print("torch_hetero" in sys.modules, hasattr(torch, "hetero"))
    try:
        torch.ones(2, device="hetero")
    except RuntimeError as error:
        print("refused")
    """
    out = run_python_ok(code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert out == "False False\nrefused\n"


def test_without_autoload_an_explicit_import_works() -> None:
    code = "import torch, torch_hetero; print(torch.ones(2, device='hetero').sum().item())"
    assert run_python_ok(code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}) == "2.0\n"


@pytest.mark.parametrize("first", ("import torch_hetero, torch", "import torch, torch_hetero"))
def test_either_import_may_come_first(first: str) -> None:
    assert run_python_ok(first + "; print(torch.hetero.is_available())") == "True\n"


def test_import_leaves_the_autoload_variable_alone() -> None:
    code = "import os, torch; print(os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
    assert run_python_ok(code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}) == "1\n"


WRONG_VERSION = """
import torch
real = torch.__version__
torch.__version__ = torch.torch_version.TorchVersion("{version}")
torch.version.__version__ = "{version}"
try:
    import torch_hetero
    print("imported")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("version", ("1.13.1", "2.4.0", "9.9.9"))
def test_a_wrong_torch_version_gives_one_clear_sentence(version: str) -> None:
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = run_python(WRONG_VERSION.format(version=version), off)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1
    assert version in lines[0] and "torch" in lines[0] and "hetero" in lines[0]


def test_import_prints_nothing() -> None:
    done = run_python("import torch, torch_hetero")
    assert done.returncode == 0 and done.stdout == ""
    noise = [line for line in done.stderr.splitlines() if "CUDA" not in line]
    assert noise == []


CPU_PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                      nn.Dropout(0.3), nn.Linear(144, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(2):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))
    loss.backward()
    optimizer.step()
with torch.autocast("cpu", dtype=torch.bfloat16):
    mixed = model(torch.randn(2, 3, 8, 8))
print(loss.item(), mixed.float().sum().item(), torch.rand(2).tolist())
print(sum(p.double().sum().item() for p in model.parameters()))
print(torch.get_default_device(), torch.is_grad_enabled(), torch.get_num_threads())
print(torch.__future__.get_swap_module_params_on_conversion(), torch.get_default_dtype())
print(torch.initial_seed(), torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled())
print(repr(torch.ones(2)), torch.ones(2).is_pinned(), torch.cuda.is_available())
"""


def test_cpu_only_programs_give_the_same_output_with_and_without_hetero() -> None:
    without = run_python_ok(CPU_PROGRAM, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert run_python_ok(CPU_PROGRAM) == without


def test_cpu_only_programs_record_nothing() -> None:
    code = CPU_PROGRAM + "\nfrom counters import snapshot\nprint(snapshot()['nodes'])"
    last = run_python_ok(code).strip().splitlines()[-1]
    assert all(count == 0 for count in eval(last).values())


def test_a_default_import_does_not_initialize_the_device() -> None:
    assert run_python_ok("import torch; print(torch.hetero.is_initialized())") == "False\n"


def test_import_adds_little_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the figure; `make bench` judges it. Only a gross failure, such as a build, fails."""
    seconds: dict[str, list[float]] = {"0": [], "1": []}
    for _ in range(3):
        for autoload, times in seconds.items():
            start = time.perf_counter()
            run_python_ok("import torch", {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload})
            times.append(time.perf_counter() - start)
    extra = statistics.median(seconds["1"]) - statistics.median(seconds["0"])
    with capsys.disabled():
        print(f"\nimport torch with autoload: {extra * 1000:+.0f} ms")
    modules = run_python_ok("import sys, torch; print(' '.join(sys.modules))").split()
    heavy = {"torchvision", "transformers", "torch._inductor", "torch._dynamo", "sympy", "torch_hetero.demo"}
    assert not heavy & set(modules)
