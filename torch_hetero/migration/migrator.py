"""`PipelineMigrator`: makes a plan active, and takes everything back."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import torch

from torch_hetero.migration import bridges, session, threads, workers
from torch_hetero.migration.context import NOTHING, replant
from torch_hetero.migration.injector import ImportHook, Injector, own_code
from torch_hetero.migration.names import ORIGINAL, Site, is_module, locate, site_of, unwrapped
from torch_hetero.migration.plan import Plan, PlanError, Rule, version_of
from torch_hetero.migration.report import Report
from torch_hetero.migration.strategy import OnHost, Strategy, all_strategies, find, load_entry_points
from torch_hetero.migration.trial import trial
from torch_hetero.migration.wrapper import Action, make_wrapper

__all__ = ["PipelineMigrator"]

PLAN, DIRECTORY, PID = "HETERO_MIGRATION_PLAN", "HETERO_MIGRATION_DIRECTORY", "HETERO_MIGRATION_PID"
SELF_TESTS = 6
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Py_TPFLAGS_HEAPTYPE: a class whose attributes can be set.
HEAP_TYPE = 1 << 9


class PipelineMigrator:
    """Runs the calls that a plan names on its devices, without a change to the program.

    Use it as a context manager, or call `activate` and `deactivate`::

        with PipelineMigrator("plan.json") as migrator:
            train()
        print(migrator.report.text())

    Args:
        plan: A file, the object that JSON makes of one, or a `Plan`.
        debug: Compute each value also by the original functions, and note differences beyond the strategies' tolerances.
        strict: Raise `PlanError` where the plan does not fit this environment, instead of warning.

    Attributes:
        plan: The plan.
        notes: What did not go as planned, one sentence each.
        report: The counters; kept after deactivation.

    Raises:
        PlanError: The plan cannot be used.
        OSError: The file cannot be read.
    """

    def __init__(self, plan: str | Path | Mapping[str, Any] | Plan, debug: bool = False, strict: bool = False) -> None:
        self.plan = Plan.load(plan)
        self.debug, self.strict = debug, strict
        self.notes: list[str] = []
        self.report: Report | None = None
        self.injector = Injector()
        self.hook = ImportHook(self.waits_for, self.imported)
        self.pending: list[Rule] = []
        self.rules: dict[tuple[str, ...], tuple[Rule, Strategy | None, str]] = {}
        self.names: dict[int, str] = {}
        self.is_active = False
        self.in_child = False
        # Whether calls may return handles.
        self.moves = any(rule.mode != "cpu" for rule in self.plan.rules)

    def activate(self) -> PipelineMigrator:
        """Patches what the plan names. Calls of modules that are not imported yet are patched when they are.

        Raises:
            RuntimeError: A plan is active already.
            PlanError: A key names what does not exist or is ambiguous; nothing is patched then.
        """
        if self.is_active or session.active() is not None:
            raise RuntimeError("a plan is active already; deactivate it first")
        self.notes = list(load_entry_points())
        for module in self.plan.strategies:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise PlanError(f"the plan's strategies: {module} cannot be imported: {error}") from None
        for change in self.plan.changes():
            self.note(f"the plan may not fit: {change}")
        parent = os.environ.get(PID, "")
        child = os.environ.get(DIRECTORY) if parent not in ("", str(os.getpid())) else None
        self.in_child = child is not None
        self.report = Report(child)
        pid = int(parent) if child is not None else os.getpid()
        try:
            self.pending = list(self.plan.rules)
            self.resolve_pending()
            self.spread()
        except BaseException:
            self.take_back()
            raise
        replant(self.decide)
        session.begin(session.Session(self.report, pid, self.debug))
        session.active().refresh = self.refresh
        if not self.plan.rules:  # as `optimize` writes it where nothing gains: the program runs as it is
            self.is_active = True
            return self
        workers.install(self.injector)
        if any(len(rule.segments()) > 1 for rule in self.plan.rules):
            threads.install(self.injector)
        self.hook.install()
        self.is_active = True
        if child is None:
            self.pass_on()
        return self

    def deactivate(self) -> None:
        """Puts everything back. Values that were recorded can still be computed. Does nothing if the plan is not active."""
        if not self.is_active:
            return
        for rule in self.pending:
            self.note(f"{rule.key!r} matched nothing")
        self.take_back()

    def take_back(self) -> None:
        """Undoes what activation did, as far as it went."""
        self.hook.remove()
        for problem in self.injector.undo():
            self.note(problem)
        if self.report is not None:
            self.report.collect()
        replant(lambda path: NOTHING)
        if session.active() is not None and session.active().report is self.report:
            session.end()
        if os.environ.get(PID) == str(os.getpid()):
            for variable in (PLAN, DIRECTORY, PID):
                del os.environ[variable]
        self.rules.clear()
        self.is_active = False

    def __enter__(self) -> PipelineMigrator:
        return self.activate()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deactivate()

    def note(self, sentence: str) -> None:
        """Remembers what did not go as planned, and warns."""
        self.notes.append(sentence)
        if self.strict:
            raise PlanError(sentence)
        warnings.warn(sentence, stacklevel=3)

    def pass_on(self) -> None:
        """Lets child processes activate the plan, too."""
        path = self.report.directory / "plan.json"
        path.write_text(json.dumps(self.plan.as_object()), encoding="utf-8")
        os.environ[PLAN], os.environ[DIRECTORY], os.environ[PID] = (
            str(path),
            str(self.report.directory),
            str(os.getpid()),
        )

    def waits_for(self, module: str) -> bool:
        """Whether a module's import may bring what a rule names, or functions that must know handles."""
        return (
            self.moves
            and module in bridges.MODULES
            or any(
                rule.segments()[0].startswith(module + ".") or may_be_own(rule.segments()[0]) and is_own_name(module)
                for rule in self.pending
            )
        )

    def imported(self, module: ModuleType) -> None:
        """Patches what a module brought. Most imports bring nothing, and cost no sweep."""
        before = len(self.pending)
        self.resolve_pending()
        if len(self.pending) < before or module.__name__ in bridges.MODULES:
            self.regrow()

    def refresh(self) -> None:
        """Patches callables that were defined or imported since the last time."""
        self.resolve_pending()
        self.regrow()

    def spread(self) -> None:
        """Takes the patches to the other names of their functions, and to functions that must know handles."""
        if self.moves:
            bridges.install(self.injector)
        self.injector.sweep()

    def regrow(self) -> None:
        """Takes patches that were added everywhere; the contexts decide again."""
        self.spread()
        self.report.collect()
        replant(self.decide)

    def resolve_pending(self) -> None:
        """Patches the callables of rules whose modules are there.

        Raises:
            PlanError: A key names what does not exist, or several things.
        """
        for rule in list(self.pending):
            try:
                sites = resolve(rule)
            except PlanError:
                if not self.in_child:
                    raise
                continue  # a child's path may not have the program's folder yet; the parent has checked the plan
            if sites is None or rule not in self.pending:  # to look for it may import its module, which patches it
                continue
            self.pending.remove(rule)
            names = tuple(self.patch(site) for site in sites)
            if names in self.rules:
                raise PlanError(f"{rule.key!r} and {self.rules[names][0].key!r} are the same callables; keep one")
            strategy = self.strategy_of(rule, sites[-1])
            self.rules[names] = (rule, strategy, self.obstacle(rule, strategy, sites[-1]))

    def patch(self, site: Site) -> str:
        """Puts a wrapper where a callable is kept, once; returns its name in paths."""
        function = getattr(site.owner, site.name)
        known = self.names.get(id(unwrapped(function)))
        if known is not None and hasattr(function, ORIGINAL):
            return known
        name = site.target.removeprefix("__main__.")
        original = self.injector.patch(site, lambda original: make_wrapper(name, original))
        self.names[id(original)] = name
        return name

    def strategy_of(self, rule: Rule, site: Site) -> Strategy | None:
        """Returns the strategy of a rule: the one that it names, or that of the callable under any of its names."""
        if rule.strategy:
            strategy = find(rule.strategy)
            if strategy is None:
                raise PlanError(f"{rule.key!r}: there is no strategy for {rule.strategy!r}")
            return strategy
        strategy = find(site.target)
        if strategy is not None:
            return strategy
        function = unwrapped(getattr(site.owner, site.name))
        for other in all_strategies():
            try:
                found = locate(other.target, load=False)
            except ImportError:
                continue
            if found is not None and unwrapped(found.raw) is function:
                return other
        return None

    def obstacle(self, rule: Rule, strategy: Strategy | None, site: Site) -> str:
        """Returns the reason why a rule's calls stay on the CPU; empty if there is none."""
        if strategy is None or rule.mode == "cpu":
            if strategy is None and not own_site(site):
                self.note(f"{rule.key!r}: there is no strategy for {site.target}; its calls stay on the CPU")
                return f"there is no strategy for {site.target}"
            return ""
        original = unwrapped(getattr(site.owner, site.name))
        reason = changed(strategy, original) or self.untested(strategy, original)
        if reason:
            self.note(f"{rule.key!r} stays on the CPU: {reason}")
        return reason

    def untested(self, strategy: Strategy, original: Callable[..., Any]) -> str:
        """Tests a strategy if its library has a version that it was not written for; returns the reason if it fails."""
        if not strategy.library:
            return ""
        version = version_of(strategy.library)
        if version.startswith(strategy.versions) or not strategy.versions:
            return ""
        calls = itertools.islice(strategy.examples(np.random.default_rng(0)), SELF_TESTS)
        try:
            outcomes = trial(strategy, calls, original=original)
        except Exception as error:  # whatever another version raises
            return f"its self-test with {strategy.library} {version} raised {type(error).__name__}: {error}"
        wrong = [outcome for outcome in outcomes if not outcome.accepted or outcome.reason]
        if not wrong:
            return ""
        return (
            f"{strategy.library} {version} computes it differently from {strategy.versions[0]}*, for which the strategy was "
            f"written: {len(wrong)} of {SELF_TESTS} calls, by up to {max(outcome.largest for outcome in wrong):g}"
        )

    def decide(self, path: tuple[str, ...]) -> tuple[Action | None, bool, str]:
        """Returns what happens to calls of a path, whether longer paths may have rules, and why nothing happens."""
        best: tuple[str, ...] = ()
        inner = False
        for names in self.rules:
            if path[-len(names) :] == names and len(names) > len(best):
                best = names
            inner = inner or any(path[-count:] == names[:count] for count in range(1, len(names)))
        if not best:
            return None, inner, "no rule is for this context"
        rule, strategy, reason = self.rules[best]
        if rule.mode == "cpu" or reason:
            return None, inner, reason or "the plan keeps it on the CPU"
        return Action(rule, strategy, "/".join(path)), inner, ""


def resolve(rule: Rule) -> tuple[Site, ...] | None:
    """Returns where the callables of a rule's key are kept; None while a module is not imported.

    Raises:
        PlanError: A name does not exist, or is ambiguous, or is no callable.
    """
    segments = list(rule.segments())
    sites = []
    while segments:
        name = segments.pop(0)
        site = find_site(rule, name)
        if site is None:
            return None
        found = getattr(site.owner, site.name)
        if isinstance(unwrapped(found), type):
            if segments and hasattr(found, segments[0]):
                method = segments.pop(0)
            else:
                method = method_of(found)
                if method is None:
                    raise PlanError(f"{rule.key!r}: {name} is a class; name the method, such as {name}/__getitem__")
            site = site_of(f"{site.target}.{method}", found, method)
        elif not callable(found):
            raise PlanError(f"{rule.key!r}: {name} is no callable but {type(found).__name__}")
        if isinstance(site.owner, type) and (site.owner is torch.Tensor or not site.owner.__flags__ & HEAP_TYPE):
            raise PlanError(
                f"{rule.key!r}: methods of {site.owner.__name__} cannot be patched; those of results follow without a rule"
            )
        sites.append(site)
    return tuple(sites)


def method_of(kind: type) -> str | None:
    """Returns the method that a call of an instance runs."""
    if issubclass(kind, torch.nn.Module):
        return "forward"
    return "__call__" if any("__call__" in vars(base) for base in kind.__mro__[:-1]) else None


def find_site(rule: Rule, name: str) -> Site | None:
    """Returns where one callable of a key is kept; None while its module is not imported, or it is not defined yet."""
    root, *attributes = name.split(".")
    try:
        if attributes and (root in sys.modules or is_module(root)):
            return locate(name, load=False)
        if attributes and root in vars(sys.modules["__main__"]):
            return locate(f"__main__.{name}", load=False)
        site = find_own(rule, root)
        if site is not None and attributes:
            return locate(".".join([site.target, *attributes]), load=False)
    except ImportError as error:
        raise PlanError(f"{rule.key!r}: {error}") from None
    if site is None and not may_be_own(name):
        raise PlanError(f"{rule.key!r}: there is no module {root}")
    return site


def find_own(rule: Rule, name: str) -> Site | None:
    """Returns where a function or class of the program itself is kept; None if there is none yet."""
    found: dict[int, Site] = {}
    for module_name, module in sys.modules.copy().items():
        namespace = getattr(module, "__dict__", None)
        if type(namespace) is not dict or name not in namespace or not own_code(module):
            continue
        value = namespace[name]
        if callable(value) and getattr(value, "__module__", None) == module.__name__:
            found.setdefault(id(unwrapped(value)), site_of(f"{module_name}.{name}", module, name))
    if len(found) > 1:
        names = " and ".join(site.target for site in found.values())
        raise PlanError(f"{rule.key!r}: {name} may be {names}; write which")
    if not found and is_module(name):
        raise PlanError(f"{rule.key!r}: {name} is a module; name a callable in it")
    return next(iter(found.values()), None)


def may_be_own(name: str) -> bool:
    """Whether a name may be of a function or class that the program is still to define. Classes begin in upper case."""
    return "." not in name or name[0].isupper()


def own_site(site: Site) -> bool:
    """Whether a callable is the program's own."""
    module = site.owner if isinstance(site.owner, ModuleType) else sys.modules.get(site.owner.__module__)
    return module is None or own_code(module)


def is_own_name(module: str) -> bool:
    """Whether a module that is about to be imported may be the program's own."""
    root = module.split(".")[0]
    return root not in sys.stdlib_module_names and root not in (
        "torch",
        "numpy",
        "torch_hetero",
        "cv2",
        "PIL",
        "torchvision",
    )


def changed(strategy: Strategy, original: Callable[..., Any]) -> str:
    """Returns a reason if a function is not the one that a strategy was written for."""
    root = strategy.target.split(".")[0]
    module = getattr(original, "__module__", None) or root
    if module.split(".")[0] not in (root, "builtins") and not module.startswith("_"):
        return f"{strategy.target} was replaced by {module} before the plan became active"
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):
        return ""  # written in C
    known = inspect.signature(strategy.bind).parameters
    if isinstance(strategy, OnHost) or any(parameter.kind in VARIADIC for parameter in known.values()):
        return ""
    names, expected = positional_names(signature.parameters), positional_names(known)
    both = min(len(names), len(expected))
    takes_others = any(parameter.kind in VARIADIC for parameter in signature.parameters.values())
    if names[:both] != expected[:both] or not takes_others and not known.keys() <= signature.parameters.keys():
        theirs, ours = ", ".join(signature.parameters), ", ".join(known)
        return f"the signature of {strategy.target} is ({theirs}), its strategy expects ({ours})"
    return ""


def positional_names(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Returns the names of parameters that may be given by position, in order."""
    return [name for name, entry in parameters.items() if entry.kind not in (*VARIADIC, inspect.Parameter.KEYWORD_ONLY)]
