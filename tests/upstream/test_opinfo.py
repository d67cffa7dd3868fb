"""Every entry of PyTorch's operator database gives CPU's bits on the device.

Under pytest there is one test per entry. As a script it is a tool for development: it runs
entries in worker processes, so that a crash is one failed entry, and groups failures by text:

    python tests/upstream/test_opinfo.py --device hetero --filter conv --jobs 2
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

if os.environ.get("HETERO_TEST_DEVICE", "hetero") == "cpu":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import workers
from harness import ENTRIES, Result, load_exclusions, run_entry

DEVICE = os.environ.get("HETERO_TEST_DEVICE", "hetero")
EXCLUSIONS = load_exclusions() if DEVICE == "hetero" else {}


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_entry_equals_cpu(entry: str, machine: str, record_property: Any) -> None:
    excluded = EXCLUSIONS.get(entry)
    record_property("entry", entry)
    record_property("machine", machine)
    if excluded and excluded["reason"] == "CRASH":
        record_property("status", "not run")
        pytest.skip(f"excluded, {excluded['reason']}: {excluded['why']}")
    result = run_entry(entry, DEVICE)
    for key in ("samples", "random_samples", "stride_mismatches", "accelerator_kernels"):
        record_property(key, getattr(result, key))
    if excluded:
        unexpected = result.status == "passed"
        record_property("status", "unexpected pass" if unexpected else "excluded")
        assert not unexpected, f"{entry} passes: take its row out of exclusions.toml"
        pytest.xfail(f"excluded, {excluded['reason']}: {excluded['why']}")
    record_property("status", result.status)
    if result.status == "skipped":
        pytest.skip(result.why)
    assert result.status == "passed", result.why


def run_all(entries: list[str], device: str, jobs: int) -> list[Result]:
    """Runs entries in worker processes."""
    command = [sys.executable, __file__, "--worker", "--device", device]
    answers = workers.run_all(entries, command, {"HETERO_TEST_DEVICE": device}, jobs)
    return [Result(**answer) if answer else Result(entry, "failed", why) for entry, (answer, why) in answers.items()]


def group_key(why: str) -> str:
    """The text of a failure without what differs between entries, such as numbers."""
    text = re.sub(r"^sample \d+ of \d+: ", "", why)
    text = re.sub(r"0x[0-9a-f]+", "#", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", text)
    return re.sub(r"aten::\w+(\.\w+)?", "aten::OP", text)[:160]


def report(results: list[Result], verbose: bool) -> None:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.status == "failed":
            groups[group_key(result.why)].append(result)
    for _, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(members)} x {members[0].why}")
        shown = members if verbose else members[:12]
        print("    " + ", ".join(sorted(member.entry for member in shown)), end="")
        print(f", and {len(members) - len(shown)} more" if len(members) > len(shown) else "")
        if verbose:
            for member in members:
                print(f"        {member.entry}: {member.why}")
    counts = Counter(result.status for result in results)
    strides = sum(result.stride_mismatches for result in results)
    ran = counts["passed"] + counts["failed"]
    excluded = sum(r.status == "failed" and r.entry in load_exclusions() for r in results)
    print(
        f"\n{len(results)} entries: {counts['passed']} passed, {counts['failed']} failed "
        f"(of these {excluded} excluded), {counts['skipped']} skipped; "
        f"{100.0 * counts['passed'] / max(ran, 1):.1f} % of those that ran; "
        f"{strides} results with other strides"
    )


def report_strides(results: list[Result]) -> None:
    """One line for each entry with results whose strides are not CPU's, the most of them first."""
    entries = [result for result in results if result.stride_mismatches]
    for result in sorted(entries, key=lambda result: (-result.stride_mismatches, result.entry)):
        print(f"{result.stride_mismatches:4} x {result.entry}: {result.first_stride_mismatch}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="hetero", help="the device to compare with CPU")
    parser.add_argument("--filter", default="", help="run entries whose name contains this")
    parser.add_argument("--exact", nargs="*", help="run exactly these entries")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--verbose", action="store_true", help="one line for each failed entry")
    parser.add_argument("--strides", action="store_true", help="also list the entries with other strides than CPU's")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        workers.serve(lambda entry: dataclasses.asdict(run_entry(entry, options.device)))
        return 0
    entries = options.exact or [name for name in sorted(ENTRIES) if options.filter in name]
    results = run_all(entries, options.device, options.jobs)
    if options.strides:
        report_strides(results)
    report(results, options.verbose)
    if options.json:
        rows = [dataclasses.asdict(result) for result in results]
        options.json.write_text(json.dumps(sorted(rows, key=lambda row: row["entry"]), indent=1))
    return int(any(result.status == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
