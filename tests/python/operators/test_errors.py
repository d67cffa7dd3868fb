"""Bad calls raise what CPU raises, on the line that is wrong; the next operator works."""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from helpers import DEVICE, ON_HETERO, check, needs_hetero, outcome, run_python, run_python_ok
from torch import nn
from torch.nn import functional as F


class Place:
    """Where the calls of the tables make their tensors."""

    device = "cpu"


@contextmanager
def tables_on(device: str) -> Iterator[None]:
    Place.device = device
    try:
        yield
    finally:
        Place.device = "cpu"


def f(*size: int) -> torch.Tensor:
    return torch.ones(size, device=Place.device)


def i(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=Place.device)


# Calls that CPU refuses for the sizes, dtypes or attributes alone: refused when recorded.
AT_RECORD_TIME: dict[str, Callable[[], object]] = {
    "add_shapes": lambda: f(2, 3) + f(4),
    "mul_shapes": lambda: f(2, 3) * f(3, 2),
    "add_in_place_grows": lambda: f(3).add_(f(2, 3)),
    "add_in_place_shapes": lambda: f(2, 3).add_(f(2, 4)),
    "add_in_place_dtype": lambda: i(1, 2).add_(1.5),
    "mul_in_place_dtype": lambda: i(1, 2).mul_(f(2)),
    "div_in_place_integer": lambda: i(1, 2).div_(2),
    "mm_shapes": lambda: torch.mm(f(2, 3), f(2, 3)),
    "mm_dims": lambda: torch.mm(f(2), f(2, 3)),
    "mm_dtypes": lambda: torch.mm(f(2, 2), f(2, 2).double()),
    "matmul_shapes": lambda: f(2, 3) @ f(4, 5),
    "matmul_scalar": lambda: f() @ f(2),
    "bmm_shapes": lambda: torch.bmm(f(2, 3, 4), f(2, 3, 4)),
    "bmm_batch": lambda: torch.bmm(f(2, 3, 4), f(3, 4, 2)),
    "addmm_shapes": lambda: torch.addmm(f(5), f(2, 3), f(3, 4)),
    "mv_shapes": lambda: torch.mv(f(2, 3), f(2)),
    "dot_shapes": lambda: torch.dot(f(2), f(3)),
    "linear_shapes": lambda: F.linear(f(2, 3), f(4, 5)),
    "linear_bias": lambda: F.linear(f(2, 3), f(4, 3), f(5)),
    "conv2d_channels": lambda: F.conv2d(f(1, 3, 5, 5), f(4, 2, 3, 3)),
    "conv2d_dims": lambda: F.conv2d(f(3), f(4, 2, 3, 3)),
    "conv2d_kernel": lambda: F.conv2d(f(1, 2, 2, 2), f(4, 2, 3, 3)),
    "conv2d_groups": lambda: F.conv2d(f(1, 4, 5, 5), f(4, 2, 3, 3), groups=3),
    "conv2d_stride": lambda: F.conv2d(f(1, 2, 5, 5), f(4, 2, 3, 3), stride=0),
    "conv1d_channels": lambda: F.conv1d(f(1, 3, 5), f(4, 2, 3)),
    "conv_transpose_channels": lambda: F.conv_transpose2d(f(1, 3, 5, 5), f(4, 2, 3, 3)),
    "max_pool_dims": lambda: F.max_pool2d(f(3), 2),
    "max_pool_padding": lambda: F.max_pool2d(f(1, 1, 4, 4), 2, padding=3),
    "avg_pool_size": lambda: F.avg_pool2d(f(1, 1, 2, 2), 5),
    "batch_norm_size": lambda: F.batch_norm(f(2, 3), f(4), f(4)),
    "batch_norm_one_value": lambda: F.batch_norm(f(1, 3), f(3), f(3), training=True),
    "layer_norm_shape": lambda: F.layer_norm(f(2, 3), (4,)),
    "layer_norm_weight": lambda: F.layer_norm(f(2, 3), (3,), f(4)),
    "group_norm_channels": lambda: F.group_norm(f(2, 5), 2),
    "softmax_dim": lambda: torch.softmax(f(2, 3), 5),
    "softmax_integer": lambda: torch.softmax(i(1, 2), 0),
    "cat_shapes": lambda: torch.cat([f(2, 3), f(3, 2)]),
    "cat_dims": lambda: torch.cat([f(2, 3), f(2)]),
    "cat_nothing": lambda: torch.cat([]),
    "cat_dim": lambda: torch.cat([f(2), f(2)], dim=3),
    "stack_shapes": lambda: torch.stack([f(2), f(3)]),
    "view_count": lambda: f(2, 3).view(4),
    "view_strides": lambda: f(2, 3).t().view(6),
    "view_minus_twice": lambda: f(2, 3).view(-1, -1),
    "reshape_count": lambda: f(2, 3).reshape(4, 2),
    "reshape_infer": lambda: f(2, 3).reshape(-1, 4),
    "permute_dims": lambda: f(2, 3).permute(0),
    "permute_twice": lambda: f(2, 3).permute(0, 0),
    "transpose_dim": lambda: f(2, 3).transpose(0, 2),
    "t_dims": lambda: f(2, 3, 4).t(),
    "expand_size": lambda: f(2, 3).expand(4, 3),
    "expand_dims": lambda: f(2, 3).expand(3),
    "squeeze_dim": lambda: f(2, 3).squeeze(4),
    "unsqueeze_dim": lambda: f(2, 3).unsqueeze(4),
    "select_index": lambda: f(2, 3)[2],
    "select_dim": lambda: f(2, 3).select(3, 0),
    "too_many_indices": lambda: f(2, 3)[0, 0, 0],
    "narrow_range": lambda: f(4).narrow(0, 2, 3),
    "slice_step": lambda: f(4)[::-1],
    "split_sizes": lambda: f(4).split([1, 2]),
    "chunk_zero": lambda: f(4).chunk(0),
    "unbind_dim": lambda: f(4).unbind(2),
    "unfold_size": lambda: f(4).unfold(0, 5, 1),
    "diagonal_dims": lambda: f(4).diagonal(),
    "as_strided_out_of_storage": lambda: f(4).as_strided((3,), (2,)),
    "as_strided_negative": lambda: f(4).as_strided((2,), (-1,)),
    "flatten_dims": lambda: f(2, 3).flatten(1, 0),
    "unflatten_sizes": lambda: f(2, 6).unflatten(1, (4, 2)),
    "flip_dim": lambda: f(2).flip(1),
    "roll_dim": lambda: f(2).roll(1, 3),
    "sum_dim": lambda: f(2, 3).sum(2),
    "sum_dim_twice": lambda: f(2, 3).sum((0, 0)),
    "mean_integer": lambda: i(1, 2).mean(),
    "max_empty": lambda: f(0).max(),
    "argmax_empty": lambda: f(0).argmax(),
    "max_dim_empty": lambda: f(2, 0).max(1),
    "var_dim": lambda: f(2, 3).var(4),
    "prod_dim": lambda: f(2).prod(1),
    "cumsum_dim": lambda: f(2).cumsum(1),
    "topk_too_many": lambda: f(3).topk(4),
    "sort_dim": lambda: f(3).sort(1),
    "kthvalue_range": lambda: f(3).kthvalue(4),
    "gather_dims": lambda: f(2, 3).gather(0, i(0)),
    "gather_dtype": lambda: f(3).gather(0, f(3)),
    "scatter_dtype": lambda: f(3).scatter(0, f(1), 1.0),
    "scatter_dims": lambda: f(3, 2).scatter(0, i(0), f(1)),
    "index_select_dims": lambda: f(3).index_select(0, i(0, 1)[None]),
    "index_select_dtype": lambda: f(3).index_select(0, f(1)),
    "index_add_dtype": lambda: f(3).index_add(0, i(0), i(1)),
    "index_float": lambda: f(3)[f(1)],
    "index_shapes": lambda: f(3, 3)[i(0, 1), i(0, 1, 2)],
    "mask_shape": lambda: f(3)[torch.ones(4, dtype=torch.bool, device=Place.device)],
    "masked_fill_dtype": lambda: f(3).masked_fill(i(1, 0, 1), 0.0),
    "masked_fill_value": lambda: f(3).masked_fill(f(3) > 0, f(2)),
    "embedding_dtype": lambda: F.embedding(f(2), f(3, 4)),
    "cross_entropy_batch": lambda: F.cross_entropy(f(2, 3), i(0, 1, 2)),
    "nll_loss_dims": lambda: F.nll_loss(f(2, 3), i(0, 1)[None]),
    "mse_loss_shapes": lambda: F.mse_loss(f(2, 3), f(2, 4)),
    "bce_shapes": lambda: F.binary_cross_entropy(f(2), f(3)),
    "attention_shapes": lambda: F.scaled_dot_product_attention(f(1, 2, 3, 4), f(1, 2, 3, 5), f(1, 2, 3, 4)),
    "where_shapes": lambda: torch.where(f(2) > 0, f(3), f(2)),
    "where_condition": lambda: torch.where(f(2), f(2), f(2)),
    "clamp_nothing": lambda: f(2).clamp(),
    "lerp_dtype": lambda: torch.lerp(f(2), f(2).double(), 0.5),
    "pow_integer_negative": lambda: i(1, 2).pow(-1),
    "bitwise_float": lambda: f(2) & f(2),
    "shift_float": lambda: f(2) << 1,
    "not_float": lambda: ~f(2),
    "neg_bool": lambda: -(f(2) > 0),
    "sub_bool": lambda: (f(2) > 0) - (f(2) > 0),
    "item_many": lambda: f(2).item(),
    "bool_many": lambda: bool(f(2)),
    "bool_none": lambda: bool(f(0)),
    "int_many": lambda: int(f(2)),
    "copy_shapes": lambda: f(2).copy_(f(3)),
    "fill_many": lambda: f(2).fill_(f(2)),
    "setitem_shapes": lambda: f(2, 3).__setitem__(0, f(2)),
    "zero_dim_len": lambda: len(f()),
    "zero_dim_index": lambda: f()[0],
    "negative_size": lambda: f(2).new_empty((-1,)),
    "arange_step": lambda: torch.arange(0, 5, -1, device=Place.device),
    "linspace_steps": lambda: torch.linspace(0, 1, -2, device=Place.device),
    "eye_negative": lambda: torch.eye(-1, device=Place.device),
    "one_hot_float": lambda: F.one_hot(f(2)),
    "dropout_probability": lambda: F.dropout(f(2), 1.5),
    "repeat_dims": lambda: f(2, 3).repeat(2),
    "tril_dims": lambda: f(2).tril(),
    "cdist_shapes": lambda: torch.cdist(f(2, 3), f(2, 4)),
    "einsum_shapes": lambda: torch.einsum("ij,jk->ik", f(2, 3), f(4, 5)),
    "einsum_letters": lambda: torch.einsum("ij->k", f(2, 3)),
    "tensordot_shapes": lambda: torch.tensordot(f(2, 3), f(2, 3), 1),
    "kron_none": lambda: torch.kron(f(2), None),
    "cross_dims": lambda: torch.linalg.cross(f(4), f(4)),
    "inverse_square": lambda: torch.linalg.inv(f(2, 3)),
    "cholesky_square": lambda: torch.linalg.cholesky(f(2, 3)),
    "fft_empty": lambda: torch.fft.fft(f(0)),
    "stft_dims": lambda: torch.stft(f(2, 2, 2), 2, return_complex=True),
    "interpolate_size": lambda: F.interpolate(f(1, 1, 2, 2), size=(0, 2)),
    "pad_negative": lambda: F.pad(f(2), (-3, 0)),
    "pad_reflect": lambda: F.pad(f(1, 1, 2), (3, 3), mode="reflect"),
    "pixel_shuffle": lambda: F.pixel_shuffle(f(1, 3, 2, 2), 2),
    "lstm_input": lambda: nn.LSTM(3, 4).to(Place.device)(f(2, 1, 5)),
    "wrong_argument_type": lambda: torch.add(f(2), "three"),
    "wrong_keyword": lambda: torch.add(f(2), f(2), beta=1),
    "unknown_attribute": lambda: f(2).no_such_method(),
    "backward_no_grad": lambda: f(2).sum().backward(),
    "backward_not_scalar": lambda: f(2).requires_grad_().mul(2).backward(),
    "leaf_in_place": lambda: f(2).requires_grad_().add_(1),
    "integer_requires_grad": lambda: i(1).requires_grad_(),
    "grad_shape": lambda: torch.autograd.grad(f(2).requires_grad_() * 2, f(2), f(3)),
    "in_place_on_expanded": lambda: f(1).expand(3).add_(1),
    "complex_compare": lambda: f(2).to(torch.complex64) > 1,
    "view_dtype_size": lambda: f(2, 3).view(torch.complex128),
    "real_view": lambda: torch.view_as_complex(f(3)),
    "to_unknown": lambda: f(2).to("nowhere"),
    "quantile_dtype": lambda: i(1, 2).quantile(0.5),
    "scatter_value_dtype": lambda: f(3).scatter_(0, i(0), i(1)),
}

# Calls that CPU refuses for the values: refused at the latest when the result is read.
AT_SYNC_TIME: dict[str, Callable[[], object]] = {
    "index_range": lambda: f(3)[i(0, 3)],
    "index_range_negative": lambda: f(3)[i(-4)],
    "index_put_range": lambda: f(3).index_put_((i(5),), f(1)),
    "setitem_range": lambda: (lambda t: (t.__setitem__(i(7), 1.0), t)[1])(f(3)),
    "index_select_range": lambda: f(3).index_select(0, i(3)),
    "gather_range": lambda: f(3).gather(0, i(0, 3)),
    "scatter_range": lambda: f(3).scatter(0, i(4), 1.0),
    "embedding_range": lambda: F.embedding(i(5), f(3, 2)),
    "embedding_negative": lambda: F.embedding(i(-1), f(3, 2)),
    "cross_entropy_target": lambda: F.cross_entropy(f(2, 3), i(0, 3)),
    "integer_division_by_zero": lambda: i(1, 2) // i(1, 0),
    "integer_remainder_by_zero": lambda: i(3) % i(0),
    "inverse_singular": lambda: torch.linalg.inv(torch.zeros(2, 2, device=Place.device)),
    "cholesky_indefinite": lambda: torch.linalg.cholesky(-f(2, 2)),
    "multinomial_negative": lambda: torch.multinomial(-f(3), 1),
    "multinomial_zero": lambda: torch.multinomial(f(3) * 0, 1),
    "bernoulli_range": lambda: torch.bernoulli(f(3) * 2),
    "bincount_negative": lambda: torch.bincount(i(-1)),
    "bce_range": lambda: F.binary_cross_entropy(f(2) * 3, f(2)),
    "repeat_interleave_negative": lambda: torch.repeat_interleave(f(2), i(-1, 1)),
    "take_range": lambda: f(3).take(i(9)),
    "nll_loss_target": lambda: F.nll_loss(f(2, 3), i(0, -5)),
}

# Calls whose values PyTorch checks on the CPU only, as a check would make an accelerator wait. As on CUDA, the operator
# that uses the values refuses them, in its own words.
CHECKED_ON_CPU_ONLY: dict[str, tuple[Callable[[], object], str]] = {
    "one_hot_negative": (lambda: F.one_hot(i(-1, 2)), "index -1 is out of bounds for dimension 1 with size 3"),
    "one_hot_classes": (lambda: F.one_hot(i(1, 5), 3), "index 5 is out of bounds for dimension 1 with size 3"),
}


def both(call: Callable[[], object]) -> tuple[tuple[type | None, str], tuple[type | None, str]]:
    """Type and text of a call's exception on CPU and on the device."""
    results = []
    for device in ("cpu", DEVICE):
        with tables_on(device):
            kind, text = outcome(call)
        results.append((kind, normalized(text)))
    return results[0], results[1]


def normalized(text: str) -> str:
    """The first line without device names, which may rightly differ."""
    first = (text.splitlines() or [""])[0]
    # Tensor::toString, in a few messages, names a tensor by dtype and backend, and CPU's has a form of its own.
    first = re.sub(r"hetero(\w+)Type(?=[\[{])", r"torch.\1Tensor", first)
    for name in ("hetero:0", "hetero", "HETERO", "Hetero"):
        first = first.replace(name, "cpu")
    return first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*AT_RECORD_TIME, *AT_SYNC_TIME])
def test_a_bad_call_raises_what_cpu_raises_and_the_next_works(name: str) -> None:
    call = AT_RECORD_TIME.get(name) or AT_SYNC_TIME[name]
    expected, actual = both(call)
    assert actual == expected
    assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2.0, 2.0]


@needs_hetero
@pytest.mark.parametrize("name", CHECKED_ON_CPU_ONLY)
def test_a_value_that_pytorch_checks_on_cpu_only_is_refused_by_the_operator_that_uses_it(name: str) -> None:
    call, text = CHECKED_ON_CPU_ONLY[name]
    expected, actual = both(call)
    assert actual == (expected[0], text)
    assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore")
def test_the_table_is_of_calls_that_cpu_refuses() -> None:
    calls = {**AT_RECORD_TIME, **AT_SYNC_TIME, **{name: row[0] for name, row in CHECKED_ON_CPU_ONLY.items()}}
    harmless = [name for name, call in calls.items() if outcome(call)[0] is None]
    assert harmless == []


@needs_hetero
@pytest.mark.parametrize("name", AT_RECORD_TIME)
def test_an_error_of_shape_or_dtype_is_raised_when_recorded(name: str) -> None:
    with tables_on(DEVICE), pytest.raises(Exception) as caught:
        AT_RECORD_TIME[name]()
    lines = traceback.extract_tb(caught.value.__traceback__)
    assert any(line.filename == __file__ and "lambda" in line.name for line in lines)


@needs_hetero
def test_a_failed_value_poisons_only_what_depends_on_it() -> None:
    x = torch.arange(4.0, device=DEVICE)
    bad = x[torch.tensor([9], device=DEVICE)] * 2
    good = x + 1
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        bad.cpu()
    assert good.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


@needs_hetero
def test_a_failed_value_fails_again_when_read_again() -> None:
    bad = torch.arange(4.0, device=DEVICE)[torch.tensor([9], device=DEVICE)] * 2
    for _ in range(2):
        with pytest.raises(IndexError):
            bad.cpu()
    with pytest.raises(IndexError):
        (bad + 1).cpu()


@needs_hetero
def test_the_recording_line_is_named_when_asked_for() -> None:
    torch.hetero.config.traceback = True
    x = torch.arange(4.0, device=DEVICE)
    bad = x[torch.tensor([9], device=DEVICE)]
    with pytest.raises(IndexError, match="test_errors.py"):
        bad.cpu()


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda there, here: there + here,
    "add_reversed": lambda there, here: here + there,
    "mm": lambda there, here: there @ here,
    "mm_reversed": lambda there, here: here @ there,
    "cat": lambda there, here: torch.cat([there, here]),
    "where": lambda there, here: torch.where(there > 0, there, here),
    "linear": lambda there, here: F.linear(there, here),
    "in_place": lambda there, here: there.add_(here),
    "in_place_on_cpu": lambda there, here: here.add_(there),
    "out": lambda there, here: torch.add(there, there, out=here),
    "mse_loss": lambda there, here: F.mse_loss(there, here),
    "addmm": lambda there, here: torch.addmm(here, there, there),
    "bmm": lambda there, here: torch.bmm(there[None], here[None]),
    "layer_norm": lambda there, here: F.layer_norm(there, (2,), here[0]),
    "embedding": lambda there, here: F.embedding(here.long(), there),
    "index_select": lambda there, here: there.index_select(0, here[0].long()),
    "gather": lambda there, here: there.gather(0, here.long()),
    "lerp": lambda there, here: torch.lerp(there, here, 0.5),
    "conv": lambda there, here: F.conv1d(there[None], here[:, :, None]),
}


@needs_hetero
@pytest.mark.parametrize("name", MIXED)
def test_operands_on_two_devices_are_refused_with_cudas_wording(name: str) -> None:
    there, here = torch.ones(2, 2, device=DEVICE), torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        MIXED[name](there, here)
    assert there.tolist() == [[1.0, 1.0]] * 2 and here.tolist() == [[0.0, 0.0]] * 2


@needs_hetero
def test_mixed_devices_are_both_named() -> None:
    with pytest.raises(RuntimeError, match="hetero:0 and cpu|cpu and hetero:0|hetero:0.*cpu"):
        torch.ones(2, device=DEVICE) + torch.ones(2)


def test_zero_dim_cpu_operands_are_accepted_on_either_side() -> None:
    scalar = torch.tensor(2.0)
    check(lambda x: (x + scalar, scalar * x, torch.where(x > 1, x, scalar)), torch.arange(3.0))


@needs_hetero
def test_a_zero_dim_device_operand_on_cpu_is_refused() -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.ones(2) + torch.tensor(1.0, device=DEVICE)


@needs_hetero
def test_a_cpu_model_given_device_inputs_says_so() -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        nn.Linear(2, 2)(torch.ones(1, 2, device=DEVICE))


SPARSE: dict[str, Callable[[], object]] = {
    "to_sparse": lambda: torch.eye(2, device=DEVICE).to_sparse(),
    "sparse_coo": lambda: torch.sparse_coo_tensor([[0], [0]], [1.0], (2, 2), device=DEVICE),
    "sparse_csr": lambda: torch.eye(2, device=DEVICE).to_sparse_csr(),
    "move_sparse": lambda: torch.eye(2).to_sparse().to(DEVICE),
    "quantize": lambda: torch.quantize_per_tensor(torch.ones(2, device=DEVICE), 0.1, 0, torch.qint8),
    "move_quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).to(DEVICE),
    "mkldnn": lambda: torch.ones(2, device=DEVICE).to_mkldnn(),
    "move_mkldnn": lambda: torch.ones(2).to_mkldnn().to(DEVICE),
}


@needs_hetero
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_and_quantized_tensors_work_or_are_refused_clearly(name: str) -> None:
    kind, text = outcome(SPARSE[name])
    if kind is None:
        assert SPARSE[name]().device.type == DEVICE
    else:
        assert issubclass(kind, (NotImplementedError, RuntimeError))
        assert "hetero" in text.lower() or "support" in text or "layout" in text
        assert "INTERNAL ASSERT" not in text
    assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2.0, 2.0]


@needs_hetero
def test_over_the_memory_limit_raises_out_of_memory_with_figures() -> None:
    torch.hetero.flush()
    torch.hetero.empty_cache()
    torch.hetero.config.memory_limit = torch.hetero.memory_allocated() + (1 << 20)
    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)hetero.*(MiB|GiB|bytes)"):
        torch.ones(1 << 20, device=DEVICE).cpu()
    small = torch.ones(16, device=DEVICE) * 2
    assert small.tolist() == [2.0] * 16


@needs_hetero
def test_the_memory_limit_also_counts_what_kernels_allocate_themselves() -> None:
    signal, weight = torch.randn(1, 1, 512, 512).to(DEVICE), torch.randn(8, 1, 3, 3).to(DEVICE)
    torch.hetero.flush()
    torch.hetero.config.memory_limit = torch.hetero.memory_allocated() + (1 << 20)
    for call in (lambda: F.conv2d(signal, weight).sum(), lambda: torch.special.bessel_j0(signal.repeat(8, 1, 1, 1))):
        with torch.hetero.placement("cpu"), pytest.raises(torch.OutOfMemoryError, match="hetero out of memory"):
            call().cpu()
    torch.hetero.config.memory_limit = 0
    assert F.conv2d(signal, weight).shape == (1, 8, 510, 510)


@needs_hetero
def test_after_out_of_memory_earlier_tensors_are_intact() -> None:
    kept = torch.arange(1000.0, device=DEVICE)
    torch.hetero.flush()
    torch.hetero.config.memory_limit = torch.hetero.memory_allocated() + (1 << 16)
    with torch.hetero.placement("cpu"), pytest.raises(torch.OutOfMemoryError):
        (torch.zeros(1 << 18, device=DEVICE) + kept[0]).sum().item()
    assert kept.sum().item() == 499500.0
    torch.hetero.config.memory_limit = 0
    again = torch.zeros(1 << 18, device=DEVICE) + kept[1]
    assert again.sum().item() == float(1 << 18)


@needs_hetero
@pytest.mark.parametrize("name", ["remainder", "floor_divide", "fmod"])
def test_integers_are_divided_when_the_value_is_needed(name: str) -> None:
    divide = getattr(torch, name)
    compiled = torch.compile(divide, backend="hetero")
    for _ in range(3):
        check(lambda a, b: divide(a, b), i(-7, 7, 8, -8), i(2, -3, 4, 5))
        assert torch.equal(compiled(i(-7, 7), i(2, -3)), divide(i(-7, 7), i(2, -3)))
    pending = divide(i(1, 2).to(DEVICE), i(1, 0).to(DEVICE))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        pending.cpu()
    with pytest.raises(RuntimeError, match=f"ZeroDivisionError.*aten::{name}"):
        compiled(i(1, 2), i(1, 0))


@needs_hetero
@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_that_runs_out_of_memory_loses_no_parameter(compiled: bool) -> None:
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    forward = torch.compile(model, backend="hetero") if compiled else model
    x = torch.randn(8, 256)

    def step() -> float:
        optimizer.zero_grad()
        loss = forward(x.to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        torch.hetero.flush()
        return loss.item()

    with torch.hetero.placement("cpu"):
        for _ in range(3):
            step()
        optimizer.zero_grad()
        torch.hetero.flush()
        kept = [value.detach().cpu() for value in model.parameters()]
        gc.collect()  # what other tests left would give its memory back in the step, which then updates some
        torch.hetero.config.memory_limit = torch.hetero.memory_allocated() + (1 << 12)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                step()
        torch.hetero.config.memory_limit = 0
        assert all(torch.equal(value.cpu(), before) for value, before in zip(model.parameters(), kept, strict=True))
        first = step()
        assert step() < first


@needs_hetero
def test_what_was_to_change_after_a_failed_call_is_as_it_was_before() -> None:
    kept, other = torch.zeros(4, device=DEVICE), torch.ones(4, device=DEVICE)
    torch.hetero.flush()
    for _ in range(4):  # run, planned, replayed
        bad = other[torch.tensor([9], device=DEVICE)]
        kept.add_(bad)
        result = kept * 2  # recorded after the call that fails: it has no value
        with pytest.raises(IndexError):
            kept.cpu()
        assert kept.tolist() == [0.0] * 4
        with pytest.raises(IndexError):
            result.cpu()
        kept.add_(1)
        assert kept.tolist() == [1.0] * 4
        kept.zero_()


@needs_hetero
def test_a_change_that_nobody_has_heard_has_failed_is_not_hidden() -> None:
    kept, other = torch.zeros(4, device=DEVICE), torch.ones(4, device=DEVICE)
    torch.hetero.flush()
    kept.add_(other[torch.tensor([9], device=DEVICE)])
    assert other.tolist() == [1.0] * 4
    with pytest.raises(IndexError):
        (kept + 1).cpu()
    assert kept.tolist() == [0.0] * 4


@needs_hetero
def test_an_absurd_size_is_refused() -> None:
    kind, text = outcome(lambda: torch.empty(1 << 60, device=DEVICE))
    assert kind is not None and issubclass(kind, RuntimeError) and text
    assert torch.ones(2, device=DEVICE).sum().item() == 2


@needs_hetero
def test_the_first_error_of_a_flush_is_raised_and_the_next_flush_works() -> None:
    x = torch.arange(4.0, device=DEVICE)
    bad = x[torch.tensor([9], device=DEVICE)]
    with pytest.raises(IndexError):
        torch.hetero.flush()
    torch.hetero.flush()
    assert bad.shape == (1,)
    assert (x * 2).tolist() == [0.0, 2.0, 4.0, 6.0]


@needs_hetero
def test_an_error_in_a_backward_hook_leaves_the_device_usable() -> None:
    leaf = torch.ones(2, device=DEVICE, requires_grad=True)
    value = leaf * 2

    def fail(_: torch.Tensor) -> None:
        raise ValueError("from the hook")

    value.register_hook(fail)
    with pytest.raises(ValueError, match="from the hook"):
        value.sum().backward()
    assert (leaf.detach() + 1).tolist() == [2.0, 2.0]


@needs_hetero
def test_pending_errors_at_exit_do_not_crash_the_process() -> None:
    done = run_python(
        """
        import torch
        bad = torch.ones(3, device="hetero")[torch.tensor([9], device="hetero")]
        print("recorded", flush=True)
        """
    )
    assert done.returncode == 0 and done.stdout == "recorded\n"


@needs_hetero
def test_sync_mode_raises_errors_of_values_on_their_line() -> None:
    out = run_python_ok(
        """
        import torch, traceback
        x = torch.arange(4.0, device="hetero")
        index = torch.tensor([9], device="hetero")
        try:
            bad = x[index]
            print("too late")
        except IndexError as error:
            print("on its line")
        """,
        {"HETERO_SYNC": "1"},
    )
    assert out == "on its line\n"


def test_keyboard_interrupt_style_exceptions_pass_through_a_custom_function() -> None:
    class Stop(Exception):
        pass

    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> torch.Tensor:
            raise Stop

    leaf = torch.ones(2, device=DEVICE, requires_grad=True)
    with pytest.raises(Stop):
        Raising.apply(leaf).sum().backward()
    assert (leaf * 1).sum().item() == 2.0


@pytest.mark.skipif(not ON_HETERO, reason="CPU has no such messages")
def test_no_error_text_mentions_pytorchs_internal_name() -> None:
    results = [both(call) for call in (*AT_RECORD_TIME.values(), *AT_SYNC_TIME.values())]
    # What CPU says in the same words is PyTorch's own: its list of device types has the internal name.
    ours = [actual[1] for expected, actual in results if actual != expected]
    assert not [text for text in ours if "privateuse" in text.lower()]
