// ---- Canvases that can be moved and zoomed

let selected = null;  // id of the marked node
let select = () => {};  // marks a node, or none, everywhere; set when there are views

/** Sets the canvas to the pixels of the screen; returns its context, to be used in CSS pixels. */
function context(canvas) {
  const sharp = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.max(1, Math.round(width * sharp));
  canvas.height = Math.max(1, Math.round(height * sharp));
  const drawing = canvas.getContext('2d');
  drawing.setTransform(sharp, 0, 0, sharp, 0, 0);
  drawing.clearRect(0, 0, width, height);
  return drawing;
}

const fonts = new Map();

/** Returns the text, or its beginning with an ellipsis, so that it is no wider than `width`. */
function shorten(drawing, text, width) {
  if (!fonts.has(drawing.font)) fonts.set(drawing.font, drawing.measureText('abcdefghij_klmnopqrst').width / 21);
  const most = Math.floor(width / fonts.get(drawing.font));
  if (text.length > most * 3) text = text.slice(0, most * 3);
  if (drawing.measureText(text).width <= width) return text;
  while (text && drawing.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return text ? `${text}…` : '';
}

function showTip(content, x, y) {
  const tip = byId('tip');
  tip.hidden = !content;
  if (!content) return;
  const lines = content.lines.filter(([, value]) => known(value) && value !== '');
  const pairs = lines.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, String(value))]);
  tip.replaceChildren(element('strong', {}, content.title), element('dl', {}, ...pairs));
  const right = x + 16 + tip.offsetWidth > window.innerWidth, low = y + 16 + tip.offsetHeight > window.innerHeight;
  tip.style.left = `${Math.max(4, right ? x - 12 - tip.offsetWidth : x + 16)}px`;
  tip.style.top = `${Math.max(4, low ? y - 12 - tip.offsetHeight : y + 16)}px`;
}

/** Connects a canvas with a view that has zoom, pan, fit, tip, pick and requestDraw. */
function interact(canvas, view) {
  let drag = null;
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode === 1 ? 20 : 1);
    view.zoom(Math.exp(-Math.max(-300, Math.min(300, pixels)) * 0.002), event.offsetX, event.offsetY);
    view.requestDraw();
  }, {passive: false});
  canvas.addEventListener('pointerdown', (event) => {
    drag = {x: event.clientX, y: event.clientY, moved: 0, at: [event.offsetX, event.offsetY]};
    canvas.style.cursor = 'grabbing';
  });
  window.addEventListener('pointermove', (event) => {
    if (!drag) return;
    drag.moved += Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y);
    view.pan(event.clientX - drag.x, event.clientY - drag.y);
    drag.x = event.clientX;
    drag.y = event.clientY;
    view.requestDraw();
  });
  window.addEventListener('pointerup', () => {
    if (drag && drag.moved < 4) view.pick(...drag.at);
    drag = null;
    canvas.style.cursor = '';
  });
  canvas.addEventListener('pointermove', (event) => {
    showTip(drag ? null : view.tip(event.offsetX, event.offsetY), event.clientX, event.clientY);
  });
  canvas.addEventListener('pointerleave', () => showTip(null));
  canvas.addEventListener('keydown', (event) => {
    const middle = [canvas.clientWidth / 2, canvas.clientHeight / 2];
    const actions = {'+': () => view.zoom(1.3, ...middle), '-': () => view.zoom(1 / 1.3, ...middle),
      '0': () => view.fit(), ArrowLeft: () => view.pan(60, 0), ArrowRight: () => view.pan(-60, 0),
      ArrowUp: () => view.pan(0, 60), ArrowDown: () => view.pan(0, -60)};
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
    view.requestDraw();
  });
}

/** Calls draw at most once for each frame of the screen. */
function onceAFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

// ---- The graph

class GraphView {
  constructor(canvas) {
    this.canvas = canvas;
    this.requestDraw = onceAFrame(() => this.draw());
    interact(canvas, this);
  }

  show(program) {
    this.program = program;
    this.canvas.hidden = !program.nodes.length;
    byId('graph-empty').hidden = !this.canvas.hidden;
    this.drawing = null;
    this.canvas.dataset.nodes = 0;
    if (this.canvas.hidden) return;
    this.drawing = layout(program, this.canvas.clientWidth, this.canvas.clientHeight);
    this.edges = [];
    for (const to of this.drawing.boxes.values()) {
      for (const input of new Set(list(to.node.inputs))) {
        const from = this.drawing.boxes.get(input);
        if (from && from !== to) this.edges.push({from, to});
      }
    }
    this.canvas.dataset.nodes = this.drawing.boxes.size;
    this.canvas.dataset.edges = this.edges.length;
    this.fit();
    this.draw();
  }

  fit() {
    if (!this.drawing) return;
    const {clientWidth: width, clientHeight: height} = this.canvas, margin = 16;
    this.scale = Math.min(1.25, (width - 2 * margin) / this.drawing.width, (height - 2 * margin) / this.drawing.height);
    this.least = Math.min(this.scale, 0.5) / 2;
    this.x = (width - this.drawing.width * this.scale) / 2;
    this.y = (height - this.drawing.height * this.scale) / 2;
  }

  zoom(factor, x, y) {
    const scale = Math.max(this.least, Math.min(4, this.scale * factor));
    this.x = x - (x - this.x) * scale / this.scale;
    this.y = y - (y - this.y) * scale / this.scale;
    this.scale = scale;
  }

  pan(x, y) {
    this.x += x;
    this.y += y;
  }

  /** Moves so that the node is in the middle, and large enough to be read. */
  reveal(id) {
    const box = this.drawing && this.drawing.boxes.get(id);
    if (!box) return;
    this.scale = Math.max(this.scale, 0.8);
    this.x = this.canvas.clientWidth / 2 - (box.x + NODE_WIDTH / 2) * this.scale;
    this.y = this.canvas.clientHeight / 2 - (box.y + NODE_HEIGHT / 2) * this.scale;
  }

  at(x, y) {
    if (!this.drawing) return null;
    const left = (x - this.x) / this.scale, top = (y - this.y) / this.scale;
    for (const box of this.drawing.boxes.values()) {
      if (left >= box.x && left <= box.x + NODE_WIDTH && top >= box.y && top <= box.y + NODE_HEIGHT) return box.node;
    }
    return null;
  }

  tip(x, y) {
    const node = this.at(x, y);
    return node && nodeLines(node, this.program);
  }

  pick(x, y) {
    const node = this.at(x, y);
    select(node ? node.id : null, false);
  }

  draw() {
    if (!this.drawing) return;
    const drawing = context(this.canvas);
    drawing.translate(this.x, this.y);
    drawing.scale(this.scale, this.scale);
    const margin = 300;
    this.seen = {left: -this.x / this.scale - margin, right: (this.canvas.clientWidth - this.x) / this.scale + margin,
      top: -this.y / this.scale - margin, bottom: (this.canvas.clientHeight - this.y) / this.scale + margin};
    for (const outline of this.drawing.outlines) if (this.isSeen(outline)) this.drawOutline(drawing, outline);
    for (const edge of this.edges) this.drawEdge(drawing, edge, false);
    for (const edge of this.edges) {
      if (edge.from.node.id === selected || edge.to.node.id === selected) this.drawEdge(drawing, edge, true);
    }
    for (const box of this.drawing.boxes.values()) if (this.isSeen(box)) this.drawNode(drawing, box);
  }

  isSeen({x, y, width = NODE_WIDTH, height = NODE_HEIGHT}) {
    return x < this.seen.right && x + width > this.seen.left && y < this.seen.bottom && y + height > this.seen.top;
  }

  drawOutline(drawing, outline) {
    drawing.beginPath();
    drawing.roundRect(outline.x, outline.y, outline.width, outline.height, 10);
    drawing.fillStyle = theme.page;
    drawing.fill();
    drawing.strokeStyle = theme.ink;
    drawing.lineWidth = 2;
    drawing.stroke();
    if (this.scale < 0.4) return;
    drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
    drawing.fillStyle = theme.soft;
    drawing.textBaseline = 'middle';
    drawing.fillText(shorten(drawing, `fused ${outline.group}`, outline.width - 2 * GROUP_PADDING),
                     outline.x + GROUP_PADDING, outline.y + GROUP_TITLE / 2 + 4);
  }

  drawEdge(drawing, {from, to}, marked) {
    if (Math.max(from.x, to.x) + NODE_WIDTH < this.seen.left || Math.min(from.x, to.x) > this.seen.right ||
        Math.max(from.y, to.y) + NODE_HEIGHT < this.seen.top || Math.min(from.y, to.y) > this.seen.bottom) return;
    const looks = [deviceLook(from.node.device), deviceLook(to.node.device)];
    const crosses = looks[0] !== looks[1] && !looks.includes('other');
    drawing.beginPath();
    edgePath(drawing, from, to);
    drawing.strokeStyle = marked ? theme.pick : !crosses ? theme.edge : looks[1] === 'cpu' ? theme.d2h : theme.h2d;
    drawing.lineWidth = marked ? 2.5 : crosses ? 2 : 1.25;
    drawing.globalAlpha = marked || crosses ? 1 : from.column === to.column ? 0.8 : 0.4;
    drawing.stroke();
    drawing.globalAlpha = 1;
  }

  drawNode(drawing, {node, x, y}) {
    const look = deviceLook(node.device), dead = node.live === false;
    drawing.beginPath();
    drawing.roundRect(x, y, NODE_WIDTH, NODE_HEIGHT, look === 'accelerator' ? NODE_HEIGHT / 2 : 3);
    drawing.fillStyle = dead ? theme.panel : theme[look];
    drawing.fill();
    drawing.setLineDash(dead ? [5, 4] : []);
    drawing.strokeStyle = node.id === selected ? theme.pick : theme[look];
    drawing.lineWidth = node.id === selected ? 5 : 1.5;
    if (dead || node.id === selected) drawing.stroke();
    drawing.setLineDash([]);
    if (this.scale < 0.3) return;
    const small = this.scale < 0.6;
    drawing.fillStyle = dead ? theme.ink : theme[`${look}-ink`];
    drawing.textAlign = 'center';
    drawing.textBaseline = 'middle';
    drawing.font = `${small ? 17 : 13}px system-ui, "DejaVu Sans", sans-serif`;
    drawing.fillText(shorten(drawing, shortName(node.op), NODE_WIDTH - 14), x + NODE_WIDTH / 2,
                     y + NODE_HEIGHT * (small ? 0.53 : 0.33));
    if (!small) {
      drawing.font = '10px system-ui, "DejaVu Sans", sans-serif';
      const detail = [node.shape, seconds(node.predicted)].filter((part) => known(part) && part !== NOTHING).join('  ');
      drawing.fillText(shorten(drawing, detail, NODE_WIDTH - 20), x + NODE_WIDTH / 2, y + NODE_HEIGHT * 0.74);
    }
    drawing.textAlign = 'left';
  }
}

/** A curve from one node to another: straight down to the next row, else around the right side. */
function edgePath(drawing, from, to) {
  const middle = NODE_WIDTH / 2, half = NODE_HEIGHT / 2;
  const near = from.unit === to.unit ? to.y - from.y <= NODE_HEIGHT + SPACE && from.x === to.x :
    to.row === from.row + 1 && from.last && to.first;
  if (from.column === to.column && near && to.y > from.y) {
    const startY = from.y + NODE_HEIGHT, bend = (to.y - startY) / 2;
    drawing.moveTo(from.x + middle, startY);
    drawing.bezierCurveTo(from.x + middle, startY + bend, to.x + middle, to.y - bend, to.x + middle, to.y);
  } else if (from.column === to.column) {
    const bulge = 24 + Math.min(90, Math.abs(to.y - from.y) * 0.12);
    const side = Math.max(from.x, to.x) + NODE_WIDTH + bulge;
    drawing.moveTo(from.x + NODE_WIDTH, from.y + half);
    drawing.bezierCurveTo(side, from.y + half, side, to.y + half, to.x + NODE_WIDTH, to.y + half);
  } else {
    const forth = to.column > from.column;
    const startX = from.x + (forth ? NODE_WIDTH : 0), endX = to.x + (forth ? 0 : NODE_WIDTH), bend = (endX - startX) / 2;
    drawing.moveTo(startX, from.y + half);
    drawing.bezierCurveTo(startX + bend, from.y + half, endX - bend, to.y + half, endX, to.y + half);
  }
}
