"""CompiledModel.serve: calls of many threads get eager's values, and their futures behave like futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import queue
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers import needs_hetero, run_python_ok
from torch import nn

pytestmark = needs_hetero

CORES = len(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(CORES < 2, reason="there is one core")


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.first(x)) * scale
        return {"hidden": hidden, "logits": self.second(hidden)}


# Holds a lane: the operator waits for the test. An operator of Python runs on the lane's thread.
_held = threading.Event()
_entered = threading.Semaphore(0)
_threads: list[int] = []


@torch.library.custom_op("server_test::hold", mutates_args=(), device_types="cpu")
def hold(x: torch.Tensor) -> torch.Tensor:
    _threads.append(torch.get_num_threads())
    _entered.release()
    _held.wait(60)
    if float(x[0]) < 0:
        raise ArithmeticError("negative")
    return x + 1


@hold.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture
def holding() -> Iterator[torch.hetero.CompiledModel]:
    """A program whose calls go on when `_held` is set."""
    _held.set()
    program = torch.hetero.compile(lambda x: hold(x) * 2, torch.zeros(4))
    _held.clear()
    while _entered.acquire(blocking=False):
        pass
    _threads.clear()
    yield program
    _held.set()


def assert_nothing_left(server: torch.hetero.Server) -> None:
    counters = server.counters
    ends = sum(counters[name] for name in ("completed", "failed", "cancelled", "late"))
    assert ends == counters["submitted"]
    assert counters["waiting"] == 0
    assert not server._requests


def test_calls_of_many_threads_get_the_models_values() -> None:
    model = Perceptron().eval()
    scale = torch.tensor(0.5)
    program = torch.hetero.compile(model, (torch.randn(3, 48), scale))
    wrong = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(25):
            x = torch.randn(3, 48, generator=generator)
            with torch.no_grad():
                expected = model(x, scale)
            result = server.submit(x, scale).result()
            for name, value in expected.items():
                if not torch.allclose(result[name], value, rtol=1e-5, atol=1e-6):
                    wrong.append(name)

    with program.serve(groups=min(2, CORES), capacity=4) as server:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert server.counters["completed"] == 200
    assert_nothing_left(server)


def test_random_cancellations_leave_nothing_behind() -> None:
    model = Perceptron().eval()
    scale = torch.tensor(2.0)
    program = torch.hetero.compile(model, (torch.randn(3, 48), scale))
    outcomes = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for i in range(100):
            x = torch.full((3, 48), float(i))
            future = server.submit(x, scale)
            if chance.random() < 0.4:
                future.cancel()
            try:
                result = future.result()
            except concurrent.futures.CancelledError:
                outcomes.append("cancelled")
            else:
                with torch.no_grad():
                    right = torch.allclose(result["logits"], model(x, scale)["logits"], rtol=1e-4, atol=1e-4)
                outcomes.append("right" if right else "wrong")

    with program.serve(groups=min(2, CORES)) as server:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(outcomes) == 800
    assert outcomes.count("wrong") == 0
    assert server.counters["completed"] == outcomes.count("right")
    assert_nothing_left(server)


@needs_two_cores
def test_calls_run_at_once_each_with_its_lanes_threads(holding: torch.hetero.CompiledModel) -> None:
    with holding.serve(groups=2) as server:
        futures = [server.submit(torch.full((4,), float(i))) for i in range(2)]
        # Both are in the operator before either may leave it.
        assert _entered.acquire(timeout=60)
        assert _entered.acquire(timeout=60)
        assert all(future.running() for future in futures)
        _held.set()
        for i, future in enumerate(futures):
            assert torch.equal(future.result(60), torch.full((4,), 2.0 * (i + 1)))
        assert sorted(_threads) == sorted(lane["threads"] for lane in server.lanes)
        cores = [core for lane in server.lanes for core in lane["cores"]]
        assert len(cores) == len(set(cores))
    assert server.counters["completed"] == 2


def test_parallel_regions_of_a_lane_have_its_threads() -> None:
    threads = torch.get_num_threads()
    _held.set()
    program = torch.hetero.compile(lambda x: hold(x) * 2, torch.zeros(4))
    _threads.clear()
    with program.serve(groups=1) as server:
        server.submit(torch.ones(4)).result(60)
        assert _threads == [CORES] == [server.lanes[0]["threads"]]
    assert torch.get_num_threads() == threads  # of those who submit


def test_a_waiting_call_is_cancelled_at_once_and_a_running_one_before_its_next_operator(
    holding: torch.hetero.CompiledModel,
) -> None:
    with holding.serve() as server:
        running = server.submit(torch.ones(4))
        assert _entered.acquire(timeout=60)
        waiting = server.submit(torch.ones(4))
        assert not waiting.running()
        assert waiting.cancel()
        assert waiting.cancelled()
        assert concurrent.futures.wait([waiting], timeout=60).done == {waiting}
        assert not running.cancel()
        assert not running.done()
        _held.set()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result(60)
        assert running.cancelled()
        assert torch.equal(server.submit(torch.ones(4)).result(60), torch.full((4,), 4.0))
    assert server.counters["cancelled"] == 2
    assert_nothing_left(server)


def test_a_call_that_is_not_begun_in_time_is_not_run(holding: torch.hetero.CompiledModel) -> None:
    with holding.serve() as server:
        running = server.submit(torch.ones(4))
        assert _entered.acquire(timeout=60)
        late = [server.submit(torch.ones(4), timeout=0.01), server.submit(torch.ones(4), timeout=0)]
        time.sleep(0.02)
        _held.set()
        for future in late:
            with pytest.raises(TimeoutError, match="time was up"):
                future.result(60)
        assert torch.equal(running.result(60), torch.full((4,), 4.0))
    assert len(_threads) == 1
    assert_nothing_left(server)


@pytest.mark.parametrize("timeout", ["x", True, [1.0]])
def test_a_timeout_that_is_no_number_is_refused(timeout: object) -> None:
    with torch.hetero.compile(lambda x: x * 2, torch.zeros(4)).serve() as server:
        with pytest.raises(TypeError, match=re.escape(f"timeout is seconds or None, not {timeout!r}")):
            server.submit(torch.ones(4), timeout=timeout)
        assert torch.equal(server.submit(torch.ones(4), timeout=60).result(60), torch.full((4,), 2.0))


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 1e10, 9.3e9])
def test_a_time_that_no_clock_shows_is_never_up(timeout: float) -> None:
    with torch.hetero.compile(lambda x: x * 2, torch.zeros(4)).serve() as server:
        assert torch.equal(server.submit(torch.ones(4), timeout=timeout).result(60), torch.full((4,), 2.0))
        with pytest.raises(TimeoutError):
            server.submit(torch.ones(4), timeout=-timeout).result(60)
        with pytest.raises(ValueError, match="not nan"):
            server.submit(torch.ones(4), timeout=float("nan"))


def test_a_call_whose_time_is_up_while_it_runs_stops_before_its_next_operator(
    holding: torch.hetero.CompiledModel,
) -> None:
    with holding.serve() as server:
        # Longer where the machine is so busy that the call is late before it runs.
        for timeout in (0.05, 0.5, 5, 50):
            running = server.submit(torch.ones(4), timeout=timeout)
            if _entered.acquire(timeout=timeout):
                break
        time.sleep(timeout)
        _held.set()
        with pytest.raises(TimeoutError, match="time was up"):
            running.result(60)
        assert torch.equal(server.submit(torch.ones(4), timeout=60).result(60), torch.full((4,), 4.0))
    assert server.counters["late"] >= 1
    assert_nothing_left(server)


def test_an_operators_exception_is_its_futures_alone(holding: torch.hetero.CompiledModel) -> None:
    _held.set()
    with holding.serve() as server:
        futures = [server.submit(torch.full((4,), value)) for value in (1.0, -1.0, 2.0)]
        with pytest.raises(ArithmeticError, match="negative"):
            futures[1].result(60)
        assert torch.equal(futures[0].result(60), torch.full((4,), 4.0))
        assert torch.equal(futures[2].result(60), torch.full((4,), 6.0))
    assert server.counters["failed"] == 1


def test_a_full_server_refuses_or_waits(holding: torch.hetero.CompiledModel) -> None:
    with holding.serve(capacity=1, when_full="refuse") as server:
        futures = [server.submit(torch.ones(4))]
        assert _entered.acquire(timeout=60)
        futures.append(server.submit(torch.ones(4)))
        with pytest.raises(queue.Full, match="no room"):
            server.submit(torch.ones(4))
        _held.set()
        for future in futures:
            future.result(60)
    with holding.serve(capacity=1) as server:
        futures = [server.submit(torch.ones(4)) for _ in range(20)]
        assert all(torch.equal(future.result(60), torch.full((4,), 4.0)) for future in futures)
        assert server.counters["most_waiting"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(5),), r"input 'x' is f32\[4\] in this program, not f32\[5\]"),
        ((torch.zeros(4, dtype=torch.int32),), r"not i32\[4\]"),
        ((torch.zeros(4), torch.zeros(4)), "1 by position, not 2 by position"),
        ((3,), "is a tensor, not a int"),
    ],
)
def test_wrong_arguments_are_refused_when_they_are_submitted(arguments: tuple[object, ...], words: str) -> None:
    with torch.hetero.compile(lambda x: x * 2, torch.zeros(4)).serve() as server:
        with pytest.raises(ValueError, match=words):
            server.submit(*arguments)
        assert torch.equal(server.submit(torch.ones(4)).result(60), torch.full((4,), 2.0))
        assert server.counters["submitted"] == 1


def test_a_server_is_refused_what_it_cannot_do() -> None:
    program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4))
    with pytest.raises(ValueError, match="core"):
        program.serve(groups=CORES + 1)
    with pytest.raises(ValueError, match="capacity"):
        program.serve(capacity=0)
    with pytest.raises(ValueError, match="capacity is 1 or more, not -1"):
        program.serve(capacity=-1)
    with pytest.raises(ValueError, match="accelerator_bytes is 0 or more, not -1"):
        program.serve(accelerator_bytes=-1)
    with pytest.raises(ValueError, match="when_full"):
        program.serve(when_full="never")  # type: ignore[arg-type]
    server = program.serve()
    server.close()
    server.close()
    with pytest.raises(RuntimeError, match="closed"):
        server.submit(torch.ones(4))


def test_groups_are_named_with_their_cores_threads_and_compute_queues() -> None:
    program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4))
    cores = sorted(os.sched_getaffinity(0))
    left = {"name": "left", "cores": cores[:1], "compute_queues": [1, 3]}
    right = {"threads": 1, "compute_queues": [4]}
    with program.serve(groups=[left, right]) as server:
        futures = [server.submit(torch.full((4,), float(i))) for i in range(20)]
        assert all(torch.equal(future.result(60), torch.full((4,), 2.0 * i)) for i, future in enumerate(futures))
        lanes = [{key: lane[key] for key in ("name", "cores", "threads", "compute_queues")} for lane in server.lanes]
        assert lanes == [
            {"name": "left", "cores": cores[:1], "threads": 1, "compute_queues": [1, 3]},
            {"name": "lane1", "cores": [], "threads": 1, "compute_queues": [4]},
        ]
    with program.serve() as server:
        assert [lane["compute_queues"] for lane in server.lanes] == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"name": "left", "compute_queues": [5]}, '"left": there is no compute queue 5; choose among 1 to 4'),
        ({"compute_queues": [2, 2]}, "the queue compute 2 is named twice"),
        ({"name": "few", "threads": -1}, '"few": -1 threads cannot be'),
        ({"core": [0]}, "a group has name, cores, threads, compute_queues, and no core"),
    ],
)
def test_wrong_groups_are_refused(group: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        torch.hetero.compile(lambda x: x * 2, torch.zeros(4)).serve(groups=[group])


def test_groups_share_an_accelerator_each_with_compute_queues_of_its_own() -> None:
    run_python_ok(
        """
        import torch

        def model(x):
            left, right = x, x
            for _ in range(4):
                left, right = left @ x, x @ right
            return left + right

        program = torch.hetero.compile(model, torch.zeros(8, 8))
        groups = [{"threads": 1, "compute_queues": [1, 2]}, {"threads": 1, "compute_queues": [3]}]
        with program.serve(groups=groups) as server:
            inputs = [torch.full((8, 8), 0.01 * i) for i in range(40)]
            for x, future in [(x, server.submit(x)) for x in inputs]:
                assert torch.equal(future.result(60), model(x))
            origins = [lane["plan_origin"] for lane in server.lanes]
        # The plan in the program is for all four.
        assert all("made anew" in origin for origin in origins), origins
        assert "accelerator compute" in str(program), str(program)
        print("ok")
        """,
        {"HETERO_ACCELERATOR": "sim", "HETERO_PLACEMENT": "accelerator"},
    )


def test_groups_and_stages_keep_the_budget_of_their_accelerator_together() -> None:
    run_python_ok(
        """
        import torch
        from torch import nn

        torch.manual_seed(0)
        model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.ReLU())])
        x = torch.randn(64, 256)
        program = torch.hetero.compile(model, x)
        with torch.no_grad():
            expected = model(x)

        def check(made):
            with made:
                futures = [made.submit(x) for _ in range(8)]
                for future in futures:
                    torch.testing.assert_close(future.result(60), expected, rtol=1e-4, atol=1e-5)

        # The weights take 3 MiB.
        for budget in (2 << 20, 4 << 20, 16 << 20):
            torch.hetero.set_memory_budget(budget)
            torch.hetero.reset_peak_memory_stats()
            check(program.serve(groups=[{"threads": 1}, {"threads": 1}]))
            check(program.stage_pipeline(stages=3))
            peak = torch.hetero._C.accelerator_stats()["peak_bytes"]
            assert 0 < peak <= budget, (peak, budget)

        # Weights that a server has brought there stay as long as the program.
        before = torch.hetero._C.accelerator_stats()["allocated_bytes"]
        torch.hetero.reset_peak_memory_stats()
        check(program.serve(groups=[{"threads": 1}, {"threads": 1}], accelerator_bytes=1 << 20))
        check(program.stage_pipeline(stages=2, accelerator_bytes=1 << 20))
        peak = torch.hetero._C.accelerator_stats()["peak_bytes"]
        assert before < peak <= before + (1 << 20), (before, peak)
        for make in (program.serve, program.stage_pipeline):
            try:
                make(accelerator_bytes=32 << 20)
            except RuntimeError as error:
                assert "give it less, or free what others hold there" in str(error), error
            else:
                raise AssertionError("more than there is")
        print("ok")
        """,
        {"HETERO_ACCELERATOR": "sim", "HETERO_PLACEMENT": "accelerator"},
    )


def test_closing_runs_or_cancels_what_waits(holding: torch.hetero.CompiledModel) -> None:
    for cancel in (False, True):
        _held.clear()
        server = holding.serve()
        futures = [server.submit(torch.ones(4)) for _ in range(5)]
        assert _entered.acquire(timeout=60)
        closing = threading.Thread(target=server.close, kwargs={"cancel": cancel})
        closing.start()
        if cancel:
            concurrent.futures.wait(futures[1:], timeout=60)
        _held.set()
        closing.join()
        assert futures[0].result(0) is not None
        assert [future.cancelled() for future in futures[1:]] == [cancel] * 4
        assert_nothing_left(server)
        while _entered.acquire(blocking=False):
            pass


def test_futures_are_those_of_the_standard_library() -> None:
    program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4))
    with program.serve() as server:
        futures = {server.submit(torch.full((4,), float(i))): i for i in range(10)}
        for future in concurrent.futures.as_completed(futures, timeout=60):
            assert torch.equal(future.result(), torch.full((4,), 2.0 * futures[future]))
        called: queue.Queue[torch.Tensor] = queue.Queue()
        server.submit(torch.ones(4)).add_done_callback(lambda future: called.put(future.result()))
        assert torch.equal(called.get(timeout=60), torch.full((4,), 2.0))

        async def ask() -> list[torch.Tensor]:
            return await asyncio.gather(*(asyncio.wrap_future(server.submit(torch.full((4,), i))) for i in (1.0, 2.0)))

        assert [float(result[0]) for result in asyncio.run(ask())] == [2.0, 4.0]


def test_tensors_on_the_device_give_results_there() -> None:
    program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4))
    with program.serve() as server:
        result = server.submit(torch.ones(4, device="hetero") + 1).result(60)
    assert result.device.type == "hetero"
    assert torch.equal(result.cpu(), torch.full((4,), 4.0))


def test_strided_tensors_are_copied() -> None:
    program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4, 4))
    x = torch.arange(16.0).reshape(4, 4)
    with program.serve() as server:
        assert torch.equal(server.submit(x.t()).result(60), x.t() * 2)
        assert torch.equal(server.submit(x).result(60), x * 2)


def test_what_a_call_updates_is_updated_in_its_own_tensors() -> None:
    def add_one(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    program = torch.hetero.compile(add_one, torch.zeros(4))
    tensors = [torch.full((4,), float(i)) for i in range(6)]
    with program.serve(groups=min(2, CORES)) as server:
        results = [future.result(60) for future in [server.submit(x) for x in tensors]]
    for i, (x, result) in enumerate(zip(tensors, results, strict=True)):
        assert torch.equal(x, torch.full((4,), i + 1.0))
        assert torch.equal(result, torch.full((4,), 2 * (i + 1.0)))


def test_nobody_keeps_a_result_or_a_server() -> None:
    program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4))
    server = program.serve()
    x = torch.ones(4)
    future = server.submit(x)
    result = weakref.ref(future.result(60))
    given = weakref.ref(x)
    del x, future
    assert wait_until(lambda: (gc.collect(), result() is None and given() is None)[1])
    ended = weakref.ref(server)
    thread = server._thread
    del server
    gc.collect()
    assert ended() is None
    thread.join(60)
    assert not thread.is_alive()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def test_a_process_ends_with_calls_that_nobody_waits_for() -> None:
    run_python_ok(
        """
        import torch
        program = torch.hetero.compile(lambda x: x * 2, torch.zeros(4))
        server = program.serve()
        futures = [server.submit(torch.ones(4)) for _ in range(60)]
        print("ok")
        """
    )
