"""Programs that Python saved give the same results in a C++ program, which has no Meta kernels of Python.

The programs are run by one process of `run_saved`, built against the installed package.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import needs_hetero
from saved_models import LAYERS, MODELS, example, graph_of, rewrite
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import torch_hetero

pytestmark = needs_hetero

HERE = Path(__file__).resolve().parent
Case = Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]


def floats(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(3))


def of(function: Any, *sizes: int) -> Case:
    return lambda: (function, (floats(*sizes),))


# Operators that only Python's Meta kernels describe, with rows and without.
OPERATORS: dict[str, Case] = {
    "multi-head attention": lambda: (nn.MultiheadAttention(16, 2, batch_first=True), (floats(1, 3, 16),) * 3),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(16, 2, batch_first=True), (floats(2, 4, 16),)),
    "cdist": of(lambda x: torch.cdist(x, x + 1), 4, 8),
    "pdist": of(functional.pdist, 4, 8),
    "rfft": of(lambda x: torch.fft.rfft(x).abs(), 3, 8),
    "irfft": of(lambda x: torch.fft.irfft(torch.fft.rfft2(x), n=6), 3, 8),
    "fft2": of(lambda x: torch.fft.fft2(x).real, 3, 8),
    "grid_sample": lambda: (lambda x, y: functional.grid_sample(x, y, align_corners=False),
                            (floats(1, 1, 4, 4), floats(1, 2, 2, 2))),
    "PReLU": of(nn.PReLU(), 4),
    "median": of(lambda x: x.median(-1), 4, 5),
    "median of all": of(torch.median, 4, 5),
    "nanmedian": of(lambda x: x.nanmedian(-1), 4, 5),
    "mode": of(lambda x: x.round().mode(-1), 4, 5),
    "kthvalue": of(lambda x: x.kthvalue(2), 4),
    "unfold": of(nn.Unfold(2), 1, 2, 4, 4),
    "fold": of(nn.Fold((4, 5), 2), 1, 12, 12),
    "bag of embeddings": lambda: (nn.EmbeddingBag(5, 3), (torch.tensor([[1, 2]]),)),
    "hardswish": of(nn.Hardswish(), 3, 4),
    "logical": of(lambda x: (torch.logical_and(x > 0, x < 1), torch.logical_not(x)), 3, 4),
    "nan_to_num": of(torch.nan_to_num, 3, 4),
    "searchsorted": of(lambda x: torch.searchsorted(x.sort(-1)[0], x), 3, 4),
    "count_nonzero": of(lambda x: x.relu().count_nonzero(1), 3, 4),
    "pixel_shuffle": of(nn.PixelShuffle(2), 1, 4, 2, 2),
    "channel_shuffle": of(nn.ChannelShuffle(2), 1, 4, 2, 2),
    "max_pool3d": of(nn.MaxPool3d(2), 1, 2, 4, 4, 4),
    "reflection": of(nn.ReflectionPad2d(1), 1, 2, 4, 4),
    "transposed convolution": of(nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), 1, 3, 5, 5),
    "grouped convolution": of(nn.Conv1d(4, 6, 3, groups=2, dilation=2, padding=2), 2, 4, 9),
    "convolution of volumes": of(nn.Conv3d(1, 2, 3, stride=2), 1, 1, 7, 7, 7),
    # Operands of which zeros are not tried.
    "large embedding": lambda: (nn.Embedding(300_000, 128), (torch.tensor([[1, 299_999]]),)),
    "large activations": of(
        lambda x: (functional.layer_norm(x, (64,)).relu().std(-1), functional.relu_(x + 1).sum(-1)), 100_000, 64),
    "large attention": of(lambda x: functional.scaled_dot_product_attention(x, x, x).sum(-1), 64, 8, 128, 64),
    "large convolution": of(nn.Conv2d(3, 32, 3), 1, 3, 400, 400),
}


def of_model(name: str) -> Case:
    def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        model, args, kwargs = example(name)
        return (lambda *args: model(*args, **kwargs)), args

    return make


CASES: dict[str, Case] = {
    **{name: of_model(name) for name in MODELS},
    **{f"layer {name}": lambda name=name: (LAYERS[name]()[0], (LAYERS[name]()[1],)) for name in LAYERS},
    **OPERATORS,
}


def folder_of(root: Path, name: str) -> Path:
    return root / re.sub(r"\W+", "_", name)


def save(make: Case, folder: Path) -> list[torch.Tensor]:
    """Saves a program with its inputs; returns what Python's program gives."""
    torch.manual_seed(0)
    model, args = make()
    if isinstance(model, nn.Module):
        model.eval()
    folder.mkdir()
    with torch.no_grad():
        program = torch.hetero.compile(model, args)
        program.save(folder / "m.hetero")
        for index, tensor in enumerate(args):
            (folder / f"input{index}").write_bytes(bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()))
        return [leaf for leaf in pytree.tree_leaves(program(*args)) if isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def run_saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    if shutil.which("cmake") is None:
        pytest.skip("the program needs CMake, which is not installed")
    build = tmp_path_factory.mktemp("run_saved")
    for command in (["-S", HERE / "run_saved", "-B", build, "-DCMAKE_BUILD_TYPE=Release",
                     f"-DCMAKE_PREFIX_PATH={torch_hetero.cmake_prefix_path}", f"-DPython3_EXECUTABLE={sys.executable}"],
                    ["--build", build]):
        done = subprocess.run(["cmake", *map(str, command)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    return lambda *folders: subprocess.run([build / "run_saved", *folders], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def results(run_saved: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Where the results are, what they should be, and what the program said."""
    root = tmp_path_factory.mktemp("programs")
    expected = {name: save(make, folder_of(root, name)) for name, make in CASES.items()}
    done = run_saved(*(folder_of(root, name) for name in CASES))
    assert done.returncode == 0, done.stdout + done.stderr
    return root, expected, done.stdout


@pytest.mark.parametrize("name", CASES)
def test_a_program_gives_in_cpp_what_it_gives_in_python(name: str, results: Any) -> None:
    root, expected, said = results
    folder = folder_of(root, name)
    assert f"{folder}: " not in said, said
    for index, tensor in enumerate(expected[name]):
        found = torch.frombuffer(bytearray((folder / f"output{index}").read_bytes()), dtype=tensor.dtype)
        assert_close(found.view(tensor.shape), tensor, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_an_operand_that_is_described_wrongly_is_an_error_of_the_run(run_saved: Any, tmp_path: Path) -> None:
    for name, old, new in [("cdist", r"-> (b\d+):f32\[4,4\]", r"-> \1:f32[2,8]"),
                           ("median", r"-> (b\d+):f32\[4\]", r"-> \1:f32[2,2]")]:
        path = tmp_path / name / "m.hetero"
        save(CASES[name], path.parent)
        graph = graph_of(path)
        changed = re.sub(old, new, graph)
        assert changed != graph, graph
        rewrite(path, {"graph.txt": changed.encode()})
        done = run_saved(path.parent)
        assert done.returncode == 0
        assert re.search("predicts an output of|to an operand that is", done.stdout), done.stdout


@pytest.mark.parametrize("name", ["multi-head attention", "rfft", "irfft", "cdist", "median", "grid_sample", "PReLU",
                                  "unfold", "transposed convolution", "bag of embeddings"])
def test_damaged_attributes_never_crash_a_cpp_program(name: str, run_saved: Any, tmp_path: Path) -> None:
    numbers = random.Random(5)
    save(CASES[name], tmp_path / "whole")
    graph = graph_of(tmp_path / "whole" / "m.hetero")
    attributes = list(re.finditer(r"\{((?:[0-9a-f]{2}){8,})\}", graph))  # not strides
    folders = []
    for index in range(60):
        found = numbers.choice(attributes)
        changed = bytearray.fromhex(found[1])
        place = numbers.randrange(len(changed))
        changed[place] = numbers.choice((0, 1, 2, 3, 127, 255, changed[place] ^ 1 << numbers.randrange(8)))
        folders.append(shutil.copytree(tmp_path / "whole", tmp_path / str(index)))
        rewrite(folders[-1] / "m.hetero",
                {"graph.txt": (graph[:found.start(1)] + changed.hex() + graph[found.end(1):]).encode()})
    done = run_saved(*folders)
    assert done.returncode == 0, done.stderr
    assert 0 < len(done.stdout.splitlines()) < len(folders)
