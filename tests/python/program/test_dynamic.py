"""Programs of several sizes: ``torch.hetero.compile(..., dynamic=...)``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close_in_scale, assert_same
from torch import nn

from torch_hetero.program import dynamic
from torch_hetero.program.signature import positional_names


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 5)).eval()


class Attention(nn.Module):
    """Attention with a causal mask, positions from a table, and a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 32)
        self.positions = nn.Embedding(64, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        self.head = nn.Linear(32, 7)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of the last token, and a mean over all."""
        length = tokens.shape[1]
        x = self.table(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = torch.full((length, length), float("-inf"), device=tokens.device).triu(1)
        x = self.layer(x, src_mask=mask)
        return {"logits": self.head(x[:, -1]), "mean": x.mean(1), "pairs": x[:, 1:] - x[:, :-1]}


def check(program: torch.hetero.CompiledModel, model: Callable[..., object], *inputs: torch.Tensor,
          **tensors: torch.Tensor) -> None:
    """The program gives what the model does."""
    with torch.no_grad():
        expected = model(*inputs, **tensors)
    found = program(*inputs, **tensors)
    if not isinstance(expected, dict):
        expected, found = {"": expected}, {"": found}
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_named_dimension_takes_other_sizes() -> None:
    model = small_model()
    program = torch.hetero.compile(model, (torch.zeros(3, 16),), dynamic={"input": {0: "batch"}})
    assert program.dimensions == {"batch": (1, None)}
    assert program.sizes == {"batch": 3}
    for batch in (3, 1, 2, 7, 64, 1000, 3):
        check(program, model, torch.randn(batch, 16))
        assert program.sizes == {"batch": batch}
    assert program.counts["allocations"] == 0


def test_the_example_may_have_the_size_1() -> None:
    model = small_model()
    program = torch.hetero.compile(model, (torch.zeros(1, 16),), dynamic={"input": {0: "batch"}})
    assert program.dimensions == {"batch": (1, None)}
    for batch in (1, 2, 9):
        check(program, model, torch.randn(batch, 16))


def test_a_size_of_1_is_another_program_where_the_model_makes_it_one() -> None:
    def squeezed(x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0).cumsum(0)

    program = torch.hetero.compile(squeezed, (torch.randn(3, 4),), dynamic={"x": {0: "n"}})
    assert program.dimensions == {"n": (2, None)}
    check(program, squeezed, torch.randn(5, 4))
    with pytest.raises(ValueError, match="n is 1, and the program was made for 2 and more"):
        program(torch.randn(1, 4))


def test_batch_and_length_of_attention_are_dynamic() -> None:
    model = Attention().eval()
    tokens = torch.randint(50, (3, 9))
    program = torch.hetero.compile(model, (tokens,), dynamic={"tokens": {0: "batch", 1: "n"}})
    for batch, length in ((3, 9), (1, 5), (8, 64), (2, 2), (5, 33), (1, 64)):
        check(program, model, torch.randint(50, (batch, length)))
    with pytest.raises(IndexError):  # of the table of positions, as without hetero
        program(torch.randint(50, (3, 65)))
    check(program, model, tokens)


def test_one_tensor_for_several_inputs_of_the_example_is_one_at_the_call_only_if_it_is_given_so() -> None:
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    axes = dict.fromkeys(("query", "key", "value"), {0: "batch", 1: "n"})
    program = torch.hetero.compile(model, (x, x, x), dynamic=axes)
    for given in ((x, x, x), torch.randn(3, 4, 6, 8).unbind()):
        torch.testing.assert_close(program(*given), model(*given), rtol=1e-4, atol=1e-5)
    # Names are those of each place.
    program = torch.hetero.compile(lambda a, b: a.sum(0) + b, (x, x), dynamic={"a": {0: "m"}, "b": {0: "n"}})
    assert list(program.dimensions) == ["m", "n"]
    check(program, lambda a, b: a.sum(0) + b, torch.randn(3, 5, 8), torch.randn(4, 5, 8))


def test_minilm_takes_any_batch_and_length(tmp_path: Path) -> None:
    model, _ = models.minilm()
    inputs = {"input_ids": torch.randint(1000, 20000, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    axes = {0: "batch", 1: "tokens"}
    program = torch.hetero.compile(model, (), inputs, dynamic=dict.fromkeys(inputs, axes))
    program.save(tmp_path / "minilm.hetero")
    loaded = torch.hetero.load(tmp_path / "minilm.hetero")
    assert loaded.dimensions == {"batch": (1, None), "tokens": (1, 512)}
    for batch, length in ((2, 6), (1, 8), (5, 32), (3, 17), (1, 8)):
        tokens = torch.randint(1000, 20000, (batch, length))
        mask = torch.ones_like(tokens)
        mask[0, length // 2 + 1:] = 0
        with torch.no_grad():
            expected = model(input_ids=tokens, attention_mask=mask).last_hidden_state
        found = loaded(input_ids=tokens, attention_mask=mask)["last_hidden_state"]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="is to be 8: the inputs have batch 1, tokens 8"):
        loaded(input_ids=torch.ones(1, 8, dtype=torch.long), attention_mask=torch.ones(1, 9, dtype=torch.long))


def test_true_means_all_sizes_that_can_be() -> None:
    layers = (nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3))
    model = nn.Sequential(*layers).eval()
    program = torch.hetero.compile(model, (torch.zeros(2, 3, 33, 40),), dynamic=True)
    assert len(program.dimensions) == 3
    for sizes in ((2, 33, 40), (1, 64, 65), (5, 37, 51), (3, 100, 22)):
        batch, height, width = sizes
        check(program, model, torch.randn(batch, 3, height, width))


def test_sizes_may_depend_on_several_dimensions() -> None:
    def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, y])
        return (both[:, None] - both[None]).flatten(1).cumsum(0) / x.shape[0] + both.shape[0]

    x, y = torch.randn(4), torch.randn(6)
    program = torch.hetero.compile(pairs, (x, y), dynamic={"x": {0: "n"}, "y": {0: "m"}})
    for n, m in ((4, 6), (3, 8), (10, 2), (6, 6), (17, 5)):
        check(program, pairs, torch.randn(n), torch.randn(m))


def test_an_exported_program_has_the_sizes_with_which_it_was_exported() -> None:
    model, x = small_model(), torch.randn(4, 16)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=50)},))
    program = torch.hetero.compile(exported, (x,))
    assert list(program.dimensions.values())[0][1] == 50
    for batch in (4, 2, 50):
        check(program, model, torch.randn(batch, 16))
    with pytest.raises(ValueError, match="51"):
        program(torch.randn(51, 16))
    fixed = torch.hetero.compile(exported, (x,), dynamic=False)
    assert fixed.dimensions == {}
    with pytest.raises(ValueError, match="input"):
        fixed(torch.randn(5, 16))


def test_random_numbers_updates_and_states_go_on_with_other_sizes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x.mul_(2)
            return torch.dropout(x, 0.5, True) * self.calls

    program = torch.hetero.compile(Counting(), (torch.ones(4, 3),), dynamic={"x": {0: "n"}})
    seen = []
    torch.hetero.manual_seed(3)
    for call, n in enumerate((4, 400, 4, 1000, 4, 400), start=1):
        if call == 5:
            torch.hetero.manual_seed(3)
        x = torch.ones(n, 3)
        result = program(x)
        assert (x == 2).all()
        assert set(result.unique().tolist()) <= {0.0, 4.0 * call}
        seen.append((result > 0).tolist())
    # Each call draws anew, whatever its size, and the same again from the same seed.
    assert seen[0] != seen[2]
    assert len({str(kept[:4]) for kept in seen[:4]}) == 4
    assert seen[4:] == seen[:2]


def test_bfloat16_programs_have_dimensions_too() -> None:
    model = small_model()
    program = torch.hetero.compile(model, (torch.zeros(3, 16),), precision="bfloat16", dynamic={"input": {0: "batch"}})
    for batch in (3, 2, 40):
        x = torch.randn(batch, 16)
        assert_close_in_scale(program(x), model(x).detach(), 0.01)


def test_new_sizes_resize_the_plan_and_known_ones_plan_nothing() -> None:
    model = Attention().eval()
    program = torch.hetero.compile(model, (torch.randint(50, (3, 9)),), dynamic={"tokens": {0: "batch", 1: "n"}})
    program(torch.randint(50, (4, 12)))
    assert program.plan_origin == "resized"
    program(torch.randint(50, (3, 9)))
    assert program.plan_origin not in ("resized", "made anew for these sizes")
    runs = program.counts["runs"]
    program(torch.randint(50, (4, 12)))
    assert program.counts["runs"] == runs + 1


def test_what_cannot_be_dynamic_says_why() -> None:
    model = small_model()
    x = torch.zeros(3, 16)
    with pytest.raises(ValueError, match="dynamic names 'y', and the arguments are 'input'"):
        torch.hetero.compile(model, (x,), dynamic={"y": {0: "batch"}})
    with pytest.raises(ValueError, match="dimension 2 of a tensor that has 2"):
        torch.hetero.compile(model, (x,), dynamic={"input": {2: "batch"}})
    with pytest.raises(ValueError, match="cannot be the name"):
        torch.hetero.compile(model, (x,), dynamic={"input": {0: "a b"}})
    with pytest.raises(ValueError, match="features cannot be dynamic: the model needs it to be 16"):
        torch.hetero.compile(model, (x,), dynamic={"input": {1: "features"}})
    with pytest.raises(ValueError, match="returns 3 for one size"):
        torch.hetero.compile(lambda x: (x + 1, x.shape[0]), (x,), dynamic={"x": {0: "n"}})
    with pytest.raises(ValueError, match="with which it was exported"):
        torch.hetero.compile(torch.export.export(model, (x,)), (x,), dynamic={"input": {0: "batch"}})
    with pytest.raises(ValueError, match="dynamic is True, or"):
        torch.hetero.compile(model, (x,), dynamic="batch")


class Norm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 23), nn.BatchNorm1d(23))


def test_a_norm_of_batches_only_reads_its_statistics_whatever_was_compiled_before() -> None:
    for batch in (2, 8, 5):
        model = Norm().eval()
        program = torch.hetero.compile(model, (torch.randn(batch, 4),), dynamic={"input": {0: "batch"}})
        for size in (batch, 1, 17):
            check(program, model, torch.randn(size, 4))
    # Of sizes that no recording had yet.
    program = torch.hetero.compile(model, (torch.randn(371, 4),))
    program.serve(groups=len(os.sched_getaffinity(0))).close()  # which states of its own would forbid


def test_images_of_other_heights_and_widths_are_taken() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)).eval()
    program = torch.hetero.compile(model, (torch.randn(2, 3, 32, 32),), dynamic={"input": {2: "height", 3: "width"}})
    for height, width in ((32, 32), (33, 49), (18, 31)):
        check(program, model, torch.randn(2, 3, height, width))


def test_few_sizes_and_many_dimensions_are_taken() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2] * 1.0

    program = torch.hetero.compile(half, (torch.zeros(4),), dynamic={"x": {0: torch.export.Dim("n", min=4, max=7)}})
    assert program.dimensions == {"n": (4, 7)}
    for size in (4, 5, 6, 7):
        check(program, half, torch.randn(size))

    def halves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [half(tensor) for tensor in tensors]

    program = torch.hetero.compile(halves, ([torch.zeros(4 + i) for i in range(12)],), dynamic=True)
    assert len(program.dimensions) == 12
    given = [torch.randn(20 - i) for i in range(12)]
    torch.testing.assert_close(program(given), halves(given))


class Halved(nn.Module):
    """Images become smaller and larger again: their sizes are multiples of a power of two."""

    def __init__(self, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.ModuleList(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(times))
        self.up = nn.ModuleList(nn.ConvTranspose2d(3, 3, 2, 2) for _ in range(times))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.down:
            kept.append(x)
            x = layer(x)
        for layer in self.up:
            x = layer(x) + kept.pop()
        return x


class Patches(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] % 14 or x.shape[3] % 14:
            raise ValueError("whole patches only")
        return super().forward(x).flatten(2).mean(2)


@pytest.mark.parametrize(("model", "size", "fitting"), [
    (lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 16, 3, padding=1)), 32, (10, 14)),
    (lambda: Halved(3), 64, (16, 40)),
    (lambda: Halved(4), 64, (32, 48)),
    (lambda: Patches(3, 8, 14, 14), 56, (28, 70)),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 7, 4), nn.MaxPool2d(4), nn.Conv2d(4, 4, 7)), 130, (123, 150)),
])
def test_models_that_need_multiples_or_large_sizes_are_compiled_by_small_samples(
    monkeypatch: pytest.MonkeyPatch, model: Callable[[], nn.Module], size: int, fitting: tuple[int, int]
) -> None:
    taken = []
    tensors = dynamic.Sizes.tensors

    def kept(*args: Any) -> list[torch.Tensor]:
        taken.extend(tensors(*args))
        return taken[-1:]

    monkeypatch.setattr(dynamic.Sizes, "tensors", kept)
    made = model().eval()
    program = torch.hetero.compile(made, (torch.zeros(1, 3, size, size),),
                                   dynamic={next(iter(positional_names(made))): {0: "batch", 2: "height", 3: "width"}})
    assert max(tensor.numel() for tensor in taken) <= 3 << 18
    check(program, made, torch.randn(3, 3, *fitting))
    check(program, made, torch.randn(1, 3, size, size))


@pytest.mark.parametrize(("model", "shape", "fitting", "wrong", "words"), [
    (lambda x: x.view(2, -1) * 1.0, (8,), (10,), (7,), r"n 7. The model needs .*floor\(n,2\) \(1\) to be 0"),
    (lambda x: x.unflatten(0, (-1, 3)).sum(1), (12,), (9,), (10,), r"n 10. The model needs n \(10\) to be 3"),
    (lambda x: x + 1 if x.shape[0] != 7 else x - 1, (12,), (8,), (7,), r"needs n \(7\) not to be 7"),
    (lambda x: x + 1 if x.shape[0] < x.shape[1] else x - 1, (4, 9), (5, 6), (6, 6), r"n\+1 \(7\) to be at most m"),
    (lambda x: x + 1 if x.shape[0] * x.shape[1] < 20000 else x - 1, (4, 9), (90, 200), (100, 200),
     r"n\*m\+1 \(20001\) to be at most 20000"),
    (lambda x: x + 1 if x.shape[0] % 3 == 1 else x - 1, (4,), (7,), (8,), "The model needs"),
    (lambda x: F.pixel_unshuffle(x[None], 2), (6, 8), (10, 4), (7, 8), "The model needs"),
])
def test_sizes_with_which_the_model_does_something_else_are_refused(
    model: Callable[..., torch.Tensor], shape: tuple[int, ...], fitting: tuple[int, ...], wrong: tuple[int, ...],
    words: str, tmp_path: Path,
) -> None:
    dynamic = {"x": dict(enumerate(("n", "m")[: len(shape)]))}
    torch.hetero.compile(model, (torch.randn(shape),), dynamic=dynamic).save(tmp_path / "m.hetero")
    program = torch.hetero.load(tmp_path / "m.hetero")
    check(program, model, torch.randn(fitting))
    with pytest.raises(ValueError, match=words):
        program(torch.randn(wrong))
    with program.serve() as server, pytest.raises(ValueError, match=words):
        server.submit(torch.randn(wrong))
    check(program, model, torch.randn(shape))


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        (lambda x: x * torch.sym_min(x.shape[0], 3), lambda n: n < 3),
        (lambda x: x[: torch.sym_min(x.shape[0], 3)] * 2, lambda n: n < 3),
        (lambda x: x[torch.sym_max(x.shape[0] - 200, 0) :] * 1.5, lambda n: n > 200),
        (lambda x: x * (x.shape[0] // 1000 + 1), lambda n: n >= 1000),
        (lambda x: x * torch.sym_min(x.shape[0], 30), lambda n: False),
    ],
    ids=["minimum", "size", "maximum", "quotient", "both sides"],
)
def test_sides_that_no_recording_had_are_refused(
    model: Callable[..., torch.Tensor], refused: Callable[[int], bool]
) -> None:
    program = torch.hetero.compile(model, (torch.ones(8),), dynamic={"x": {0: "n"}})
    for size in (1, 2, 3, 4, 29, 31, 199, 200, 201, 300, 999, 1000, 3000):
        x = torch.arange(1.0, size + 1)
        if refused(size):
            with pytest.raises(ValueError, match="cannot have these sizes|was made for 2 and more"):
                program(x)
        else:
            assert_same(program(x), model(x))


def test_what_is_of_no_consequence_is_not_required() -> None:
    # torch.export notes for each of these that a rest is what it was with the example.
    for model, shape, others in (
        (lambda x: F.max_pool2d(x, 3, 2, 1), (1, 1, 17, 16), ((1, 1, 16, 17), (1, 1, 4, 5))),
        (lambda x: x[:, :, :, : x.shape[3] % 3 + 1] * 2, (1, 1, 4, 9), ((1, 1, 4, 10), (1, 1, 5, 11))),
    ):
        program = torch.hetero.compile(model, (torch.randn(shape),), dynamic={"x": {2: "height", 3: "width"}})
        for other in others:
            check(program, model, torch.randn(other))


def test_models_and_inputs_may_be_on_hetero() -> None:
    model = small_model()
    x = torch.randn(3, 16)
    program = torch.hetero.compile(small_model().to("hetero"), (x.to("hetero"),), dynamic={"input": {0: "batch"}})
    other = torch.randn(6, 16)
    found = program(other.to("hetero"))
    assert found.device.type == "hetero"
    torch.testing.assert_close(found.cpu(), model(other).detach(), rtol=1e-4, atol=1e-5)


def test_inputs_in_another_order_of_axes_are_taken() -> None:
    program = torch.hetero.compile(lambda x: x.sum(0), (torch.randn(5, 4).t(),), dynamic={"x": {1: "n"}})
    for n in (5, 9):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x.t()), x.t().sum(0))
        torch.testing.assert_close(program(x.t().contiguous()), x.t().sum(0))


def test_a_server_takes_requests_of_different_sizes() -> None:
    model = small_model()
    program = torch.hetero.compile(model, (torch.zeros(3, 16),), dynamic={"input": {0: "batch"}})
    inputs = [torch.randn(1 + i % 7, 16) for i in range(60)]
    with program.serve(groups=2) as server:
        futures: list[object] = [None] * len(inputs)

        def submit(first: int) -> None:
            for i in range(first, len(inputs), 3):
                futures[i] = server.submit(inputs[i])

        threads = [threading.Thread(target=submit, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for x, future in zip(inputs, futures, strict=True):
            torch.testing.assert_close(future.result(), model(x).detach(), rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="dimension"):
            server.submit(torch.randn(3, 4, 16))


def test_the_text_of_a_program_names_its_dimensions() -> None:
    program = torch.hetero.compile(small_model(), (torch.zeros(3, 16),), dynamic={"input": {0: "batch"}})
    assert program.inputs == [("input", "f32[batch,16]")]
    assert program.outputs == [("output", "f32[batch,5]")]
    assert "dimension batch 1..any" in str(program)
