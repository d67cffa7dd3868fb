"""A fresh TorchDynamo for each test, and a custom operator that counts its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

pytest.register_assert_rewrite("compiled_models")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):  # without it TorchDynamo leaves models with an LSTM alone
        yield
    torch._dynamo.reset()


@pytest.fixture
def counted() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """A custom operator of Python for all devices that counts its calls and uses numpy, and one that writes so."""
    calls = 0
    with torch.library._scoped_library("hetero_compile_test", "FRAGMENT"):

        @torch.library.custom_op("hetero_compile_test::count", mutates_args=())
        def count(x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return torch.from_numpy(x.cpu().numpy() + calls).to(x.device)

        @count.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x)

        @torch.library.custom_op("hetero_compile_test::count_into", mutates_args=("x",))
        def count_into(x: torch.Tensor) -> None:
            nonlocal calls
            calls += 1
            x.fill_(calls)

        yield count, count_into
