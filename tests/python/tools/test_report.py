"""Reports as files: a page that a browser shows without an error, and a trace in the Trace Event Format."""

from __future__ import annotations

import copy
import json
import math
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, needs_hetero
from torch import nn

from torch_hetero import report

HOSTILE = "</script><b>bold</b><!-- \"quotes\" 'single' & \\u003c {{data}} \u2028 πλάνο 計画"

# One layer of a transformer: name, operator, names of its inputs ("x" is what comes from the layer before),
# multiply-adds and bytes in units of tokens, fused group of the layer.
LAYER = (
    ("n1", "aten::rms_norm", ("x",), 0, 2, 0),
    ("q", "aten::mm", ("n1",), 1, 1, None),
    ("k", "aten::mm", ("n1",), 1, 1, None),
    ("v", "aten::mm", ("n1",), 1, 1, None),
    ("qr", "aten::mul", ("q",), 0, 2, 1),
    ("qs", "aten::add", ("qr", "q"), 0, 2, 1),
    ("kr", "aten::mul", ("k",), 0, 2, 1),
    ("ks", "aten::add", ("kr", "k"), 0, 2, 1),
    ("a", "aten::_scaled_dot_product_attention", ("qs", "ks", "v"), 0.5, 4, None),
    ("o", "aten::mm", ("a",), 1, 1, None),
    ("r1", "aten::add", ("x", "o"), 0, 3, 2),
    ("n2", "aten::rms_norm", ("r1",), 0, 2, 2),
    ("g", "aten::mm", ("n2",), 3, 3, None),
    ("u", "aten::mm", ("n2",), 3, 3, None),
    ("s", "aten::silu", ("g",), 0, 6, 3),
    ("h", "aten::mul", ("s", "u"), 0, 9, 3),
    ("d", "aten::mm", ("h",), 3, 3, None),
    ("unused", "aten::_to_copy", ("d",), 0, 2, None),
    ("r2", "aten::add", ("r1", "d"), 0, 3, 4),
    ("y", "aten::clone", ("r2",), 0, 2, 4),
)


def transformer(layers: int, on_cpu: int = 2, measured: bool = True) -> dict[str, Any]:
    """A transformer on two devices: the last layers run on the CPU, the weights of the others are streamed."""
    nodes: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    free = dict.fromkeys(("accelerator compute", "accelerator h2d", "accelerator d2h", "cpu compute"), 0.0)
    ready: dict[int, float] = {}
    device_of: dict[int, str] = {}
    points = {"accelerator": [[0.0, 64 << 20]], "cpu": [[0.0, 900 << 20]]}
    copies = sent = 0

    def run(queue: str, kind: str, name: str, after: float, seconds: float, **more: Any) -> float:
        begin = max(after, free[queue])
        span = {"queue": queue, "kind": kind, "name": name, "begin": begin, "end": begin + seconds,
                "stall": begin - free[queue], **more}
        if measured:
            scale = 1.12 if "cpu" in queue else 0.95
            span |= {"measured_begin": begin * scale, "measured_end": (begin + seconds) * scale}
        spans.append(span)
        free[queue] = begin + seconds
        return free[queue]

    last, group_begin = -1, 0
    for layer in range(layers):
        device = "cpu" if layer >= layers - on_cpu else "accelerator"
        local = {"x": last}
        weights = 0.0
        if device == "accelerator":
            first_product = len(nodes) + 1
            slot_free = max(0.0, free["accelerator compute"] - 4e-4)
            weights = run("accelerator h2d", "copy", f"weights of layer {layer}", slot_free, 2.6e-4, buffer=layer,
                          bytes=14 << 20, node=first_product)
            points["accelerator"] += [[weights - 2.6e-4, (92 if layer % 2 else 78) << 20]]
            copies, sent = copies + 1, sent + (14 << 20)
        fused: dict[int, float] = {}
        reason = "least predicted time of the whole" if device == "accelerator" else "its weights do not fit"
        for name, op, inputs, work, traffic, group in LAYER:
            number = len(nodes)
            reads = [local[each] for each in inputs if local[each] >= 0]
            seconds = work * (9e-5 if device == "cpu" else 2e-5) + traffic * (4e-6 if device == "cpu" else 1e-6)
            node = {"id": number, "op": op, "device": device, "predicted": seconds, "bytes": traffic << 20,
                    "measured": seconds * (1 + 0.3 * math.sin(number)) if measured else None,
                    "reason": reason,
                    "other_device": seconds * (4.2 if device == "accelerator" else 0.3), "inputs": reads,
                    "group": None if group is None else group_begin + group, "shape": "bf16[1,128,2048]",
                    "live": name != "unused"}
            nodes.append(node)
            local[name] = number
            device_of[number] = device
            after = max([ready.get(each, 0.0) for each in reads], default=0.0)
            if not node["live"]:
                continue
            for each in reads:
                if device_of[each] != device:
                    after = run("accelerator d2h", "copy", nodes[each]["op"], ready[each], 3e-5, node=each,
                                bytes=1 << 19)
                    copies += 1
            if work:
                after = max(after, weights)
            queue = f"{device} compute"
            if group is not None and group in fused:
                ready[number] = fused[group]
                continue
            ready[number] = run(queue, "run" if group is None else "fused", op, after,
                                seconds if group is None else 2 * seconds, node=number)
            if group is not None:
                fused[group] = ready[number]
        last = local["y"]
        points["cpu"].append([ready[last], (900 + (layer % 5)) << 20])
        group_begin += 5
    predicted = max(free.values())
    return {
        "name": f"flush {layers}: a value was read", "profile": "sim: h200", "budget_bytes": 96 << 20,
        "predicted_seconds": predicted, "measured_seconds": predicted * 1.05 if measured else None,
        "counts": {"copies": copies, "bytes_to_accelerator": sent, "planning_seconds": 0.0031},
        "nodes": nodes, "spans": spans,
        "memory": [{"device": "accelerator", "budget": 96 << 20, "points": points["accelerator"]},
                   {"device": "cpu", "points": points["cpu"]}],
        "decisions": [
            {"candidate": "all on the accelerator, weights streamed", "seconds": predicted * 1.21, "chosen": False,
             "detail": "the link is the bottleneck"},
            {"candidate": "all on the CPU", "seconds": predicted * 3.4, "chosen": False, "detail": ""},
            {"candidate": "minimum cut", "seconds": predicted, "chosen": True,
             "detail": "the last layers run where their weights lie, so the link is free for the others"},
        ],
    }


BARE = {"name": "nothing ran", "profile": "cpu", "predicted_seconds": 0.0, "counts": {}, "nodes": [], "spans": [],
        "memory": [], "decisions": []}


def hostile() -> dict[str, Any]:
    """A program whose every text tries to leave its place, and whose figures are missing or not numbers."""
    return {
        "name": HOSTILE, "profile": HOSTILE, "budget_bytes": None, "predicted_seconds": math.nan,
        "measured_seconds": None, "counts": {HOSTILE: HOSTILE, "copies": None},
        "nodes": [{"id": 0, "op": HOSTILE, "device": HOSTILE, "reason": HOSTILE, "predicted": math.inf,
                   "inputs": [0, 7, 1], "group": 1, "shape": HOSTILE, "live": True},
                  {"id": 1, "op": HOSTILE, "device": "cpu", "inputs": [0]}, {"id": 2}],
        "spans": [{"queue": HOSTILE, "kind": "copy", "name": HOSTILE, "node": 1, "begin": 0.0, "end": 1e-6},
                  {"queue": "cpu compute", "kind": "run", "name": HOSTILE, "begin": None, "end": None}],
        "memory": [{"device": HOSTILE, "points": []},
                   {"device": HOSTILE, "budget": 10, "points": [[0.0, 5], [1e-6, None]]}],
        "decisions": [{"candidate": HOSTILE, "seconds": None, "chosen": True, "detail": HOSTILE}],
    }


# ---- The page

# Runs before anything else in the page: every error and every word on the console becomes an attribute of the page.
PROBE = """<script>
window.troubles = [];
addEventListener('error', (event) => troubles.push(event.message), true);
addEventListener('unhandledrejection', (event) => troubles.push(String(event.reason)));
addEventListener('securitypolicyviolation', (event) => troubles.push(`blocked: ${event.blockedURI}`));
for (const level of ['error', 'warn', 'log']) console[level] = (...words) => troubles.push(words.join(' '));
</script>"""

# Runs last: uses everything a reader can use, on every program, and writes down what it saw.
DRIVER = """<script>
const pause = () => new Promise((done) => setTimeout(done, 40));
const seen = [];
async function useCanvas(id) {
  const canvas = document.getElementById(id), place = canvas.getBoundingClientRect();
  for (let step = 0; step < 60; ++step) {
    const at = {clientX: place.left + (step * 37) % Math.max(1, place.width),
                clientY: place.top + (step * 23) % Math.max(1, place.height), bubbles: true};
    canvas.dispatchEvent(new PointerEvent('pointermove', at));
    if (!document.getElementById('tip').hidden) seen.push('tip ' + id);
    if (step % 9 === 0) canvas.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: step % 2 ? 300 : -300}));
    if (step % 7 === 0) canvas.dispatchEvent(new PointerEvent('pointerdown', at));
    if (step % 7 === 2) window.dispatchEvent(new PointerEvent('pointerup', at));
    if (step % 20 === 0) await pause();
  }
  for (const key of ['+', '-', 'ArrowLeft', 'ArrowDown', '0']) {
    canvas.dispatchEvent(new KeyboardEvent('keydown', {key}));
  }
}
async function usePage() {
  const lanes = document.getElementById('transfer-lanes');
  if (lanes.dataset.transfers) {
    await useCanvas('transfer-lanes');
    document.getElementById('transfer-fit').click();
    await pause();
    const rows = [...document.querySelectorAll('#transfer-figures tbody tr')];
    seen.push(...rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(' | ')));
  }
  const chooser = document.getElementById('programs');
  for (const option of [...chooser.options]) {
    chooser.value = option.value;
    chooser.dispatchEvent(new Event('change'));
    for (const id of ['graph', 'time', 'memory']) await useCanvas(id);
    for (const id of ['graph-fit', 'time-fit', 'stretch']) document.getElementById(id).click();
    for (let column = 0; column < 12; ++column) {
      const heads = document.querySelectorAll('#nodes th button');
      if (heads.length) heads[column].click();
    }
    document.getElementById('more').click();
    const program = programs[chooser.value];
    const boxes = program.nodes.length ? [...layout(program, 1200, 600).boxes.values()] : [];
    for (const one of boxes) {
      const over = boxes.filter((other) => Math.abs(one.x - other.x) < NODE_WIDTH &&
        Math.abs(one.y - other.y) < NODE_HEIGHT);
      if (over.length !== 1) troubles.push(`node ${one.node.id} is drawn over another`);
    }
    const row = document.querySelector('#nodes tbody tr');
    if (row) row.click();
    await pause();
    seen.push([document.getElementById('node-count').textContent, document.querySelectorAll('#nodes tbody tr').length,
               document.getElementById('graph').dataset.nodes].join(' / '));
  }
}
usePage().catch((error) => troubles.push(String(error && error.stack))).then(() => {
  document.body.dataset.seen = JSON.stringify(seen);
  document.body.dataset.troubles = JSON.stringify(troubles);
});
</script>"""


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium here (apt-get install chromium): pages cannot be rendered")


class Dom(HTMLParser):
    """What a test asks of a page: the text of elements with an id, all tags, and the attributes of the body."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: dict[str, str] = {}
        self.tags: list[str] = []
        self.body: dict[str, str | None] = {}
        self._id: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._id = dict(attributes).get("id")
        if tag == "body":
            self.body = dict(attributes)

    def handle_endtag(self, tag: str) -> None:
        self._id = None

    def handle_data(self, text: str) -> None:
        if self._id:
            self.text[self._id] = self.text.get(self._id, "") + text


def render(path: Path, *options: str) -> tuple[Dom, str]:
    """Returns the page after its scripts have run, and what the browser's console said."""
    command = [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
               f"--user-data-dir={path.parent / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=20000",
               *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return Dom(done.stdout), "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def check_use(
    tmp_path: Path, programs: list[dict[str, Any]], transfers: list[dict[str, Any]] | None = None
) -> tuple[Dom, list[str]]:
    """Uses the page as a reader would; fails on any error; returns the page and what the driver saw."""
    path = tmp_path / "report.html"
    report.write_report(path, programs, transfers or [])
    page = path.read_text(encoding="utf-8")
    used = page.replace("<meta charset", PROBE + "<meta charset", 1).replace("</body>", DRIVER + "</body>")
    path.with_name("used.html").write_text(used, encoding="utf-8")
    dom, console = render(path.with_name("used.html"))
    assert console == ""
    assert json.loads(dom.body.get("data-troubles") or '["the driver did not end"]') == []
    return dom, json.loads(dom.body["data-seen"] or "")


def test_page_of_a_transformer_states_its_nodes_and_has_no_error(tmp_path: Path) -> None:
    program = transformer(10)
    dom, seen = check_use(tmp_path, [program])
    assert dom.text["node-count"] == "200 nodes"
    assert seen[-1] == "200 nodes / 200 / 200"
    assert {"tip graph", "tip time", "tip memory"} <= set(seen)


def test_page_stays_usable_with_two_thousand_nodes(tmp_path: Path) -> None:
    dom, seen = check_use(tmp_path, [transformer(100)])
    assert dom.text["node-count"] == "2000 nodes"
    assert seen[-1] == "2000 nodes / 2000 / 2000"


def shaped(nodes: list[tuple[list[int], int | None]]) -> dict[str, Any]:
    """A program of nodes that are given by their inputs and their group."""
    return {**BARE, "nodes": [{"id": number, "op": "aten::add", "device": "cpu", "inputs": inputs, "group": group}
                              for number, (inputs, group) in enumerate(nodes)]}


def transfer(kind: str, started: float, ended: float, **fields: Any) -> dict[str, Any]:
    """A row of a store's timeline."""
    return {"graph": 1, "op": 0, "type": kind, "position": 0, "blocks": 4, "first_layer": 0, "layers": 0,
            "bytes": 1 << 20, "started": started, "ended": ended} | fields


def test_transfers_of_a_store_are_shown_by_lane_with_and_without_programs(tmp_path: Path) -> None:
    reads = [transfer("DISK2H", 100 + 0.01 * number, 100.02 + 0.01 * number, op=number) for number in range(8)]
    uploads = [transfer("H2D", 100.02 + 0.01 * number, 100.021 + 0.01 * number, layers=1, first_layer=number)
               for number in range(8)]
    for programs in ([], [transformer(2)]):
        dom, seen = check_use(tmp_path, programs, reads + uploads)
        assert "tip transfer-lanes" in seen
        rows = [line for line in seen if " | " in line]
        assert rows == ["DISK2H | disk to host | 8 | 8 MiB | 90 ms | 88.9 MiB",
                        "H2D | host to device | 8 | 8 MiB | 8 ms | 1000 MiB"]
        assert dom.text["node-count"] == ("40 nodes" if programs else "0 nodes")


def test_a_page_without_transfers_has_no_room_for_them(tmp_path: Path) -> None:
    report.write_report(tmp_path / "report.html", [transformer(2)])
    dom, console = render(tmp_path / "report.html")
    assert console == ""
    assert "transfer-figures" not in dom.text


def test_odd_transfers_are_shown_as_what_they_are(tmp_path: Path) -> None:
    odd = [transfer(HOSTILE, 5, 5, store=HOSTILE), {}, transfer("H2D", 1, None), transfer("D2H", 7, 6, bytes=None),
           *[transfer("H2DISK", 5, 5 + 1e-9 * number) for number in range(400)]]
    _, seen = check_use(tmp_path, [], odd)
    rows = [line.split(" | ") for line in seen if " | " in line]
    assert sorted(row[2] for row in rows) == ["1", "1", "400"]
    assert [row[0] for row in rows if HOSTILE in row[0]] == [f"{HOSTILE}: {HOSTILE}"]


def test_graphs_of_any_shape_are_drawn_without_overlap(tmp_path: Path) -> None:
    wide = shaped([([], None)] * 100 + [([number], None) for number in range(100)])
    hub = shaped([([], None)] * 60 + [(list(range(60)), None)] + [([60], None)] * 60)
    big_group = shaped([([], None), *[([number], 3) for number in range(30)], ([30], None)])
    cycle = shaped([([2], None), ([0], None), ([1], None), ([1], None)])
    split_group = shaped([([], 1), ([0], None), ([1], 1), ([2], None)])
    one_row_for_every_node = shaped([([number - 1] if number else [], None) for number in range(300)])
    _, seen = check_use(tmp_path, [wide, hub, big_group, cycle, split_group, one_row_for_every_node])
    assert [line for line in seen if "/" in line] == [
        f"{count} nodes / {count} / {count}" for count in (200, 121, 32, 4, 4, 300)]


def test_every_program_can_be_chosen(tmp_path: Path) -> None:
    _, seen = check_use(tmp_path, [transformer(3), BARE, transformer(2, measured=False)])
    assert [line for line in seen if "/" in line] == ["60 nodes / 60 / 60", "0 nodes / 0 / 0", "40 nodes / 40 / 40"]


def test_page_opens_with_the_longest_program(tmp_path: Path) -> None:
    report.write_report(tmp_path / "report.html", [BARE, transformer(2), transformer(4), transformer(3)])
    dom, console = render(tmp_path / "report.html")
    assert dom.text["node-count"] == "80 nodes"
    assert console == ""


def trained_programs() -> list[dict[str, Any]]:
    """What training under a budget did on the simulated accelerator: fused kernels, streamed weights, both devices."""
    config = torch.hetero.config
    config.accelerator, config.placement, config.fusion = "sim", "accelerator", True
    config.memory_budget = "1MiB"
    layers = [nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128)) for _ in range(12)]
    model = nn.Sequential(*layers, torch.hetero.place(nn.Linear(128, 4), "cpu")).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.hetero._C.clear_program_log()
    config.keep_plans = True
    for _ in range(5):  # the third time that a step comes it is fused
        loss = nn.functional.cross_entropy(model(torch.randn(8, 128).to(DEVICE)), torch.randint(4, (8,)).to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    torch.hetero.flush()
    return torch.hetero.programs()


@needs_hetero
def test_page_of_programs_that_ran_has_no_error_and_can_be_photographed(tmp_path: Path) -> None:
    programs = trained_programs()
    on_both = [p for p in programs if {node["device"] for node in p["nodes"]} == {"cpu", "accelerator"}]
    assert any({"copy", "run", "fused"} <= {span["kind"] for span in p["spans"]} for p in on_both)
    assert all(p["memory"] and p["decisions"] for p in on_both)
    dom, seen = check_use(tmp_path, programs)
    counts = [len(program["nodes"]) for program in programs]
    assert dom.text["node-count"] == f"{counts[-1]} nodes"  # the driver has shown all of them, in their order
    assert [line for line in seen if "/" in line] == [f"{count} nodes / {count} / {count}" for count in counts]
    assert {"tip graph", "tip time", "tip memory"} <= set(seen)
    # As docs/reports.md says.
    picture = tmp_path / "report.png"
    render(tmp_path / "report.html", f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000


EMPTY_FIELDS = dict.fromkeys(("nodes", "spans", "memory", "decisions", "counts", "name"))


@pytest.mark.parametrize("programs", [[], [BARE], [{}], [EMPTY_FIELDS]])
def test_page_without_data_says_so(tmp_path: Path, programs: list[dict[str, Any]]) -> None:
    dom, _ = check_use(tmp_path, programs)
    assert dom.text["node-count"] == "0 nodes"
    assert ("No programs were kept" in dom.text["summary"]) == (not programs)


def test_hostile_names_are_text(tmp_path: Path) -> None:
    dom, seen = check_use(tmp_path, [hostile()])
    assert "b" not in dom.tags
    assert dom.text["node-count"] == "3 nodes"
    assert seen[-1] == "3 nodes / 3 / 3"


def test_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    report.write_report(tmp_path / "report.html", [transformer(2)])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not {"link", "img", "iframe"} & set(Dom(page).tags)
    assert " src=" not in page and "://" not in page.replace("file://", "")


def test_data_of_the_page_is_what_was_given(tmp_path: Path) -> None:
    program = hostile()
    before = copy.deepcopy(program)
    report.write_report(tmp_path / "report.html", [program])
    assert repr(program) == repr(before)  # nan is not equal to itself
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    start = page.index('id="data">') + len('id="data">')
    data = json.loads(page[start : page.index("</script>", start)])["programs"][0]
    assert data["name"] == HOSTILE and data["nodes"][0]["reason"] == HOSTILE
    assert data["predicted_seconds"] is None and data["nodes"][0]["predicted"] is None


@pytest.mark.parametrize("write", [report.write_report, report.write_trace])
def test_values_that_are_not_plain_leave_the_old_file(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(TypeError, match="not set"):
        write(path, [{**BARE, "counts": {"copies": {1, 2}}}])
    assert path.read_text() == "old"


@pytest.mark.parametrize("write", [report.write_report, report.write_trace])
def test_folder_that_does_not_exist_is_an_os_error(tmp_path: Path, write: Any) -> None:
    with pytest.raises(OSError, match="nowhere"):
        write(tmp_path / "nowhere" / "out", [BARE])


# ---- The trace


def trace(tmp_path: Path, programs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    report.write_trace(tmp_path / "trace.json", programs)
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert isinstance(written["traceEvents"], list)
    return written["traceEvents"]


def names(events: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, str]]:
    """Returns the names of process and thread by their numbers."""
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    threads = [each for each in events if each["name"] == "thread_name"]
    return {(each["pid"], each["tid"]): (processes[each["pid"]], each["args"]["name"]) for each in threads}


def test_complete_events_have_their_place_and_follow_each_other(tmp_path: Path) -> None:
    events = trace(tmp_path, [transformer(4), transformer(6, measured=False), BARE, transformer(3)])
    lanes = names(events)
    complete = [event for event in events if event["ph"] == "X"]
    for event in complete:
        assert event["name"] and event["dur"] >= 0 and (event["pid"], event["tid"]) in lanes
    starts = [event["ts"] for event in events if event["ph"] != "M"]
    assert starts == sorted(starts)
    for lane in lanes:
        ends = 0.0
        for event in complete:
            if (event["pid"], event["tid"]) == lane:
                assert event["ts"] >= ends - 1e-6
                ends = event["ts"] + event["dur"]


def test_processes_are_prediction_and_measurement_with_a_thread_for_each_queue(tmp_path: Path) -> None:
    lanes = names(trace(tmp_path, [transformer(4)]))
    queues = ["programs", "accelerator compute", "accelerator h2d", "accelerator d2h", "cpu compute"]
    assert list(lanes.values()) == [(process, queue) for process in ("predicted", "measured") for queue in queues]


def test_times_are_microseconds(tmp_path: Path) -> None:
    span = {"queue": "cpu compute", "kind": "run", "name": "aten::mm", "begin": 2e-6, "end": 5.5e-6,
            "measured_begin": 3e-6, "measured_end": 4e-6, "bytes": None}
    events = [event for event in trace(tmp_path, [{**BARE, "spans": [span]}]) if event["name"] == "aten::mm"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in events] == [(1, 2.0, 3.5), (2, 3.0, 1.0)]
    assert events[0]["args"] == {"kind": "run"}


def test_programs_begin_together_when_both_have_ended(tmp_path: Path) -> None:
    first = {**BARE, "name": "first", "predicted_seconds": 1e-3, "measured_seconds": 3e-3}
    second = {**BARE, "name": "second", "predicted_seconds": 2e-3, "measured_seconds": 1e-3}
    events = trace(tmp_path, [first, second, {**BARE, "name": "third"}])
    begins = {(event["name"], event["pid"]): event["ts"] for event in events if event["ph"] == "X"}
    assert begins == {("first", 1): 0, ("first", 2): 0, ("second", 1): 3000, ("second", 2): 3000, ("third", 1): 5000}


def test_memory_and_budget_are_counters(tmp_path: Path) -> None:
    memory = [{"device": "accelerator", "budget": 100, "points": [[0.0, 10], [2e-6, 30]]}]
    events = [event for event in trace(tmp_path, [{**BARE, "memory": memory}]) if event["ph"] == "C"]
    assert [(event["name"], event["ts"], event["args"]) for event in events] == [
        ("budget: accelerator", 0, {"bytes": 100}), ("memory: accelerator", 0, {"bytes": 10}),
        ("memory: accelerator", 2, {"bytes": 30})]


def arrows(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns the names of the spans at both ends of each arrow of the predicted process."""
    def inside(event: dict[str, Any]) -> str:
        [name] = [each["name"] for each in events if each["ph"] == "X" and (each["pid"], each["tid"]) ==
                  (event["pid"], event["tid"]) and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]]
        return name
    ends: dict[str, dict[str, str]] = {}
    for event in events:
        if event["ph"] in "sf" and event["pid"] == 1:
            assert event["ph"] == "s" or event["bp"] == "e"
            assert isinstance(event["id"], int)  # Perfetto reads texts as hexadecimal
            ends.setdefault(event["id"], {})[event["ph"]] = inside(event)
    return [(end["s"], end["f"]) for end in ends.values()]


def test_arrows_lead_from_copies_to_what_uses_them(tmp_path: Path) -> None:
    def span(queue: str, kind: str, name: str, begin: int, **more: Any) -> dict[str, Any]:
        return {"queue": queue, "kind": kind, "name": name, "begin": begin * 1e-6, "end": (begin + 1) * 1e-6, **more}

    program = {
        **BARE,
        "nodes": [{"id": 0, "op": "mm", "device": "accelerator"},
                  {"id": 1, "op": "relu", "device": "cpu", "inputs": [0], "group": 4},
                  {"id": 2, "op": "neg", "device": "cpu", "inputs": [1], "group": 4},
                  {"id": 3, "op": "exp", "device": "accelerator", "inputs": [0]}],
        "spans": [span("accelerator h2d", "copy", "weight for mm", 0, node=0, buffer=1),
                  span("accelerator compute", "run", "mm", 1, node=0),
                  span("accelerator d2h", "copy", "value of mm", 2, node=0),
                  span("cpu compute", "fused", "relu and neg", 3, node=2),
                  span("accelerator h2d", "copy", "buffer for exp", 3, buffer=9),
                  span("accelerator compute", "run", "exp", 4, node=3, buffer=9),
                  span("accelerator h2d", "copy", "used by nobody known", 5, buffer=10)],
    }
    assert arrows(trace(tmp_path, [program])) == [
        ("weight for mm", "mm"), ("value of mm", "relu and neg"), ("buffer for exp", "exp")]


def test_streamed_weights_have_an_arrow_each(tmp_path: Path) -> None:
    found = arrows(trace(tmp_path, [transformer(8)]))
    streamed = [source for source, _ in found if source.startswith("weights")]
    assert streamed == [f"weights of layer {layer}" for layer in range(6)]


@pytest.mark.parametrize("programs", [[], [BARE], [{}], [hostile()]])
def test_trace_of_little_or_odd_data_is_valid(tmp_path: Path, programs: list[dict[str, Any]]) -> None:
    for event in trace(tmp_path, programs):
        assert event["ph"] in "MXCsf" and isinstance(event["name"], str)
