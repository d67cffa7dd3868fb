"""Handles are arrays, images and tensors to user code: views, changes in place, reading, copying, pickling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import needs_hetero

pytestmark = needs_hetero

cv2 = pytest.importorskip("cv2")

from torch_hetero.migration import Mapped, PipelineMigrator, Strategy, register  # noqa: E402
from torch_hetero.migration.holder import HANDLES  # noqa: E402


@pytest.fixture(autouse=True)
def plan() -> Iterator[PipelineMigrator]:
    with PipelineMigrator({"cv2.flip": "hetero", "torch.from_numpy": "hetero"}) as migrator:
        yield migrator


IMAGE = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
FLIPPED = IMAGE[:, ::-1].copy()


def handle() -> Any:
    """A recorded array that equals FLIPPED."""
    return cv2.flip(IMAGE, 1)


def is_recorded(data: Any) -> bool:
    return type(data) in HANDLES and data._hetero_holder.data is None


USES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda a: a.sum(),
    "mean axis": lambda a: a.mean(axis=0),
    "dtype": lambda a: a.dtype,
    "shape": lambda a: a.shape,
    "strides": lambda a: a.strides,
    "flags": lambda a: a.flags.c_contiguous,
    "tobytes": lambda a: a.tobytes(),
    "tolist": lambda a: a.tolist(),
    "nonzero": lambda a: a.nonzero()[0],
    "index": lambda a: a[2],
    "scalar": lambda a: a[1, 2, 0],
    "slice": lambda a: a[1:4, ::-1],
    "mask": lambda a: a[a > 100],
    "fancy": lambda a: a[[0, 2]],
    "ellipsis": lambda a: a[..., 1],
    "new axis": lambda a: a[None],
    "add": lambda a: a + 1,
    "wraps": lambda a: a + a,
    "true division": lambda a: a / 255,
    "reflected": lambda a: 255 - a,
    "float": lambda a: a.astype(np.float32) / np.float32(255),
    "compare": lambda a: a == 7,
    "transpose": lambda a: a.transpose(2, 0, 1),
    "T": lambda a: a.T,
    "reshape": lambda a: a.reshape(-1, 3),
    "ravel": lambda a: a.ravel(),
    "unpack": lambda a: [row[0, 0] for row in a],
    "contains": lambda a: 300 in a,
    "max": lambda a: int(a.max()),
    "clip": lambda a: a.clip(10, 20),
    "np.mean": np.mean,
    "np.stack": lambda a: np.stack([a, a]),
    "np.concatenate": lambda a: np.concatenate([a, IMAGE]),
    "np.where": lambda a: np.where(a > 9, a, 0),
    "np.clip": lambda a: np.clip(a, 3, 9),
    "np.pad": lambda a: np.pad(a, ((1, 1), (0, 0), (0, 0))),
    "np.array": np.array,
    "np.asarray": np.asarray,
    "np.ascontiguousarray": np.ascontiguousarray,
    "isinstance": lambda a: isinstance(a, np.ndarray),
    "np.bincount": lambda a: np.bincount(a.ravel()),
    "np.linalg": lambda a: np.linalg.norm(a),
    "reduce": lambda a: np.add.reduce(a),
    "at": lambda a: np.multiply.outer(a[0, 0], a[0, 1]),
    "repr": repr,
    "str": str,
    "format": lambda a: f"{a}",
    "bool": lambda a: bool(a[:1, :1, :1] > 300),
    "len": len,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda a: pickle.loads(pickle.dumps(a)),
    "view": lambda a: a.view(np.int8),
    "matmul": lambda a: a[..., 0].astype(np.float64) @ a[0, :, :].astype(np.float64),
    "divmod": lambda a: divmod(a, 7),
    "power": lambda a: a**2,
    "from_numpy": lambda a: torch.from_numpy(np.ascontiguousarray(a)),
    "as_tensor": lambda a: torch.as_tensor(np.asarray(a)),
    "tensor": torch.tensor,
    "memoryview": lambda a: bytes(memoryview(np.asarray(a))),
    "cv2": lambda a: cv2.flip(a, 0),
    "squeeze": lambda a: a[:1].squeeze(),
    "round": lambda a: a.astype(np.float64).round(),
    "argsort": lambda a: a.ravel().argsort(kind="stable"),
    "itemsize": lambda a: (a.itemsize, a.nbytes, a.size),
}


@pytest.mark.parametrize("use", USES)
def test_an_array_handle_answers_as_the_array_does(use: str) -> None:
    got, want = USES[use](handle()), USES[use](FLIPPED)
    if isinstance(want, torch.Tensor):
        assert torch.equal(got, want) and got.dtype == want.dtype
    elif isinstance(want, (np.ndarray, tuple, list)) and use not in ("shape", "strides", "itemsize"):
        for left, right in zip(got, want, strict=True) if isinstance(want, (tuple, list)) else [(got, want)]:
            np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
            assert np.asarray(left).dtype == np.asarray(right).dtype
    else:
        assert got == want and isinstance(got, type(want))


@pytest.mark.parametrize(
    "error",
    [
        lambda a: a[9],
        lambda a: a.nothing,
        lambda a: a.reshape(7),
        lambda a: a + np.zeros((2, 2)),
        lambda a: bool(a),
        lambda a: hash(a),
        lambda a: a.transpose(0, 0, 1),
        lambda a: int(a),
        lambda a: np.add(a, 1, out=np.zeros(3)),
    ],
)
def test_errors_are_numpys(error: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as want:  # noqa: PT011
        error(FLIPPED)
    with pytest.raises(want.type):
        error(handle())


def test_what_has_a_strategy_is_recorded_and_read_once() -> None:
    result = (handle().astype(np.float32)[1:] / np.float32(2)).transpose(2, 0, 1)
    assert is_recorded(result) and result.shape == (3, 5, 5) and result.dtype == np.float32
    np.testing.assert_array_equal(result, (FLIPPED.astype(np.float32)[1:] / np.float32(2)).transpose(2, 0, 1))


@pytest.mark.parametrize("order", ["base", "view", "nested"])
def test_views_share_elements_in_both_directions(order: str) -> None:
    def program(array: np.ndarray) -> list[np.ndarray]:
        row, nested = array[2], array[1:5].transpose(2, 0, 1)
        inner = nested[0]
        if order == "base":
            array[:] = 9
        elif order == "view":
            row[...] = 8
        else:
            inner += 3
        return [np.array(entry) for entry in (array, row, nested, inner)]

    for got, want in zip(program(handle()), program(FLIPPED.copy()), strict=True):
        np.testing.assert_array_equal(got, want)


def test_reading_a_base_makes_its_views_real_views() -> None:
    array = handle()
    row = array[2]
    host = np.asarray(array)
    host[2] = 77
    assert (np.asarray(row) == 77).all()
    row[0] = 5
    assert (host[2, 0] == 5).all()


def test_changes_in_place_are_recorded_where_nothing_shares_the_elements() -> None:
    array, want = handle().astype(np.float32), FLIPPED.astype(np.float32)
    array /= 255
    array -= np.float32(0.5)
    want /= 255
    want -= np.float32(0.5)
    assert is_recorded(array) and array.dtype == np.float32
    np.testing.assert_array_equal(array, want)
    with pytest.raises(np._core._exceptions.UFuncTypeError):
        number = handle()
        number /= 2


def test_a_write_into_a_result_does_not_reach_what_was_made_of_it_before() -> None:
    array = handle()
    other = cv2.flip(array, 0)
    array[:] = 0
    np.testing.assert_array_equal(other, FLIPPED[::-1])
    np.testing.assert_array_equal(cv2.flip(array, 0), np.zeros_like(FLIPPED))


def test_functions_in_c_get_the_hosts_array() -> None:
    np.testing.assert_array_equal(cv2.flip(handle(), 0, dst=None), FLIPPED[::-1])
    with pytest.raises(TypeError):
        bytes(memoryview(handle()))  # refused, never stale


# Tensors.


def tensor() -> torch.Tensor:
    return torch.from_numpy(handle())


TENSOR = torch.from_numpy(FLIPPED)

TENSOR_USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: t.shape,
    "dtype": lambda t: t.dtype,
    "device": lambda t: t.device,
    "dim": lambda t: t.dim(),
    "len": len,
    "add": lambda t: t + 1,
    "float": lambda t: t.float().div(255),
    "permute": lambda t: t.permute(2, 0, 1),
    "index": lambda t: t[1],
    "sum": lambda t: t.sum(),
    "item": lambda t: t[0, 0, 0].item(),
    "numpy": lambda t: torch.from_numpy(t.numpy()),
    "list": lambda t: t.tolist(),
    "repr": repr,
    "stack": lambda t: torch.stack([t, t]),
    "cat": lambda t: torch.cat([t, TENSOR]),
    "clone": lambda t: t.clone(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "contiguous": lambda t: t.contiguous(),
    "eq": lambda t: t == 7,
    "isinstance": lambda t: isinstance(t, torch.Tensor),
    "cpu": lambda t: t.cpu(),
    "to dtype": lambda t: t.to(torch.int32),
    "stride": lambda t: t.stride(),
    "hetero": lambda t: t.to("hetero").cpu(),
    "hetero float": lambda t: t.to("hetero", torch.float32).cpu(),
    "parameters": lambda t: t.requires_grad,
    "pointer": lambda t: t.data_ptr() != 0,
    "asarray": lambda t: torch.from_numpy(np.asarray(t)),
    "functional": lambda t: torch.nn.functional.pad(t, (1, 1)),
    "in place": lambda t: t.clone().add_(1),
    "unbind": lambda t: torch.stack(t.unbind()),
    "bool": lambda t: bool((t >= 0).all()),
    "iterate": lambda t: [r.sum().item() for r in t],
}


@pytest.mark.parametrize("use", TENSOR_USES)
def test_a_tensor_handle_answers_as_the_tensor_does(use: str) -> None:
    got, want = TENSOR_USES[use](tensor()), TENSOR_USES[use](TENSOR.clone())
    if isinstance(want, torch.Tensor):
        assert torch.equal(got, want) and got.dtype == want.dtype and got.device == want.device
    else:
        assert got == want


def test_a_tensor_goes_to_the_device_without_a_copy_to_the_host(plan: PipelineMigrator) -> None:
    moved = tensor().to("hetero")
    assert moved.device.type == "hetero" and torch.equal(moved.cpu(), TENSOR)
    assert plan.report.total()["torch.from_numpy"].downloaded == 0


def test_a_tensor_that_is_changed_in_place_is_the_hosts_from_then_on() -> None:
    changed = tensor()
    changed.add_(1)
    changed[0] = 3
    want = TENSOR + 1
    want[0] = 3
    assert torch.equal(changed.to("hetero").cpu(), want) and torch.equal(changed, want)


# Images.


def test_an_image_handle_answers_as_the_image_does() -> None:
    images = pytest.importorskip("PIL.Image")

    @register
    class Mirror(Strategy):
        target = "PIL.Image.Image.effect_spread"  # has no strategy of its own; here it mirrors
        parameters = "self, distance"
        data = ("self",)

        def map(self, call: Any) -> Mapped:
            return Mapped(call["self"])

        def run(self, inputs: Any, static: Any, sample: Any) -> torch.Tensor:
            return inputs[0].flip([2])

    source = images.fromarray(IMAGE)
    source.info["dpi"] = (72, 72)
    want = images.fromarray(FLIPPED)
    want.info["dpi"] = (72, 72)
    uses: list[Callable[[Any], Any]] = [
        lambda i: i.size,
        lambda i: i.mode,
        lambda i: (i.width, i.height),
        lambda i: i.getpixel((1, 2)),
        lambda i: i.tobytes(),
        lambda i: i.convert("L").tobytes(),
        lambda i: i.resize((3, 3)).tobytes(),
        lambda i: np.asarray(i).tolist(),
        lambda i: i.getbands(),
        lambda i: i.copy().tobytes(),
        lambda i: [band.tobytes() for band in i.split()],
        lambda i: i.load()[1, 1],
        lambda i: i.getextrema(),
        lambda i: pickle.loads(pickle.dumps(i)).tobytes(),
        lambda i: copy.deepcopy(i).tobytes(),
        lambda i: i.crop((1, 1, 3, 3)).tobytes(),
        lambda i: i == want,
        lambda i: isinstance(i, images.Image),
        lambda i: i.histogram(),
        lambda i: images.blend(i, want, 0.5).tobytes(),
    ]
    from torch_hetero.migration import session

    session.end()
    with PipelineMigrator({"PIL.Image.Image.effect_spread": "hetero"}):
        for use in uses:
            got = source.effect_spread(1)
            assert is_recorded(got) and got.info == {"dpi": (72, 72)}
            assert use(got) == use(want)
        got = source.effect_spread(1)
        got.putpixel((0, 0), (1, 2, 3))
        changed = got.effect_spread(1)
        assert changed.getpixel((4, 0)) == (1, 2, 3)
        source.putpixel((0, 0), (9, 9, 9))
        assert source.effect_spread(1).getpixel((4, 0)) == (9, 9, 9)


TENSOR_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index": lambda t: t[1:4, :, 2],
    "view": lambda t: t.view(-1),
    "reshape": lambda t: t.reshape(-1, 3),
    "permute": lambda t: t.permute(2, 0, 1),
    "transpose": lambda t: torch.transpose(t, 0, 1),
    "same dtype": lambda t: t.byte(),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "flatten": torch.flatten,
    "chain": lambda t: t.permute(2, 0, 1)[0].t()[1:],
}


@pytest.mark.parametrize("view", TENSOR_VIEWS)
@pytest.mark.parametrize("first", ["tensor", "view"])
def test_views_of_tensors_share_elements_in_both_directions(view: str, first: str) -> None:
    tensor, want = torch.from_numpy(handle()), torch.from_numpy(FLIPPED.copy())
    shared, wanted = TENSOR_VIEWS[view](tensor), TENSOR_VIEWS[view](want)
    if first == "view":
        shared.mul_(3)
        wanted.mul_(3)
    tensor.add_(1)
    want.add_(1)
    assert torch.equal(shared, wanted)
    assert torch.equal(tensor, want)


def test_the_array_of_a_tensor_shares_its_elements() -> None:
    tensor = torch.from_numpy(handle())
    array = tensor.numpy()
    array[:] = 7
    assert torch.equal(tensor, torch.full((6, 5, 3), 7, dtype=torch.uint8))


def test_a_tensor_of_another_dtype_is_no_view() -> None:
    tensor = torch.from_numpy(handle())
    floats = tensor.float()
    assert is_recorded(floats)
    floats.zero_()
    assert torch.equal(tensor, torch.from_numpy(FLIPPED))
