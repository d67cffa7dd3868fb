"""Files of saved programs: what is in them, how they are inspected, and what is refused when one is loaded."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same, run_python, run_python_ok
from saved_models import LAYERS, example, graph_of, rewrite
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from torch_hetero.program.calling import CompiledModel


def test_what_a_link_leads_to_is_replaced_and_what_is_no_file_is_not(program: CompiledModel, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.hetero", tmp_path / "there" / "m.hetero"
    link.symlink_to("there/m.hetero")
    for _ in range(2):  # at first it leads nowhere
        program.save(link)
        assert link.is_symlink() and not target.is_symlink()
        torch.hetero.load(target)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    for name, words in (("pipe", "it is not a file"), ("there", "it is not a file"), ("round", "symbolic links")):
        with pytest.raises(RuntimeError, match=f"cannot write .*{name}: .*{words}"):
            program.save(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert {entry.name for entry in tmp_path.iterdir()} == {"there", "link.hetero", "pipe", "round"}


def test_a_file_is_a_zip_that_other_tools_read(program: CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {"version", "program.json", "graph.txt", "plan.txt", "weights.safetensors"} <= set(archive.namelist())
        assert "aten::addmm" in archive.read("graph.txt").decode()
        assert json.loads(archive.read("program.json"))["metadata"]["made_by"] == f"torch {torch.__version__}"


@pytest.mark.parametrize(("old", "new", "words"), [
    ("aten::addmm", "aten::nothing_like_it", "a registered operator, not aten::nothing_like_it"),
    ("aten::addmm", "aten::mm", "aten::mm"),
    ("f32[3,32], b", "f32[3,31], b", "n2"),
    ("f32[3,32] {", "f32[4,32] {", "n0"),
    ("{07000000", "{f7ffff7f", "attributes end too early"),
    ("{07000000", "{06000000", "n0"),
])
def test_nodes_that_no_recorder_would_write_are_refused(
    program: CompiledModel, tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    graph = graph_of(path)
    assert old in graph
    rewrite(path, {"graph.txt": graph.replace(old, new, 1).encode()})
    with pytest.raises((ValueError, RuntimeError), match=words):
        torch.hetero.load(path)


def results_of_damaged(path: Path, graph: str, x: torch.Tensor) -> Any:
    """What the file gives with this graph; None where it, or the call, is refused.

    A program that is not refused is one: it gives the same twice, by what its file says of its outputs.
    """
    rewrite(path, {"graph.txt": graph.encode()})
    try:
        program = torch.hetero.load(path)
        results = program(x)
    except (ValueError, RuntimeError, IndexError) as error:
        assert str(error), "refused without a reason"
        return None
    assert_same(program(x), results)
    for result, (_, described) in zip(pytree.tree_leaves(results), program.outputs, strict=False):
        assert described.endswith(f"[{','.join(map(str, result.shape))}]")
    return results


def test_damaged_attributes_are_refused_or_make_another_program(program: CompiledModel, tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    graph = graph_of(path)
    expected = program(torch.ones(3, 16))
    outcomes = []
    start = graph.index("{07")
    generator = torch.Generator().manual_seed(1)
    for _ in range(150):
        place = int(torch.randint(start, len(graph), (1,), generator=generator))
        digit = "0123456789abcdef"[int(torch.randint(0, 16, (1,), generator=generator))]
        if graph[place] not in "0123456789abcdef":
            continue
        results = results_of_damaged(path, graph[:place] + digit + graph[place + 1:], torch.ones(3, 16))
        if graph[place] == digit:
            assert_same(results, expected)
        else:
            outcomes.append(results is None)
    assert 0 < sum(outcomes) < len(outcomes)


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_loaded_though_their_meta_kernels_describe_others(name: str, tmp_path: Path) -> None:
    model, x = LAYERS[name]()
    if "training" not in name:
        model.eval()
    torch.hetero.compile(model, (x,)).save(tmp_path / "m.hetero")
    assert_close(torch.hetero.load(tmp_path / "m.hetero")(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["embedding_bag", "lstm", "gru", "convolution", "batch_norm"])
def test_damaged_attributes_of_layers_are_refused_or_make_another_program(name: str, tmp_path: Path) -> None:
    model, x = LAYERS[name]()
    path = tmp_path / "m.hetero"
    torch.hetero.compile(model.eval(), (x,)).save(path)
    graph = graph_of(path)
    attributes = list(re.finditer(r"\{([0-9a-f]+)\}", graph))
    numbers = random.Random(3)
    refused = 0
    for _ in range(120):
        found = numbers.choice(attributes)
        changed = bytearray.fromhex(found[1])
        place = numbers.randrange(len(changed))
        changed[place] = numbers.choice((0, 1, 2, 3, 127, 255, changed[place] ^ 1 << numbers.randrange(8)))
        damaged = graph[:found.start(1)] + changed.hex() + graph[found.end(1):]
        refused += results_of_damaged(path, damaged, x) is None
    assert 0 < refused < 120


def string(text: str) -> bytes:
    return b"\x0e" + struct.pack("<I", len(text)) + text.encode()


@pytest.mark.parametrize("inspects", [False, True])
def test_loading_a_file_runs_no_operator_that_it_names(inspects: bool, tmp_path: Path) -> None:
    path, victim = tmp_path / "m.hetero", tmp_path / "made_by_load"
    torch.hetero.compile(lambda x: x + 1, (torch.ones(4),)).save(path)
    node = next(line for line in graph_of(path).splitlines() if line.startswith("n0"))
    arguments = string(str(victim)) + b"\x0b\x01\x05" + struct.pack("<q", 4) + b"\x00\x00\x10\x00"
    attributes = struct.pack("<II", len(arguments), 0) + arguments
    made = f"n0: aten::from_file() -> b1:f32[4] {{{attributes.hex()}}}"
    rewrite(path, {"graph.txt": graph_of(path).replace(node, made).encode()})
    if inspects:
        assert run_python(f"from torch_hetero.inspect import main; exit(main([{str(path)!r}]))").returncode == 1
    else:
        with pytest.raises(ValueError, match=r"n0 \(aten::from_file\) what it makes is not known"):
            torch.hetero.load(path)
    assert not victim.exists()


def test_an_operator_that_would_resize_an_operand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    torch.hetero.compile(lambda x, out: torch.add(x, x, out=out), (torch.ones(4), torch.ones(4))).save(path)
    assert "write b1:f32[4]" in graph_of(path)
    rewrite(path, {"graph.txt": graph_of(path).replace("write b1:f32[4]", "write b1:f32[2]").encode()})
    with pytest.raises(ValueError, match=r"n0 \(aten::add.out\) it resizes an operand"):
        torch.hetero.load(path)


@pytest.mark.parametrize("name", ["aten::set_.source_Tensor", "aten::resize_", "aten::view", "aten::linear",
                                  "aten::empty.memory_format"])
def test_operators_that_no_recorder_records_are_refused(program: CompiledModel, tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    rewrite(path, {"graph.txt": graph_of(path).replace("aten::addmm", name, 1).encode()})
    with pytest.raises(ValueError, match=f"n0 \\({name}\\) it is an operator that no program has"):
        torch.hetero.load(path)


@pytest.mark.parametrize(("key", "text"), [
    *itertools.product(("arguments", "inputs", "outputs", "results", "updates"),
                       ("", "{", "1", "[[0,999]]", '[{"tensor":99}]', "[" * 5000 + "]" * 5000, None)),
    ("arguments", "null"), ("arguments", '{"tuple": [{"tuple": [null]}, {"dict": [[1, null]]}]}'),
    ("arguments", '{"tuple": [{"tuple": [null]}, {"dict": [["x", null]]}]}'), ("inputs", '[{"tensor": "other"}]'),
    ("outputs", '[{"tensor": -1}]'), ("outputs", '[{"tensor": true}]'), ("results", '{"dict": [[[], null]]}'),
    ("results", '{"set": [null]}'), ("updates", "[[0, 0]]"), ("updates", "null"),
    ("parameters", ""), ("parameters", "1"), ("parameters", "[1]"), ("parameters", '{"x": 0}'),
])
def test_damaged_metadata_is_refused_at_load(
    program: CompiledModel, tmp_path: Path, key: str, text: str | None
) -> None:
    path = tmp_path / "m.hetero"
    program.save(path)
    with zipfile.ZipFile(path) as archive:
        contents = json.loads(archive.read("program.json"))
    contents["metadata"].pop(f"python.{key}")
    if text is not None:
        contents["metadata"][f"python.{key}"] = text
    rewrite(path, {"program.json": json.dumps(contents).encode()})
    foreign = (key, text) == ("arguments", None)
    words = "not saved by torch.hetero.compile" if foreign else r"damaged: python\.\w+ in its"
    with pytest.raises(ValueError, match=rf"m\.hetero: the file .*{words}"):
        torch.hetero.load(path)


def test_a_file_that_is_none_or_of_another_kind_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing.hetero"):
        torch.hetero.load(tmp_path / "nothing.hetero")
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(RuntimeError, match="other.pt"):
        torch.hetero.load(tmp_path / "other.pt")


def test_inspect_prints_inputs_memory_placement_and_graph(program: CompiledModel, tmp_path: Path) -> None:
    program.save(tmp_path / "m.hetero")
    text = run_python_ok(f"from torch_hetero.inspect import main; main([{str(tmp_path / 'm.hetero')!r}])")
    for words in ("0 input: f32[3,16]", "weights: 6", "memory:", "on the cpu", "n0: aten::addmm", "plan: "):
        assert words in text
    (tmp_path / "empty.hetero").write_bytes(b"")
    done = run_python(f"from torch_hetero.inspect import main; exit(main([{str(tmp_path / 'empty.hetero')!r}]))")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_inspect_ends_quietly_where_nobody_reads_on(program: CompiledModel, tmp_path: Path) -> None:
    program.save(tmp_path / "m.hetero")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "torch_hetero.inspect", str(tmp_path / "m.hetero")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=180)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["resnet18", "vit", "language_model", "minilm"])
def test_loading_a_file_imports_nothing(name: str, tmp_path: Path) -> None:
    model, args, kwargs = example(name)
    torch.hetero.compile(model, args, kwargs).save(tmp_path / "m.hetero")
    said = run_python_ok(
        "import sys, torch; torch.hetero; before = set(sys.modules)\n"
        f"torch.hetero.load({str(tmp_path / 'm.hetero')!r}).plan_origin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    assert said.split() == []
