"""The context of a call: the path of patched callables that were entered, as a pointer into a tree.

A `Node` is one path. Nodes are interned: a path has one node, which has one child for each callable that was entered
there. So to enter is a look-up in a dict and to leave is to put the pointer back. A node's rule is found once, when the
node is made.

The pointer is a `contextvars.ContextVar`: each thread and each asyncio task has its own. `inherit` takes it to a thread
that is started.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "NOTHING", "UNTRACKED", "Node", "current", "current_key", "enter", "inherit", "leave", "left_calls", "outside", "replant",
    "untracked",
]  # fmt: skip


# No action, no longer path with one, no reason.
NOTHING = (None, False, "")


class Node:
    """A path of callables.

    Attributes:
        name: The last callable's name, such as "cv2.resize".
        parent: The path without it; None for the root.
        children: The paths that go on, by the next callable's name.
        action: What the tree's owner decided for this path, None to call the original.
        inner: Whether a path that goes on from here may have an action.
        reason: Why calls of this path are not migrated, if there is no action.
        calls: How many calls were left to the original, which `left_calls` takes.
    """

    __slots__ = ("action", "calls", "children", "decide", "inner", "name", "parent", "reason")

    def __init__(
        self, name: str, parent: Node | None, decide: Callable[[tuple[str, ...]], tuple[Any, bool, str]]
    ) -> None:
        self.name, self.parent, self.decide = name, parent, decide
        self.children: dict[str, Node] = {}
        self.calls = 0
        self.action, self.inner, self.reason = decide(self.path()) if parent is not None else NOTHING

    def child(self, name: str) -> Node:
        """Returns the path that goes on with `name`. Threads that race get the same node."""
        node = self.children.get(name)
        return node if node is not None else self.children.setdefault(name, Node(name, self, self.decide))

    def path(self) -> tuple[str, ...]:
        """Returns the names from the outermost callable on."""
        names: list[str] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            names.append(node.name)
            node = node.parent
        return tuple(reversed(names))


class Untracked(Node):
    """The context of code that is not migrated: it has no paths but itself."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", None, lambda path: NOTHING)

    def child(self, name: str) -> Node:
        return self


UNTRACKED = Untracked()
# Where each thread and task begins. Activation sets its `decide` and clears its children.
ROOT = Node("", None, lambda path: NOTHING)

_current: contextvars.ContextVar[Node] = contextvars.ContextVar("hetero.migration", default=ROOT)
current = _current.get
enter = _current.set
leave = _current.reset


def current_key() -> str:
    """Returns the path of this call, such as "main.Photos.__getitem__/cv2.resize"; empty outside of patched calls."""
    return "/".join(current().path())


def left_calls() -> Iterator[tuple[str, str, int]]:
    """Yields the path, the reason and the number of calls that were left to the originals since the last time."""
    pending = list(ROOT.children.values())
    while pending:
        node = pending.pop()
        pending.extend(node.children.values())
        if node.calls:
            calls, node.calls = node.calls, 0
            yield "/".join(node.path()), node.reason, calls


def replant(decide: Callable[[tuple[str, ...]], tuple[Any, bool, str]]) -> None:
    """Begins a new tree, in which `decide` says what happens at each path."""
    ROOT.decide = decide
    ROOT.children.clear()


@contextmanager
def untracked() -> Iterator[None]:
    """Within, patched callables are their originals."""
    token = enter(UNTRACKED)
    try:
        yield
    finally:
        leave(token)


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function runs untracked. This package uses functions that it patches."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        token = enter(UNTRACKED)
        try:
            return function(*arguments, **keywords)
        finally:
            leave(token)

    return run


def inherit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs in the context of here, on whatever thread it is called."""
    here = current()
    if here is ROOT:
        return function

    def run(*arguments: Any, **keywords: Any) -> Any:
        token = enter(here)
        try:
            return function(*arguments, **keywords)
        finally:
            leave(token)

    return run
