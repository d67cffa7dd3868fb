"""``hetero::routed_mlp``: the experts of a mixture, each computed for the tokens that chose it."""

from __future__ import annotations

import pytest
import torch
from counters import counting
from helpers import needs_hetero
from torch import Tensor
from torch.nn import functional as F

import torch_hetero  # noqa: F401


def mixture(tokens: int, chosen: int, experts: int, dtype: torch.dtype, hidden: int = 24, width: int = 16) -> list:
    generator = torch.Generator().manual_seed(tokens * 31 + experts)

    def numbers(*sizes: int) -> Tensor:
        return (torch.randn(sizes, generator=generator) * 0.3).to(dtype)

    picks = (
        torch.stack([torch.randperm(experts, generator=generator)[:chosen] for _ in range(tokens)])
        if tokens
        else (torch.zeros(0, chosen, dtype=torch.int64))
    )
    shares = torch.softmax(numbers(tokens, chosen).float(), -1).to(dtype)
    lists = [[numbers(*sizes) for _ in range(experts)] for sizes in ((width, hidden), (width, hidden), (hidden, width))]
    return [numbers(tokens, hidden), picks, shares, *lists]


def expected(x: Tensor, picks: Tensor, shares: Tensor, gate: list, up: list, down: list) -> Tensor:
    result = torch.zeros_like(x, dtype=torch.float32)
    for t in range(x.shape[0]):
        for k in range(picks.shape[1]):
            e = int(picks[t, k])
            mlp = F.linear(F.silu(F.linear(x[t], gate[e])) * F.linear(x[t], up[e]), down[e])
            result[t] += shares[t, k].float() * mlp.float()
    return result.to(x.dtype)


def moved(arguments: list) -> list:
    return [[w.to("hetero") for w in a] if isinstance(a, list) else a.to("hetero") for a in arguments]


@needs_hetero
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("tokens", "chosen", "experts"), [(1, 2, 8), (5, 3, 4), (40, 2, 3), (7, 1, 1), (0, 2, 4)])
def test_each_token_gets_the_experts_that_it_chose(tokens: int, chosen: int, experts: int, dtype: torch.dtype) -> None:
    arguments = mixture(tokens, chosen, experts, dtype)
    made = torch.ops.hetero.routed_mlp(*arguments)
    bound = 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2
    torch.testing.assert_close(made, expected(*arguments), rtol=bound, atol=bound)
    there = moved(arguments)
    with counting() as seen:
        recorded = torch.ops.hetero.routed_mlp(*there)
    assert (seen.recorded, seen.straight) == (1, 0)
    assert torch.equal(recorded.cpu(), made)


@needs_hetero
def test_experts_that_nobody_chose_are_not_read() -> None:
    x, picks, shares, gate, up, down = mixture(3, 2, 8, torch.float32)
    chosen = set(picks.flatten().tolist())
    spoiled = [
        [w if e in chosen else torch.full_like(w, float("nan")) for e, w in enumerate(a)] for a in (gate, up, down)
    ]
    assert torch.equal(
        torch.ops.hetero.routed_mlp(x, picks, shares, *spoiled),
        torch.ops.hetero.routed_mlp(x, picks, shares, gate, up, down),
    )


@needs_hetero
def test_wrong_arguments_are_one_sentence() -> None:
    x, picks, shares, gate, up, down = mixture(3, 2, 4, torch.float32)
    op = torch.ops.hetero.routed_mlp
    for device in ("cpu", "hetero"):

        def on(*arguments: object, device: str = device) -> list:
            return list(arguments) if device == "cpu" else moved(list(arguments))

        with pytest.raises(IndexError, match="expert 4 is out of range; there are 4"):
            op(*on(x, picks * 0 + 4, shares, gate, up, down)).cpu()
        with pytest.raises(RuntimeError, match="down has 3 experts, and gate has 4"):
            op(*on(x, picks, shares, gate, up, down[:3]))
        with pytest.raises(RuntimeError, match="a weight of up has sizes"):
            op(*on(x, picks, shares, gate, down, down))
        with pytest.raises(TypeError, match="experts must be int64"):
            op(*on(x, picks.int(), shares, gate, up, down))
        with pytest.raises(RuntimeError, match="weights must have the sizes of experts"):
            op(*on(x, picks, shares[:1], gate, up, down))
        assert op(*on(x, picks, shares, gate, up, down)).shape == x.shape


@needs_hetero
def test_a_saved_program_routes_each_input_anew(tmp_path) -> None:
    _, _, _, gate, up, down = mixture(4, 2, 6, torch.float32)
    router = torch.randn(6, 24, generator=torch.Generator().manual_seed(3))

    def model(x: Tensor) -> Tensor:
        shares, picks = torch.softmax(F.linear(x, router.to(x.device)), -1).topk(2)
        weights = [[w.to(x.device) for w in a] for a in (gate, up, down)]
        return torch.ops.hetero.routed_mlp(x, picks, shares, *weights)

    program = torch.hetero.compile(model, (torch.zeros(4, 24, device="hetero"),))
    program.save(tmp_path / "m.hetero")
    loaded = torch.hetero.load(tmp_path / "m.hetero")
    for seed in range(3):
        x = torch.randn(4, 24, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(loaded(x.to("hetero")).cpu(), model(x), rtol=1e-5, atol=1e-5)


def packed_experts(lists: list[list[Tensor]], bits: int, group: int, symmetric: bool) -> tuple[list, list]:
    """The lists of routed_quantized_mlp, and the weights that they mean."""
    packed, plain = [], []
    for weights in lists:
        made = [torch.ops.hetero.quantize_weight(w, bits, group, symmetric) for w in weights]
        packed.append([part for parts in made for part in parts])
        plain.append([
            torch.ops.hetero.dequantize_weight(*parts, bits, group, *w.shape, dtype=w.dtype)
            for parts, w in zip(made, weights, strict=True)
        ])
    return packed, plain


@needs_hetero
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bits", "group", "symmetric"), [(8, 0, True), (4, 32, True), (4, 64, False)])
@pytest.mark.parametrize("tokens", [1, 5, 40, 0])
def test_experts_in_fewer_bits(tokens: int, bits: int, group: int, symmetric: bool, dtype: torch.dtype) -> None:
    x, picks, shares, *lists = mixture(tokens, 2, 5, dtype, hidden=128, width=80)
    packed, plain = packed_experts(lists, bits, group, symmetric)
    arguments = [x, picks, shares, *packed]
    made = torch.ops.hetero.routed_quantized_mlp(*arguments, bits, group, 80)
    wide = [x.float(), picks, shares.float(), *[[w.float() for w in weights] for weights in plain]]
    bound = 1e-3 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(made.float(), expected(*wide), rtol=bound, atol=bound)
    recorded = torch.ops.hetero.routed_quantized_mlp(*moved(arguments), bits, group, 80)
    assert torch.equal(recorded.cpu(), made)


@needs_hetero
def test_wrong_experts_in_fewer_bits_are_one_sentence() -> None:
    x, picks, shares, *lists = mixture(3, 2, 4, torch.float32, hidden=64, width=32)
    (gate, up, down), _ = packed_experts(lists, 8, 32, True)
    op = torch.ops.hetero.routed_quantized_mlp
    with pytest.raises(RuntimeError, match="down has 9 tensors; gate has 12, three for each expert"):
        op(x, picks, shares, gate, up, down[:9], 8, 32, 32)
    with pytest.raises(RuntimeError, match="a packed weight of 32 x 64 in 4 bits is"):
        op(x, picks, shares, gate, up, down, 4, 32, 32)
    with pytest.raises(ValueError, match="8 or 4 bits, not 3"):
        op(x, picks, shares, gate, up, down, 3, 32, 32)
    with pytest.raises(RuntimeError, match="there must be an expert"):
        op(x, picks, shares, [], [], [], 8, 32, 32)
    assert op(x, picks, shares, gate, up, down, 8, 32, 32).shape == x.shape
