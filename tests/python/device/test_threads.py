"""Several threads record, read and write at once; each sees CPU's values."""

from __future__ import annotations

import threading

import torch
from helpers import DEVICE, assert_same, in_threads
from torch import nn


def chain(index: int, device: str) -> torch.Tensor:
    value = torch.arange(32.0, device=device).reshape(4, 8) + index
    for step in range(30):
        value = torch.sin(value) * (step + 1)
        value[:, ::2].add_(index)
        value = value @ value.t() @ value / 64
    return value.cpu()


def test_threads_that_record_their_own_tensors_get_cpu_values() -> None:
    actual = in_threads(4, lambda index: chain(index, DEVICE))
    assert_same(actual, [chain(index, "cpu") for index in range(4)])


def test_threads_that_read_one_pending_value_all_see_it() -> None:
    shared = torch.ones(64, 64, device=DEVICE)
    for _ in range(10):
        shared = shared @ shared / 64
    results = in_threads(4, lambda _: shared.sum().item())
    assert results == [4096.0] * 4


def test_threads_that_write_disjoint_rows_of_one_tensor_keep_all() -> None:
    shared = torch.zeros(4, 100, device=DEVICE)

    def work(index: int) -> None:
        for _ in range(50):
            shared[index].add_(index + 1)

    in_threads(4, work)
    assert shared.sum(1).tolist() == [5000.0, 10000.0, 15000.0, 20000.0]


def test_a_lock_between_threads_orders_their_writes() -> None:
    shared = torch.zeros(3, device=DEVICE)
    lock = threading.Lock()

    def work(_: int) -> None:
        for _ in range(25):
            with lock:
                shared.add_(1)

    in_threads(4, work)
    assert shared.tolist() == [100.0] * 3


def test_backward_runs_on_autograd_threads_with_cpu_gradients() -> None:
    def train(index: int, device: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        weight = torch.randn(8, 8, generator=generator).to(device).requires_grad_()
        inputs = torch.randn(4, 8, generator=generator).to(device)
        for _ in range(5):
            loss = (inputs @ weight).tanh().pow(2).sum()
            (gradient,) = torch.autograd.grad(loss, weight)
            weight = (weight - 0.1 * gradient).detach().requires_grad_()
        return weight.detach().cpu()

    actual = in_threads(3, lambda index: train(index, DEVICE))
    assert_same(actual, [train(index, "cpu") for index in range(3)])


def test_modules_shared_by_inference_threads_give_cpu_outputs() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    inputs = [torch.randn(3, 8) for _ in range(4)]
    with torch.no_grad():
        expected = [model(value) for value in inputs]
    model.to(DEVICE)

    def work(index: int) -> torch.Tensor:
        with torch.inference_mode():
            return model(inputs[index].to(DEVICE)).cpu()

    assert_same(in_threads(4, work), expected)


def test_an_error_in_one_thread_leaves_the_others_alone() -> None:
    def work(index: int) -> object:
        value = torch.ones(3, device=DEVICE)
        if index == 0:
            try:
                value @ torch.ones(4, device=DEVICE)
            except RuntimeError:
                return "refused"
        return (value * index).sum().item()

    assert in_threads(3, work) == ["refused", 3.0, 6.0]


def test_tensors_released_in_another_thread_free_their_memory() -> None:
    tensors = [torch.ones(1000, device=DEVICE) * index for index in range(8)]
    totals = in_threads(8, lambda index: tensors[index].sum().item())
    in_threads(8, lambda index: tensors.__setitem__(index, None))
    assert totals == [1000.0 * index for index in range(8)]
    assert (torch.ones(2, device=DEVICE) * 2).tolist() == [2.0, 2.0]
