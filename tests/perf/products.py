"""What part of a piece of work are kernels that hetero runs as eager does: matrix products, convolutions, attention.

Such kernels are a floor: where they take 0.7 of eager's time, the same library calls leave hetero no less than that. A
product that hetero runs by a faster implementation (`ops/kernels/linear.h`) lies below it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from tests.perf.measure import no_collection

PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)
CALLS = 5


def products_share(run: Callable[[], object]) -> float:
    """The share of the time of `run`, on CPU tensors, that products take, as PyTorch's own profiler counts them."""
    run()
    with no_collection():
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        seconds = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CPU]) as record:
        for _ in range(CALLS):
            run()
    products = sum(event.self_cpu_time_total for event in record.key_averages() if event.key in PRODUCTS)
    return products * 1e-6 / seconds


def products_note(run: Callable[[], object]) -> str:
    """The share in words, for a row."""
    return f"products, convolutions and attention alone: {products_share(run):.2f} of eager"
