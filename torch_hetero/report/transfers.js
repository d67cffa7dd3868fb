// ---- Transfers of stores of keys and values: a lane for each type, with a row for each transfer at the same time

const TIERS = {H: 'host', D: 'device', DISK: 'disk', REMOTE: 'remote store', PEER: 'peer'};

/** Returns "host to device" for "H2D". */
function route(type) {
  const [from, to] = String(type).split('2');
  return TIERS[from] && TIERS[to] ? `${TIERS[from]} to ${TIERS[to]}` : String(type);
}

/** Returns lanes with their transfers, each of which has the row in which it is drawn and times from the first on. */
function lanesOf(transfers) {
  const shown = transfers.filter((each) => known(each.started) && known(each.ended))
    .sort((a, b) => a.started - b.started);
  const origin = shown.length ? shown[0].started : 0, lanes = new Map();
  for (const each of shown) {
    const name = known(each.store) ? `${each.store}: ${each.type}` : String(each.type);
    if (!lanes.has(name)) lanes.set(name, {name, type: String(each.type), ends: [], transfers: []});
    const lane = lanes.get(name), begin = each.started - origin, end = Math.max(begin, each.ended - origin);
    let row = lane.ends.findIndex((free) => free <= begin);
    if (row < 0) row = lane.ends.length;
    lane.ends[row] = end;
    lane.transfers.push({...each, begin, end, row});
  }
  return [...lanes.values()];
}

/** Returns the seconds in which at least one transfer of the lane is running. */
function busySeconds(lane) {
  let busy = 0, until = 0;
  for (const each of lane.transfers) {
    busy += Math.max(0, each.end - Math.max(until, each.begin));
    until = Math.max(until, each.end);
  }
  return busy;
}

function transferLines(each, lane) {
  const layers = each.layers ? `${each.first_layer} to ${each.first_layer + each.layers - 1}` : 'all';
  return {title: `${lane.name}: ${route(each.type)}`, lines: [
    ['request', each.graph], ['blocks', `${each.blocks}, from block ${each.position} on`], ['layers', layers],
    ['bytes', bytes(each.bytes)], ['from', seconds(each.begin)], ['takes', seconds(each.end - each.begin)],
    ['bytes a second', each.end > each.begin ? bytes(each.bytes / (each.end - each.begin)) : null]]};
}

class TransferView {
  constructor(canvas, transfers) {
    this.canvas = canvas;
    this.lanes = lanesOf(transfers);
    this.whole = Math.max(1e-9, ...this.lanes.map((lane) => lane.ends.reduce((most, end) => Math.max(most, end), 0)));
    this.requestDraw = onceAFrame(() => this.draw());
    this.pick = () => {};
    let top = AXIS;
    for (const lane of this.lanes) {
      lane.height = Math.max(6, Math.min(LANE, 240 / lane.ends.length));
      lane.top = top + QUEUE_SPACE;
      top = lane.top + Math.max(LANE, lane.ends.length * lane.height);
    }
    canvas.style.height = `${top + QUEUE_SPACE}px`;
    canvas.dataset.transfers = this.lanes.reduce((total, lane) => total + lane.transfers.length, 0);
    interact(canvas, this);
    this.fit();
  }

  get pixels() {
    return Math.max(50, this.canvas.clientWidth - GUTTER - RIGHT);
  }

  fit() {
    this.from = 0;
    this.to = this.whole;
    this.requestDraw();
  }

  zoom(factor, x) {
    const at = this.from + (this.to - this.from) * (x - GUTTER) / this.pixels;
    const size = Math.max(this.whole * 1e-7, Math.min(this.whole, (this.to - this.from) / factor));
    this.show(at - (at - this.from) * size / (this.to - this.from), size);
  }

  pan(x) {
    const size = this.to - this.from;
    this.show(this.from - x / this.pixels * size, size);
  }

  show(from, size) {
    this.from = Math.max(0, Math.min(this.whole - size, from));
    this.to = this.from + size;
  }

  x(time) {
    return GUTTER + (time - this.from) / (this.to - this.from) * this.pixels;
  }

  tip(x, y) {
    for (const lane of this.lanes) {
      const row = Math.floor((y - lane.top) / lane.height);
      const found = lane.transfers.find((each) => each.row === row && x >= this.x(each.begin) - 1 &&
        x <= Math.max(this.x(each.end), this.x(each.begin) + 2));
      if (x >= GUTTER && found) return transferLines(found, lane);
    }
    return null;
  }

  draw() {
    const drawing = context(this.canvas), right = GUTTER + this.pixels;
    drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
    drawing.textBaseline = 'middle';
    for (const [time, text] of marks(this.from, this.to, this.pixels)) {
      drawing.fillStyle = theme.line;
      drawing.fillRect(Math.round(this.x(time)), AXIS, 1, this.canvas.clientHeight - AXIS);
      drawing.fillStyle = theme.soft;
      drawing.fillText(text, Math.min(this.x(time) + 3, right - 40), AXIS / 2 + 2);
    }
    for (const lane of this.lanes) {
      drawing.fillStyle = theme.ink;
      drawing.fillText(shorten(drawing, lane.name, GUTTER - 24), 12, lane.top + LANE / 2);
      const into = lane.type.split('2')[1];
      drawing.fillStyle = theme[into === 'D' ? 'accelerator' : into === 'H' ? 'h2d' : 'd2h'];
      for (const each of lane.transfers) {
        const begin = Math.max(GUTTER, this.x(each.begin)), end = Math.min(right, this.x(each.end));
        if (end < GUTTER || begin > right) continue;
        drawing.fillRect(begin, lane.top + each.row * lane.height, Math.max(1, end - begin), lane.height - 1);
      }
    }
  }
}

function showTransfers() {
  const transfers = list(data.transfers);
  byId('transfers').hidden = !transfers.length;
  if (!transfers.length) return null;
  const view = new TransferView(byId('transfer-lanes'), transfers);
  const names = ['lane', 'way', 'transfers', 'bytes', 'busy', 'bytes a second'];
  const cell = (value, at) => element('td', at > 1 ? {class: 'number'} : {}, String(value));
  const rows = view.lanes.map((lane) => {
    const sum = lane.transfers.reduce((total, each) => total + (each.bytes || 0), 0), busy = busySeconds(lane);
    return element('tr', {}, ...[lane.name, route(lane.type), lane.transfers.length, bytes(sum), seconds(busy),
      busy > 0 ? bytes(sum / busy) : NOTHING].map(cell));
  });
  byId('transfer-figures').replaceChildren(element('table', {}, element('thead', {}, element('tr', {},
    ...names.map((name, at) => element('th', at > 1 ? {class: 'number'} : {}, name)))), element('tbody', {}, ...rows)));
  byId('transfer-fit').addEventListener('click', () => view.fit());
  return view;
}
