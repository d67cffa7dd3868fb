// ---- Layout of the graph: positions in pixels at scale 1
//
// 1. A fused group is one unit, any other node a unit of its own.
// 2. Units get layers by the longest path to them (Sugiyama's method); those that only bring values in move down to
//    their readers. Units on a cycle, which a right graph does not have, are put below what is known.
// 3. Parts of the graph that are not connected stand side by side as far as a row holds them, then below each other.
// 4. Within a layer, units are sorted by the mean place of their neighbours, a few sweeps down and up.
// 5. Layers become rows of bounded width, and rows fill columns whose number suits the shape of the canvas.

const NODE_WIDTH = 156, NODE_HEIGHT = 36, SPACE = 14, ROW_SPACE = 22, COLUMN_SPACE = 90;
const GROUP_PADDING = 9, GROUP_TITLE = 15, GROUP_ROWS = 8, ROW_UNITS = 6;

function makeUnits(program) {
  const units = [], unitOf = new Map(), groups = new Map();
  for (const node of program.nodes) {
    let unit = known(node.group) ? groups.get(node.group) : undefined;
    if (!unit) {
      unit = {group: known(node.group) ? node.group : null, members: [], ins: new Set(), outs: new Set(), layer: 0};
      units.push(unit);
      if (unit.group !== null) groups.set(unit.group, unit);
    }
    unit.members.push(node);
    unitOf.set(node.id, unit);
  }
  for (const node of program.nodes) {
    for (const input of list(node.inputs)) {
      const from = unitOf.get(input), to = unitOf.get(node.id);
      if (from && from !== to) {
        from.outs.add(to);
        to.ins.add(from);
      }
    }
  }
  for (const unit of units) sizeUnit(unit);
  return units;
}

function sizeUnit(unit) {
  const grouped = unit.group !== null;
  const rows = grouped ? Math.min(unit.members.length, GROUP_ROWS) : 1;
  const columns = Math.ceil(unit.members.length / rows);
  unit.width = columns * NODE_WIDTH + (columns - 1) * SPACE + (grouped ? 2 * GROUP_PADDING : 0);
  unit.height = rows * NODE_HEIGHT + (rows - 1) * SPACE + (grouped ? 2 * GROUP_PADDING + GROUP_TITLE : 0);
}

function assignLayers(units) {
  const missing = new Map(units.map((unit) => [unit, unit.ins.size]));
  const order = units.filter((unit) => !unit.ins.size);
  for (let at = 0; at < order.length; ++at) {
    for (const next of order[at].outs) {
      next.layer = Math.max(next.layer, order[at].layer + 1);
      missing.set(next, missing.get(next) - 1);
      if (!missing.get(next)) order.push(next);
    }
  }
  for (const unit of [...order].reverse()) {
    if (unit.outs.size && unit.ins.size <= unit.outs.size) {
      let lowest = Infinity;
      for (const next of unit.outs) if (!missing.get(next)) lowest = Math.min(lowest, next.layer - 1);
      if (lowest < Infinity) unit.layer = lowest;
    }
  }
  let below = order.reduce((most, unit) => Math.max(most, unit.layer), -1);
  for (const unit of units) if (missing.get(unit)) unit.layer = ++below;
}

/** Returns the units in bands, whose layers fit into a row unless a connected part by itself does not. */
function makeBands(units) {
  const bands = [], seen = new Set();
  let counts = null;
  for (const first of units) {
    if (seen.has(first)) continue;
    const part = [first], partCounts = new Map();
    seen.add(first);
    for (const unit of part) {  // grows meanwhile
      partCounts.set(unit.layer, (partCounts.get(unit.layer) || 0) + 1);
      for (const next of [...unit.ins, ...unit.outs]) {
        if (!seen.has(next)) part.push(next);
        seen.add(next);
      }
    }
    const sum = (layer, number) => number + (counts && counts.get(layer) || 0);
    if (!counts || [...partCounts].some(([layer, number]) => sum(layer, number) > ROW_UNITS)) {
      bands.push([]);
      counts = new Map();
    }
    for (const [layer, number] of partCounts) counts.set(layer, sum(layer, number));
    bands[bands.length - 1].push(...part);
  }
  return bands;
}

function sortLayers(units) {
  const layers = [];
  for (const unit of units) (layers[unit.layer] = layers[unit.layer] || []).push(unit);
  const filled = layers.filter((layer) => layer);
  const place = (layer) => layer.forEach((unit, at) => { unit.place = at - (layer.length - 1) / 2; });
  const mean = (others, otherwise) => {
    let sum = 0;
    for (const other of others) sum += other.place;
    return others.size ? sum / others.size : otherwise;
  };
  filled.forEach(place);
  for (const side of ['ins', 'outs', 'ins', 'outs', 'ins']) {
    for (const layer of side === 'ins' ? filled : [...filled].reverse()) {
      for (const unit of layer) unit.wish = mean(unit[side], unit.place);
      layer.sort((a, b) => a.wish - b.wish);
      place(layer);
    }
  }
  return filled;
}

function makeRows(layers) {
  const rows = [];
  const limit = ROW_UNITS * (NODE_WIDTH + SPACE);
  for (const layer of layers) {
    let row = null;
    for (const unit of layer) {
      if (!row || row.width + SPACE + unit.width > limit) rows.push(row = {units: [], width: -SPACE, height: 0});
      row.units.push(unit);
      row.width += SPACE + unit.width;
      row.height = Math.max(row.height, unit.height);
    }
  }
  return rows;
}

/** Splits rows into columns of about this height; returns them with the size of the whole. */
function fold(rows, height) {
  const columns = [];
  let column = null;
  for (const row of rows) {
    if (!column || column.height + ROW_SPACE + row.height > height) {
      columns.push(column = {rows: [], width: 0, height: -ROW_SPACE});
    }
    column.rows.push(row);
    column.width = Math.max(column.width, row.width);
    column.height += ROW_SPACE + row.height;
  }
  const width = columns.reduce((sum, each) => sum + each.width + COLUMN_SPACE, -COLUMN_SPACE);
  return {columns, width, height: columns.reduce((most, each) => Math.max(most, each.height), 0)};
}

function bestFold(rows, viewWidth, viewHeight) {
  const total = rows.reduce((sum, row) => sum + row.height + ROW_SPACE, 0);
  let best = null;
  for (let number = 1; number <= Math.min(rows.length, 80); ++number) {
    const folded = fold(rows, total / number);
    folded.scale = Math.min(viewWidth / folded.width, viewHeight / folded.height);
    if (!best || folded.scale > best.scale) best = folded;
  }
  return best;
}

/** Returns boxes of nodes by id, outlines of groups, and the size of the drawing. */
function layout(program, viewWidth, viewHeight) {
  const units = makeUnits(program);
  assignLayers(units);
  const folded = bestFold(makeBands(units).flatMap((band) => makeRows(sortLayers(band))), viewWidth, viewHeight);
  const result = {boxes: new Map(), outlines: [], width: folded.width, height: folded.height};
  let left = 0, rowNumber = 0;
  folded.columns.forEach((column, columnNumber) => {
    let top = 0;
    for (const row of column.rows) {
      let x = left + (column.width - row.width) / 2;
      for (const unit of row.units) {
        placeUnit(unit, x, top + (row.height - unit.height) / 2, {column: columnNumber, row: rowNumber}, result);
        x += unit.width + SPACE;
      }
      top += row.height + ROW_SPACE;
      ++rowNumber;
    }
    left += column.width + COLUMN_SPACE;
  });
  return result;
}

function placeUnit(unit, x, y, where, result) {
  const grouped = unit.group !== null;
  if (grouped) result.outlines.push({x, y, width: unit.width, height: unit.height, group: unit.group});
  unit.members.forEach((node, at) => {
    const padding = grouped ? GROUP_PADDING : 0;
    const first = at % GROUP_ROWS === 0, last = (at + 1) % GROUP_ROWS === 0 || at + 1 === unit.members.length;
    result.boxes.set(node.id, {node, ...where, unit, first, last,
      x: x + padding + Math.floor(at / GROUP_ROWS) * (NODE_WIDTH + SPACE),
      y: y + padding + (grouped ? GROUP_TITLE : 0) + (at % GROUP_ROWS) * (NODE_HEIGHT + SPACE)});
  });
}
