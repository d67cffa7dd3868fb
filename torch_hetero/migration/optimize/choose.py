"""Chooses which calls move to the device.

Each call has two states, CPU and device, with a time for each. Data from a call in one state to a call in the other is
copied, which takes time, too. So an assignment is a path through a graph with two states for each call, and the best
one is the shortest path:

1. Up to `EXACT` calls, all assignments are tried. The best that keeps the budgets is optimal.
2. Beyond that, chains are improved in turn: the shortest path along a chain is found by dynamic programming while all
   other calls keep their states, until nothing changes. While a budget is exceeded, seconds on the device are given a
   price, which is doubled.

The budgets are the device's seconds in a batch, and its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Edge", "Task", "choose"]

EXACT = 14
PRICES = 40


@dataclass(frozen=True)
class Task:
    """The calls of a context key, in one batch.

    Attributes:
        key: The context key.
        cpu: Seconds of the originals.
        device: Seconds on the device and to record; None if they cannot run there.
        busy: Seconds of the device's own time.
        size: Bytes on the device.
        excludes: Keys that must stay on the CPU if this one moves: the calls that it makes, and those that make it.
    """

    key: str
    cpu: float
    device: float | None
    busy: float = 0.0
    size: int = 0
    excludes: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Edge:
    """Data from one key to another, in one batch; None for ends that stay on the CPU.

    Attributes:
        maker: Who makes it.
        reader: Who reads it.
        upload: Seconds to copy it, if the reader alone is on the device.
        download: Seconds to copy it, if the maker alone is on the device.
    """

    maker: str | None
    reader: str | None
    upload: float = 0.0
    download: float = 0.0


@dataclass(frozen=True)
class Problem:
    """Tasks and edges with numbers instead of keys."""

    tasks: Sequence[Task]
    edges: Sequence[tuple[int, int, float, float]]  # maker, reader, upload, download; -1 for what stays on the CPU
    excludes: Sequence[frozenset[int]]
    seconds: float
    size: int

    def cost(self, state: Sequence[bool], price: float = 0.0) -> float:
        """Returns the seconds of an assignment."""
        total = sum(
            (task.device + price * task.busy) if on else task.cpu for task, on in zip(self.tasks, state, strict=True)
        )
        for maker, reader, upload, download in self.edges:
            there, here = maker >= 0 and state[maker], reader >= 0 and state[reader]
            if there != here:
                total += download if there else upload
        return total

    def allowed(self, state: Sequence[bool]) -> bool:
        """Whether an assignment keeps the budgets, and moves only what can move."""
        chosen = [index for index, on in enumerate(state) if on]
        return (
            all(self.tasks[index].device is not None for index in chosen)
            and not any(self.excludes[index] & set(chosen) for index in chosen)
            and self.within(chosen)
        )

    def within(self, chosen: Sequence[int]) -> bool:
        """Whether tasks together keep the budgets."""
        busy = sum(self.tasks[index].busy for index in chosen)
        return busy <= self.seconds and sum(self.tasks[index].size for index in chosen) <= self.size


def choose(
    tasks: Sequence[Task], edges: Sequence[Edge], seconds: float = float("inf"), size: float = float("inf")
) -> tuple[frozenset[str], float]:
    """Chooses what moves to the device.

    Args:
        tasks: The calls.
        edges: The data between them.
        seconds: The most seconds of the device's time in a batch.
        size: The most bytes on the device.

    Returns:
        The keys of the calls that move, and the seconds in a batch that this saves.
    """
    tasks = [task for task in tasks if task.device is not None]
    place = {task.key: index for index, task in enumerate(tasks)}
    numbered = [
        (place.get(edge.maker, -1), place.get(edge.reader, -1), edge.upload, edge.download)
        for edge in edges
        if edge.maker in place or edge.reader in place
    ]
    excludes = [frozenset(place[key] for key in task.excludes if key in place) for task in tasks]
    problem = Problem(tasks, numbered, excludes, seconds, size)
    nothing = (False,) * len(tasks)
    best = best_of_all(problem) if len(tasks) <= EXACT else best_by_chains(problem)
    saved = problem.cost(nothing) - problem.cost(best)
    return frozenset(task.key for task, on in zip(tasks, best, strict=True) if on), saved


def best_of_all(problem: Problem) -> tuple[bool, ...]:
    """Tries every assignment; ties go to fewer calls on the device."""
    count = len(problem.tasks)
    best, least = (False,) * count, problem.cost((False,) * count)
    for number in range(1, 1 << count):
        state = tuple(bool(number >> index & 1) for index in range(count))
        cost = problem.cost(state)
        if cost < least and problem.allowed(state):
            best, least = state, cost
    return best


def best_by_chains(problem: Problem) -> tuple[bool, ...]:
    """Improves chains in turn, at a price for the device's seconds that makes the budgets hold."""
    price = 0.0
    for _ in range(PRICES):
        state = improved(problem, price)
        if problem.allowed(state):
            return state
        price = max(0.01, 2 * price)
    return (False,) * len(problem.tasks)


def improved(problem: Problem, price: float) -> tuple[bool, ...]:
    """Returns an assignment that no other choice along a single chain improves."""
    state = [False] * len(problem.tasks)
    chains = chains_of(problem)
    least = problem.cost(state, price)
    while True:
        for chain in chains:
            found = along_chain(problem, state, chain, price)
            if problem.cost(found, price) < problem.cost(state, price):
                state = found
        cost = problem.cost(state, price)
        if cost >= least - 1e-12:
            return tuple(state)
        least = cost


def chains_of(problem: Problem) -> list[list[int]]:
    """Cuts the graph into chains: each call goes on to the first of its readers that no other chain has."""
    following: dict[int, int] = {}
    taken: set[int] = set()
    for maker, reader, _, _ in problem.edges:
        if maker >= 0 and reader >= 0 and maker != reader and maker not in following and reader not in taken:
            end = reader
            while end in following and end != maker:
                end = following[end]
            if end != maker:  # no circle
                following[maker] = reader
                taken.add(reader)
    chains = []
    for start in range(len(problem.tasks)):
        if start not in taken:
            chain = [start]
            while chain[-1] in following:
                chain.append(following[chain[-1]])
            chains.append(chain)
    return chains


def along_chain(problem: Problem, state: Sequence[bool], chain: Sequence[int], price: float) -> list[bool]:
    """Returns the best states along a chain while all other calls keep theirs: a shortest path over two states."""
    position = {index: place for place, index in enumerate(chain)}
    alone = [[0.0, 0.0] for _ in chain]  # by place and state: the call, and its data from and to others
    between = [[[0.0, 0.0], [0.0, 0.0]] for _ in chain]  # by place, state before and state: data along the chain
    for place, index in enumerate(chain):
        task = problem.tasks[index]
        blocked = any(state[other] and other not in position for other in problem.excludes[index])
        alone[place] = [task.cpu, float("inf") if blocked else task.device + price * task.busy]
    for maker, reader, upload, download in problem.edges:
        one, other = position.get(maker), position.get(reader)
        if one is None and other is None:
            continue
        for on in (False, True):
            if one is None:
                alone[other][on] += crossing(maker >= 0 and state[maker], on, upload, download)
            elif other is None:
                alone[one][on] += crossing(on, reader >= 0 and state[reader], upload, download)
            elif abs(other - one) == 1:
                for after in (False, True):
                    at = (on, after) if other > one else (after, on)
                    between[max(one, other)][at[0]][at[1]] += crossing(on, after, upload, download)
            else:  # a reader further along: taken as if its state stayed
                alone[one][on] += crossing(on, state[reader], upload, download)
    cost, history = alone[0], []
    for place in range(1, len(chain)):
        ways = [[cost[before] + between[place][before][on] for before in (False, True)] for on in (False, True)]
        history.append([way.index(min(way)) for way in ways])
        cost = [min(ways[on]) + alone[place][on] for on in (False, True)]
    on = bool(cost[1] < cost[0])
    result = list(state)
    for place in range(len(chain) - 1, -1, -1):
        result[chain[place]] = on
        if place:
            on = bool(history[place - 1][on])
    return result


def crossing(there: bool, here: bool, upload: float, download: float) -> float:
    """Returns the seconds to copy data between two states."""
    return 0.0 if there == here else download if there else upload
