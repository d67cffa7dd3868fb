"""Backward passes run on the thread that calls them, unless the program says otherwise."""

from __future__ import annotations

import threading

import torch
from helpers import in_threads
from torch import nn


def threads_of_a_backward_pass() -> tuple[int, int]:
    """The thread of a hook in it, and the one that called it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("hetero")
    seen: list[int] = []
    hidden = model[0](torch.randn(3, 4).to("hetero"))
    hidden.register_hook(lambda _: seen.append(threading.get_ident()))
    model[2](model[1](hidden)).sum().backward()
    assert model[0].weight.grad.cpu().isfinite().all()
    return seen[0], threading.get_ident()


def test_it_runs_where_it_is_called() -> None:
    ran, called = threads_of_a_backward_pass()
    assert ran == called
    assert not torch.autograd.is_multithreading_enabled()
    [(ran, called)] = in_threads(1, lambda _: threads_of_a_backward_pass())
    assert ran == called


def test_it_runs_where_it_is_called_if_another_thread_recorded_the_same() -> None:
    # Each thread begins at the root of the trie, where it finds its first call.
    for _ in range(3):
        [(ran, called)] = in_threads(1, lambda _: threads_of_a_backward_pass())
        assert ran == called


def test_threads_that_never_used_the_device_are_left_alone() -> None:
    assert in_threads(1, lambda _: torch.autograd.is_multithreading_enabled()) == [True]


def test_inference_before_it_does_not_matter() -> None:
    def infer_then_train(_: int) -> tuple[int, int]:
        with torch.inference_mode():
            (torch.ones(4, device="hetero") + 1).cpu()
        return threads_of_a_backward_pass()

    [(ran, called)] = in_threads(1, infer_then_train)
    assert ran == called


def test_a_program_made_before_it_does_not_matter() -> None:
    def compile_then_train(_: int) -> tuple[int, int]:
        torch.hetero.compile(lambda x: x + 1, (torch.ones(4),))
        return threads_of_a_backward_pass()

    [(ran, called)] = in_threads(1, compile_then_train)
    assert ran == called


def test_a_program_may_have_it_run_elsewhere() -> None:
    torch.zeros(1, device="hetero").add(1)
    with torch.autograd.set_multithreading_enabled(True):
        ran, called = threads_of_a_backward_pass()
    assert ran != called
    ran, called = threads_of_a_backward_pass()
    assert ran == called
