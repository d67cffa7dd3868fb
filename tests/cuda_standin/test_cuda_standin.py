"""The way to a GPU without one: hetero and PyTorch on a stand-in for the CUDA runtime (standin_cuda.cpp).

Kernels compute nothing there but copies of pieces; they are counted; products, copies, streams, memory and graphs are real. So these tests
tell that kernels are started, where and on what, and not what they compute. run.sh runs them; without it they are
skipped. On a machine with a GPU they need no stand-in.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_hetero
from torch import nn

STANDIN = ctypes.CDLL(None) if "libstandin_cuda" in os.environ.get("LD_PRELOAD", "") else None
if not torch.cuda.is_available():
    pytest.skip("neither a GPU nor the stand-in for one (tests/cuda_standin/run.sh)", allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(autouse=True)
def cuda_is_the_accelerator() -> Iterator[None]:
    config = torch.hetero.config
    config.accelerator, config.placement, config.fusion = "cuda", "accelerator", False
    torch.hetero.set_memory_budget(0)
    torch.hetero.reset_counters()
    yield
    torch.hetero.set_memory_budget(0)
    torch.hetero.synchronize()


def launches_on_default_stream() -> int:
    return STANDIN.standin_launches_on_default_stream() if STANDIN else 0


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def trained(model: nn.Module, *sizes: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(sizes).to("hetero"), torch.randint(0, 10, sizes[:1]).to("hetero")
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    loss.item()


# -- In C++ ------------------------------------------------------------------------------------------------------------


def test_a_program_in_cpp_that_links_the_torch_of_the_cpu_finds_its_part_for_cuda(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("the program needs CMake, which is not installed")
    source = Path(__file__).parents[1] / "python/program/run_saved"
    without_stand_in = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for command in (["-S", source, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={torch_hetero.cmake_prefix_path}",
                     f"-DPython3_EXECUTABLE={sys.executable}"], ["--build", tmp_path]):
        subprocess.run(["cmake", *map(str, command)], env=without_stand_in, check=True, capture_output=True, timeout=300)
    # Its status is 2 where hetero does not start with the accelerator.
    subprocess.run([tmp_path / "run_saved"], env=os.environ | {"HETERO_ACCELERATOR": "cuda"}, check=True, timeout=300)


@pytest.mark.skipif(STANDIN is None, reason="a GPU runs the C++ tests as they are")
@pytest.mark.parametrize(
    "tests",
    [
        # What every device promises, and the CUDA device's own promises but for what kernels compute.
        ["hetero_backend_tests", "~a GPU runs fused kernels*"],
        # Executors, servers and pipelines; their unfused kernels run on the host, which asks the device for the bytes.
        ["hetero_graph_tests", "[accelerator]~a static program of fused groups*"],
    ],
    ids=lambda tests: tests[0],
)
def test_cpp_tests(tests: list[str]) -> None:
    built = Path(__file__).parents[2] / "build" / "standin"
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [built / tests[0], *tests[1:]],
        env=environment | {"HETERO_ACCELERATOR": "cuda"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "All tests passed" in done.stdout
    assert "there is no GPU" not in done.stdout and "no CUDA device" not in done.stdout


def test_a_graph_built_in_cpp_runs_in_the_order_of_a_stream() -> None:
    program = Path(__file__).parents[2] / "build" / "tests" / "ops" / "hetero_ops_tests"
    if not program.exists():
        pytest.skip("the C++ tests of ops/ are not built")
    # Linked with the CPU's library only.
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    done = subprocess.run(
        [program, "--gtest_filter=ComputeGraphVocabulary.ExecuteOnAStream"],
        env=os.environ | {"LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {library}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "[  PASSED  ] 1 test" in done.stdout and "SKIPPED" not in done.stdout


# -- Beside torch.cuda -------------------------------------------------------------------------------------------------


def test_cuda_stays_the_accelerator_of_pytorch() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_backward_on_cuda_on_hetero_and_across() -> None:
    for source, target in (("cuda", "cuda"), ("hetero", "hetero"), ("cuda", "hetero"), ("hetero", "cuda")):
        x = torch.randn(4, 4, device=source, requires_grad=True)
        (x.to(target) @ torch.ones(4, 4, device=target)).sum().backward()
        assert x.grad.device.type == source and x.grad.shape == (4, 4)


def test_training_on_cuda_with_hetero_imported() -> None:
    model = perceptron().cuda()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 32).cuda()).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.grad.device == parameter.device and parameter.grad.shape == parameter.shape
        assert optimizer.state[parameter]["step"].item() == 2
        if STANDIN is None:  # its kernels compute nothing
            assert parameter.isfinite().all() and not torch.equal(parameter, old)
    # None of it was hetero's.
    assert sum(torch.hetero.explain().nodes.values()) == 0 and torch.hetero.explain().kernels["accelerator"] == 0


# -- Operators ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_are_computed_there(dtype: torch.dtype) -> None:
    a, b, bias = torch.randn(8, 24).to(dtype), torch.randn(5, 24).to(dtype), torch.randn(5).to(dtype)
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-4
    for _ in range(2):
        found = F.linear(a.to("hetero"), b.to("hetero"), bias.to("hetero")).cpu()
        torch.testing.assert_close(found, F.linear(a, b, bias), rtol=tolerance, atol=tolerance)
        found = torch.bmm(a[None].to("hetero"), b.t()[None].to("hetero")).cpu()
        torch.testing.assert_close(found, a[None] @ b.t(), rtol=tolerance, atol=tolerance)
    assert torch.hetero.explain().kernels["accelerator"] >= 2


@pytest.mark.parametrize("fusion", [False, True])
def test_a_model_trains_by_kernels_on_the_queues_streams(fusion: bool) -> None:
    torch.hetero.config.fusion = fusion
    model = perceptron().to("hetero")
    trained(model, 8, 32)
    torch.hetero.reset_counters()
    before = launches_on_default_stream()
    trained(model, 8, 32)
    report = torch.hetero.explain()
    assert report.kernels["accelerator"] > 20 and report.rescues == {}
    assert launches_on_default_stream() == before


def test_attention_and_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).to("hetero")
    for _ in range(3):
        layer(torch.randn(2, 7, 32).to("hetero")).sum().backward()
        torch.hetero.synchronize()
    assert torch.hetero.explain().rescues == {}


def test_what_cuda_refuses_the_cpu_computes() -> None:
    a, b = torch.randint(0, 9, (4, 4)), torch.randint(0, 9, (4, 4))  # CUDA has no products of integers
    for _ in range(2):
        assert torch.equal((a.to("hetero") @ b.to("hetero")).cpu(), a @ b)
    assert any(refusal.startswith("aten::mm: ") for refusal in torch.hetero.explain().rescues)


# -- Memory ------------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_streamed() -> None:
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(8)])
    x = torch.randn(4, 256)
    with torch.no_grad():
        expected = model(x)
        model.to("hetero")
        torch.hetero.set_memory_budget("1MiB")
        for _ in range(3):
            found = model(x.to("hetero")).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.hetero._C.accelerator_stats()["allocated_bytes"] <= MIB


def test_weights_that_are_streamed_are_page_locked_where_they_lie() -> None:
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(6)])
    x = torch.randn(2, 1024)
    with torch.no_grad():
        expected = model(x)
        with torch.hetero.placement("cpu"):  # which makes them in memory of hetero's own
            for layer in model:
                layer.weight.data = layer.weight.data.to("hetero") * 1
        torch.hetero.synchronize()
        torch.hetero.set_memory_budget("12MiB")
        for _ in range(4):
            found = model(x.to("hetero")).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert torch.hetero._C.locked_host_ranges() > 0
    del model, layer
    torch.hetero.synchronize()
    torch.hetero.empty_cache()
    assert torch.hetero._C.locked_host_ranges() == 0


@pytest.mark.skipif(STANDIN is None, reason="sets the size of the stand-in's memory")
def test_memory_that_pytorch_keeps_is_given_back() -> None:
    x = torch.randn(512, 512)
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del kept  # PyTorch's allocator has it now
    STANDIN.standin_memory_used.restype = ctypes.c_size_t
    STANDIN.standin_set_memory_limit.argtypes = [ctypes.c_size_t]
    STANDIN.standin_set_memory_limit(STANDIN.standin_memory_used() + MIB)
    try:
        y = x.to("hetero")
        for _ in range(4):
            y = torch.cat([y, y])
        assert torch.equal(y.cpu()[:512], y.cpu()[:512])
    finally:
        STANDIN.standin_set_memory_limit(8192 * MIB)


# -- Programs ----------------------------------------------------------------------------------------------------------


def test_a_saved_program_runs_and_is_recorded_as_graphs() -> None:
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Linear(64, 10, bias=False)).eval()
    x = torch.randn(8, 32)
    program = torch.hetero.compile(model, (x,))
    for _ in range(12):
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


def graph_launches() -> int:
    return STANDIN.standin_graph_launches() if STANDIN else 0


@pytest.mark.parametrize("compiled", [False, True])
def test_a_program_that_runs_again_and_again_becomes_graphs(compiled: bool) -> None:
    """Products are computed: a graph with a stale address would show."""
    model = nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(6)))
    there = torch.nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(6))).to("hetero")
    there.load_state_dict(model.state_dict())
    called = torch.compile(there, backend="hetero") if compiled else there
    before = graph_launches()

    def check(times: int) -> None:
        for _ in range(times):
            x = torch.randn(8, 24)
            with torch.no_grad():
                torch.testing.assert_close(called(x.to("hetero")).cpu(), model(x), rtol=1e-4, atol=1e-5)

    def check_until_there_are_more() -> int:
        """How long costs are learned, and plans made anew, depends on the machine's times."""
        segments = torch.hetero._C.counters()["segments"]
        for _ in range(25):
            check(20)
            if torch.hetero._C.counters()["segments"] > segments:
                break
        return torch.hetero._C.counters()["segments"] - segments

    segments = check_until_there_are_more()
    assert segments > 0
    assert not STANDIN or graph_launches() - before == segments
    weight = torch.randn(24, 24)
    model[2].weight = nn.Parameter(weight.clone())
    there[2].weight = nn.Parameter(weight.to("hetero"))
    assert check_until_there_are_more() > 0


@pytest.mark.parametrize("where", ["cuda", "hetero", "cpu"])
def test_torch_compile_takes_tensors_of_every_device(where: str) -> None:
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Linear(64, 10, bias=False))
    x = torch.randn(8, 32)
    expected = model(x)
    expected.backward(torch.ones(8, 10))
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.to(where)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="hetero")
    for _ in range(3):
        model.zero_grad()
        found = compiled(x.to(where))
        found.backward(torch.ones(8, 10).to(where))
    assert found.device.type == where
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-4, atol=1e-4)
    report = torch.hetero.explain()
    assert report.compiled["calls"] >= 4 and report.compiled["refused"] == {}


def test_a_compiled_function_writes_its_cuda_arguments() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda s, a, b: s.copy_(a @ b).t(), backend="hetero")
    state, a, b = torch.zeros(4, 5), torch.randn(4, 3), torch.randn(3, 5)
    there = state.cuda()
    for _ in range(3):
        view = compiled(there, a.cuda(), b.cuda())
    assert view.device.type == "cuda" and view.data_ptr() == there.data_ptr()
    assert torch.hetero.explain().compiled["refused"] == {}


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sort": lambda x: x.sort()[0],
    "index": lambda x: x[torch.tensor([1, 2], device=x.device)],
    "cumsum": lambda x: torch.cat([x[::2, 1:], x[:4, 1:]]).cumsum(1),
    "softmax": lambda x: x.softmax(1).log(),
    "empty": lambda x: x[:0] @ x.t(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_are_started_there(name: str) -> None:
    x = torch.randn(8, 32).to("hetero")
    for _ in range(3):
        FUNCTIONS[name](x).cpu()
    assert torch.hetero.explain().rescues == {}
