"""Patterns that models make and that fusion takes as one: within PyTorch's default tolerances of CPU, and taken.

Each pattern runs three times: at first sight, planned, and replayed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from counters import Seen, counting
from helpers import DEVICE, needs_hetero
from torch import Tensor, nn


def compare(build: Callable[[str], Callable[[], list[Tensor]]]) -> Seen:
    """Runs what `build` makes for a device, on CPU once and on hetero three times; returns what hetero counted."""
    expected = build("cpu")()
    run = build(DEVICE)
    with counting() as seen:
        for _ in range(3):
            actual = [tensor.cpu() for tensor in run()]
            torch.testing.assert_close(actual, expected)
    return seen


def module(make: Callable[[], nn.Module], device: str) -> nn.Module:
    torch.manual_seed(5)
    return make().to(device)


def random(*sizes: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(7)).to(dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_bias_and_activation_follow_a_product_as_one_kernel(rows: int, dtype: torch.dtype) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        linear = module(lambda: nn.Linear(160, 256, dtype=dtype), device)
        x, residual = (random(2, rows, n, device=device, dtype=dtype) for n in (160, 256))
        return lambda: [(F.gelu(linear(x)) + residual).detach()]

    # Tail, activation and sum; at first sight nothing is fused.
    assert compare(build).fused_nodes >= 2 * 3


def test_explain_says_why_a_pattern_was_not_taken() -> None:
    x, y = torch.randn(4, 6).to(DEVICE), torch.randn(4, 6).to(DEVICE)
    linear = nn.Linear(6, 8).to(DEVICE, torch.bfloat16)
    with counting() as seen:
        for _ in range(3):
            parts = torch.cat([x[:, :2] * 2, y.exp()], dim=1)
            many = torch.stack([x + 1] * 5)
            products = F.relu(linear(x.to(torch.bfloat16)))
            (parts.sum() + many.sum() + products.sum()).item()
    assert seen.unfused["aten::cat: parts of unequal sizes"] == 1
    assert seen.unfused["aten::stack: too many parts"] == 1
    assert seen.unfused["aten::addmm: a product that is scaled, or rounded after its bias only"] == 1
    report = str(torch.hetero.explain())
    assert "aten::cat: parts of unequal sizes" in report


@pytest.mark.parametrize("reduce", [lambda x: x.mean((2, 3)), lambda x: x.sum((2, 3)), lambda x: x.std((2, 3)),
                                    lambda x: x.amax((2, 3)), lambda x: torch.linalg.vector_norm(x, dim=(2, 3))])
def test_pixels_whose_channels_lie_together_are_reduced_as_they_lie(reduce: Callable[[Tensor], Tensor]) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        x = random(2, 24, 9, 7, device=device).contiguous(memory_format=torch.channels_last)
        return lambda: [reduce(F.silu(x))]

    seen = compare(build)
    assert sum(count for why, count in seen.unfused.items() if "pixels with their channels together" in why) == 1
    assert seen.fused_nodes == 0


def test_a_product_alone_keeps_its_bias() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        linear = module(lambda: nn.Linear(64, 64), device)
        x = random(10, 64, device=device)
        return lambda: [linear(x).softmax(0).detach()]

    assert "tail joined" not in compare(build).fusion


def test_training_through_a_product_with_bias_and_activation() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        model = module(lambda: nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8)), device)
        x = random(20, 32, device=device)

        def step() -> list[Tensor]:
            loss = model(x).square().mean()
            return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

        return step

    assert compare(build).fusion["tail joined"] >= 1


def test_what_a_bias_is_changed_to_counts() -> None:
    linear, x = nn.Linear(64, 300).to(DEVICE), torch.randn(9, 64).to(DEVICE)
    with torch.no_grad():
        for step in range(4):
            y = F.relu(linear(x))
            linear.bias.add_(1)
            expected = F.relu(F.linear(x.cpu(), linear.weight.cpu(), linear.bias.cpu() - 1))
            torch.testing.assert_close(y.cpu(), expected, msg=f"step {step}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_projections_of_one_input_run_together(tokens: int, dtype: torch.dtype) -> None:
    class Projections(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = nn.Linear(192, 256), nn.Linear(192, 128), nn.Linear(192, 128)
            self.gate, self.up = nn.Linear(192, 320, bias=False), nn.Linear(192, 320, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            heads = [project(x).softmax(-1) for project in (self.query, self.key, self.value)]
            return torch.cat([*heads, F.silu(self.gate(x)) * self.up(x)], dim=-1)

    def build(device: str) -> Callable[[], list[Tensor]]:
        model = module(Projections, device).to(dtype).requires_grad_(False)
        x = random(1, tokens, 192, device=device, dtype=dtype)
        return lambda: [model(x)]

    # Three with a bias and two without.
    assert compare(build).batched_nodes >= 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("indices", [torch.int64, torch.int32])
def test_embeddings_their_sum_and_norm_are_one_kernel(indices: torch.dtype, dtype: torch.dtype) -> None:
    class Embeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.position = nn.Embedding(97, 48, padding_idx=0), nn.Embedding(20, 48)
            self.norm = nn.LayerNorm(48)

        def forward(self, words: Tensor, positions: Tensor) -> Tensor:
            return self.norm(self.word(words) + self.position(positions))

    def build(device: str) -> Callable[[], list[Tensor]]:
        model = module(Embeddings, device).to(dtype).requires_grad_(False)
        words = torch.randint(97, (3, 7), generator=torch.Generator().manual_seed(1), dtype=indices).to(device)
        positions = torch.arange(7, dtype=indices).to(device)
        return lambda: [model(words, positions)]

    seen = compare(build)
    assert seen.fused_nodes >= 3


def test_embeddings_of_views_and_in_training() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        table = random(40, 64, device=device).requires_grad_()
        words = torch.randint(40, (5, 6), generator=torch.Generator().manual_seed(1)).to(device)

        def step() -> list[Tensor]:
            # Every second row, and half of each; indices across their rows.
            y = F.embedding(words.t(), table[::2, 32:].repeat(2, 1)) + F.embedding(words.t() // 2, table[::2, 32:])
            loss = (y * y).sum(-1).mean()
            return [y.detach(), loss.detach(), *torch.autograd.grad(loss, [table])]

        return step

    compare(build)


@pytest.mark.parametrize("wrong", [-1, 30, 2**40])
def test_an_index_outside_of_its_table_raises_what_cpu_raises(wrong: int) -> None:
    table, bias = torch.randn(30, 16).to(DEVICE), torch.randn(16).to(DEVICE)
    right = torch.arange(10).to(DEVICE)
    for index in (right, right, torch.tensor([1, 2, wrong, 4, 5, 6, 7, 8, 9, 10]).to(DEVICE)):
        y = F.embedding(index, table) + bias
        if index is right:
            torch.testing.assert_close(y.cpu(), table.cpu()[:10] + bias.cpu())
    with pytest.raises(IndexError, match="out of range"):
        y.cpu()
    torch.testing.assert_close((F.embedding(right, table) + bias).cpu(), table.cpu()[:10] + bias.cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "sizes", [(2, 6, 9, 7), (3, 4, 40), (5, 6), (2, 3, 4, 5, 6), (1, 3, 1, 1), (0, 3, 4, 4)], ids=str
)
def test_batch_norm_in_inference_joins_residual_and_activation(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(sizes)]
        norm = module(lambda: kind(sizes[1]), device).eval().to(dtype)
        with torch.no_grad():
            for parameter in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                parameter.copy_(torch.rand(sizes[1], generator=torch.Generator().manual_seed(3)) + 0.5)
        x, residual = (random(*sizes, device=device, dtype=dtype) for _ in range(2))
        return lambda: [F.relu(norm(x) + residual).detach()]

    seen = compare(build)
    assert seen.fused_nodes >= (3 if len(sizes) == 4 and min(sizes) > 1 else 0)


def test_batch_norm_of_other_layouts_and_without_parameters() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        x = random(2, 6, 8, 8, device=device)
        mean, variance = random(6, device=device), random(6, device=device).abs()

        def run() -> list[Tensor]:
            inputs = [x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, ::2]]
            return [F.relu(F.batch_norm(value, mean, variance)) for value in inputs]

        return run

    compare(build)


def test_gradients_through_batch_norm_in_inference() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        norm = module(lambda: nn.BatchNorm2d(5), device).eval()
        x = random(2, 5, 6, 6, device=device).requires_grad_()

        def step() -> list[Tensor]:
            loss = F.relu(norm(x)).square().mean()
            return [loss.detach(), *torch.autograd.grad(loss, [x, norm.weight, norm.bias])]

        return step

    compare(build)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotate", [rotate_half, rotate_pairs])
@pytest.mark.parametrize("normed", [False, True])
def test_rotary_embedding_is_one_kernel(normed: bool, rotate: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        q = random(1, 5, 4 * 32, device=device, dtype=dtype)
        angles = random(1, 5, 32, device=device)
        cosine, sine = (f(angles).to(dtype).unsqueeze(1) for f in (torch.cos, torch.sin))

        def run() -> list[Tensor]:
            heads = q.view(1, 5, 4, 32)
            if normed:
                heads = heads * torch.rsqrt(heads.float().square().mean(-1, keepdim=True) + 1e-6).to(dtype)
            heads = heads.transpose(1, 2)
            return [heads * cosine + rotate(heads) * sine]

        return run

    seen = compare(build)
    assert seen.fused_nodes >= 5
    # The norm, where there is one, is one more.
    assert replayed_kernels(build) == 1 + normed


def replayed_kernels(build: Callable[[str], Callable[[], list[Tensor]]]) -> int:
    run = build(DEVICE)
    for _ in range(4):
        with counting() as seen:
            for tensor in run():
                tensor.cpu()
    return seen.kernels


PIECES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda x, y: torch.cat([x.exp(), y * 2], dim=1) + 1,
    "cat, four": lambda x, y: torch.cat([x, y, x + y, x - y], dim=-1).relu() * 2,
    "cat, first dimension": lambda x, y: torch.cat([x * 2, y + 1]).sigmoid(),
    "cat of dtypes": lambda x, y: torch.cat([x * 2, (y + 1).to(torch.float64)]).neg(),
    "cat of itself": lambda x, y: torch.cat([x, x], dim=1).mul(2) + torch.cat([y, y], dim=1),
    "cat of unequal parts": lambda x, y: torch.cat([x[:, :2] * 2, y], dim=1).exp(),
    "stack": lambda x, y: torch.stack([x.exp(), y.neg()], dim=1).mul(3),
    "stack, last": lambda x, y: torch.stack([x + 1, y, x * y], dim=-1).abs(),
    "in place": lambda x, y: torch.cat([x * 1, y * 1], dim=1).add_(1).mul_(torch.cat([y, x], dim=1)),
    "halves swapped": lambda x, y: torch.cat([x.chunk(2, 1)[1] + 1, x.chunk(2, 1)[0] - 1], dim=1) * y,
    "halves of a result": lambda x, y: (lambda z: torch.cat([z[:, 3:] * 2, z[:, :3]], dim=1) + z)(x + y),
    "norm after it": lambda x, y: F.layer_norm(torch.cat([x * 2, y], dim=1), (12,)),
    "rows of it": lambda x, y: torch.cat([x * 2, y], dim=1).softmax(-1).sum(0),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_consists_of_equal_parts(name: str) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        x, y = random(4, 6, device=device), random(4, 6, device=device).flip(0)
        return lambda: [PIECES[name](x, y)]

    compare(build)


@pytest.mark.parametrize("name", [name for name in PIECES if name != "in place"])
def test_gradients_of_what_consists_of_equal_parts(name: str) -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        leaves = [random(4, 6, device=device).requires_grad_(), random(4, 6, device=device).flip(0).requires_grad_()]

        def step() -> list[Tensor]:
            return list(torch.autograd.grad(PIECES[name](*leaves).square().sum(), leaves))

        return step

    compare(build)


def test_the_part_that_a_gradient_is_counts() -> None:
    """The index of select_backward is a number of the call, and yet decides what the kernel computes."""
    for _ in range(3):
        for index in (0, 1, 2, -1, 1):
            results = []
            for device in ("cpu", DEVICE):
                x = random(3, 4, 8, device=device).requires_grad_()
                loss = (x * 2)[index].exp().sum() + (x * 3)[:, index + 1 : index + 2].sum()
                results.append(torch.autograd.grad(loss, [x])[0].cpu())
            torch.testing.assert_close(results[1], results[0])


def test_training_of_multi_head_attention() -> None:
    def build(device: str) -> Callable[[], list[Tensor]]:
        layer = module(lambda: nn.MultiheadAttention(32, 4, batch_first=True), device)
        x = random(2, 9, 32, device=device).requires_grad_()

        def step() -> list[Tensor]:
            loss = layer(x, x, x, need_weights=False)[0].square().mean()
            return [loss.detach(), *torch.autograd.grad(loss, [x, *layer.parameters()])]

        return step

    compare(build)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize(("bins", "least", "most"), [(10, 0, 0), (7, 3, 90), (8, 0, 8), (4, -5, 100)])
def test_a_histogram_of_integers_counts_exactly(dtype: torch.dtype, bins: int, least: int, most: int) -> None:
    """As mixtures of experts count their tokens; CUDA has it, the CPU has it for floats."""
    if dtype == torch.uint8 and least < 0:
        pytest.skip("no such number")
    values = torch.randint(0, 100, (500,), generator=torch.Generator().manual_seed(7)).to(dtype)
    expected = torch.histc(values.double(), bins, least, most).to(dtype)
    actual = torch.histc(values.to(DEVICE) if DEVICE == "hetero" else values.double(), bins, least, most)
    assert torch.equal(actual.cpu().to(dtype), expected)
    if DEVICE == "hetero":
        assert actual.dtype == dtype
        out = torch.empty(0, dtype=dtype, device=DEVICE)
        assert torch.equal(torch.histc(values.to(DEVICE), bins, least, most, out=out).cpu(), expected)


@needs_hetero
def test_a_histogram_of_equal_or_no_integers_is_cudas() -> None:
    assert torch.histc(torch.tensor([5, 5], device=DEVICE), 4).tolist() == [0, 0, 2, 0]
    assert torch.histc(torch.tensor([], dtype=torch.int32, device=DEVICE), 3).tolist() == [0, 0, 0]
    for arguments, sentence in (((0,), "bins must be > 0"), ((2, 5, 1), "max must be larger than min")):
        with pytest.raises(RuntimeError, match=sentence):
            torch.histc(torch.tensor([1], device=DEVICE), *arguments)
