"""Saving, loading, pickling, copying and handing over memory keep values and aliasing."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from counters import LEAVE_DISPATCHER, counting
from helpers import DEVICE, assert_same, needs_hetero, run_python, run_python_ok
from torch import nn


def pending() -> torch.Tensor:
    return torch.arange(12.0, device=DEVICE).reshape(3, 4) * 2


def save_and_load(value: object, **options: object) -> object:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("weights_only", (True, False))
def test_save_and_load_return_to_the_device(weights_only: bool) -> None:
    loaded = save_and_load(pending(), weights_only=weights_only)
    assert loaded.device.type == DEVICE
    assert_same(loaded.cpu(), torch.arange(12.0).reshape(3, 4) * 2)


@pytest.mark.parametrize("location", ("cpu", torch.device("cpu"), lambda storage, _: storage.cpu()))
def test_map_location_to_cpu(location: object) -> None:
    loaded = save_and_load(pending(), map_location=location, weights_only=True)
    assert loaded.device.type == "cpu"
    assert_same(loaded, torch.arange(12.0).reshape(3, 4) * 2)


@pytest.mark.parametrize("location", (DEVICE, torch.device(DEVICE), {"cpu": DEVICE}))
def test_map_location_from_cpu_to_the_device(location: object) -> None:
    loaded = save_and_load(torch.arange(5), map_location=location, weights_only=True)
    assert loaded.device.type == DEVICE
    assert loaded.tolist() == [0, 1, 2, 3, 4]


def test_saved_views_still_alias_after_loading() -> None:
    base = pending()
    one, other = save_and_load([base, base.t()[1]], weights_only=True)
    one[2, 1] = -7
    assert other.tolist() == [2.0, 10.0, -7.0]


def test_strides_and_offsets_survive_saving() -> None:
    window = pending().t()[1:, ::2]
    loaded = save_and_load(window, weights_only=True)
    assert loaded.stride() == window.stride()
    assert loaded.storage_offset() == window.storage_offset()
    assert_same(loaded.cpu(), window.cpu())


def test_every_dtype_survives_saving() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64):
        value = torch.tensor([0, 1, 3]).to(dtype)
        assert_same(save_and_load(value.to(DEVICE), weights_only=True).cpu(), value)


def test_state_dict_of_module_and_optimizer_round_trips() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(5)
        model = nn.Linear(3, 2).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return model, optimizer

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3, device=DEVICE)).sum().backward()
        optimizer.step()

    model, optimizer = make()
    step(model, optimizer)
    state = save_and_load({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, weights_only=True)
    resumed, resumed_optimizer = make()
    resumed.load_state_dict(state["model"])
    resumed_optimizer.load_state_dict(state["optimizer"])
    step(model, optimizer)
    step(resumed, resumed_optimizer)
    assert_same(
        [parameter.detach().cpu() for parameter in resumed.parameters()],
        [parameter.detach().cpu() for parameter in model.parameters()],
    )


def test_a_whole_module_pickles_by_torch_save() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to(DEVICE)
    loaded = save_and_load(model, weights_only=False)
    inputs = torch.ones(1, 2, device=DEVICE)
    assert_same(loaded(inputs).detach().cpu(), model(inputs).detach().cpu())


def test_a_file_saved_on_the_device_loads_where_hetero_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"weight": pending()}, path)
    out = run_python_ok(
        f"""
        import torch
        state = torch.load({str(path)!r}, map_location="cpu", weights_only=True)
        print(state["weight"].sum().item())
        """,
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert out.strip() == "132.0"


def test_memory_mapped_loading_to_the_device(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(torch.arange(6.0), path)
    loaded = torch.load(path, mmap=True, map_location=DEVICE, weights_only=True)
    assert loaded.device.type == DEVICE and loaded.sum().item() == 15


def test_pickle_keeps_device_values_and_requires_grad() -> None:
    value = pending().requires_grad_()
    loaded = pickle.loads(pickle.dumps(value))
    assert loaded.device.type == DEVICE and loaded.requires_grad
    assert_same(loaded.detach().cpu(), value.detach().cpu())


def test_deepcopy_is_independent() -> None:
    value = pending()
    twin = copy.deepcopy(value)
    twin.zero_()
    assert value.sum().item() == 132 and twin.sum().item() == 0


def test_deepcopy_keeps_aliasing_inside_the_copy() -> None:
    value = pending()
    base, row = copy.deepcopy([value, value[1]])
    row.fill_(-1)
    assert base[1].tolist() == [-1.0] * 4
    assert value[1].tolist() == [8.0, 10.0, 12.0, 14.0]


def test_copy_copy_shares_memory() -> None:
    value = pending()
    shallow = copy.copy(value)
    shallow[0, 0] = 99
    assert value[0, 0].item() == 99


def test_untyped_storage_is_readable_and_copyable() -> None:
    value = torch.tensor([1, 2, 3], dtype=torch.uint8, device=DEVICE) + 1
    storage = value.untyped_storage()
    assert storage.nbytes() == 3 and storage.device.type == DEVICE
    assert storage.cpu().tolist() == [2, 3, 4]
    assert storage.clone().tolist() == [2, 3, 4]


def test_set_from_another_storage_shares_it() -> None:
    value = torch.arange(6.0, device=DEVICE)
    other = torch.empty(0, device=DEVICE).set_(value.untyped_storage(), 2, (2, 2), (2, 1))
    other.mul_(10)
    assert value.tolist() == [0.0, 1.0, 20.0, 30.0, 40.0, 50.0]


def test_storage_resize_to_zero_and_back_keeps_the_tensor_usable() -> None:
    value = torch.ones(4, device=DEVICE)
    value.untyped_storage().resize_(0)
    assert value.untyped_storage().nbytes() == 0
    value.untyped_storage().resize_(16)
    value.fill_(3)
    assert value.tolist() == [3.0] * 4


def test_numpy_through_cpu_and_by_force() -> None:
    value = pending()
    assert numpy.array_equal(value.cpu().numpy(), numpy.arange(12.0).reshape(3, 4) * 2)
    assert numpy.array_equal(value.numpy(force=True), value.cpu().numpy())


def test_dlpack_export_reads_the_pending_value() -> None:
    value = pending()
    back = torch.from_dlpack(value.__dlpack__())
    assert_same(back.cpu(), torch.arange(12.0).reshape(3, 4) * 2)


def test_dlpack_export_shares_memory_with_later_writes() -> None:
    value = pending()
    shared = torch.from_dlpack(value)
    value.add_(1)
    assert shared.cpu()[2, 3].item() == 23.0


def test_dlpack_import_from_numpy_then_to_the_device() -> None:
    array = numpy.arange(4.0)
    assert torch.from_dlpack(array).to(DEVICE).add(1).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_dlpack_of_a_strided_view() -> None:
    window = pending().t()[1:]
    assert_same(torch.from_dlpack(window).cpu(), window.cpu())


def test_data_ptr_is_unique_stable_and_never_null() -> None:
    tensors = [torch.ones(3, device=DEVICE) for _ in range(10)]
    pointers = [tensor.data_ptr() for tensor in tensors]
    assert len(set(pointers)) == 10 and 0 not in pointers
    assert tensors[0].sum().item() == 3
    assert [tensor.data_ptr() for tensor in tensors] == pointers
    assert tensors[0][1:].data_ptr() == pointers[0] + 4


def test_an_empty_tensor_has_a_null_pointer_as_on_cpu() -> None:
    assert torch.empty(0, device=DEVICE).data_ptr() == torch.empty(0).data_ptr() == 0


@needs_hetero
def test_leaving_the_dispatcher_is_counted() -> None:
    value = pending()
    with counting() as seen:
        value = value + 1
        kept = torch.from_dlpack(value)
    assert seen.flushes.get(LEAVE_DISPATCHER, 0) >= 1
    assert kept.shape == (3, 4)


@needs_hetero
def test_sharing_a_storage_with_another_process_is_refused_with_advice() -> None:
    from multiprocessing.reduction import ForkingPickler

    with pytest.raises(RuntimeError, match=r"cannot be shared.*\.cpu\(\)"):
        ForkingPickler.dumps(pending().untyped_storage())


@needs_hetero
def test_a_stray_host_access_faults_and_never_reads_garbage() -> None:
    done = run_python(
        """
        import ctypes, torch
        value = torch.ones(4, device="hetero") + 1
        print(ctypes.c_float.from_address(value.data_ptr()).value)
        """
    )
    assert done.returncode != 0
    assert "2.0" not in done.stdout
    assert ".cpu()" in done.stderr


def test_loading_a_tensor_subclass_warns_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = save_and_load(nn.Parameter(pending()), weights_only=True)
    assert isinstance(loaded, nn.Parameter) and loaded.device.type == DEVICE
