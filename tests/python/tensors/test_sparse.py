"""Sparse tensors are what they are on the CPU: made, converted, computed with, saved, printed, with autograd."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero
from torch import nn


def coo(device: str) -> torch.Tensor:
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
    return torch.sparse_coo_tensor(indices.to(device), torch.tensor([3.0, 4.0, 5.0]).to(device), (2, 3), device=device)


def dense(device: str) -> torch.Tensor:
    return torch.arange(12.0, device=device).view(3, 4)


def saved(device: str) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(coo(device), file)
    file.seek(0)
    return torch.load(file)


def buffer(device: str) -> torch.Tensor:
    module = nn.Module()
    module.register_buffer("buffer", coo("cpu"))
    return module.to(device).buffer


CALLS: dict[str, Callable[[str], Any]] = {
    "sparse_coo_tensor": coo,
    "coalesce": lambda d: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2), device=d).coalesce(),
    "to": lambda d: coo("cpu").to(d),
    "cpu": lambda d: coo(d).cpu(),
    "clone": lambda d: coo(d).clone(),
    "detach": lambda d: coo(d).detach(),
    "double": lambda d: coo(d).double(),
    "deepcopy": lambda d: copy.deepcopy(coo(d)),
    "parameter": lambda d: nn.Parameter(coo(d)),
    "buffer of a module": buffer,
    "save and load": saved,
    "copy_": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d).copy_(coo("cpu")),
    "copy_ to the cpu": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo).copy_(coo(d)),
    "zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "to_sparse": lambda d: dense(d).to_sparse(),
    "to_dense": lambda d: coo(d).to_dense(),
    "indices and values": lambda d: (coo(d)._indices(), coo(d)._values(), coo(d).coalesce().values()),
    "facts": lambda d: (coo(d)._nnz(), coo(d).sparse_dim(), coo(d).dense_dim(), coo(d).is_coalesced()),
    "sparse.mm": lambda d: torch.sparse.mm(coo(d), dense(d)),
    "sparse.mm of two": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "sparse.addmm": lambda d: torch.sparse.addmm(torch.ones(2, 4, device=d), coo(d), dense(d)),
    "sparse.softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "sparse.sum": lambda d: torch.sparse.sum(coo(d)),
    "sparse.sum of a dimension": lambda d: torch.sparse.sum(coo(d), 1),
    "matmul": lambda d: coo(d) @ dense(d),
    "mv": lambda d: coo(d) @ torch.arange(3.0, device=d),
    "bmm": lambda d: torch.bmm(torch.stack([coo(d), coo(d)]), torch.stack([dense(d), dense(d)])),
    "mul": lambda d: coo(d) * 2,
    "mul_": lambda d: coo(d).mul_(2),
    "div": lambda d: coo(d) / 2,
    "add": lambda d: coo(d) + coo(d),
    "add_": lambda d: coo(d).add_(coo(d)),
    "add to a dense one": lambda d: torch.ones(2, 3, device=d) + coo(d),
    "add_ to a dense one": lambda d: torch.ones(2, 3, device=d).add_(coo(d), alpha=2),
    "neg and abs": lambda d: coo(d).neg().abs(),
    "sqrt": lambda d: coo(d).coalesce().sqrt(),
    "pow": lambda d: coo(d).coalesce().pow(2),
    "norm": lambda d: coo(d).norm(),
    "t": lambda d: coo(d).t(),
    "unsqueeze": lambda d: coo(d).unsqueeze(0),
    "cat": lambda d: torch.cat([coo(d), coo(d)]),
    "stack": lambda d: torch.stack([coo(d), coo(d)]),
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([1], device=d)),
    "narrow_copy": lambda d: coo(d).narrow_copy(0, 1, 1),
    "sparse_mask": lambda d: torch.ones(2, 3, device=d).sparse_mask(coo(d).coalesce()),
    "sparse_resize_": lambda d: coo(d).sparse_resize_((3, 3), 2, 0),
    "csr": lambda d: coo(d).to_sparse_csr(),
    "csr to": lambda d: coo("cpu").to_sparse_csr().to(d),
    "csr to the cpu": lambda d: coo(d).to_sparse_csr().cpu(),
    "csr made": lambda d: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=d),
    "csr members": lambda d: [
        member(coo(d).to_sparse_csr())
        for member in (torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values)
    ],
    "csr matmul": lambda d: coo(d).to_sparse_csr() @ dense(d),
    "csc": lambda d: dense(d).to_sparse_csc(),
    "bsr": lambda d: torch.ones(4, 4, device=d).to_sparse_bsr((2, 2)),
    "bsc": lambda d: torch.ones(4, 4, device=d).to_sparse_bsc((2, 2)),
}


def parts(value: Any) -> list[Any]:
    """What a value is made of, on the CPU: dense tensors and plain values, with the layout of each sparse tensor."""
    if isinstance(value, (tuple, list)):
        return [part for each in value for part in parts(each)]
    if not isinstance(value, torch.Tensor):
        return [value]
    value = value.detach()
    if value.layout == torch.strided:
        return [value.cpu()]
    shown = [value.layout, value.shape, value.dtype]
    if value.layout == torch.sparse_coo:
        return [*shown, value.is_coalesced(), value._indices().cpu(), value._values().cpu()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [*shown, value.crow_indices().cpu(), value.col_indices().cpu(), value.values().cpu()]
    return [*shown, value.ccol_indices().cpu(), value.row_indices().cpu(), value.values().cpu()]


def assert_alike(got: Any, expected: Any) -> None:
    got, expected = parts(got), parts(expected)
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert_same(ours, theirs)
        else:
            assert ours == theirs


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", CALLS)
def test_sparse_tensors_are_what_they_are_on_the_cpu(name: str) -> None:
    result = CALLS[name](DEVICE)
    assert_alike(result, CALLS[name]("cpu"))
    if isinstance(result, torch.Tensor) and "cpu" not in name:
        assert result.device.type == DEVICE


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_they_are_printed_as_on_the_cpu(layout: str) -> None:
    text = repr(getattr(dense(DEVICE), layout)())
    for extra in (f"device='{DEVICE}:0', ", f", device='{DEVICE}:0'"):
        text = text.replace(extra, "")
    assert text == repr(getattr(dense("cpu"), layout)())


def train(device: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    layer = nn.Embedding(6, 3, sparse=True).to(device)
    optimizer = make(list(layer.parameters()))
    for step in range(3):
        optimizer.zero_grad()
        layer(torch.tensor([1, 2, 1 + step], device=device)).pow(2).sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.is_sparse
        optimizer.step()
    assert layer.weight.grad is not None
    return layer.weight.grad, layer.weight


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SparseAdam(p),
        lambda p: torch.optim.Adagrad(p),
    ],
    ids=["sgd", "sparse adam", "adagrad"],
)
def test_an_embedding_with_sparse_gradients_trains(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], unfused: None
) -> None:
    assert_alike(train(DEVICE, make), train("cpu", make))


def test_gradients_of_sparse_products_and_gathers(unfused: None) -> None:
    def gradients(device: str) -> tuple[torch.Tensor | None, ...]:
        sparse, x, y = coo(device).requires_grad_(), dense(device).requires_grad_(), dense(device).requires_grad_()
        torch.sparse.mm(sparse, x).sum().backward()
        y.gather(1, torch.tensor([[0], [1], [2]], device=device), sparse_grad=True).sum().backward()
        return sparse.grad, x.grad, y.grad

    assert_alike(gradients(DEVICE), gradients("cpu"))


@needs_hetero
def test_making_one_of_its_members_and_looking_at_them_runs_nothing() -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]], device=DEVICE), torch.ones(2, device=DEVICE)
    with counting() as counted:
        sparse = torch.sparse_coo_tensor(indices, values * 2, (2, 2), check_invariants=False, is_coalesced=True)
        doubled = sparse._values() * 2
        other = torch.sparse_coo_tensor(sparse._indices(), doubled, (2, 2), is_coalesced=True)
    assert not counted.flushes
    assert other.to_dense().tolist() == [[0.0, 4.0], [4.0, 0.0]]


@needs_hetero
def test_what_is_not_held_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(NotImplementedError, match="torchao"):
        torch.quantize_per_tensor(torch.ones(3, device=DEVICE), 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError, match="sparse|layout|device"):
        coo("cpu") @ dense(DEVICE)
    assert dense(DEVICE).sum().item() == 66
