"""``torch.hetero.quantize`` and its operators: linear layers with weights in 8 and 4 bits."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero
from torch import nn

from torch_hetero.quantization.linear import QuantizedLinear

PRODUCTS = "products with a quantized weight"
KINDS = [(8, 0, True), (8, 128, False), (8, 32, True), (4, 32, True), (4, 64, False), (4, 0, False)]


def small_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Two layers whose sizes are no multiples of anything."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(150, 70), nn.ReLU(), nn.Linear(70, 33, bias=False)).to(dtype).eval()


def unpacked(layer: QuantizedLinear) -> torch.Tensor:
    """The weight, read from its layout element by element."""
    rows, columns = layer.out_features, layer.in_features
    packed = layer.packed.cpu()
    steps = packed.view(packed.shape[0], -1, 16, 4)  # of 4 elements each, for 16 outputs
    if layer.bits == 4:
        steps = torch.stack((steps & 15, steps >> 4), dim=2).flatten(1, 2)
    numbers = steps.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[:rows, :columns].float()
    groups = layer.scales.shape[1]
    size = layer.group if 0 < layer.group <= columns else -(-columns // 32) * 32
    spread = [
        group.permute(0, 2, 1).reshape(-1, groups).repeat_interleave(size, 1)[:rows, :columns]
        for group in (
            layer.scales.cpu().float(),
            torch.full_like(layer.scales.cpu().float(), 2 ** (layer.bits - 1))
            if layer.zeros is None
            else layer.zeros.cpu().float(),
        )
    ]
    return (numbers - spread[1]) * spread[0]


@pytest.mark.parametrize(("bits", "group", "symmetric"), KINDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_a_layer_computes_with_the_weight_that_it_says(
    bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> None:
    model = torch.hetero.quantize(small_model(dtype), bits=bits, group=group, symmetric=symmetric)
    layer = model[0]
    weight = layer.dequantized()
    assert_same(weight, unpacked(layer))
    for sizes in ((150,), (1, 150), (3, 150), (2, 9, 150), (40, 150), (0, 150)):
        x = torch.randn(sizes, dtype=dtype)
        exact = nn.functional.linear(x.double(), weight.double(), layer.bias.double())
        unit = {torch.float32: 1e-4, torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype]
        torch.testing.assert_close(layer(x).double(), exact, rtol=unit, atol=unit)


@pytest.mark.parametrize(("bits", "group", "symmetric"), KINDS)
def test_a_weight_is_within_a_step_of_the_one_it_is_made_of(bits: int, group: int, symmetric: bool) -> None:
    linear = nn.Linear(150, 70)
    layer = QuantizedLinear.from_linear(linear, bits=bits, group=group, symmetric=symmetric)
    size = group or 160
    weight = nn.functional.pad(linear.weight.detach(), (0, -150 % size)).unfold(1, size, size)
    levels = 2**bits - 1
    span = (
        2 * weight.abs().amax(2) / (levels - 1)
        if symmetric
        else (weight.amax(2).clamp_min(0) - weight.amin(2).clamp_max(0)) / levels
    )
    allowed = (0.5 if symmetric else 1.0) * 1.01 * span.repeat_interleave(size, 1)[:, :150]
    assert ((layer.dequantized() - linear.weight).abs() <= allowed + 1e-7).all()


@needs_hetero
@pytest.mark.parametrize(("bits", "group", "symmetric"), KINDS)
def test_on_hetero_a_layer_is_recorded_and_has_the_bits_of_the_cpu(bits: int, group: int, symmetric: bool) -> None:
    model = torch.hetero.quantize(small_model(), bits=bits, group=group, symmetric=symmetric)
    x = torch.randn(5, 150)
    expected = model(x)
    moved = copy.deepcopy(model).to(DEVICE)
    assert {tensor.device.type for tensor in moved.state_dict().values()} == {DEVICE}
    with torch.no_grad():
        moved(x.to(DEVICE)).cpu()
        with counting() as seen:
            result = moved(x.to(DEVICE)).cpu()
    assert_same(result, expected)
    assert (seen.boxed, seen.straight, seen.own_kernels[PRODUCTS]) == (2, 0, 2)


@needs_hetero
def test_products_of_one_input_run_together_and_have_the_same_bits() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(96, 64), nn.Linear(96, 32), nn.Linear(96, 32, bias=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.q(x), self.k(x), self.v(x)

    model = torch.hetero.quantize(Block().eval(), bits=8)
    x = torch.randn(3, 96)
    program = torch.hetero.compile(model, (x,))
    program(x)
    with counting() as seen:
        results = program(x)
    assert seen.own_kernels[PRODUCTS] == 3
    assert_same(results, model(x))


@needs_hetero
@pytest.mark.parametrize("bits", (8, 4))
def test_a_saved_program_has_the_layers_and_their_bits(tmp_path: Path, bits: int) -> None:
    model = torch.hetero.quantize(small_model(), bits=bits)
    x = torch.randn(6, 150)
    torch.hetero.compile(model, (x,), dynamic=[{0: "rows"}]).save(tmp_path / "m.hetero")
    loaded = torch.hetero.load(tmp_path / "m.hetero")
    for rows in (6, 1, 40):
        x = torch.randn(rows, 150)
        assert_same(loaded(x), model(x))


@needs_hetero
def test_torch_compile_takes_the_layers() -> None:
    model = torch.hetero.quantize(small_model(), bits=4)
    x = torch.randn(6, 150)
    with torch.no_grad():
        assert_same(torch.compile(model, backend="hetero")(x), model(x))


@pytest.mark.parametrize("bits", (8, 4))
def test_memory_falls_with_the_bits(bits: int) -> None:
    def held(model: nn.Module) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())

    model = nn.Sequential(nn.Linear(1024, 512), nn.Linear(512, 1024)).bfloat16().eval()
    before = held(model)
    old = weakref.ref(model[0].weight)
    torch.hetero.quantize(model, bits=bits)
    gc.collect()
    assert held(model) <= before * {8: 0.52, 4: 0.29}[bits]
    assert old() is None


@needs_hetero
def test_memory_on_the_device_falls_too() -> None:
    torch.hetero.flush()
    gc.collect()
    before = torch.hetero.memory_allocated()
    model = nn.Linear(2048, 2048, bias=False)
    model = nn.Sequential(model).to(DEVICE).eval()
    torch.hetero.flush()
    full = torch.hetero.memory_allocated() - before
    torch.hetero.quantize(model, bits=4, group=128)
    torch.hetero.flush()
    gc.collect()
    assert torch.hetero.memory_allocated() - before <= 0.14 * full


@pytest.mark.parametrize(("bits", "group", "symmetric"), KINDS)
def test_a_state_dict_goes_there_and_back(tmp_path: Path, bits: int, group: int, symmetric: bool) -> None:
    model = torch.hetero.quantize(small_model(), bits=bits, group=group, symmetric=symmetric)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    other = torch.hetero.quantize(
        nn.Sequential(nn.Linear(150, 70), nn.ReLU(), nn.Linear(70, 33, bias=False)).eval(),
        bits=bits,
        group=group,
        symmetric=symmetric,
    )
    x = torch.randn(2, 150)
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(torch.load(tmp_path / "m.pt"))
    assert_same(other(x), model(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        torch.hetero.quantize(small_model(), bits=12 - bits, group=group, symmetric=symmetric).load_state_dict(
            model.state_dict()
        )


def test_another_dtype_is_for_the_bias_and_leaves_the_scales() -> None:
    model = torch.hetero.quantize(small_model(), bits=8)
    scales = model[0].scales.clone()
    model.half()
    assert model[0].bias.dtype == torch.float16
    assert model[0].packed.dtype == torch.uint8
    assert_same(model[0].scales, scales)
    assert model(torch.randn(2, 150, dtype=torch.float16)).dtype == torch.float16


def test_print_tells_bits_and_group() -> None:
    model = torch.hetero.quantize(small_model(), bits=4, group=64, symmetric=False)
    assert "QuantizedLinear(in_features=150, out_features=70, bias=True, bits=4, group=64, symmetric=False)" in str(
        model
    )
    assert "group=row" in str(torch.hetero.quantize(small_model(), bits=8, group=0))


@pytest.mark.parametrize("skip", [("2",), "2", ["[2-9]"], lambda name, layer: layer.out_features == 33])
def test_layers_to_skip_stay(skip: object) -> None:
    model = torch.hetero.quantize(small_model(), skip=skip)
    assert type(model[0]) is QuantizedLinear
    assert type(model[2]) is nn.Linear


def test_a_name_s_last_part_names_layers_of_all_blocks() -> None:
    blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(32, 32), "down": nn.Linear(32, 32)}) for _ in range(2))
    torch.hetero.quantize(blocks, skip=("down",))
    assert [type(block["down"]) for block in blocks] == [nn.Linear] * 2
    assert [type(block["up"]) for block in blocks] == [QuantizedLinear] * 2


def test_a_layer_in_two_places_stays_one_and_layers_of_other_classes_stay() -> None:
    shared = nn.Linear(32, 32)
    model = nn.ModuleDict({"a": shared, "b": shared, "attention": nn.MultiheadAttention(32, 2)})
    torch.hetero.quantize(model)
    assert model["a"] is model["b"]
    assert isinstance(model["attention"].out_proj, nn.Linear)


WRONG = [
    (lambda: torch.hetero.quantize(small_model(), bits=3), ValueError, "bits is 8 or 4, not 3"),
    (
        lambda: torch.hetero.quantize(small_model(), group=48),
        ValueError,
        "group is 0 for whole rows, or a multiple of 32, not 48",
    ),
    (
        lambda: torch.hetero.quantize(small_model(), group=-1),
        ValueError,
        "group is 0 for whole rows, or a multiple of 32, not -1",
    ),
    (lambda: torch.hetero.quantize(small_model(), activation_bits=4), ValueError, "activation_bits is 8 or 16, not 4"),
    (lambda: torch.hetero.quantize(nn.ReLU()), ValueError, "the model has no torch.nn.Linear to quantize"),
    (
        lambda: torch.hetero.quantize(nn.Linear(4, 4)),
        ValueError,
        "the model is itself a torch.nn.Linear: QuantizedLinear.from_linear makes the layer for it",
    ),
    (
        lambda: torch.hetero.quantize(small_model(torch.float64)),
        TypeError,
        "0 has a weight of torch.float64: layers in float32, bfloat16 or float16 can be quantized",
    ),
]


@pytest.mark.parametrize(("call", "error", "sentence"), WRONG)
def test_what_cannot_be_quantized_is_told_in_a_sentence(
    call: Callable[[], object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == sentence


def test_a_weight_that_is_not_finite_is_refused_and_the_model_stays() -> None:
    model = small_model()
    model[2].weight.data[3, 4] = torch.inf
    with pytest.raises(ValueError, match="^the weight of 2 has values that are not finite$"):
        torch.hetero.quantize(model)
    assert type(model[0]) is nn.Linear


def test_training_is_refused_in_a_sentence() -> None:
    model = torch.hetero.quantize(small_model()).train()
    x = torch.randn(2, 150, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^a quantized layer cannot be trained: call model.eval\(\), or use"):
        model(x)
    with torch.no_grad():
        model(x)
    with pytest.raises(RuntimeError, match="derivative for hetero::quantized_linear is not implemented"):
        model.eval()(x).sum().backward()


# ---- the operators


def packed(bits: int = 8, group: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ops.hetero.quantize_weight(torch.randn(20, 64), bits, group, False)


def linear(x: torch.Tensor, weight: tuple[torch.Tensor, ...], **changes: object) -> torch.Tensor:
    arguments = {"bias": None, "bits": 8, "group": 32, "out_features": 20} | changes
    device = x.device
    return torch.ops.hetero.quantized_linear(x, *(tensor.to(device) for tensor in weight), **arguments)


WRONG_CALLS = [
    (lambda x: linear(x[:, :60], packed()), None),  # as many columns when rounded up
    (lambda x: linear(x[:, :30], packed()), "a packed weight of 20 x 30 in 8 bits is [2, 512], not [2, 1024]"),
    (
        lambda x: linear(x, packed(), out_features=40),
        "a packed weight of 40 x 64 in 8 bits is [3, 1024], not [2, 1024]",
    ),
    (lambda x: linear(x, packed(), bits=4), "a packed weight of 20 x 64 in 4 bits is [2, 512], not [2, 1024]"),
    (lambda x: linear(x, packed(), bits=5), "a quantized weight has 8 or 4 bits, not 5"),
    (
        lambda x: linear(x, packed(), group=64),
        "the scales of a weight of 20 x 64 with groups of 64 are [2, 1, 16], not [2, 2, 16]",
    ),
    (
        lambda x: linear(x, packed(), group=20),
        "a group of a quantized weight is 0 for whole rows, or a multiple of 32, not 20",
    ),
    (
        lambda x: linear(x, packed(), activation_bits=4),
        "the input of a quantized product is taken in 8 or 16 bits, not in 4",
    ),
    (
        lambda x: linear(x.double(), packed()),
        "the input of a quantized product is float32, float16 or bfloat16, not Double",
    ),
    (
        lambda x: linear(x, packed(), bias=torch.zeros(3, device=x.device)),
        "the bias of a product with 20 outputs is [20], not [3]",
    ),
    (
        lambda x: linear(x, packed(), bias=torch.zeros(20, device=x.device).half()),
        "the bias of a quantized product has the input's dtype, Float, not Half",
    ),
    (lambda x: linear(x, (packed()[0].char(), *packed()[1:])), "a packed weight is uint8, not Char"),
    (
        lambda x: linear(x, (packed()[0], packed()[1], packed()[2].int())),
        "the zeros of a quantized weight are uint8, not Int",
    ),
    (lambda x: torch.ops.hetero.quantize_weight(x[0], 8, 32, True), "a weight to quantize has two dimensions, not 1"),
]


@pytest.mark.parametrize("where", ["cpu", pytest.param(DEVICE, marks=needs_hetero)])
@pytest.mark.parametrize(("call", "sentence"), WRONG_CALLS)
def test_a_call_that_does_not_fit_is_told_in_a_sentence(
    where: str, call: Callable[[torch.Tensor], torch.Tensor], sentence: str | None
) -> None:
    x = torch.randn(3, 64).to(where)
    if sentence is None:
        call(x)
        return
    with pytest.raises((RuntimeError, ValueError)) as raised:
        call(x)
    assert str(raised.value).splitlines()[0] == sentence
    linear(x, packed()).cpu()  # the next one works


@pytest.mark.parametrize("where", ["cpu", pytest.param(DEVICE, marks=needs_hetero)])
def test_tensors_with_other_strides_give_the_same_bits(where: str) -> None:
    weight = packed()
    x = torch.randn(64, 2, 3)
    expected = linear(x.permute(2, 1, 0).contiguous(), weight)
    strided = linear(x.to(where).permute(2, 1, 0), weight)
    assert_same(strided.cpu(), expected)
    loose = tuple(tensor.repeat_interleave(2, dim=0).to(where)[::2] for tensor in weight)
    assert_same(linear(x.to(where).permute(2, 1, 0), loose).cpu(), expected)


def test_the_number_of_threads_changes_no_bit() -> None:
    model = torch.hetero.quantize(nn.Sequential(nn.Linear(512, 1000)).eval(), bits=4)
    for rows in (1, 3, 70):
        x = torch.randn(rows, 512)
        before = torch.get_num_threads()
        results = []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(model(x))
        finally:
            torch.set_num_threads(before)
        assert_same(results[1], results[0])
        assert_same(results[2], results[0])
