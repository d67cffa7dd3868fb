"""Reports of planned programs as files: a page for people, and a trace for Perfetto.

What was planned and run arrives here as plain Python, one dict for each program (`Program`). It becomes a
self-contained html page (`write_report`) or the Trace Event Format (`write_trace`). Both know nothing of torch and
nothing of how the figures were made.

Invariants: a file is written whole or not at all as far as the data is concerned, since the text is complete before the
file is opened; the input is not changed. Thread safety: the functions share no state; the caller must not change the
dicts meanwhile.
"""

from torch_hetero.report.page import write_report
from torch_hetero.report.program import Decision, Memory, Node, Program, Span, Transfer
from torch_hetero.report.trace import write_trace

__all__ = ["Decision", "Memory", "Node", "Program", "Span", "Transfer", "write_report", "write_trace"]
