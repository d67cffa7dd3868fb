"""One graph on the CPU and three simulated accelerators: what the program asks for runs where it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero

from torch_hetero import _C
from torch_hetero.profiles import PeerLink, load_profile
from torch_hetero.profiles.simulation import use_profile

pytestmark = needs_hetero


@pytest.fixture(autouse=True)
def three_accelerators() -> Iterator[None]:
    before = torch.hetero.config.accelerator
    torch.hetero.config.accelerator = "sim:3"
    torch.hetero.config.keep_plans = True
    yield
    torch.hetero.config.accelerator = before


def chain(x: torch.Tensor, places: list[str]) -> torch.Tensor:
    for number, where in enumerate(places):
        with torch.hetero.placement(where):
            x = torch.sin(x) + number
    return x


def test_a_chain_over_all_devices_gives_the_bits_of_the_cpu() -> None:
    places = ["accelerator", "sim:1", "accelerator:2", "cpu", "sim:0", "accelerator:2", "accelerator:1"]
    x = torch.randn(64, 64)
    expected = chain(x, ["auto"] * len(places))
    with counting() as counts:
        actual = chain(x.to(DEVICE), places).cpu()
    assert_same(actual, expected)
    assert counts.kernels_on("accelerator") > 0
    plan = _C.plan_text()
    assert ", 4 devices" in plan
    for device in ("accelerator", "accelerator:1", "accelerator:2"):
        assert f"{device} compute: " in plan
    assert "accelerator:1 p2p: copy" in plan  # straight from a neighbour
    assert "from cpu to accelerator:2" in plan  # from sim:0 by way of the host, which has no link to sim:2


def test_the_budget_is_that_of_each_accelerator() -> None:
    limit = 1 << 20
    x = torch.randn(512, 512)  # as large as the budget, so that no result fits beside it
    places = ["accelerator", "accelerator:1", "accelerator:2"]
    expected = chain(x, ["auto"] * len(places))
    small = torch.randn(64, 64)
    with torch.hetero.memory_budget(limit):
        torch.hetero.reset_peak_memory_stats()
        actual = chain(x.to(DEVICE), places).cpu()
        there = chain(small.to(DEVICE), places).cpu()
        memory = [torch.hetero.accelerator_memory_stats(number) for number in range(4)]
    assert_same(actual, expected)
    assert_same(there, chain(small, ["auto"] * len(places)))
    assert [stats["limit_bytes"] for stats in memory] == [limit, limit, limit, 0]
    assert all(0 < stats["allocated_bytes.all.peak"] <= limit for stats in memory[:3])
    assert [torch.hetero.accelerator_memory_stats(number)["limit_bytes"] for number in range(3)] != [limit] * 3


def test_a_profile_names_the_links() -> None:
    """From the first accelerator to the third, which have no link otherwise, and from no other."""
    tiny = load_profile("tiny")
    linked = replace(tiny, links=(PeerLink(0, 2, bandwidth=8e9, latency=1e-6),))
    x = torch.randn(32, 32)
    places = ["accelerator", "accelerator:2", "accelerator:1"]
    expected = chain(x, ["auto"] * len(places))
    try:
        use_profile(linked)
        assert_same(chain(x.to(DEVICE), places).cpu(), expected)
        plan = _C.plan_text()
        assert "accelerator:2 p2p: copy" in plan
        assert "accelerator:1 p2p: copy" not in plan
    finally:
        use_profile(None)


def test_a_module_and_a_rule_name_a_device() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())
    x = torch.randn(4, 16)
    expected = model(x).detach()
    model.to(DEVICE)
    torch.hetero.place(model[0], "accelerator:2")
    torch.hetero.set_placement_rules({"aten::tanh": "sim:1"})
    try:
        actual = model(x.to(DEVICE)).detach().cpu()
    finally:
        torch.hetero.set_placement_rules()
    assert_same(actual, expected)
    assert "accelerator:2 compute: " in _C.plan_text()


@pytest.mark.parametrize("where", ["sim", "gpu:1", "accelerator:9", "accelerator:x", "cpu:0"])
def test_what_is_no_device_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match="placement takes"):
        torch.hetero.placement(where)
