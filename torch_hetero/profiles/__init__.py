"""Profiles: what a machine's accelerator, link and CPU are expected to attain, as data.

A profile is a JSON file; those of this package lie beside this module. Every figure has a source in words::

    from torch_hetero.profiles import load_profile

    profile = load_profile("h200")          # or the path of a file of one's own
    profile.link.h2d_bandwidth              # bytes per second
    profile.sources["link.h2d_bandwidth"]   # who measured it, or how it was derived

This module needs the standard library only, so tools without torch can load it by its path.
"""

import json
import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

__all__ = ["Accelerator", "Cpu", "Link", "PeerLink", "Profile", "available_profiles", "load_profile"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Accelerator:
    """What kernels on the accelerator attain."""

    flops: float  # operations per second of a float32 matrix product
    flops_half: float  # of a bf16 or fp16 one
    memory_bandwidth: float  # bytes per second
    capacity_bytes: int  # that programs can allocate
    launch_latency: float  # seconds


@dataclass(frozen=True)
class Link:
    """What copies of pinned memory attain."""

    h2d_bandwidth: float  # bytes per second, host to device
    d2h_bandwidth: float
    copy_latency: float  # seconds for each copy


@dataclass(frozen=True)
class PeerLink:
    """A link from one accelerator to another, which copies without the host; they are numbered from 0."""

    from_accelerator: int
    to_accelerator: int
    bandwidth: float  # bytes per second
    latency: float  # seconds for each copy


@dataclass(frozen=True)
class Cpu:
    """What the host attains on all its threads together."""

    flops: float  # operations per second of a float32 matrix product
    flops_half: float  # of a bf16 or fp16 one
    memory_bandwidth: float  # bytes per second
    threads: int


@dataclass(frozen=True)
class Profile:
    """A machine's figures. All are positive. Several accelerators have the same; links are those between them."""

    name: str
    description: str
    accelerator: Accelerator
    link: Link
    cpu: Cpu
    sources: dict[str, str] = field(hash=False)  # one for each figure, by its path: "cpu.threads"
    links: tuple[PeerLink, ...] = ()  # a file may leave it out

    def as_options(self) -> dict[str, float | int]:
        """Returns the figures under one name each, as the C++ side takes them; those of the CPU begin with ``cpu_``."""
        accelerator, link, cpu = self.accelerator, self.link, self.cpu
        links = {}
        for peers in self.links:
            name = f"link_{peers.from_accelerator}_{peers.to_accelerator}"
            links |= {f"{name}_bandwidth": peers.bandwidth, f"{name}_latency": peers.latency}
        return links | {
            "flops": accelerator.flops,
            "flops_half": accelerator.flops_half,
            "memory_bandwidth": accelerator.memory_bandwidth,
            "capacity_bytes": accelerator.capacity_bytes,
            "launch_latency": accelerator.launch_latency,
            "h2d_bandwidth": link.h2d_bandwidth,
            "d2h_bandwidth": link.d2h_bandwidth,
            "copy_latency": link.copy_latency,
            "cpu_flops": cpu.flops,
            "cpu_flops_half": cpu.flops_half,
            "cpu_memory_bandwidth": cpu.memory_bandwidth,
        }


def available_profiles() -> list[str]:
    """Returns the names of the package's profiles, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """Returns a profile, checked.

    Args:
        name_or_path: one of ``available_profiles()``, or the path of a file: anything that is no plain text, ends in
            ``.json`` or contains a separator.

    Raises:
        ValueError: one sentence with the file and the field, when the profile does not exist, cannot be read, lacks a
            field, has an unknown one or a value that does not fit.
    """
    text = os.fspath(name_or_path)
    if not isinstance(name_or_path, str) or text.endswith(".json") or os.sep in text:
        return _Reader(Path(text)).profile()
    if text not in available_profiles():
        names = ", ".join(available_profiles())
        raise ValueError(f"there is no profile {text!r}; the profiles are: {names}, or the path of a file")
    return _Reader(_FOLDER / f"{text}.json").profile()


class _Reader:
    """Reads one file; every error names it."""

    _GROUPS = {"accelerator": Accelerator, "link": Link, "cpu": Cpu}

    def __init__(self, path: Path) -> None:
        self._path = path

    def profile(self) -> Profile:
        """Returns what the file says."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"), object_pairs_hook=self._without_repetition)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self._error(f"is not JSON: {error}") from error
        if isinstance(content, dict):
            content.setdefault("links", [])
        content = self._object("", content, [f.name for f in fields(Profile)])
        groups = {name: self._group(name, kind, content[name]) for name, kind in self._GROUPS.items()}
        links = self._links(content["links"])
        figures = [f"{group}.{f.name}" for group, kind in self._GROUPS.items() for f in fields(kind)]
        figures += ["links"] if links else []
        sources = self._object("sources", content["sources"], figures)
        return Profile(
            name=self._text("name", content["name"]),
            description=self._text("description", content["description"]),
            **groups,
            sources={figure: self._text(f"sources.{figure}", sources[figure]) for figure in figures},
            links=links,
        )

    def _error(self, what: str) -> ValueError:
        return ValueError(f"profile {self._path}: {what}")

    def _without_repetition(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise self._error(f"field {twice!r} stands there twice")
        return result

    def _object(self, name: str, value: Any, wanted: list[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(f"{f'field {name!r}' if name else 'the file'} must be an object")
        prefix = f"{name}." if name else ""
        for key in wanted:
            if key not in value:
                raise self._error(f"field '{prefix}{key}' is missing")
        for key in value:
            if key not in wanted:
                raise self._error(f"field '{prefix}{key}' is unknown; known are {', '.join(wanted)}")
        return value

    def _group(self, name: str, kind: type, value: Any) -> Any:
        wanted = {f.name: f.type for f in fields(kind)}
        value = self._object(name, value, list(wanted))
        return kind(**{key: self._number(f"{name}.{key}", value[key], wanted[key] is int) for key in wanted})

    def _links(self, value: Any) -> tuple[PeerLink, ...]:
        if not isinstance(value, list):
            raise self._error(f"field 'links' must be a list, not {value!r}")
        links: list[PeerLink] = []
        for index, entry in enumerate(value):
            name = f"links[{index}]"
            entry = self._object(name, entry, [f.name for f in fields(PeerLink)])
            ends = [self._accelerator(f"{name}.{end}", entry[end]) for end in ("from_accelerator", "to_accelerator")]
            if ends[0] == ends[1] or any(ends == [link.from_accelerator, link.to_accelerator] for link in links):
                raise self._error(f"field {name!r} links {ends[0]} to {ends[1]}, which is the same one or linked already")
            links.append(PeerLink(*ends, *(self._number(f"{name}.{key}", entry[key], False) for key in ("bandwidth", "latency"))))
        return tuple(links)

    def _accelerator(self, name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._error(f"field {name!r} must be the number of an accelerator, from 0 on, not {value!r}")
        return value

    def _number(self, name: str, value: Any, whole: bool) -> float | int:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value <= 0 or (whole and value != int(value)):
            raise self._error(f"field {name!r} must be a positive {'whole ' if whole else ''}number, not {value!r}")
        return int(value) if whole else float(value)

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._error(f"field {name!r} must be a text, not {value!r}")
        return value
