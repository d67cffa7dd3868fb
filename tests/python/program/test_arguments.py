"""Arguments and results of saved programs: nested, by name, shared, updated."""

from __future__ import annotations

import collections
import enum
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same
from saved_models import example
from torch import nn
from torch.testing import assert_close


class Nested(nn.Module):
    def forward(self, x: dict[str, Any], flag: bool, *, scale: float = 1.0) -> Any:
        a, b = x["pair"]
        total = a + scale * b
        return {"total": total if flag else -total, "rest": (a * 2, None, [b, 3])}


def test_arguments_and_results_are_nested_as_the_models_are(tmp_path: Path) -> None:
    a, b = torch.randn(4), torch.randn(4)
    program = torch.hetero.compile(Nested(), ({"pair": (a, b)}, True), {"scale": 2.0})
    program.save(tmp_path / "m.hetero")
    program = torch.hetero.load(tmp_path / "m.hetero")
    assert [name for name, _ in program.inputs] == ["x.pair.0", "x.pair.1"]
    assert [name for name, _ in program.outputs] == ["total", "rest.0", "rest.2.0"]
    result = program({"pair": (a, b)}, True, scale=2.0)
    assert_close(result["total"], a + 2 * b)
    assert result["rest"][1] is None
    assert result["rest"][2][1] == 3
    with pytest.raises(ValueError, match="made for True and was given False"):
        program({"pair": (a, b)}, False, scale=2.0)
    with pytest.raises(ValueError, match=r"made for 2.0 and was given 3.0"):
        program({"pair": (a, b)}, True, scale=3.0)


def test_a_mapping_of_example_inputs_is_keyword_arguments() -> None:
    x, y = torch.rand(3), torch.rand(3)
    batch = collections.UserDict({"x": x, "y": y})  # as tokenizers give
    program = torch.hetero.compile(lambda x, y, scale: (x - y) * scale, batch, {"scale": 2.0})
    assert torch.equal(program(y=y, x=x, scale=2.0), (x - y) * 2)


def test_arguments_of_other_classes_are_taken_for_tuples_and_dictionaries(tmp_path: Path) -> None:
    pair = namedtuple("pair", "a b")  # noqa: PYI024
    given = (pair(torch.ones(2), 3), collections.OrderedDict(x=torch.ones(2)), {1: [torch.ones(2)], "k": None})
    path = tmp_path / "m.hetero"
    torch.hetero.compile(lambda p, d, e: p.a * p.b + d["x"] + e[1][0], given).save(path)
    program = torch.hetero.load(path)
    for _ in range(2):
        assert_close(program(*given), torch.full((2,), 5.0))
        assert_close(program(tuple(given[0]), dict(given[1]), given[2]), torch.full((2,), 5.0))
    with pytest.raises(ValueError, match=r"expected \(\(\(\*, \*\), \{'x': \*\}, \{1: \[\*\], 'k': \*\}\), \{\}\)"):
        program(given[0], {"y": torch.ones(2)}, given[2])


def test_arguments_in_what_a_file_cannot_describe_are_refused() -> None:
    with pytest.raises(ValueError, match="whose keys are strings and integers"):
        torch.hetero.compile(lambda d: d[(1, 2)] + 1, ({(1, 2): torch.ones(2)},))


def test_arguments_by_position_and_by_name_are_the_same_ones(tmp_path: Path) -> None:
    def model(x: torch.Tensor, y: torch.Tensor, *, scale: float) -> torch.Tensor:
        return (x - y) * scale

    x, y = torch.rand(3), torch.rand(3)
    for args, kwargs in (((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})):
        torch.hetero.compile(model, args, {**kwargs, "scale": 2.0}).save(tmp_path / "m.hetero")
        program = torch.hetero.load(tmp_path / "m.hetero")
        for result in (program(x, y, scale=2.0), program(x, scale=2.0, y=y), program(scale=2.0, y=y, x=x)):
            assert torch.equal(result, model(x, y, scale=2.0))


def test_the_keys_of_a_dictionary_come_in_any_order() -> None:
    x, y = torch.rand(3), torch.rand(3)
    program = torch.hetero.compile(lambda given: given["x"] - given["y"][0], ({"x": x, "y": [y]},))
    assert torch.equal(program({"y": [y], "x": x}), x - y)
    for wrong in ({"y": [y]}, {"y": [y], "z": x}, {"y": [[y]], "x": x}, {"y": y, "x": x}):
        with pytest.raises(ValueError, match="nested otherwise"):
            program(wrong)


def test_nan_is_the_value_for_which_a_program_was_made() -> None:
    program = torch.hetero.compile(lambda x, fill: x + 1, (torch.ones(2), float("nan")))
    assert torch.equal(program(torch.ones(2), float("nan")), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match=r"made for nan and was given 1.0"):
        program(torch.ones(2), 1.0)


def test_a_tensor_of_another_class_gives_what_a_plain_one_gives() -> None:
    class Labelled(torch.Tensor):
        pass

    x = torch.randn(2, 3)
    program = torch.hetero.compile(lambda x, scale: (x * scale, None, {"scale": scale}), (x, 2))
    expected = program(x, 2)
    assert_same(expected[0], x * 2)
    assert expected[1:] == (None, {"scale": 2})
    for other in (torch.nn.Parameter(x), x.as_subclass(Labelled), x.to("hetero")):
        made = program(other, 2)
        assert_same(made[0].cpu(), x * 2)
        assert made[1:] == expected[1:]
        assert type(made[0]) is torch.Tensor and not made[0].requires_grad
    for wrong in (True, 2.0, 3, None):
        with pytest.raises(ValueError, match="the program was made for 2"):
            program(x, wrong)
    with pytest.raises(ValueError, match="is a tensor, not a float"):
        program(1.0, 2)
    assert_same(program(x, scale=2)[0], x * 2)


def test_a_dictionary_of_another_class_gives_what_it_finds() -> None:
    class Doubling(dict):
        def __getitem__(self, key: str) -> torch.Tensor:
            return super().__getitem__(key) * 2

    x = torch.randn(2, 3)
    program = torch.hetero.compile(lambda inputs: inputs["x"] + 1, ({"x": x},))
    assert_same(program(Doubling(x=x)), x * 2 + 1)
    assert_same(program(collections.OrderedDict(x=x)), x + 1)
    with pytest.raises(ValueError, match="nested otherwise"):
        program(Doubling(y=x))


@pytest.mark.parametrize("device", ["cpu", "hetero"])
def test_conjugate_and_negative_views_are_taken_by_their_values(device: str) -> None:
    x = torch.randn(6, dtype=torch.complex64)
    conjugate, negative = x.to(device).conj(), x.to(device).conj().imag
    assert conjugate.is_conj() and negative.is_neg()
    expected, opposite = x.conj().resolve_conj() * 2, -x.imag.clone() * 2
    for given in (torch.zeros(6, dtype=torch.complex64), conjugate):  # examples
        program = torch.hetero.compile(lambda a: a * 2, (given,))
        assert_close(program(conjugate).cpu(), expected)
        assert_close(program(x.to(device)).cpu(), x * 2)
    with program.serve() as server, program.stage_pipeline(stages=1) as pipeline:
        assert_close(server.submit(conjugate).result(60).cpu(), expected)
        assert_close(pipeline.submit(conjugate).result(60).cpu(), expected)
    program = torch.hetero.compile(lambda a: a * 2, (torch.zeros(12)[::2],))
    assert_close(program(negative).cpu(), opposite)


def test_an_argument_that_is_updated_shares_memory_with_none() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    program = torch.hetero.compile(model, (torch.ones(3), torch.ones(3)))
    for given in (torch.ones(6), torch.ones(6, device="hetero")):
        with pytest.raises(ValueError, match="updates 'a', which shares memory with 'b': .*clone"):
            program(given[:3], given[2:5])
        assert torch.equal(program(given[:3], given[3:]).cpu(), torch.full((3,), 3.0))
    both = torch.ones(3)
    with pytest.raises(ValueError, match="updates 'a', which shares memory with 'b'"):
        torch.hetero.compile(model, (both, both))


SHARING = {
    "the same tensor": lambda x: (x[:4], x[:4]),
    "the same object": lambda x: (x, x),
    "overlapping views": lambda x: (x[:4], x[2:]),
    "each with itself": lambda x: (x[:1].expand(4, 3), x[0].expand(4, 3)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("device", ["cpu", "hetero"])
@pytest.mark.parametrize("sharing", SHARING)
def test_examples_that_share_memory_are_inputs_of_their_own(sharing: str, device: str, dynamic: bool | None) -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + 10 * b

    examples = SHARING[sharing](torch.randn(6, 3, device=device))
    program = torch.hetero.compile(model, examples, dynamic=dynamic)
    given = [torch.randn(example.shape) for example in examples]
    assert_same(program(*given), model(*given))
    nested = torch.hetero.compile(lambda a, b: model(a[0], b["x"]), ([examples[0]], {"x": examples[1]}))
    assert_same(nested([given[0]], {"x": given[1]}), model(*given))


def test_examples_keep_their_values_and_their_order_of_axes() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.nonzero_static(x, size=4)  # which has to run once before it can be recorded

    for x in (torch.ones(2, 3), torch.ones(2, 3, device="hetero")):
        torch.hetero.compile(model, (x,))
        assert torch.equal(x.cpu(), torch.ones(2, 3))
    turned = torch.hetero.compile(lambda x: x + 1, (torch.ones(2, 3, device="hetero").t(),))
    assert turned.inputs == [("x", "f32[3,2]{1,3}+0")]


class Name(str, enum.Enum):
    LOGITS = "logits"


def test_results_keep_the_keys_of_their_dictionaries(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> dict[Any, Any]:
        return {"x": x, 1: x + 1, "1": x + 2, 5: {-7: x + 3, False: 4}, Name.LOGITS: x + 5}

    x = torch.rand(2)
    torch.hetero.compile(model, (x,)).save(tmp_path / "m.hetero")
    program = torch.hetero.load(tmp_path / "m.hetero")
    assert [name for name, _ in program.outputs] == ["x", "1", "1.2", "5.-7", "logits"]
    for made in (program, torch.hetero.compile(model, (x,), dynamic=True)):
        result = made(x)
        assert [(type(key), key) for key in result] == [(str, "x"), (int, 1), (str, "1"), (int, 5), (str, "logits")]
        assert [(type(key), key) for key in result[5]] == [(int, -7), (bool, False)]
        assert_close(result, model(x))
    for key in ((1, 2), 1.5, None):
        with pytest.raises(ValueError, match="whose keys are strings and integers"):
            torch.hetero.compile(lambda x, key=key: {key: x + 1}, (x,))


def test_a_namedtuple_becomes_a_tuple() -> None:
    pair = namedtuple("pair", "a b")  # noqa: PYI024
    program = torch.hetero.compile(lambda x: pair(x + 1, x * 2), (torch.ones(2),))
    result = program(torch.ones(2))
    assert type(result) is tuple
    assert_close(result[1], torch.full((2,), 2.0))


def test_what_is_updated_in_place_is_updated(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x
            x.mul_(2)
            return self.count + 0

    model = Counter()
    program = torch.hetero.compile(model, (torch.ones(4),))
    for x in (torch.ones(4), torch.ones(4, device="hetero"), torch.ones(8)[::2]):
        given = x.clone() if x.is_contiguous() else x
        program(given)
        assert_close(given.cpu(), torch.full((4,), 2.0))
    assert_close(program(torch.ones(4)), torch.full((4,), 4.0))
    assert_close(model.count, torch.zeros(4))
    program.save(tmp_path / "m.hetero")
    # A file holds what the model had when it was compiled.
    assert_close(torch.hetero.load(tmp_path / "m.hetero")(torch.ones(4)), torch.ones(4))
