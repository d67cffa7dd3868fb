"""Random networks give results and gradients close to eager's in float64, in each way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import assert_same, needs_hetero

from tests.fuzz import networks

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

SEEDS = range(30)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """In networks so small, threads of a busy machine would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("way", ("saved", "lazily", "gradients"))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_network_is_close_to_float64(seed: int, way: str) -> None:
    networks.check(seed, way)


@pytest.mark.parametrize("way", ("compiled", "compiled-gradients"))
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_compiled_network_is_close_to_float64(seed: int, way: str) -> None:
    networks.check(seed, way)


def test_one_seed_means_one_network() -> None:
    (one, example), (other, same) = networks.draw_network(7), networks.draw_network(7)
    assert one.description() == other.description()
    assert_same((example, one.state_dict()), (same, other.state_dict()))


def test_the_networks_have_steps_of_every_row_of_the_table() -> None:
    drawn = {name for seed in SEEDS for name in networks.draw_network(seed)[0].names}
    assert drawn == {step.name for step in networks.STEPS} | {"combine"}


def test_the_wide_convolutions_have_groups_of_16_and_32_channels_and_dilation() -> None:
    steps = [step for seed in SEEDS for step in networks.draw_network(seed)[0].steps]
    convolutions = [step for step in steps if isinstance(step, torch.nn.Conv2d) and step.kernel_size == (3, 3)]
    in_groups = {(one.in_channels // one.groups, one.dilation[0] > 1) for one in convolutions if one.groups > 1}
    assert in_groups >= {(16, False), (16, True), (32, False), (32, True)}


def wrong(network: networks.Network, example: torch.Tensor) -> Any:
    return lambda value: [result + 0.01 * (1 + result.abs()) for result in network(value)]


def failing(network: networks.Network, example: torch.Tensor) -> Any:
    raise ValueError("as it was told")


def right(network: networks.Network, example: torch.Tensor) -> Any:
    return network


WRONG, FAILING, RIGHT = (networks.Way(prepare, "cpu", networks.RESULTS) for prepare in (wrong, failing, right))


@pytest.mark.parametrize(
    ("way", "message"), ((WRONG, "off by 1.0e-02, 1.0e-02, 1.0e-02 where"), (FAILING, "ValueError: as it was told"))
)
def test_a_failure_names_the_seed_and_lists_the_networks_steps(
    way: networks.Way, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(networks.WAYS, "way", way)
    description = networks.draw_network(3)[0].description()
    with pytest.raises(AssertionError, match=rf"seed 3, way, argument \[.*\]: {message}") as raised:
        networks.check(3, "way")
    assert str(raised.value).endswith(description)


def test_a_failure_is_excused_only_if_the_way_without_hetero_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.WAYS, "excused", dataclasses.replace(WRONG, peer=FAILING))
    monkeypatch.setitem(networks.WAYS, "not excused", dataclasses.replace(WRONG, peer=RIGHT))
    networks.check(3, "excused")
    with pytest.raises(AssertionError, match="off by"):
        networks.check(3, "not excused")
