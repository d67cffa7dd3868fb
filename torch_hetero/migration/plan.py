"""Plans: which calls run where.

The short form of a plan maps context keys to devices, or to a rule's fields::

    {"cv2.resize": "hetero", "Photos/__getitem__/preprocess": {"device": "hetero", "minimum_bytes": 65536}}

The long form, which `optimize` writes, has the same rules with what is known of them::

    {"version": 1,
     "environment": {"torch": "2.11.0", "opencv-python-headless": "4.14.0.94", "device": "cpu"},
     "strategies": ["mine.strategies"],
     "rules": [{"key": "cv2.resize", "device": "hetero", "mode": "defer", "exact": true, "evidence": {...}}]}

A key is a path of callables, outermost first, with "/" between them. A callable is a dotted name ("cv2.resize",
"PIL.Image.Image.resize"), or a name of the program's own without its module ("preprocess", "Photos/__getitem__",
"Photos.__getitem__"). A call is subject to the longest key that its own path ends with.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = ["MODES", "Plan", "PlanError", "Rule", "environment", "version_of"]

VERSION = 1
# defer: results are handles, computed in batches. inline: each call is computed at once. cpu: the original.
MODES = ("defer", "inline", "cpu")
# Distributions whose versions change results.
LIBRARIES = (
    "torch", "torchvision", "torchaudio", "opencv-python-headless", "opencv-python", "Pillow", "albumentations", "librosa",
    "scipy", "numpy",
)  # fmt: skip


class PlanError(ValueError):
    """A plan that cannot be used; its text says where and what to do."""


@dataclass(frozen=True)
class Rule:
    """The rule for calls at a context key.

    Attributes:
        key: The context key.
        device: "hetero", "cpu", or a device of torch such as "cuda:0".
        mode: One of `MODES`.
        exact: Whether only strategies with the original's bits may be used; None for calls with bytes among their inputs.
        minimum_bytes: Calls whose inputs have fewer bytes stay on the CPU.
        strategy: The target of the strategy, if it is not the callable's own name.
        evidence: Measurements that the rule is based on, for people and for validation.
    """

    key: str
    device: str = "hetero"
    mode: str = "defer"
    exact: bool | None = None
    minimum_bytes: int = 0
    strategy: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def segments(self) -> tuple[str, ...]:
        """Returns the key's names."""
        return tuple(self.key.split("/"))


@dataclass(frozen=True)
class Plan:
    """Rules, and the environment that they were made for.

    Attributes:
        rules: At most one for each key.
        environment: Versions and device, as `environment()` gives them; empty if nobody measured.
        strategies: Modules to import for strategies of the user's own.
        why: One sentence about the plan as a whole, such as the reason why it is empty.
        evidence: What `optimize` measured, for `explain`.
    """

    rules: tuple[Rule, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    strategies: tuple[str, ...] = ()
    why: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(source: str | Path | Mapping[str, Any] | Plan) -> Plan:
        """Returns a plan from a file, or from what `json` makes of one.

        Raises:
            PlanError: It is no plan. The sentence names the key and what is expected.
            OSError: The file cannot be read.
        """
        if isinstance(source, Plan):
            return source
        if isinstance(source, Mapping):
            return from_object(source, "the plan")
        text = Path(source).read_text(encoding="utf-8")
        try:
            return from_object(json.loads(text, object_pairs_hook=without_repetition), str(source))
        except json.JSONDecodeError as error:
            raise PlanError(f"{source} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None

    def as_object(self) -> dict[str, Any]:
        """Returns the long form, for `json`."""
        return {
            "version": VERSION, "why": self.why, "environment": dict(self.environment), "strategies": list(self.strategies),
            "rules": [{name: value for name, value in asdict(rule).items() if value not in ("", {}, None, 0)} for rule in self.rules],
        } | ({"evidence": dict(self.evidence)} if self.evidence else {})  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Writes the long form; the file is replaced as a whole."""
        path = Path(path)
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps(self.as_object(), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)

    def changes(self) -> list[str]:
        """Returns what differs between here and where the plan was measured, one clause each."""
        now = environment() if self.environment else {}
        return [
            f"{name} is {now.get(name, 'not installed')}, the plan was measured with {value}"
            for name, value in self.environment.items()
            if now.get(name) != value
        ]


def from_object(entries: Mapping[str, Any], name: str) -> Plan:
    """Returns the plan that JSON describes."""
    if not isinstance(entries, Mapping):
        raise PlanError(f'{name} is no object of context keys, such as {{"cv2.resize": "hetero"}}')
    if "rules" not in entries:
        return Plan(tuple(rule_of(key, value, name) for key, value in entries.items()))
    check_names(entries, ("version", "why", "environment", "strategies", "rules", "evidence"), name)
    if entries.get("version", VERSION) != VERSION:
        raise PlanError(
            f"{name} has version {entries['version']!r}; this hetero reads version {VERSION}: run optimize again"
        )
    if not isinstance(entries["rules"], list):
        raise PlanError(f"{name}: rules is a list")
    rules = []
    for entry in entries["rules"]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("key"), str):
            raise PlanError(f"{name}: each rule is an object with a key; this one is {json.dumps(entry)[:80]}")
        rules.append(rule_of(entry["key"], {field: entry[field] for field in entry if field != "key"}, name))
    for index, rule in enumerate(rules):
        if any(rule.key == before.key for before in rules[:index]):
            raise PlanError(f"{name} has two rules for {rule.key!r}; keep one")
    return Plan(
        tuple(rules),
        dict(entries.get("environment", {})),
        tuple(entries.get("strategies", ())),
        str(entries.get("why", "")),
        dict(entries.get("evidence", {})),
    )


def rule_of(key: str, value: Any, name: str) -> Rule:
    """Returns the rule for a key; `value` is a device or a rule's fields."""
    if not re.fullmatch(r"[^\W\d][\w.]*(/[^\W\d][\w.]*)*", key):
        raise PlanError(f'{name}: {key!r} is no context key: names with dots, and "/" between callables')
    fields = {"device": value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping):
        raise PlanError(
            f'{name}: {key!r} is given {json.dumps(value)[:60]}; expected a device such as "hetero", or a rule\'s fields'
        )
    check_names(fields, tuple(Rule.__dataclass_fields__), f"{name}: {key!r}")
    rule = Rule(key, **fields)
    kinds = {"device": str, "mode": str, "minimum_bytes": int, "strategy": str, "evidence": Mapping}
    for entry, kind in kinds.items():
        given = getattr(rule, entry)
        if not isinstance(given, kind) or isinstance(given, bool):
            raise PlanError(f"{name}: {key!r}: {entry} is {given!r}; expected {kind.__name__}")
    if rule.exact not in (True, False, None):
        raise PlanError(f"{name}: {key!r}: exact is {rule.exact!r}; expected true or false")
    if rule.mode not in MODES:
        raise PlanError(f"{name}: {key!r}: mode is {rule.mode!r}; expected one of {', '.join(MODES)}")
    check_device(rule.device, f"{name}: {key!r}")
    return rule


def check_device(device: str, place: str) -> None:
    """Raises `PlanError` where a device is not there."""
    try:
        parsed = torch.device(device)
    except RuntimeError:
        raise PlanError(f'{place}: {device!r} is no device; expected "hetero", "cpu" or a device of torch') from None
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise PlanError(
            f"{place}: device {device!r} is not there; this machine has {torch.cuda.device_count()} CUDA devices"
        )
    if parsed.type not in ("cpu", "hetero", "cuda"):
        raise PlanError(f'{place}: device {device!r} is not supported; expected "hetero", "cpu" or "cuda:N"')


def check_names(given: Iterable[str], known: tuple[str, ...], place: str) -> None:
    """Raises `PlanError` for a name that is not known, with the nearest one that is."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; expected {', '.join(known)}"
            raise PlanError(f"{place} has {name!r}, which is not known{hint}")


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dict from JSON's pairs; a name that is there twice is an error instead of a loss."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise PlanError(f"{name!r} is there twice; keep one")
        found[name] = value
    return found


@functools.cache
def version_of(library: str) -> str:
    """Returns the installed version of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def environment() -> dict[str, str]:
    """Returns the versions of libraries and the accelerator that results and times depend on."""
    versions = {library: version_of(library) for library in LIBRARIES if version_of(library)}
    versions["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return versions
