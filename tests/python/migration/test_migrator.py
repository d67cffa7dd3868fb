"""A plan in action: which calls migrate, what they return, why others do not, and that nothing stays patched."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import needs_hetero, run_python_ok

pytestmark = needs_hetero

cv2 = pytest.importorskip("cv2")

from torch_hetero.migration import EXACT, Mapped, PipelineMigrator, Plan, PlanError, Strategy, Tolerance, register  # noqa: E402
from torch_hetero.migration.context import current_key  # noqa: E402
from torch_hetero.migration.spec import Spec  # noqa: E402


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def library() -> Iterator[types.ModuleType]:
    """A library of pure Python with a function that has a strategy, `brighten`, and one that has none, `darken`."""
    module = types.ModuleType("photolib")
    module.__file__ = "/usr/lib/site-packages/photolib.py"
    exec(
        "def brighten(image, amount=1):\n    calls.append(image)\n    return image + type(image.flat[0])(amount)\n"
        "def darken(image):\n    return image - image.dtype.type(1)\n"
        "class Filter:\n    def __init__(self, amount): self.amount = amount\n"
        "    def __call__(self, image): return brighten(image, self.amount)\n"
        "    @staticmethod\n    def fixed(image): return brighten(image, 7)\n"
        "    @classmethod\n    def named(cls, image): return cls, brighten(image, 9)\n"
        "class Child(Filter):\n    pass\n"
        "calls = []\n",
        module.__dict__,
    )
    sys.modules["photolib"] = module
    yield module
    del sys.modules["photolib"]


class Brighten(Strategy):
    target = "photolib.brighten"
    parameters = "image, amount=1"
    data = ("image",)
    ran: list[int] = []

    def supports(self, call: Any) -> str | None:
        return "amounts above 100 stay on the CPU" if call["amount"] > 100 else None

    def map(self, call: Any) -> Mapped:
        return Mapped(call["image"], sample=(call["amount"],))

    def run(self, inputs: Any, static: Any, sample: Any) -> torch.Tensor:
        (images,), (amounts,) = inputs, sample
        self.ran.append(len(images))
        return images + amounts.to(images.dtype).view(-1, *[1] * (images.dim() - 1))


@pytest.fixture
def brighten() -> type[Brighten]:
    Brighten.ran = []
    return register(Brighten)


def is_recorded(handle: Any) -> bool:
    return handle._hetero_holder.data is None


# Results.


def test_a_migrated_call_returns_at_once_and_is_computed_when_it_is_read() -> None:
    image = noise(8, 6, 3)
    with PipelineMigrator({"cv2.flip": "hetero"}) as migrator:
        flipped = cv2.flip(image, 1)
        assert isinstance(flipped, np.ndarray) and is_recorded(flipped)
        assert flipped.shape == (8, 6, 3) and flipped.dtype == np.uint8 and len(flipped) == 8
        assert np.array_equal(np.asarray(flipped), image[:, ::-1])
    counts = migrator.report.total()["cv2.flip"]
    assert (counts.device_calls, counts.cpu_calls, counts.uploaded) == (1, 0, image.nbytes)


def test_a_result_that_is_read_after_deactivation_is_right() -> None:
    image = noise(8, 6, 3)
    with PipelineMigrator({"cv2.flip": "hetero"}):
        flipped = cv2.flip(image, 0)
    assert np.array_equal(flipped, image[::-1])


def test_an_inline_rule_returns_arrays(library: types.ModuleType, brighten: type[Brighten]) -> None:
    with PipelineMigrator({"photolib.brighten": {"device": "hetero", "mode": "inline"}}):
        result = library.brighten(noise(4, 4), 3)
    assert type(result) is np.ndarray and np.array_equal(result, noise(4, 4) + np.uint8(3))
    assert brighten.ran == [1] and library.calls == []


def test_a_chain_uploads_once_and_a_second_use_of_a_source_not_at_all() -> None:
    image = noise(8, 6, 3)
    with PipelineMigrator({"cv2.flip": "hetero"}) as migrator:
        once = cv2.flip(cv2.flip(image, 0), 1)
        assert np.array_equal(once, image[::-1, ::-1])
        again = cv2.flip(image, 1)
        assert np.array_equal(again, image[:, ::-1])
    assert migrator.report.total()["cv2.flip"].uploaded == image.nbytes


def test_a_source_that_changed_is_noticed() -> None:
    image = noise(8, 6, 3)
    with PipelineMigrator({"cv2.flip": "hetero"}) as migrator:
        before = cv2.flip(image, 0)
        copy = image.copy()
        image[0] = 7
        after = cv2.flip(image, 0)
        assert np.array_equal(before, copy[::-1]) and np.array_equal(after, image[::-1])
        read = np.asarray(after)
        read[:] = 3
        assert np.array_equal(cv2.flip(after, 1), np.full_like(image, 3))
    assert migrator.report.total_mutations() == 2


def test_samples_with_settings_of_their_own_are_one_batch(library: types.ModuleType, brighten: type[Brighten]) -> None:
    images = [noise(4, 5, seed=seed) for seed in range(6)]
    with PipelineMigrator({"photolib.brighten": "hetero"}):
        batch = torch.stack([torch.as_tensor(np.asarray(library.brighten(image, k))) for k, image in enumerate(images)])
        assert brighten.ran == [1] * 6  # read one by one
        brighten.ran.clear()
        from torch_hetero.migration import session

        handles = [library.brighten(image, k) for k, image in enumerate(images)]
        session.place([handle._hetero_holder.value for handle in handles])
        assert brighten.ran == [6]
        assert all(torch.equal(torch.as_tensor(np.asarray(handle)), batch[k]) for k, handle in enumerate(handles))


def test_a_setting_that_the_program_changes_afterwards_does_not_reach_the_call(library: types.ModuleType) -> None:
    @register
    class Scaled(Strategy):
        target = "photolib.brighten"
        parameters = "image, amount=1"
        data = ("image",)

        def map(self, call: Any) -> Mapped:
            return Mapped(call["image"], sample=(call["amount"].copy(),))

        def run(self, inputs: Any, static: Any, sample: Any) -> torch.Tensor:
            raise RuntimeError("computed by the original")

    library.brighten = lambda image, amount=1: image + amount
    library.brighten.__module__ = "photolib"
    amount = np.full((4, 4), 2, np.uint8)
    with PipelineMigrator({"photolib.brighten": "hetero"}):
        result = library.brighten(noise(4, 4), amount)
        amount[:] = 77
        assert np.array_equal(result, noise(4, 4) + np.uint8(2))


def test_two_results_of_the_same_step_are_computed_once(library: types.ModuleType) -> None:
    @register
    class Halves(Strategy):
        target = "photolib.darken"
        parameters = "image"
        data = ("image",)
        ran = 0

        def map(self, call: Any) -> Mapped:
            return Mapped((call["image"], call["image"]))

        def run(self, inputs: Any, static: Any, sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
            type(self).ran += 1
            return inputs[0] // 2, inputs[0] - inputs[0] // 2

    image = noise(4, 4)
    with PipelineMigrator({"photolib.darken": "hetero"}):
        low, high = library.darken(image)
        from torch_hetero.migration import session

        session.place([low._hetero_holder.value, high._hetero_holder.value])
        assert np.array_equal(low + high, image) and Halves.ran == 1


def test_a_result_that_was_computed_holds_on_to_no_source() -> None:
    """A program that keeps its batches does not keep the photographs that they were made of."""
    import gc

    from torch_hetero.migration.recipe import Source

    def sources() -> int:
        gc.collect()
        return sum(type(found) is Source for found in gc.get_objects())

    before = sources()
    with PipelineMigrator({"cv2.flip": "hetero"}):
        kept = [cv2.flip(cv2.flip(noise(8, 6, 3, seed=seed), 1), 0) for seed in range(4)]
        assert all(np.array_equal(entry, noise(8, 6, 3, seed=seed)[::-1, ::-1]) for seed, entry in enumerate(kept))
        assert sources() == before
        again = [cv2.flip(entry, 0) for entry in kept]
        assert all(np.array_equal(entry, noise(8, 6, 3, seed=seed)[:, ::-1]) for seed, entry in enumerate(again))


# Fallbacks.


def reasons(migrator: PipelineMigrator, key: str) -> dict[str, int]:
    return dict(migrator.report.total()[key].fallbacks)


def test_a_call_that_is_not_covered_gets_the_original_and_its_reason_is_counted(
    library: types.ModuleType, brighten: type[Brighten]
) -> None:
    with PipelineMigrator({"photolib.brighten": "hetero"}) as migrator:
        result = library.brighten(noise(4, 4), 101)
    assert type(result) is np.ndarray and np.array_equal(result, noise(4, 4) + np.uint8(101))
    assert reasons(migrator, "photolib.brighten") == {"amounts above 100 stay on the CPU": 1}


def test_wrong_arguments_raise_the_originals_own_error(library: types.ModuleType, brighten: type[Brighten]) -> None:
    with PipelineMigrator({"photolib.brighten": "hetero", "cv2.flip": "hetero"}) as migrator:
        with pytest.raises(TypeError, match="unexpected keyword argument 'much'"):
            library.brighten(noise(2, 2), much=1)
        with pytest.raises(cv2.error):
            cv2.flip("no image", 1)
    assert list(reasons(migrator, "cv2.flip")) == ["no argument is an array, an image or a tensor"]


@pytest.mark.parametrize("failure", ["raises", "shape", "dtype", "number"])
def test_a_strategy_that_fails_is_replaced_by_the_original_and_given_up_after_three_times(
    library: types.ModuleType, failure: str
) -> None:
    @register
    class Faulty(Brighten):
        def run(self, inputs: Any, static: Any, sample: Any) -> Any:
            images = inputs[0]
            if failure == "raises":
                raise ArithmeticError("out of luck")
            return {"shape": images[..., :1], "dtype": images.float(), "number": (images, images)}[failure]

    image = noise(4, 4)
    with PipelineMigrator({"photolib.brighten": "hetero"}) as migrator:
        for _ in range(5):
            assert np.array_equal(library.brighten(image, 2), image + np.uint8(2))
    found = reasons(migrator, "photolib.brighten")
    assert sum(found.values()) == 5 and len(found) == 2
    assert sum(count for reason, count in found.items() if "not tried again" in reason) == 2
    expected = {
        "raises": "ArithmeticError: out of luck",
        "shape": "uint8 [1, 4, 1]",
        "dtype": "float32",
        "number": "2 results",
    }
    assert all(expected[failure] in reason for reason in found)


def test_the_originals_error_reaches_whoever_reads_the_result(library: types.ModuleType) -> None:
    @register
    class Late(Brighten):
        def supports(self, call: Any) -> str | None:
            return None

        def run(self, inputs: Any, static: Any, sample: Any) -> Any:
            raise ValueError("the strategy's own")

    with PipelineMigrator({"photolib.brighten": "hetero"}):
        result = library.brighten(noise(4, 4), 1000)
        with pytest.raises(OverflowError):
            np.asarray(result)
        assert np.array_equal(library.brighten(noise(2, 2), 1), noise(2, 2) + np.uint8(1))


def test_a_part_that_was_written_is_not_written_again(library: types.ModuleType, brighten: type[Brighten]) -> None:
    out = noise(8, 6, 3)
    with PipelineMigrator({"cv2.flip": "hetero"}) as migrator:
        result = cv2.flip(noise(8, 6, 3), 1, dst=out)
        assert result is out
    assert reasons(migrator, "cv2.flip") == {"dst= is given": 1}


def test_small_calls_stay_on_the_cpu(library: types.ModuleType, brighten: type[Brighten]) -> None:
    with PipelineMigrator({"photolib.brighten": {"minimum_bytes": 100}}) as migrator:
        assert type(library.brighten(noise(9, 11))) is np.ndarray
        assert is_recorded(library.brighten(noise(10, 10)))
    assert reasons(migrator, "photolib.brighten") == {"its inputs have fewer than 100 bytes": 1}


def test_bytes_need_exact_strategies_unless_the_plan_allows_others(library: types.ModuleType) -> None:
    @register
    class Rough(Brighten):
        tolerance = Tolerance(absolute=1, note="rounded the other way")

    image = noise(4, 4)
    with PipelineMigrator({"photolib.brighten": "hetero"}) as migrator:
        assert type(library.brighten(image)) is np.ndarray
        assert is_recorded(library.brighten(image.astype(np.float32)))
    (reason,) = reasons(migrator, "photolib.brighten")
    assert "within 1: rounded the other way" in reason
    with PipelineMigrator({"photolib.brighten": {"exact": False}}):
        assert is_recorded(library.brighten(image))


def test_arrays_without_a_torch_type_stay_with_the_original(
    library: types.ModuleType, brighten: type[Brighten]
) -> None:
    with PipelineMigrator({"photolib.brighten": "hetero"}) as migrator:
        assert type(library.brighten(noise(4, 4).astype(np.uint16))) is np.ndarray
    assert reasons(migrator, "photolib.brighten") == {"arrays of uint16 stay on the CPU": 1}


def test_debug_mode_names_a_strategy_that_is_wrong(library: types.ModuleType) -> None:
    @register
    class Wrong(Brighten):
        def run(self, inputs: Any, static: Any, sample: Any) -> Any:
            return super().run(inputs, static, sample) + 1

    from torch_hetero.migration import session

    with PipelineMigrator({"photolib.brighten": "hetero"}, debug=True) as migrator:
        np.asarray(library.brighten(noise(4, 4)))
        assert "photolib.brighten: 100.00% of the elements are not exact" in session.active().differences[0]
    assert migrator.report.total()["photolib.brighten"].differences == 1


# Contexts.


def programs() -> types.ModuleType:
    """A module of the program's own, with functions at several depths."""
    module = types.ModuleType("own_program")
    module.__file__ = str(Path(__file__).with_name("own_program.py"))
    exec(
        "import asyncio, photolib\nfrom photolib import brighten\nfrom torch_hetero.migration.context import current_key\n"
        "def prepare_photo(image):\n    return brighten(image, 1)\n"
        "def outer(image):\n    return prepare_photo(image)\n"
        "def generate(image):\n    for k in range(2):\n        yield brighten(image, k)\n"
        "async def later(image):\n    await asyncio.sleep(0)\n    result = brighten(image, 1)\n    await asyncio.sleep(0)\n    return result\n"
        "async def stream(image):\n    for k in range(2):\n        await asyncio.sleep(0)\n        yield brighten(image, k)\n"
        "class Album:\n    def __getitem__(self, index):\n        return prepare_photo(index)\n",
        module.__dict__,
    )
    for value in list(vars(module).values()):
        if isinstance(value, (types.FunctionType, type)) and value.__module__ == "builtins":
            value.__module__ = "own_program"
    sys.modules["own_program"] = module
    return module


@pytest.fixture
def program(library: types.ModuleType, brighten: type[Brighten]) -> Iterator[types.ModuleType]:
    yield programs()
    del sys.modules["own_program"]


def test_the_longest_key_that_a_path_ends_with_wins(program: types.ModuleType, library: types.ModuleType) -> None:
    plan = {
        "photolib.brighten": {"mode": "cpu"},
        "prepare_photo/photolib.brighten": "hetero",
        "Album/__getitem__/prepare_photo": {"mode": "cpu"},
    }
    image = noise(4, 4)
    with PipelineMigrator(plan) as migrator:
        assert type(library.brighten(image)) is np.ndarray
        assert is_recorded(program.prepare_photo(image)) and is_recorded(program.outer(image))
        program.Album()[image]
    total = migrator.report.total()
    assert total["photolib.brighten"].fallbacks == {"the plan keeps it on the CPU": 1}
    assert not any(key.endswith("prepare_photo/photolib.brighten") for key in total)  # recorded, and never read


def test_a_context_ends_when_its_call_ends_also_by_an_exception(program: types.ModuleType) -> None:
    with PipelineMigrator({"prepare_photo/photolib.brighten": "hetero"}):
        with pytest.raises(TypeError):
            program.prepare_photo(None, 1)
        with pytest.raises(AttributeError):
            program.prepare_photo(None)
        assert current_key() == ""


def test_code_between_the_steps_of_a_generator_is_outside_of_its_context(program: types.ModuleType) -> None:
    image = noise(4, 4)
    with PipelineMigrator({"generate/photolib.brighten": "hetero"}):
        for k, result in enumerate(program.generate(image)):
            assert is_recorded(result) and current_key() == ""
            assert np.array_equal(result, image + np.uint8(k))


def test_tasks_have_contexts_of_their_own(program: types.ModuleType) -> None:
    image = noise(4, 4)

    async def main() -> None:
        inside, outside = await asyncio.gather(program.later(image), asyncio.sleep(0, "x"))
        assert is_recorded(inside) and current_key() == ""
        async for result in program.stream(image):
            assert is_recorded(result) and current_key() == ""

    with PipelineMigrator({"later/photolib.brighten": "hetero", "stream/photolib.brighten": "hetero"}):
        asyncio.run(main())


def test_work_that_is_handed_to_a_thread_keeps_its_context(
    program: types.ModuleType, library: types.ModuleType
) -> None:
    image = noise(4, 4)
    found = []

    def threads(data: np.ndarray) -> None:
        with ThreadPoolExecutor(2) as pool:
            found.extend(pool.map(library.brighten, [data] * 4))
        thread = threading.Thread(target=lambda: found.append(library.brighten(data)))
        thread.start()
        thread.join()

    program.threads = threads
    threads.__module__ = "own_program"
    with PipelineMigrator({"threads/photolib.brighten": "hetero"}):
        program.threads(image)
        assert type(library.brighten(image)) is np.ndarray
    assert len(found) == 5 and all(np.array_equal(result, image + np.uint8(1)) for result in found)
    assert not any(type(result) is np.ndarray for result in found)


def test_a_function_of_the_program_runs_itself_with_its_tensors_moved(program: types.ModuleType) -> None:
    devices = []

    def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
        devices.append(tensor.device.type)
        return tensor * factor

    scale.__module__ = "own_program"
    program.scale = scale
    with PipelineMigrator({"scale": "hetero"}):
        result = program.scale(torch.ones(3), 2.0)
        assert torch.equal(result, torch.full((3,), 2.0)) and result.device.type == "cpu"
        assert result.to("hetero").device.type == "hetero"
    assert devices == ["hetero"]


# Patches.


def everything(modules: list[types.ModuleType]) -> dict[str, Any]:
    """All attributes of modules and of their classes, and the default arguments of their functions."""
    found: dict[str, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.update({f"{module.__name__}.{name}.{inner}": entry for inner, entry in vars(value).items()})
            found[f"{module.__name__}.{name} defaults"] = getattr(value, "__defaults__", None)
    return found


def test_every_name_is_patched_and_every_object_is_identical_again(
    program: types.ModuleType, library: types.ModuleType
) -> None:
    original, flip = library.brighten, cv2.flip

    def with_default(image: Any, function: Callable[..., Any] = original) -> Any:
        return function(image)

    class Holder:
        plain = original
        static = staticmethod(original)

    for thing in (with_default, Holder):
        thing.__module__ = "own_program"
        setattr(program, thing.__name__, thing)
    program.other_name = original
    program.flip = flip
    bound = functools.partial(original, amount=2)  # cannot be reached
    modules = [program, library, cv2, torch, threading, torch.utils.data._utils.worker, torch.utils.data._utils.fetch]
    before = everything(modules)
    plan = {
        "photolib.brighten": "hetero",
        "photolib.Filter": "hetero",
        "photolib.Child.fixed": {"mode": "cpu"},
        "photolib.Filter.named": {"mode": "cpu"},
        "cv2.flip": "hetero",
        "outer/prepare_photo": {"mode": "cpu"},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PipelineMigrator(plan):
            image = noise(4, 4)
            for call in (program.brighten, program.other_name, program.with_default, Holder.static, library.brighten):
                assert is_recorded(call(image))
            assert is_recorded(program.flip(image, 1))
            assert type(bound(image)) is np.ndarray
            assert library.Child.named(image)[0] is library.Child
            late = types.ModuleType("imported_late")
            late.brighten = library.brighten
            sys.modules["imported_late"] = late
    after = everything(modules)
    assert late.brighten is original
    del sys.modules["imported_late"]
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] is not after[name]] == []


def test_a_patch_of_others_on_top_stays_and_is_reported(library: types.ModuleType, brighten: type[Brighten]) -> None:
    original = library.brighten
    migrator = PipelineMigrator({"photolib.brighten": "hetero"}).activate()
    wrapper = library.brighten
    library.brighten = lambda image: wrapper(image)
    with pytest.warns(UserWarning, match="photolib.brighten was patched by other code while the plan was active"):
        migrator.deactivate()
    assert np.array_equal(library.brighten(noise(2, 2)), original(noise(2, 2)))  # through what remains of the wrapper


def register_flip(name: str) -> None:
    """Registers a strategy for a function that turns images upside down."""

    @register
    class Flip(Strategy):
        target = name
        parameters = "image"
        data = ("image",)

        def map(self, call: Any) -> Mapped:
            return Mapped(call["image"])

        def run(self, inputs: Any, static: Any, sample: Any) -> torch.Tensor:
            return inputs[0].flip([1])


def test_a_module_that_is_imported_later_is_patched_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_photolib.py").write_text("def flip(image):\n    return image[::-1]\n")
    monkeypatch.syspath_prepend(tmp_path)

    register_flip("late_photolib.flip")
    with PipelineMigrator({"late_photolib.flip": "hetero"}):
        import late_photolib

        assert is_recorded(late_photolib.flip(noise(3, 3)))
    assert late_photolib.flip.__module__ == "late_photolib" and type(late_photolib.flip(noise(3, 3))) is np.ndarray
    del sys.modules["late_photolib"]


def test_parts_that_a_package_loads_when_asked_are_patched_when_its_import_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lazy_photolib"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import importlib\n"
        "def __getattr__(name):\n"
        "    if name == 'parts':\n        return importlib.import_module('lazy_photolib.parts')\n"
        "    raise AttributeError(name)\n"
        "from lazy_photolib import core\n"
        "axis = 0\n"
    )
    (package / "core.py").write_text("def flip(image):\n    return image[::-1]\n")
    (package / "parts.py").write_text(
        "from lazy_photolib import axis\ndef flip(image):\n    return image[::-1] if axis == 0 else image\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("core", "parts"):
        register_flip(f"lazy_photolib.{name}.flip")
    with PipelineMigrator({"lazy_photolib.core.flip": "hetero", "lazy_photolib.parts.flip": "hetero"}):
        import lazy_photolib

        assert is_recorded(lazy_photolib.core.flip(noise(3, 3)))
        assert is_recorded(lazy_photolib.parts.flip(noise(3, 3)))
    for name in ("lazy_photolib", "lazy_photolib.core", "lazy_photolib.parts"):
        del sys.modules[name]


def test_a_second_plan_is_refused_and_the_first_goes_on(library: types.ModuleType, brighten: type[Brighten]) -> None:
    with PipelineMigrator({"photolib.brighten": "hetero"}) as first:
        with pytest.raises(RuntimeError, match="a plan is active already; deactivate it first"):
            PipelineMigrator({"cv2.flip": "hetero"}).activate()
        with pytest.raises(RuntimeError, match="active already"):
            first.activate()
        assert is_recorded(library.brighten(noise(2, 2)))
    first.deactivate()  # does nothing


def test_activation_that_fails_leaves_nothing_patched(library: types.ModuleType, brighten: type[Brighten]) -> None:
    original = library.brighten
    with pytest.raises(PlanError, match="photolib has no brightn; did you mean brighten?"):
        PipelineMigrator({"photolib.brighten": "hetero", "photolib.brightn": "hetero"}).activate()
    assert library.brighten is original
    with PipelineMigrator({"photolib.brighten": "hetero"}):
        pass
    assert library.brighten is original


def test_a_signature_that_changed_keeps_the_calls_on_the_cpu(
    library: types.ModuleType, brighten: type[Brighten]
) -> None:
    library.brighten = lambda picture, amount=1: picture
    library.brighten.__module__ = "photolib"
    with pytest.warns(UserWarning, match=r"the signature of photolib.brighten is \(picture, amount\)"):
        with PipelineMigrator({"photolib.brighten": "hetero"}) as migrator:
            library.brighten(noise(2, 2))
    assert migrator.report.total()["photolib.brighten"].cpu_calls == 1


def test_a_function_that_others_replaced_keeps_its_calls_on_the_cpu(
    library: types.ModuleType, brighten: type[Brighten]
) -> None:
    library.brighten = everything
    with pytest.warns(
        UserWarning, match="photolib.brighten was replaced by test_migrator before the plan became active"
    ):
        with PipelineMigrator({"photolib.brighten": "hetero"}):
            assert library.brighten([]) == {}


def test_another_version_is_tested_and_refused_if_it_differs(
    library: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    @register
    class Versioned(Brighten):
        library = "numpy"
        versions = ("0.0.",)

        def examples(self, random: np.random.Generator) -> Iterator[Any]:
            while True:
                yield (noise(3, 3), 1), {}

    with PipelineMigrator({"photolib.brighten": "hetero"}):
        assert is_recorded(library.brighten(noise(2, 2)))
    monkeypatch.setattr(Versioned, "run", lambda self, inputs, static, sample: inputs[0])
    with pytest.warns(UserWarning, match=r"computes it differently from 0\.0\.\*.*: 6 of 6 calls, by up to"):
        with PipelineMigrator({"photolib.brighten": "hetero"}):
            assert type(library.brighten(noise(2, 2))) is np.ndarray


# Plans.


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"cv2.resizee": "hetero"}, "cv2 has no resizee; did you mean resize?"),
        ({"nothing_like_it.f": "hetero"}, "there is no module nothing_like_it"),
        ({"cv2.flip": "tpu"}, "'tpu' is no device"),
        ({"cv2.flip": "cuda:99"}, "device 'cuda:99' is not there"),
        ({"cv2.flip": "xpu"}, "device 'xpu' is not supported"),
        ({"cv2.flip": {"mode": "later"}}, "mode is 'later'; expected one of defer, inline, cpu"),
        ({"cv2.flip": {"devise": "hetero"}}, "'devise', which is not known; did you mean 'device'?"),
        ({"cv2.flip": {"minimum_bytes": "1k"}}, "minimum_bytes is '1k'; expected int"),
        ({"cv2.flip": 3}, "expected a device"),
        ({"cv2/": "hetero"}, "'cv2/' is no context key"),
        ({"": "hetero"}, "'' is no context key"),
        ({"rules": {}}, "rules is a list"),
        ({"rules": [{"device": "hetero"}]}, "each rule is an object with a key"),
        ({"rules": [{"key": "cv2.flip"}, {"key": "cv2.flip"}]}, "has two rules for 'cv2.flip'"),
        ({"version": 9, "rules": []}, "has version 9; this hetero reads version 1"),
        ({"cv2.COLOR_BGR2GRAY": "hetero"}, "cv2.COLOR_BGR2GRAY is no callable but int"),
        (
            {"numpy.ndarray.astype": "hetero"},
            "methods of ndarray cannot be patched; those of results follow without a rule",
        ),
        ({"torch.Tensor.to": "hetero"}, "methods of Tensor cannot be patched"),
        ({"cv2.flip": {"strategy": "cv2.nothing"}}, "there is no strategy for 'cv2.nothing'"),
        ({"strategies": ["no_such_module"], "rules": []}, "no_such_module cannot be imported"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_with_a_sentence(plan: dict[str, Any], message: str) -> None:
    flip = cv2.flip
    with pytest.raises(PlanError, match=message.replace("?", r"\?")):
        PipelineMigrator(plan).activate()
    assert cv2.flip is flip


def test_files_are_read_and_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = Plan.load({"cv2.flip": {"minimum_bytes": 9, "evidence": {"gain": 2.0}}, "prepare_photo/cv2.flip": "cpu"})
    plan.save(path)
    assert Plan.load(path) == plan
    path.write_text('{"cv2.flip": "hetero", "cv2.flip": "cpu"}')
    with pytest.raises(PlanError, match="'cv2.flip' is there twice"):
        Plan.load(path)
    path.write_text('{"cv2.flip": ')
    with pytest.raises(PlanError, match="is no JSON: .* in line 1, column"):
        Plan.load(path)


def test_a_plan_of_another_environment_says_what_differs(tmp_path: Path) -> None:
    plan = {"environment": {"torch": "1.0"}, "rules": [{"key": "cv2.flip"}]}
    with pytest.warns(UserWarning, match="torch is .*, the plan was measured with 1.0"):
        with PipelineMigrator(json.loads(json.dumps(plan))):
            pass
    with pytest.raises(PlanError, match="torch is"):
        PipelineMigrator(plan, strict=True).activate()


def test_a_key_may_name_a_method_of_the_programs_own_class(program: types.ModuleType) -> None:
    method = program.Album.__getitem__
    for key in ("Album.__getitem__/photolib.brighten", "own_program.Album.__getitem__/photolib.brighten"):
        with PipelineMigrator({key: "hetero"}):
            assert is_recorded(program.Album()[noise(3, 3)])
            assert type(program.prepare_photo(noise(3, 3))) is np.ndarray
    with pytest.raises(PlanError, match="own_program.Album has no __getitems__; did you mean __getitem__"):
        PipelineMigrator({"Album.__getitems__": "hetero"}).activate()
    assert program.Album.__getitem__ is method


def test_a_class_that_is_imported_later_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_program.py").write_text(
        "import cv2\nclass Mirror:\n    def turn(self, image):\n        return cv2.flip(image, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with PipelineMigrator({"Mirror.turn/cv2.flip": "hetero"}):
        import late_program

        assert is_recorded(late_program.Mirror().turn(noise(3, 3)))
        assert type(cv2.flip(noise(3, 3), 1)) is np.ndarray
    del sys.modules["late_program"]


def test_cv2_takes_handles_if_it_is_imported_while_a_plan_is_active() -> None:
    """Also functions without a strategy, which are code in C."""
    run_python_ok(
        """
        import sys
        import numpy as np
        from PIL import Image
        from torch_hetero.migration import PipelineMigrator
        from torch_hetero.migration.holder import HANDLES
        with PipelineMigrator({"PIL.Image.Image.transpose": "hetero"}):
            image = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
            handle = np.asarray(image.transpose(Image.Transpose.ROTATE_180))
            assert type(handle) in HANDLES
            assert "cv2" not in sys.modules
            import cv2
            assert cv2.countNonZero(handle) == 11
            assert cv2.flip(handle, -1).ravel().tolist() == list(range(12))
        assert not hasattr(cv2.countNonZero, "_hetero_original")
        """
    )


def test_keys_that_match_nothing_and_names_that_match_twice_are_reported(program: types.ModuleType) -> None:
    for key in ("no_such_function", "NoSuchClass.method"):
        with pytest.warns(UserWarning, match=f"'{key}' matched nothing"):
            with PipelineMigrator({key: "hetero"}):
                pass
    other = types.ModuleType("other_program")
    other.__file__ = program.__file__

    def prepare_photo(image: Any) -> Any:
        return image

    prepare_photo.__module__ = "other_program"
    other.prepare_photo = prepare_photo
    sys.modules["other_program"] = other
    try:
        with pytest.raises(
            PlanError, match="prepare_photo may be own_program.prepare_photo and other_program.prepare_photo; write which"
        ):
            PipelineMigrator({"prepare_photo": "hetero"}).activate()
    finally:
        del sys.modules["other_program"]
    assert EXACT.exact and Spec("array", (2, 3), torch.uint8).nbytes == 6


def test_an_empty_plan_patches_nothing() -> None:
    """`optimize` writes one where nothing gains; the program then runs exactly as without it."""
    modules = [cv2, torch, np, torch.utils.data._utils.worker, torch.utils.data._utils.fetch]
    before = everything(modules)
    with PipelineMigrator({"rules": [], "why": "nothing gains"}):
        after = everything(modules)
        assert [name for name in before if before[name] is not after[name]] == []
        assert "HETERO_MIGRATION_PLAN" not in os.environ
