"""Options of torch.compile, other backends, exported programs; threads and memory of compiled programs."""

from __future__ import annotations

from typing import Any

import importlib.metadata
import pytest
import torch
import torch._dynamo
from compiled_models import ALL_MODELS, assert_steady, both, compiled, mlp, numbers, step
from counters import counting
from helpers import needs_hetero, run_python_ok
from torch import nn

pytestmark = [
    needs_hetero,
    # TorchDynamo and AOTAutograd warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.mark.parametrize("mode", ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"))
def test_the_modes_of_torch_compile_are_taken(mode: str) -> None:
    both(lambda x: x.exp().sum(0), numbers(3, 4), mode=mode)


def test_max_autotune_plans_each_size() -> None:
    fast = compiled(lambda x: (x * 2).sum(0), dynamic=True, mode="max-autotune")
    fast(numbers(3, 4).to("hetero"))
    with counting() as seen:
        fast(numbers(5, 4).to("hetero"))
    assert (seen.plans_made, seen.plans_resized) == (1, 0)


@pytest.mark.parametrize(("mode", "searches"), ((None, False), ("reduce-overhead", False), ("max-autotune", True)))
def test_max_autotune_searches_longer(mode: str | None, searches: bool) -> None:
    torch.hetero.config.keep_plans = True
    compiled(lambda x: (x * 2).sum(0), mode=mode)(numbers(3, 4).to("hetero")).cpu()
    assert ("searched 8 times as long as usual" in torch.hetero.explain().plan) == searches


def test_no_process_is_started() -> None:
    code = """
        import sys
        import torch

        started = []
        events = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "os.forkpty")
        import models

        model = models.transformer().to(DEVICE)
        tokens = torch.randint(40, (3, 7)).to(DEVICE)
        sys.addaudithook(lambda event, arguments: started.append((event, arguments)) if event in events else None)
        fast = torch.compile(model, backend="hetero")
        for mode in (True, False):
            model.train(mode)
            fast(tokens).sum().backward()
            torch.hetero.flush()
        torch.compile(model, backend="hetero", mode="max-autotune")(tokens).cpu()
        print(torch.hetero.explain().compiled["captures"], started)
    """
    captures, started = run_python_ok(code).split(maxsplit=1)
    assert int(captures) >= 5
    assert started.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    (
        ({"mode": "fastest"}, "knows the modes .*, not 'fastest'"),
        ({"options": {"speed": True}}, "knows the options plan_each_size, search_longer, not 'speed'"),
        ({"options": {"plan_each_size": 3}}, "takes True or False for plan_each_size, not 3"),
    ),
)
def test_an_unknown_mode_or_option_is_one_clear_error(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        compiled(lambda x: x + 1, **arguments)(torch.ones(2, device="hetero"))


def test_autocast_is_what_it_was_when_the_graph_was_made() -> None:
    model = mlp().to("hetero")
    fast = compiled(model)
    x = numbers(4, 12).to("hetero")
    with torch.no_grad(), torch.autocast("hetero", torch.bfloat16):
        for _ in range(2):
            lazy, quick = model(x), fast(x)
            assert quick.dtype == lazy.dtype
            torch.testing.assert_close(quick, lazy)


def test_sync_mode_runs_every_operator_on_its_own_line() -> None:
    fast = compiled(lambda x: x.sin() * 2)
    x = numbers(3).to("hetero")
    fast(x)
    torch.hetero.config.sync = True
    with counting() as seen:
        fast(x)
    assert seen.compiled_calls == 0 and seen.recorded == 2


def test_a_source_tree_and_an_import_of_torch_alone_know_the_backend() -> None:
    code = """
    import sys, torch
    assert not any(name.startswith("torch._dynamo") for name in sys.modules)
    fast = torch.compile(lambda x: x * 2 + 1, backend="hetero")
    assert fast(torch.ones(3, device="hetero")).tolist() == [3.0, 3.0, 3.0]
    """
    run_python_ok(code)


@pytest.mark.parametrize("name", ALL_MODELS)
def test_an_exported_program_is_compiled(name: str) -> None:
    build, inputs = ALL_MODELS[name]
    model = build().eval()
    fast = compiled(torch.export.export(model, (inputs,)).module())
    with torch.no_grad():
        torch.testing.assert_close(fast(inputs), model(inputs))
        assert_steady(lambda: fast(inputs))


def test_an_exported_lstm_without_biases_is_compiled() -> None:
    model = nn.LSTM(5, 7, num_layers=2, bias=False).eval()
    inputs = numbers(4, 2, 5)
    fast = compiled(torch.export.export(model, (inputs,)).module())
    with torch.no_grad():
        torch.testing.assert_close(fast(inputs)[0], model(inputs)[0])
        assert_steady(lambda: fast(inputs))


def test_threads_may_call_and_capture_while_others_record() -> None:
    # In a process of its own: where threads call at once, torch 2.11 leaves TorchDynamo's settings as dynamic=True wants them.
    code = """
        import threading
        import torch
        from torch import nn

        torch.manual_seed(1)
        oracle = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
        model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5)).to("hetero")
        model.load_state_dict(oracle.state_dict())
        fast = torch.compile(model, backend="hetero", fullgraph=True, dynamic=True)
        with torch.no_grad():
            fast(torch.randn(3, 12).to("hetero"))  # torch 2.11 crashes where TorchDynamo begins on a thread that ends
        done = []

        def work(seed: int) -> None:
            with torch.no_grad():
                for i in range(20):
                    x = torch.randn(2 + i * seed % 7, 12)
                    for forward in (fast, model):
                        torch.testing.assert_close(forward(x.to("hetero")).cpu(), oracle(x), atol=1e-5, rtol=0)
            done.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(sorted(done))
    """
    assert run_python_ok(code).split() == ["[1,", "2,", "3,", "4]"]


def test_traceback_names_the_line_that_called_the_program() -> None:
    torch.hetero.config.traceback = True
    fast = compiled(lambda index, table: nn.functional.embedding(index, table))
    table = numbers(5, 2).to("hetero")
    fast(torch.tensor([1], device="hetero"), table)
    with pytest.raises(IndexError, match="test_options.py"):
        fast(torch.tensor([7], device="hetero"), table)


def test_training_leaves_no_memory_behind_and_takes_about_what_the_lazy_device_takes() -> None:
    inputs = numbers(2048, 64).to("hetero")
    peaks = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))).to("hetero")
        forward = compiled(model) if compile_it else model
        held = 0
        for _ in range(4):
            model.zero_grad()
            torch.hetero.flush()
            torch.hetero.reset_peak_memory_stats()
            before = held
            held = torch.hetero.memory_allocated()
            step(forward, inputs)
            torch.hetero.flush()
        assert held == before
        peaks.append(torch.hetero.max_memory_allocated() - held)
        del model, forward
    assert peaks[1] < 1.25 * peaks[0], peaks


def test_an_installed_package_is_found_by_its_entry_point() -> None:
    installed = importlib.metadata.entry_points(group="torch_dynamo_backends", name="hetero")
    if not installed:
        pytest.skip("the package was not installed since it has this entry point")
    code = """
    import torch
    assert "hetero" in torch._dynamo.list_backends()
    fast = torch._dynamo.optimize("hetero")(lambda x: x * 2 + 1)
    assert fast(torch.ones(3, device="hetero")).tolist() == [3.0, 3.0, 3.0]
    """
    run_python_ok(code)
