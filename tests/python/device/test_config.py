"""Options: typed, documented, set from Python or the environment, refused when wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from counters import counting
from helpers import DEVICE, assert_same, needs_hetero, run_python, run_python_ok

import torch_hetero

pytestmark = needs_hetero

OPTIONS = {option["name"]: option for option in torch_hetero._C.config_list()}


def other_than_default(name: str) -> tuple[str, Any]:
    """A value that an option does not have by default, as the environment gives it and as Python does."""
    default = OPTIONS[name]["default"]
    texts = {"accelerator": "sim", "placement": "cpu", "spill": "/tmp", "sim_figures": "flops=1e12"}
    text, value = {
        "bool": lambda: ("0", False) if default == "1" else ("1", True),
        "int": lambda: (str(abs(int(default) - 1)), abs(int(default) - 1)),
        "bytes": lambda: ("1MiB", 1 << 20),
        "float": lambda: ("0.25", 0.25),
        "str": lambda: (texts[name], texts[name]),
    }[OPTIONS[name]["type"]]()
    assert text != default
    return text, value


def test_environment_sets_each_option() -> None:
    others = {name: other_than_default(name) for name in OPTIONS}
    # One process for each of a few sets, since an option may hide what another one does.
    for first in range(4):
        names = sorted(others)[first::4]
        code = f"import torch; print([getattr(torch.hetero.config, name) for name in {names}])"
        variables = {f"HETERO_{name.upper()}": others[name][0] for name in names}
        assert run_python_ok(code, variables) == f"{[others[name][1] for name in names]}\n"


# The options that the first of these tests found, by machine.
FOUND: dict[str, dict[str, Any]] = {}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "accelerator"])
def test_assignment_sets_the_option_and_conftest_gives_it_back(name: str, machine: str) -> None:
    found = torch.hetero.config.as_dict()
    assert FOUND.setdefault(machine, found) == found
    _, value = other_than_default(name)
    setattr(torch.hetero.config, name, value)
    assert getattr(torch.hetero.config, name) == value


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(AttributeError, match="no_such_option"):
        torch.hetero.config.no_such_option = 1
    with pytest.raises(AttributeError, match="no_such_option"):
        _ = torch.hetero.config.no_such_option


@pytest.mark.parametrize(
    ("name", "value"),
    (
        ("pending_nodes", "many"),
        ("fusion", "perhaps"),
        ("accelerator", "tpu"),
        ("sim_figures", "flops=fast"),
        ("log", "loud"),
        ("memory_pressure", 1.5),
    ),
)
def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(name: str, value: str) -> None:
    before = getattr(torch.hetero.config, name)
    with pytest.raises((ValueError, TypeError), match=name if name != "accelerator" else "tpu"):
        setattr(torch.hetero.config, name, value)
    assert getattr(torch.hetero.config, name) == before


@pytest.mark.parametrize(
    ("variable", "value"),
    (("PENDING_NODES", "many"), ("ACCELERATOR", "simm"), ("MEMORY_BUDGET", "8GB"), ("MEMORY_PRESSURE", "2")),
)
def test_a_wrong_environment_value_makes_import_torch_warn_and_import_torch_hetero_raise(
    variable: str, value: str
) -> None:
    warned = run_python("import torch; print(torch.ones(2).sum().item(), hasattr(torch, 'hetero'))",
                        {f"HETERO_{variable}": value})
    assert warned.returncode == 0 and warned.stdout == "2.0 False\n", warned.stderr
    assert value in warned.stderr and "The device 'hetero' is not available." in warned.stderr
    raised = run_python("import torch_hetero", {f"HETERO_{variable}": value})
    assert raised.returncode != 0 and value in raised.stderr.splitlines()[-1]


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    code = "import torch; print(torch.hetero.config.as_dict())"
    names = ("accelerator", "pending_nodes", "memory_pressure", "placement")
    assert run_python_ok(code, {f"HETERO_{name.upper()}": "" for name in names}) == run_python_ok(code)


@pytest.mark.parametrize(
    ("text", "value"),
    (("1TiB", 1 << 40), ("1.5 GiB", 3 << 29), ("64M", 64 << 20), (2**63 - 1, 2**63 - 1), (1e9, 10**9)),
)
def test_sizes_have_units(text: str | float, value: int) -> None:
    torch.hetero.set_memory_budget(text)
    assert torch.hetero.get_memory_budget() == value


@pytest.mark.parametrize(
    "size",
    ("99999999999GiB", 2**63, 2**70, float("inf"), float("nan"), -1, "-1KiB", "8GB", "0x10", "", 1.5, "0.5", 1e-3),
)
def test_sizes_that_are_none_are_refused(size: str | float) -> None:
    for name in ("memory_budget", "memory_limit"):
        with pytest.raises(ValueError, match=name):
            setattr(torch.hetero.config, name, size)
    assert torch.hetero.get_memory_budget() == 0


def test_overlapping_blocks_of_several_threads_leave_options_as_they_were() -> None:
    config = torch.hetero.config
    before = config.pending_nodes
    first, second = config.override(pending_nodes=100), config.override(pending_nodes=200)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert config.pending_nodes == 200
    second.__exit__(None, None, None)
    assert config.pending_nodes == before


def test_verify_mode_runs_flushes_twice_and_agrees() -> None:
    torch.hetero.config.verify = True
    x = torch.arange(6.0, device=DEVICE).reshape(2, 3)
    y = (x @ x.t()).tanh() + 1
    x.add_(1)
    oracle = torch.arange(6.0).reshape(2, 3)
    expected = (oracle @ oracle.t()).tanh() + 1
    assert_same([y.cpu(), x.cpu()], [expected, oracle + 1])


def test_verify_mode_works_with_random_numbers_and_training() -> None:
    torch.hetero.config.verify = True
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4, device=DEVICE)).pow(2).sum().backward()
        optimizer.step()
    assert model[0].weight.isfinite().all().item()


def test_log_prints_a_line_for_each_flush() -> None:
    code = """
    import torch
    (torch.ones(3, device="hetero") + 1).tolist()
    """
    quiet, loud = run_python(code), run_python(code, {"HETERO_LOG": "1"})
    assert quiet.returncode == loud.returncode == 0
    assert "copy to another device" in loud.stderr
    assert "copy to another device" not in quiet.stderr


def test_fusion_changes_the_number_of_kernels_and_not_the_bits() -> None:
    x = torch.randn(100, device=DEVICE)
    torch.hetero.flush()
    kernels, values = {}, {}
    for fusion in (True, False):
        torch.hetero.config.fusion = fusion
        with counting() as seen:
            y = ((x + 1) * 2 - x).abs().neg()
            values[fusion] = y.cpu()
        kernels[fusion] = seen.kernels
    assert_same(values[True], values[False])
    assert kernels[False] == 5 and kernels[True] <= kernels[False]


def test_jit_compiles_pointwise_chains_and_does_not_change_the_bits() -> None:
    x, y = torch.randn(1000, device=DEVICE), torch.randn(1000, device=DEVICE)
    values, groups = {}, {}
    for jit in (True, False, True):
        with torch.hetero.config.override(jit=jit):
            for _ in range(3):  # what is seen for the first time is not fused
                with counting() as seen:
                    compiles = torch_hetero._C.compiles()
                    values[jit] = torch.where(x > y, (x * 0.5 + y).relu(), x - y).cpu()
            groups[jit] = seen.compiled_groups
            assert groups[jit] == (1 if compiles else 0)
            assert jit or not compiles
    assert_same(values[True], values[False])


def test_sizes_may_be_given_with_units_in_the_environment() -> None:
    code = "import torch; print(torch.hetero.config.memory_limit)"
    assert run_python_ok(code, {"HETERO_MEMORY_LIMIT": "2GiB"}) == f"{2 << 30}\n"


def test_placement_is_a_context_that_nests_and_restores() -> None:
    x = torch.arange(3.0, device=DEVICE)
    with torch.hetero.placement("cpu"):
        y = x + 1
        with torch.hetero.placement("auto"):
            y = y * 2
    assert y.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(ValueError):
        with torch.hetero.placement("elsewhere"):
            pass
