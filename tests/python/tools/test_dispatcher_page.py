"""Each example of docs/dispatcher.md runs."""

from __future__ import annotations

import re

from helpers import ROOT, needs_hetero, run_python


@needs_hetero
def test_each_example_runs() -> None:
    page = (ROOT / "docs" / "dispatcher.md").read_text()
    examples = re.findall(r"^## (.*?)$|^```python\n(.*?)^```$", page, re.M | re.S)
    code, heading, count = ["import warnings", "warnings.simplefilter('ignore')"], "", 0
    for title, example in examples:
        if title:
            heading = title
            continue
        count += 1
        # Each in a namespace of its own, and its lines are those of the error.
        code.append(f"exec(compile({example!r}, {heading!r}, 'exec'), {{'__name__': 'example'}})")
    assert count >= 12
    done = run_python("\n".join(code))
    assert done.returncode == 0, done.stderr
