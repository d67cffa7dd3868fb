"""What the tests of strategies share: random calls made both ways, counts of batches, and reasons to stay on the CPU.

HETERO_MIGRATION_CALLS is the number of random calls of each strategy; 1,000 and more for a full run.
"""

from __future__ import annotations

import inspect
import itertools
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ON_HETERO

from torch_hetero.migration.evaluate import Need
from torch_hetero.migration.names import original_of
from torch_hetero.migration.recipe import Step
from torch_hetero.migration.record import record
from torch_hetero.migration.strategy import OnHost, Strategy, Unsupported, all_strategies, find
from torch_hetero.migration.trial import source_of, trial

CALLS = int(os.environ.get("HETERO_MIGRATION_CALLS", "40"))
DEVICES = ["cpu", *(["hetero"] if ON_HETERO else [])]


def strategies_of(*modules: str) -> list[Any]:
    """Returns parameters for pytest: the strategies of modules of torch_hetero.migration that compute something."""
    return [
        pytest.param(strategy, id=strategy.target)
        for strategy in all_strategies()
        if not isinstance(strategy, OnHost)
        and type(strategy).__module__.removeprefix("torch_hetero.migration.") in modules
    ]


def calls_of(strategy: Strategy, count: int) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Returns random calls that the strategy supports, always the same."""
    random = np.random.default_rng(zlib.crc32(strategy.target.encode()))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(itertools.islice(strategy.examples(random), count))


def check_examples(strategy: Strategy, device: str, count: int) -> None:
    """Random calls are supported, computed by the strategy, and within its tolerance of the originals."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        outcomes = trial(strategy, calls_of(strategy, count), device)
    assert len(outcomes) == count
    assert {outcome.reason for outcome in outcomes} == {None}
    assert [outcome for outcome in outcomes if not outcome.accepted] == []


def check_parameters(strategy: Strategy) -> None:
    """A strategy has its original's parameters and defaults; an enumeration's member may stand as its value."""
    parameters = inspect.signature(original_of(strategy.target)).parameters.values()
    bound = inspect.signature(strategy.bind).parameters.values()
    assert [parameter.name for parameter in bound] == [parameter.name for parameter in parameters]
    for mine, theirs in zip(bound, parameters, strict=True):
        assert mine.default == getattr(theirs.default, "value", theirs.default)


@contextmanager
def counted_runs(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yields a list to which each run of the strategy adds one entry: the number of its results."""
    sizes: list[int] = []
    run = type(strategy).run

    def counted(self: Strategy, *arguments: Any) -> Any:
        outputs = run(self, *arguments)
        sizes.append(len(outputs[0] if isinstance(outputs, tuple) else outputs))
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(type(strategy), "run", counted)
        yield sizes


def step_of(strategy: Strategy, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Step:
    """Records a call."""
    return record(strategy, original_of(strategy.target), positional, keywords, source_of)[0]


def check_batches(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that can share a batch do: the strategy runs once for each group, and for all calls."""
    calls = calls_of(strategy, 150)
    with warnings.catch_warnings(), np.errstate(all="ignore"), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        groups = {Need(step_of(strategy, *call)).key(torch.device("cpu")) for call in calls}
        with counted_runs(strategy, monkeypatch) as sizes:
            trial(strategy, calls, "cpu")
    assert len(sizes) == len(groups)
    assert sum(sizes) == len(calls)
    assert max(sizes) > 1


def shared_tests(strategies: list[Any], on_hetero: int = 4) -> tuple[Callable[..., None], Callable[..., None]]:
    """Returns the tests that all strategies have: of random calls, and of batches. A file gives them names.

    Args:
        strategies: What `strategies_of` returned.
        on_hetero: On the device there is one of so many calls.
    """

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("strategy", strategies)
    def random_calls(strategy: Strategy, device: str) -> None:
        check_examples(strategy, device, CALLS if device == "cpu" else max(CALLS // on_hetero, 4))

    @pytest.mark.parametrize("strategy", strategies)
    def batches(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
        check_batches(strategy, monkeypatch)

    return random_calls, batches


def check_one_batch(target: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """These calls are one batch, whose results are within the tolerance."""
    strategy = find(target)
    with counted_runs(strategy, monkeypatch) as sizes:
        outcomes = trial(strategy, calls, DEVICES[-1])
    assert sizes == [len(calls)]
    assert all(outcome.reason is None and outcome.accepted for outcome in outcomes)


def reason_of(target: str, *positional: Any, **keywords: Any) -> str | None:
    """Returns why a call stays on the CPU."""
    strategy = find(target)
    try:
        record(strategy, original_of(target), positional, keywords, source_of)
    except Unsupported as unsupported:
        return str(unsupported)
    return None
