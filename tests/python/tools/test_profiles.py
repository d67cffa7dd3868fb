"""Profiles of machines: what the package has is complete, and what does not fit is refused in one sentence.

The module is loaded by its path, as a tool without torch would, so these tests also hold where no library is built.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "torch_hetero" / "profiles" / "__init__.py"

spec = importlib.util.spec_from_file_location("hetero_profiles_by_path", SOURCE)
assert spec is not None and spec.loader is not None
profiles = importlib.util.module_from_spec(spec)
spec.loader.exec_module(profiles)

NAMES = ("h100", "h200", "pcie3-slow", "rtx4090", "tiny")
OPTIONS = (
    "flops",
    "flops_half",
    "memory_bandwidth",
    "capacity_bytes",
    "launch_latency",
    "h2d_bandwidth",
    "d2h_bandwidth",
    "copy_latency",
    "cpu_flops",
    "cpu_flops_half",
    "cpu_memory_bandwidth",
)


def content_of(name: str) -> dict[str, Any]:
    return json.loads((SOURCE.with_name(f"{name}.json")).read_text())


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_the_module_needs_the_standard_library_alone() -> None:
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("profiles", {str(SOURCE)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.load_profile("tiny").accelerator.capacity_bytes, "torch" in sys.modules, "torch_hetero" in sys.modules)
"""
    # -S: without installed packages.
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"{64 << 20} False False\n"


def test_all_profiles_are_found_and_named_like_their_files() -> None:
    assert profiles.available_profiles() == list(NAMES)
    for name in NAMES:
        assert profiles.load_profile(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_figures_arrive_as_they_stand_in_the_file(name: str) -> None:
    profile = profiles.load_profile(name)
    content = content_of(name)
    for group in ("accelerator", "link", "cpu"):
        for key, value in content[group].items():
            assert getattr(getattr(profile, group), key) == value
            assert profile.sources[f"{group}.{key}"] == content["sources"][f"{group}.{key}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_a_machine_that_could_exist(name: str) -> None:
    profile = profiles.load_profile(name)
    accelerator, link, cpu = profile.accelerator, profile.link, profile.cpu
    assert accelerator.flops_half >= accelerator.flops > cpu.flops
    assert accelerator.memory_bandwidth > cpu.memory_bandwidth > max(link.h2d_bandwidth, link.d2h_bandwidth)
    assert 1e-6 < accelerator.launch_latency < 1e-4 and 1e-6 < link.copy_latency < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_options_are_flat_and_complete(name: str) -> None:
    profile = profiles.load_profile(name)
    options = profile.as_options()
    assert tuple(options) == OPTIONS
    assert all(math.isfinite(value) and value > 0 for value in options.values())
    assert type(options["capacity_bytes"]) is int
    assert options["flops"] == profile.accelerator.flops and options["cpu_flops"] == profile.cpu.flops
    assert options["d2h_bandwidth"] == profile.link.d2h_bandwidth != options["memory_bandwidth"]


def test_the_tiny_profile_says_that_it_is_invented() -> None:
    profile = profiles.load_profile("tiny")
    assert "invented" in profile.description
    assert all(source.startswith("Invented") for source in profile.sources.values())


def test_a_file_of_ones_own_loads_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_of("tiny")
    content["name"] = "mine"
    content["cpu"]["threads"] = 7
    path = write(tmp_path / "mine.json", content)
    monkeypatch.chdir(tmp_path)
    for given in (path, str(path), "mine.json", f".{os.sep}mine.json", Path("mine.json")):
        profile = profiles.load_profile(given)
        assert (profile.name, profile.cpu.threads) == ("mine", 7)


LINK = {"from_accelerator": 1, "to_accelerator": 0, "bandwidth": 25e9, "latency": 2e-6}


def test_links_between_accelerators_are_optional_and_become_options(tmp_path: Path) -> None:
    content = content_of("tiny") | {"links": [LINK]}
    content["sources"]["links"] = "Invented."
    profile = profiles.load_profile(write(tmp_path / "linked.json", content))
    assert profile.links == (profiles.PeerLink(1, 0, 25e9, 2e-6),) and profiles.load_profile("tiny").links == ()
    options = profile.as_options()
    assert (options["link_1_0_bandwidth"], options["link_1_0_latency"]) == (25e9, 2e-6)
    assert set(options) == {*OPTIONS, "link_1_0_bandwidth", "link_1_0_latency"}


def test_profiles_are_values() -> None:
    profile = profiles.load_profile("tiny")
    assert profile == profiles.load_profile("tiny") and hash(profile) == hash(profiles.load_profile("tiny"))
    assert profile != profiles.load_profile("h200")
    with pytest.raises(FrozenInstanceError):
        profile.cpu.threads = 1


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no profile 'h300'; the profiles are: h100, h200"):
        profiles.load_profile("h300")


def without(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


def with_value(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (without("link"), "field 'link' is missing"),
        (without("link", "copy_latency"), "field 'link.copy_latency' is missing"),
        (without("sources", "cpu.threads"), "field 'sources.cpu.threads' is missing"),
        (with_value(1, "bandwidth"), "field 'bandwidth' is unknown; known are name, "),
        (with_value(1, "accelerator", "flop"), "field 'accelerator.flop' is unknown; known are flops, "),
        (with_value("me", "sources", "cpu.cores"), "field 'sources.cpu.cores' is unknown"),
        (with_value(0, "cpu", "flops"), "field 'cpu.flops' must be a positive number, not 0"),
        (with_value(-1.5, "link", "h2d_bandwidth"), "field 'link.h2d_bandwidth' must be a positive number, not -1.5"),
        (with_value(math.nan, "cpu", "flops"), "field 'cpu.flops' must be a positive number, not nan"),
        (with_value(math.inf, "cpu", "flops"), "field 'cpu.flops' must be a positive number, not inf"),
        (with_value(True, "cpu", "flops"), "field 'cpu.flops' must be a positive number, not True"),
        (with_value("1e9", "cpu", "flops"), "field 'cpu.flops' must be a positive number, not '1e9'"),
        (with_value(1.5, "cpu", "threads"), "field 'cpu.threads' must be a positive whole number, not 1.5"),
        (with_value([], "cpu"), "field 'cpu' must be an object"),
        (with_value({}, "links"), "field 'links' must be a list, not {}"),
        (with_value([{}], "links"), "field 'links[0].from_accelerator' is missing"),
        (with_value([LINK], "links"), "field 'sources.links' is missing"),
        (with_value([LINK | {"bandwidth": 0}], "links"), "field 'links[0].bandwidth' must be a positive number, not 0"),
        (with_value([LINK | {"to_accelerator": -1}], "links"), "must be the number of an accelerator, from 0 on, not -1"),
        (with_value([LINK | {"to_accelerator": 1}], "links"), "links 1 to 1, which is the same one"),
        (with_value([LINK, LINK], "links"), "field 'links[1]' links 1 to 0, which is the same one or linked already"),
        (with_value(" ", "description"), "field 'description' must be a text"),
        (with_value(None, "sources", "cpu.flops"), "field 'sources.cpu.flops' must be a text, not None"),
    ),
)
def test_what_does_not_fit_is_refused_with_file_and_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = content_of("tiny")
    change(content)
    path = write(tmp_path / "wrong.json", content)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        profiles.load_profile(path)
    assert str(error.value).startswith(f"profile {path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("{", "is not JSON"),
        ("[]", "the file must be an object"),
        ('{"name": "a", "name": "b"}', "field 'name' stands there twice"),
        ("\udc80", "is not JSON"),
    ),
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message) as error:
        profiles.load_profile(path)
    assert str(path) in str(error.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere.json: cannot be read: No such file"):
        profiles.load_profile(tmp_path / "nowhere.json")


def test_the_documented_table_is_that_of_the_files() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text()
    for name in NAMES:
        profile = profiles.load_profile(name)
        accelerator, link, cpu = profile.accelerator, profile.link, profile.cpu
        cells = (
            f"`{name}`",
            f"{accelerator.flops / 1e12:g}",
            f"{accelerator.flops_half / 1e12:g}",
            f"{accelerator.memory_bandwidth / 1e9:g}",
            f"{accelerator.capacity_bytes / 2**30:g}",
            f"{accelerator.launch_latency * 1e6:g}",
            f"{link.h2d_bandwidth / 1e9:g}",
            f"{link.d2h_bandwidth / 1e9:g}",
            f"{link.copy_latency * 1e6:g}",
            f"{cpu.flops / 1e12:g}",
            f"{cpu.flops_half / 1e12:g}",
            f"{cpu.memory_bandwidth / 1e9:g}",
            f"{cpu.threads}",
        )
        assert f"| {' | '.join(cells)} |" in text.splitlines()
