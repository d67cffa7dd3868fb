"""Tasks in worker processes: a crash is one failed task, and the others run on.

A task is a line of text, its answer an object of JSON. The command of a worker calls `serve`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

SECONDS_PER_TASK = 300


class Worker:
    """A process that runs tasks one by one; a new one takes over after a crash."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._command = command
        self._variables = dict(os.environ, OMP_NUM_THREADS="1", **variables)
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, task: str) -> tuple[Any, str]:
        """The task's answer, or None and why there is none."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        killer = threading.Timer(SECONDS_PER_TASK, process.kill)
        killer.start()
        try:
            process.stdin.write(task + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        timed_out = not killer.is_alive()
        killer.cancel()
        if line:
            return json.loads(line), ""
        self._process = None
        status = process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or [""])[-1]
        return None, f"ran longer than {SECONDS_PER_TASK} s" if timed_out else f"CRASH {status}: {last}"

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()


def serve(run: Callable[[str], Any]) -> None:
    """The worker's loop: a task in, one JSON line out; nothing else reaches standard output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    for line in sys.stdin:
        answers.write(json.dumps(run(line.strip())) + "\n")
        answers.flush()


def run_all(tasks: list[str], command: list[str], variables: dict[str, str], jobs: int) -> dict[str, tuple[Any, str]]:
    """Runs tasks in `jobs` worker processes and shows progress on standard error."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    answers: dict[str, tuple[Any, str]] = {}

    def work() -> None:
        worker = Worker(command, variables)
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                break
            answers[task] = worker.run(task)
            if len(answers) % 20 == 0:
                print(f"\r{len(answers)}/{len(tasks)}", end="", file=sys.stderr, flush=True)
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\r", end="", file=sys.stderr)
    return answers
