"""Random numbers depend on the seed and the program alone, never on when work is run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from counters import counting
from helpers import DEVICE, ON_HETERO, assert_same, needs_hetero, run_python_ok
from torch import nn

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(3, 5, device=DEVICE),
    "randn": lambda: torch.randn(3, 5, device=DEVICE),
    "randn_double": lambda: torch.randn(7, device=DEVICE, dtype=torch.float64),
    "rand_half": lambda: torch.rand(7, device=DEVICE, dtype=torch.float16),
    "randint": lambda: torch.randint(-3, 100, (9,), device=DEVICE),
    "randperm": lambda: torch.randperm(20, device=DEVICE),
    "rand_like": lambda: torch.rand_like(torch.empty(4, device=DEVICE)),
    "uniform": lambda: torch.empty(11, device=DEVICE).uniform_(-2, 5),
    "normal": lambda: torch.empty(11, device=DEVICE).normal_(3, 2),
    "normal_tensors": lambda: torch.normal(torch.zeros(5, device=DEVICE), torch.ones(5, device=DEVICE)),
    "bernoulli": lambda: torch.empty(50, device=DEVICE).bernoulli_(0.3),
    "bernoulli_tensor": lambda: torch.bernoulli(torch.full((50,), 0.3, device=DEVICE)),
    "exponential": lambda: torch.empty(11, device=DEVICE).exponential_(2),
    "geometric": lambda: torch.empty(11, device=DEVICE).geometric_(0.3),
    "cauchy": lambda: torch.empty(11, device=DEVICE).cauchy_(),
    "log_normal": lambda: torch.empty(11, device=DEVICE).log_normal_(),
    "random": lambda: torch.empty(11, device=DEVICE, dtype=torch.int64).random_(0, 1000),
    "poisson": lambda: torch.poisson(torch.full((20,), 4.0, device=DEVICE)),
    "multinomial": lambda: torch.multinomial(torch.ones(10, device=DEVICE), 5),
    "dropout": lambda: nn.functional.dropout(torch.ones(50, device=DEVICE), 0.5),
    "dropout_in_place": lambda: nn.functional.dropout(torch.ones(50, device=DEVICE), 0.5, inplace=True),
    "alpha_dropout": lambda: nn.functional.alpha_dropout(torch.ones(50, device=DEVICE), 0.5, training=True),
    "rrelu": lambda: nn.functional.rrelu(-torch.ones(20, device=DEVICE), training=True),
    "gumbel_softmax": lambda: nn.functional.gumbel_softmax(torch.zeros(9, device=DEVICE)),
    "kaiming": lambda: nn.init.kaiming_uniform_(torch.empty(4, 5, device=DEVICE)),
    "trunc_normal": lambda: nn.init.trunc_normal_(torch.empty(30, device=DEVICE)),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 4, device=DEVICE)),
    "gamma": lambda: torch._standard_gamma(torch.ones(9, device=DEVICE)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_seed_gives_the_same_numbers(name: str) -> None:
    torch.manual_seed(21)
    first = DRAWS[name]()
    torch.manual_seed(21)
    second = DRAWS[name]()
    assert first.device.type == DEVICE
    assert_same(first.cpu(), second.cpu())


@pytest.mark.parametrize("name", DRAWS)
def test_the_next_draw_and_another_seed_give_other_numbers(name: str) -> None:
    torch.manual_seed(21)
    first, second = DRAWS[name]().cpu(), DRAWS[name]().cpu()
    torch.manual_seed(22)
    other = DRAWS[name]().cpu()
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


@needs_hetero
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_do_not_depend_on_where_flushes_fall(name: str, unfused: None) -> None:
    torch.manual_seed(23)
    torch.rand(3, device=DEVICE)
    lazily = [DRAWS[name](), torch.rand(5, device=DEVICE), DRAWS[name]()]
    lazily = [value.cpu() for value in reversed(lazily)][::-1]
    torch.manual_seed(23)
    torch.rand(3, device=DEVICE)
    eagerly = []
    for draw in (DRAWS[name], lambda: torch.rand(5, device=DEVICE), DRAWS[name]):
        eagerly.append(draw())
        torch.hetero.flush()
    assert_same([value.cpu() for value in eagerly], lazily)


@needs_hetero
@pytest.mark.parametrize("option", ("sync", "fusion"))
def test_numbers_do_not_depend_on_sync_mode_or_fusion(option: str) -> None:
    def program() -> torch.Tensor:
        torch.manual_seed(24)
        value = torch.randn(6, 6, device=DEVICE)
        value = nn.functional.dropout(value.tanh() * 2 + 1, 0.4)
        return (value + torch.rand(6, device=DEVICE)).cpu()

    results = []
    for setting in (False, True):
        setattr(torch.hetero.config, option, setting)
        results.append(program())
    assert_same(results[0], results[1])


@needs_hetero
def test_a_draw_that_nobody_reads_still_advances_the_generator() -> None:
    torch.manual_seed(25)
    dropped = torch.rand(4, device=DEVICE)
    del dropped
    after_dropped = torch.rand(4, device=DEVICE).cpu()
    torch.manual_seed(25)
    torch.rand(4, device=DEVICE).cpu()
    assert_same(torch.rand(4, device=DEVICE).cpu(), after_dropped)


def test_generator_state_can_be_saved_and_restored() -> None:
    if not ON_HETERO:
        pytest.skip("asks for the device's module")
    torch.manual_seed(26)
    torch.rand(3, device=DEVICE)
    state = torch.hetero.get_rng_state()
    first = [torch.randn(4, device=DEVICE).cpu(), torch.rand(2, device=DEVICE).cpu()]
    torch.hetero.set_rng_state(state)
    assert_same([torch.randn(4, device=DEVICE).cpu(), torch.rand(2, device=DEVICE).cpu()], first)
    assert state.dtype == torch.uint8 and state.device.type == "cpu"


@needs_hetero
def test_device_seeds_do_not_disturb_the_cpu_generator() -> None:
    torch.manual_seed(27)
    expected = torch.rand(3)
    torch.manual_seed(27)
    torch.hetero.manual_seed(5)
    torch.rand(10, device=DEVICE).cpu()
    assert_same(torch.rand(3), expected)
    torch.hetero.manual_seed_all(5)
    first = torch.rand(10, device=DEVICE).cpu()
    torch.hetero.manual_seed(5)
    assert_same(torch.rand(10, device=DEVICE).cpu(), first)


def test_an_own_generator_is_independent_and_reproducible() -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(28)
    first = torch.randn(5, device=DEVICE, generator=generator).cpu()
    torch.rand(9, device=DEVICE)
    second = torch.randn(5, device=DEVICE, generator=generator).cpu()
    again = torch.Generator(device=DEVICE).manual_seed(28)
    assert_same(torch.randn(5, device=DEVICE, generator=again).cpu(), first)
    assert_same(torch.randn(5, device=DEVICE, generator=again).cpu(), second)
    assert generator.initial_seed() == 28 and generator.device.type == DEVICE


def test_generator_state_round_trips() -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(29)
    torch.rand(3, device=DEVICE, generator=generator)
    state = generator.get_state()
    first = torch.rand(4, device=DEVICE, generator=generator).cpu()
    generator.set_state(state)
    assert_same(torch.rand(4, device=DEVICE, generator=generator).cpu(), first)


@needs_hetero
def test_a_cpu_generator_for_the_device_is_refused_with_pytorchs_wording() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'hetero' device type for generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())


def test_fork_rng_restores_the_device_generator() -> None:
    torch.manual_seed(30)
    expected = torch.rand(4, device=DEVICE).cpu()
    torch.manual_seed(30)
    with torch.random.fork_rng(devices=[] if not ON_HETERO else [0], device_type=fork_device()):
        torch.manual_seed(1)
        torch.rand(100, device=DEVICE)
    assert_same(torch.rand(4, device=DEVICE).cpu(), expected)


def fork_device() -> str:
    return DEVICE if ON_HETERO else "cuda"


def test_two_processes_with_one_seed_agree() -> None:
    code = """
    import torch
    torch.manual_seed(31)
    value = torch.randn(4, device=DEVICE) + torch.rand(4, device=DEVICE)
    print(value.tolist())
    """
    assert run_python_ok(code) == run_python_ok(code)


def sample(draw: Callable[[torch.Tensor], torch.Tensor], count: int = 40000) -> torch.Tensor:
    torch.manual_seed(32)
    return draw(torch.empty(count, device=DEVICE)).double().cpu()


# Mean and variance of each distribution; with 40,000 draws the bounds are above six sigma.
MOMENTS = {
    "uniform": (lambda t: t.uniform_(-1, 3), 1.0, 16 / 12),
    "normal": (lambda t: t.normal_(2, 3), 2.0, 9.0),
    "exponential": (lambda t: t.exponential_(0.5), 2.0, 4.0),
    "bernoulli": (lambda t: t.bernoulli_(0.3), 0.3, 0.21),
    "geometric": (lambda t: t.geometric_(0.4), 2.5, 3.75),
    "log_normal": (lambda t: t.log_normal_(0, 0.25), 1.0317, 0.0687),
    "randint": (lambda t: t.random_(0, 11), 5.0, 10.0),
    "dropout": (lambda t: nn.functional.dropout(t.fill_(1), 0.2), 1.0, 0.25),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_distribution_has_its_mean_and_variance(name: str) -> None:
    draw, mean, variance = MOMENTS[name]
    values = sample(draw)
    assert abs(values.mean().item() - mean) < 0.04 * max(mean, variance**0.5)
    assert abs(values.var().item() / variance - 1) < 0.1


def test_uniform_stays_inside_its_half_open_interval_and_fills_it() -> None:
    values = sample(lambda t: t.uniform_(0, 1))
    assert values.min().item() >= 0 and values.max().item() < 1
    counts = torch.histc(values.float(), bins=20, min=0, max=1)
    assert (counts / 2000 - 1).abs().max().item() < 0.15


def test_successive_draws_are_uncorrelated() -> None:
    values = sample(lambda t: t.normal_())
    assert abs((values[:-1] * values[1:]).mean().item()) < 0.03
    assert values.unique().numel() > 39000


def test_randperm_is_a_permutation_and_multinomial_respects_weights() -> None:
    torch.manual_seed(33)
    assert torch.randperm(100, device=DEVICE).sort().values.tolist() == list(range(100))
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0], device=DEVICE)
    draws = torch.multinomial(weights, 8000, replacement=True).bincount(minlength=4).tolist()
    assert draws[0] == draws[3] == 0
    assert abs(draws[2] / 8000 - 0.75) < 0.03


def test_dropout_scales_what_it_keeps_and_its_backward_uses_the_same_mask() -> None:
    inputs = torch.ones(1000, device=DEVICE, requires_grad=True)
    output = nn.functional.dropout(inputs, 0.25)
    output.sum().backward()
    assert set(output.detach().unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert_same(inputs.grad.cpu(), output.detach().cpu())


def test_bernoulli_with_probability_zero_and_one_is_certain() -> None:
    assert torch.zeros(20, device=DEVICE).bernoulli().sum().item() == 0
    assert torch.ones(20, device=DEVICE).bernoulli().sum().item() == 20


@needs_hetero
def test_drawing_is_recorded_and_runs_nothing() -> None:
    with counting() as seen:
        value = torch.rand(8, device=DEVICE) + torch.randn(8, device=DEVICE)
    assert seen.kernels == 0 and seen.flushes == {} and seen.recorded >= 3
    assert value.shape == (8,)
