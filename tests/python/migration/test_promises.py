"""Programs that rely on more than bytes: gradients, shared memory, errors of floats, ufuncs in plans, files."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from helpers import needs_hetero

pytestmark = needs_hetero

cv2 = pytest.importorskip("cv2")

from torch_hetero.migration import PipelineMigrator  # noqa: E402
from torch_hetero.migration.holder import HANDLES  # noqa: E402

IMAGE = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def recorded_tensor() -> Any:
    """A recorded tensor of floats."""
    return torch.as_tensor(cv2.flip(IMAGE, 1)).to(torch.float32)


def test_a_call_with_a_tensor_that_requires_its_gradient_is_not_recorded() -> None:
    weight = torch.ones(5, 3, requires_grad=True)
    with PipelineMigrator({"cv2.flip": "hetero", "torch.mul": "hetero"}):
        given = recorded_tensor()
        assert type(given) in HANDLES
        results = [given + weight, given * weight, weight * given, torch.mul(given, weight), torch.stack([weight, given[0]])]
        sum(result.sum() for result in results).backward()
    assert all(result.requires_grad for result in results)
    want = 1 + 2 * given.sum(0) + given.sum(0)
    assert torch.allclose(weight.grad, want + (len(given) - 1) + 1)


@pytest.mark.parametrize(
    ("key", "function"),
    [
        ("torch.from_numpy", torch.from_numpy), ("torch.as_tensor", torch.as_tensor), ("numpy.asarray", np.asarray),
        ("numpy.reshape", lambda array: np.reshape(array, -1)), ("numpy.flip", np.flip),
    ],
)  # fmt: skip
def test_what_shares_the_programs_own_memory_goes_on_to_share_it(key: str, function: Any) -> None:
    name = key.split(".")[1]
    for make in (lambda: IMAGE.copy(), lambda: cv2.flip(IMAGE, 1)):
        with PipelineMigrator({key: "hetero", "cv2.flip": "hetero"}):
            array = make()
            call = getattr(torch if key.startswith("torch") else np, name)
            other = call(array, -1) if name == "reshape" else call(array)
            array[:] = 5
            assert (int(other.max()), int(other.min())) == (5, 5)
            other[0] = 7
            assert int(array.max()) == 7
            assert np.array_equal(cv2.flip(array, 0), np.asarray(array)[::-1])


def test_numpys_errors_of_floats_are_raised_where_the_program_asks_for_them() -> None:
    with PipelineMigrator({"cv2.flip": "hetero"}), np.errstate(all="raise"):
        array = cv2.flip(IMAGE, 1).astype(np.float32)
        with pytest.raises(FloatingPointError):
            np.asarray(array / (array * 0))


def test_a_ufunc_of_a_plan_keeps_its_methods() -> None:
    with PipelineMigrator({"numpy.add": "hetero"}):
        assert np.add.reduce(np.arange(4)) == 6 and np.add.nin == 2
        counts = np.zeros(3, np.int64)
        np.add.at(counts, [0, 0, 2], 1)
        assert counts.tolist() == [2, 0, 1]
        assert np.add.outer([1, 2], [3]).tolist() == [[4], [5]] and "array" in repr(np.arange(3))


def test_shuffling_a_handle_is_shuffling_its_array() -> None:
    want = IMAGE[:, ::-1].copy()
    np.random.seed(0)  # noqa: NPY002  the function that programs call
    np.random.shuffle(want)  # noqa: NPY002
    with PipelineMigrator({"cv2.flip": "hetero"}):
        got = cv2.flip(IMAGE, 1)
        np.random.seed(0)  # noqa: NPY002
        np.random.shuffle(got)  # noqa: NPY002
        assert np.array_equal(got, want)
        assert bytes(cv2.flip(IMAGE, 1)) == IMAGE[:, ::-1].tobytes()


def test_files_have_the_librarys_objects() -> None:
    with PipelineMigrator({"cv2.flip": "hetero"}):
        array, tensor = cv2.flip(IMAGE, 1), recorded_tensor()
        assert type(pickle.loads(pickle.dumps(array))) is np.ndarray
        file = io.BytesIO()
        torch.save({"tensor": tensor}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)["tensor"]
    assert type(loaded) is torch.Tensor
    assert np.array_equal(loaded.numpy(), IMAGE[:, ::-1])
