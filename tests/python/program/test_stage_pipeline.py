"""CompiledModel.stage_pipeline: calls go through stages in order, and their futures have eager's values."""

from __future__ import annotations

import gc
import queue
import weakref

import pytest
import torch
from helpers import needs_hetero, run_python_ok
from torch import nn

pytestmark = needs_hetero


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6)), nn.Linear(32, 4)).eval()


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_calls_have_the_values_of_the_model(stages: int) -> None:
    program = torch.hetero.compile(model(), (torch.zeros(5, 32),))
    inputs = [torch.randn(5, 32) for _ in range(40)]
    with program.stage_pipeline(stages=stages) as pipeline:
        futures = [pipeline.submit(x) for x in inputs]
        for x, future in zip(inputs, futures, strict=True):
            # Close: a stage has fewer threads, and with fewer threads a BLAS may add in another order, as eager's does.
            torch.testing.assert_close(future.result(), program(x), rtol=1e-5, atol=1e-6)
        assert len(pipeline.predicted_seconds) == stages
        counters = pipeline.counters
    assert counters["submitted"] == counters["completed"] == 40
    assert counters["most_in_flight"] <= pipeline.depth == 2 * stages


def test_results_keep_their_structure_and_states_their_order() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.calls += 1
            return {"count": self.calls.clone(), "y": torch.relu(self.layer(x)).exp()}

    program = torch.hetero.compile(Counting(), (torch.zeros(2, 8),))
    with program.stage_pipeline(stages=2) as pipeline:
        futures = [pipeline.submit(torch.randn(2, 8)) for _ in range(10)]
        assert [future.result()["count"].item() for future in futures] == list(range(1, 11))


def test_the_depth_can_be_set_while_calls_are_on_their_way() -> None:
    program = torch.hetero.compile(model(), (torch.zeros(5, 32),))
    with program.stage_pipeline(stages=2, depth=1) as pipeline:
        futures = []
        for depth in (1, 5, 2):
            pipeline.depth = depth
            futures += [pipeline.submit(torch.randn(5, 32)) for _ in range(10)]
        assert pipeline.depth == 2
        assert all(future.result().shape == (5, 4) for future in futures)
        with pytest.raises(ValueError, match="depth"):
            pipeline.depth = 0


def test_a_full_pipeline_refuses_where_it_is_told_to() -> None:
    program = torch.hetero.compile(model(), (torch.zeros(2000, 32),))
    with program.stage_pipeline(stages=2, depth=1, when_full="refuse") as pipeline:
        futures = []
        with pytest.raises(queue.Full, match="raise the depth"):
            for _ in range(1000):
                futures.append(pipeline.submit(torch.randn(2000, 32)))
        assert all(future.result().shape == (2000, 4) for future in futures)


def test_wrong_arguments_and_uses_say_what_to_do() -> None:
    program = torch.hetero.compile(model(), (torch.zeros(5, 32),))
    with pytest.raises(ValueError, match="stages"):
        program.stage_pipeline(stages=1000)
    for option, least in (("stages", 1), ("depth", 0), ("accelerator_bytes", 0)):
        with pytest.raises(ValueError, match=f"{option} is {least} or more, not -1"):
            program.stage_pipeline(**{option: -1})
    with pytest.raises(ValueError, match="when_full"):
        program.stage_pipeline(when_full="drop")
    with program.pipeline() as pipeline:  # its older name
        with pytest.raises(ValueError, match="is f32"):
            pipeline.submit(torch.zeros(4, 32))
        assert pipeline.submit(torch.zeros(5, 32)).result().shape == (5, 4)
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.submit(torch.zeros(5, 32))


def test_an_error_is_that_of_its_call() -> None:
    table = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    program = torch.hetero.compile(table, (torch.zeros(4, dtype=torch.long),))
    with program.stage_pipeline(stages=2) as pipeline:
        good, bad = torch.arange(4), torch.full((4,), 99)
        futures = [pipeline.submit(x) for x in (good, bad, good)]
        assert torch.equal(futures[0].result(), futures[2].result())
        with pytest.raises(IndexError):
            futures[1].result()


def test_closing_with_cancel_ends_every_future() -> None:
    program = torch.hetero.compile(model(), (torch.zeros(500, 32),))
    pipeline = program.stage_pipeline(stages=2, depth=8)
    futures = [pipeline.submit(torch.randn(500, 32)) for _ in range(8)]
    pipeline.close(cancel=True)
    assert all(future.done() for future in futures)
    pipeline.close()


def test_a_pipeline_that_nobody_holds_ends() -> None:
    program = torch.hetero.compile(model(), (torch.zeros(5, 32),))
    pipeline = program.stage_pipeline()
    future = pipeline.submit(torch.zeros(5, 32))
    thread, held = pipeline._thread, weakref.ref(pipeline)
    del pipeline
    gc.collect()
    assert held() is None and future.result().shape == (5, 4)
    thread.join(10)
    assert not thread.is_alive()


def test_the_interpreter_may_end_with_calls_on_their_way() -> None:
    run_python_ok("""
        import torch
        program = torch.hetero.compile(torch.nn.Linear(64, 64), (torch.zeros(512, 64),))
        pipeline = program.stage_pipeline(stages=1)
        futures = [pipeline.submit(torch.zeros(512, 64)) for _ in range(20)]
    """)
