"""Runs a program as ``python script.py`` would, one statement of its top level after the other.

Between statements the caller can look at what the script has defined so far: keys of a plan may name functions and
classes of the script itself, which do not exist before it runs. Statements share one namespace, and have the file's
name and line numbers, so that tracebacks are the script's own.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from torch_hetero.migration.plan import PlanError

__all__ = ["Script", "ScriptError"]

# Statements after which there may be new functions, classes or modules.
DEFINING = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try, ast.With, ast.For,
    ast.While,
)  # fmt: skip


class ScriptError(Exception):
    """A program that cannot be run; its text is one sentence."""


class Script:
    """A program that is about to run.

    Args:
        name: A file, or a module's name.
        arguments: What follows it on the command line.
        is_module: Whether `name` is a module's, as in ``python -m name``.

    Raises:
        ScriptError: There is no such file or module.
    """

    def __init__(self, name: str, arguments: Sequence[str] = (), is_module: bool = False) -> None:
        self.name, self.arguments, self.is_module = name, list(arguments), is_module
        self.spec = find_module(name) if is_module else None
        self.path = os.path.abspath(self.spec.origin if is_module else name)  # as Python has it in `__file__`
        try:
            source = Path(self.path).read_bytes()
        except IsADirectoryError:
            raise ScriptError(f"{name} is a folder; name the script in it") from None
        except OSError as error:
            raise ScriptError(f"{name} cannot be read: {error.strerror}") from None
        self.source = source
        self.module = ModuleType("__main__")

    def prepare(self) -> None:
        """Makes the process look as if Python had been started with the script: arguments, path and main module."""
        folder = os.getcwd() if self.is_module else os.path.dirname(os.path.realpath(self.path))
        sys.argv = [self.path if self.is_module else self.name, *self.arguments]
        if not sys.flags.safe_path and sys.path:
            sys.path[0] = folder
        self.module.__dict__.update(
            __file__=self.path,
            __builtins__=__builtins__,
            __package__=self.spec.parent if self.spec else None,
            __spec__=self.spec,
            __loader__=self.spec.loader if self.spec else None,
            __cached__=None,
            __annotations__={},
        )
        sys.modules["__main__"] = self.module

    def execute(self, between: Callable[[ModuleType], None] | None = None) -> None:
        """Runs the script.

        Args:
            between: Called with the main module after each statement that may have defined something.

        Raises:
            BaseException: What the script raises, `SystemExit` too.
        """
        tree = ast.parse(self.source, self.path)
        flags = future_flags(tree)
        namespace = self.module.__dict__
        namespace["__doc__"] = ast.get_docstring(tree, clean=False)
        for statement in tree.body:
            exec(self.compiled(statement, flags), namespace)
            if between is not None and isinstance(statement, DEFINING):
                between(self.module)

    def compiled(self, statement: ast.stmt, flags: int) -> CodeType:
        """Returns a statement's code, with the file's name and lines."""
        return compile(ast.Module([statement], []), self.path, "exec", flags=flags, dont_inherit=True)

    def run(self, between: Callable[[ModuleType], None] | None = None) -> int:
        """Runs the script and reports its errors as Python does; returns the exit status.

        Raises:
            SystemExit: The script's own.
            PlanError: What the script imported is not what the plan names.
        """
        try:
            self.execute(between)
        except PlanError:
            raise
        except Exception as error:
            self.show(error)
            return 1
        return 0

    def show(self, error: BaseException) -> None:
        """Prints an error of the script as Python would, without the frames of who ran it."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != self.path:
            trace = trace.tb_next
        if isinstance(error, SyntaxError) and trace is None:
            traceback.print_exception(type(error), error, None)
            return
        call_hook(type(error), error, trace or error.__traceback__)


def call_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Hands an error to whoever shows errors in this process."""
    error.__traceback__ = trace
    sys.excepthook(kind, error, trace)


def future_flags(tree: ast.Module) -> int:
    """Returns the compiler's flags for what the script imports from `__future__`."""
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                feature: Any = getattr(__future__, alias.name, None)
                flags |= feature.compiler_flag if feature is not None else 0
    return flags


def find_module(name: str) -> Any:
    """Returns the spec of a module that can be run.

    Raises:
        ScriptError: There is none.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ScriptError(f"there is no module {name} that could be run")
    return spec
