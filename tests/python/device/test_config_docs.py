"""docs/configuration.md, the README and the Python object say what the C++ table of options says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import needs_hetero

pytestmark = needs_hetero

ROOT = Path(__file__).resolve().parents[3]


def test_the_documented_table_is_the_table_of_the_source() -> None:
    rows = [
        f"| `{option['name']}` | `{option['env']}` | {option['type']} | `{option['default']}` | {option['doc']} |"
        for option in torch.hetero.config.options()
    ]
    text = (ROOT / "docs" / "configuration.md").read_text()
    row = re.compile(r"\| `\w+` \| `HETERO_\w+` \| (bool|int|bytes|float|str) ")
    documented = [line for line in text.splitlines() if row.match(line)]
    assert documented == rows


def test_the_script_has_nothing_to_write() -> None:
    script = ROOT / "scripts" / "write_options.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_variable_named_in_the_documents_exists() -> None:
    known = {option["env"] for option in torch.hetero.config.options()}
    known |= {"HETERO_ADAPTERS", "HETERO_CUDA", "HETERO_TORCH", "HETERO_TESTS", "HETERO_SANITIZE"}  # of the build
    known |= {"HETERO_TEST_DEVICE", "HETERO_TEST_HOST_KERNELS", "HETERO_SYNC_REASONS"}  # of the tests; a table in the sources
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        named = set(re.findall(r"\bHETERO_[A-Z_]+\b", document.read_text()))
        assert named <= known, f"{document.name}: {named - known}"


def test_every_option_has_a_typed_value() -> None:
    types = {"bool": bool, "int": int, "bytes": int, "float": float, "str": str}
    for option in torch.hetero.config.options():
        assert type(getattr(torch.hetero.config, option["name"])) is types[option["type"]]
        assert option["env"] == "HETERO_" + option["name"].upper()
        assert option["doc"].endswith(".")


def test_unknown_option_raises_and_lists_the_names() -> None:
    with pytest.raises(AttributeError, match="pending_nodes"):
        torch.hetero.config.no_such_option  # noqa: B018
    with pytest.raises(AttributeError, match="pending_nodes"):
        torch.hetero.config.no_such_option = 1


def test_value_that_does_not_fit_raises_and_changes_nothing() -> None:
    before = torch.hetero.config.as_dict()
    with pytest.raises(ValueError, match="pending_nodes"):
        torch.hetero.config.pending_nodes = "many"
    with pytest.raises(ValueError):
        torch.hetero.config.accelerator = "no such accelerator"
    assert torch.hetero.config.as_dict() == before


def test_sizes_take_units() -> None:
    with torch.hetero.config.override(pending_bytes="64MiB"):
        assert torch.hetero.config.pending_bytes == 64 << 20


def test_override_gives_back_every_option_when_the_block_raises() -> None:
    before = torch.hetero.config.as_dict()
    with pytest.raises(KeyError), torch.hetero.config.override(sync=True, pending_nodes=7):
        assert torch.hetero.config.sync is True and torch.hetero.config.pending_nodes == 7
        raise KeyError
    assert torch.hetero.config.as_dict() == before


def test_override_with_one_wrong_value_changes_nothing() -> None:
    before = torch.hetero.config.as_dict()
    with pytest.raises(AttributeError), torch.hetero.config.override(sync=True, no_such_option=1):
        pass
    with pytest.raises(ValueError), torch.hetero.config.override(sync=True, pending_nodes="many"):
        pass
    assert torch.hetero.config.as_dict() == before


def test_repr_shows_every_option_with_its_value() -> None:
    text = repr(torch.hetero.config)
    for option in torch.hetero.config.options():
        assert re.search(rf"\b{option['name']}\b\s+= {re.escape(option['value'])}", text)
