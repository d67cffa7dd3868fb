// ---- Time: queues and memory, two canvases with one horizontal axis
//
// A position on the axis is a part of the whole, from 0 to 1. With one scale the whole is the longer of predicted and
// measured; with "same length for both" it is each one's own.

const GUTTER = 170, RIGHT = 14, AXIS = 24, LANE = 20, QUEUE_SPACE = 14, CHART = 150, CHART_SPACE = 34;

/** Returns times at which to put marks, and how to write them, about one for each 110 pixels. */
function marks(begin, end, pixels) {
  const rough = (end - begin) / Math.max(1, pixels / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const [unit, size] = secondsUnit(end);
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / size) - 1e-6)));
  const result = [];
  for (let at = Math.ceil(begin / step - 1e-9); at * step <= end * (1 + 1e-9); ++at) {
    result.push([at * step, `${(at * step / size).toFixed(decimals)} ${unit}`]);
  }
  return result;
}

class TimeView {
  constructor(queuesCanvas, memoryCanvas) {
    this.queuesCanvas = queuesCanvas;
    this.memoryCanvas = memoryCanvas;
    this.requestDraw = onceAFrame(() => this.draw());
    interact(queuesCanvas, this);
    const memoryTip = (x, y) => this.memoryTip(x, y);
    interact(memoryCanvas, {zoom: (...all) => this.zoom(...all), pan: (...all) => this.pan(...all),
      fit: () => this.fit(), tip: memoryTip, pick: () => {}, requestDraw: this.requestDraw});
  }

  show(program) {
    this.program = program;
    const has = (begin, end) => program.spans.filter((span) => known(span[begin]) && known(span[end]));
    this.lanes = [{name: 'predicted', begin: 'begin', end: 'end', spans: has('begin', 'end')},
      {name: 'measured', begin: 'measured_begin', end: 'measured_end', spans: has('measured_begin', 'measured_end')}];
    this.queues = data.queues.filter((queue) => program.spans.some((span) => String(span.queue) === queue));
    this.charts = program.memory.map((memory) => ({...memory,
      points: list(memory.points).filter((point) => known(point[0]) && known(point[1]))}))
      .filter((memory) => memory.points.length);
    const lengths = this.lanes.map((lane) => lane.spans.reduce((most, span) => Math.max(most, span[lane.end]), 0));
    const last = Math.max(0, ...this.charts.map((chart) => chart.points[chart.points.length - 1][0]));
    this.lengths = [Math.max(lengths[0], last, program.predicted_seconds || 0),
      Math.max(lengths[1], program.measured_seconds || 0)];
    const share = this.lengths[1] / this.lengths[0];
    byId('stretch').checked = this.lanes[1].spans.length > 0 && (share > 5 || share < 0.2);
    this.resize();
    this.fit();
    this.draw();
  }

  resize() {
    const drawn = this.queues.length && this.lanes.some((lane) => lane.spans.length);
    this.queuesCanvas.hidden = !drawn;
    byId('time-empty').hidden = Boolean(drawn);
    this.queuesCanvas.style.height = `${2 * AXIS + this.queues.length * (2 * LANE + QUEUE_SPACE) + QUEUE_SPACE}px`;
    this.queuesCanvas.dataset.spans = this.program.spans.length;
    this.memoryCanvas.hidden = !this.charts.length;
    byId('memory-empty').hidden = !this.memoryCanvas.hidden;
    this.memoryCanvas.style.height = `${this.charts.length * (CHART + CHART_SPACE) + AXIS}px`;
  }

  /** Seconds that the whole axis stands for, in the predicted (0) or measured (1) lane. */
  whole(lane) {
    const own = byId('stretch').checked ? this.lengths[lane] : Math.max(...this.lengths);
    return own || 1e-9;
  }

  get pixels() {
    const canvas = this.queuesCanvas.hidden ? this.memoryCanvas : this.queuesCanvas;
    return Math.max(50, canvas.clientWidth - GUTTER - RIGHT);
  }

  fit() {
    this.from = 0;
    this.to = 1;
  }

  zoom(factor, x) {
    const at = this.from + (this.to - this.from) * (x - GUTTER) / this.pixels;
    const size = Math.max(1e-7, Math.min(1, (this.to - this.from) / factor));
    this.from = at - (at - this.from) * size / (this.to - this.from);
    this.to = this.from + size;
    this.bound();
  }

  pan(x) {
    const by = -x / this.pixels * (this.to - this.from);
    this.from += by;
    this.to += by;
    this.bound();
  }

  bound() {
    const size = this.to - this.from;
    this.from = Math.max(0, Math.min(1 - size, this.from));
    this.to = this.from + size;
  }

  x(time, lane) {
    return GUTTER + (time / this.whole(lane) - this.from) / (this.to - this.from) * this.pixels;
  }

  top(queue, lane) {
    return AXIS + QUEUE_SPACE + queue * (2 * LANE + QUEUE_SPACE) + lane * LANE;
  }

  at(x, y) {
    if (x < GUTTER) return null;
    for (let number = 0; number < 2; ++number) {
      const lane = this.lanes[number];
      const queue = this.queues.findIndex((_, at) => y >= this.top(at, number) && y < this.top(at, number) + LANE);
      if (queue < 0) continue;
      const near = (span) => String(span.queue) === this.queues[queue] && x >= this.x(span[lane.begin], number) - 1 &&
        x <= Math.max(this.x(span[lane.end], number), this.x(span[lane.begin], number) + 2);
      return lane.spans.find(near) || null;
    }
    return null;
  }

  tip(x, y) {
    const span = this.at(x, y);
    return span && spanLines(span, this.program);
  }

  pick(x, y) {
    const span = this.at(x, y);
    select(span && known(span.node) ? span.node : null, true);
  }

  draw() {
    byId('stretch-note').hidden = !byId('stretch').checked;
    if (!this.queuesCanvas.hidden) this.drawQueues(context(this.queuesCanvas));
    if (!this.memoryCanvas.hidden) this.drawMemory(context(this.memoryCanvas));
  }

  drawAxis(drawing, lane, y, top, bottom) {
    const whole = this.whole(lane);
    drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
    drawing.textBaseline = 'middle';
    drawing.textAlign = 'center';
    for (const [time, text] of marks(this.from * whole, this.to * whole, this.pixels)) {
      const x = Math.round(this.x(time, lane)) + 0.5;
      drawing.strokeStyle = theme.line;
      drawing.lineWidth = 1;
      drawing.beginPath();
      drawing.moveTo(x, top);
      drawing.lineTo(x, bottom);
      drawing.stroke();
      drawing.fillStyle = theme.soft;
      const half = drawing.measureText(text).width / 2;
      drawing.fillText(text, Math.min(Math.max(x, GUTTER + half), GUTTER + this.pixels + RIGHT - half - 3), y);
    }
    drawing.textAlign = 'left';
  }

  drawQueues(drawing) {
    const height = this.queuesCanvas.clientHeight, stretched = byId('stretch').checked;
    this.drawAxis(drawing, 0, AXIS / 2 + 2, AXIS, stretched ? height / 2 : height - AXIS);
    this.drawAxis(drawing, 1, height - AXIS / 2 - 2, stretched ? height - AXIS - 4 : AXIS, height - AXIS);
    this.queues.forEach((queue, at) => this.drawQueueName(drawing, queue, at));
    drawing.save();
    drawing.beginPath();
    drawing.rect(GUTTER, 0, this.pixels + RIGHT, height);
    drawing.clip();
    this.lanes.forEach((lane, number) => {
      for (const span of lane.spans) this.drawSpan(drawing, span, lane, number);
    });
    drawing.restore();
  }

  drawQueueName(drawing, queue, at) {
    const top = this.top(at, 0);
    drawing.textBaseline = 'middle';
    drawing.fillStyle = theme.ink;
    drawing.font = '12px system-ui, "DejaVu Sans", sans-serif';
    drawing.fillText(shorten(drawing, queue, GUTTER - 24), 12, top + LANE / 2);
    drawing.fillStyle = theme.soft;
    drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
    drawing.textAlign = 'right';
    drawing.fillText('measured', GUTTER - 10, top + LANE * 1.5);
    drawing.textAlign = 'left';
    drawing.fillStyle = theme.page;
    for (const lane of [0, 1]) drawing.fillRect(GUTTER, this.top(at, lane) + 1, this.pixels, LANE - 2);
    if (!this.lanes[1].spans.some((span) => String(span.queue) === queue)) {
      drawing.fillStyle = theme.soft;
      drawing.fillText('not measured', GUTTER + 8, top + LANE * 1.5);
    }
  }

  drawSpan(drawing, span, lane, number) {
    const begin = this.x(span[lane.begin], number), end = this.x(span[lane.end], number);
    const right = GUTTER + this.pixels;
    if (end < GUTTER - 1 || begin > right + 1) return;
    const look = spanLook(span), y = this.top(this.queues.indexOf(String(span.queue)), number) + 1, height = LANE - 2;
    if (number === 0 && span.stall > 0) {
      const wait = this.x(span.begin - span.stall, 0);
      drawing.strokeStyle = theme.soft;
      drawing.setLineDash([3, 3]);
      drawing.beginPath();
      drawing.moveTo(Math.max(wait, GUTTER - 6), y + height / 2);
      drawing.lineTo(begin, y + height / 2);
      drawing.stroke();
      drawing.setLineDash([]);
    }
    const left = Math.max(begin, GUTTER - 4), width = Math.max(1, Math.min(end, right + 4) - left);
    drawing.fillStyle = theme[look];
    drawing.fillRect(left, y, width > 3 ? width - 0.5 : width, height);
    const marked = this.isMarked(span);
    if (marked || (span.kind === 'fused' && width > 6)) {
      drawing.strokeStyle = marked ? theme.pick : theme.ink;
      drawing.lineWidth = marked ? 3 : 1.5;
      drawing.strokeRect(left + 1, y + 1, Math.max(1, width - 2), height - 2);
      drawing.lineWidth = 1;
    }
    if (width > 26) {
      drawing.fillStyle = theme[`${look}-ink`];
      drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
      drawing.textBaseline = 'middle';
      drawing.fillText(shorten(drawing, shortName(span.name), width - 8), Math.max(left, GUTTER) + 4, y + height / 2);
    }
  }

  /** Whether the span runs the marked node, by itself or in its fused group. */
  isMarked(span) {
    if (selected === null || !known(span.node)) return false;
    const node = this.program.byId.get(span.node), marked = this.program.byId.get(selected);
    return span.node === selected || Boolean(span.kind === 'fused' && node && marked && known(node.group) &&
      node.group === marked.group);
  }

  drawMemory(drawing) {
    const height = this.memoryCanvas.clientHeight;
    this.drawAxis(drawing, 0, height - AXIS / 2, 0, height - AXIS);
    this.charts.forEach((chart, at) => this.drawChart(drawing, chart, at * (CHART + CHART_SPACE) + CHART_SPACE));
  }

  drawChart(drawing, chart, top) {
    const peak = chart.points.reduce((most, point) => Math.max(most, point[1]), 0), bottom = top + CHART;
    // A budget far above all use would press the line to the ground: it is only written then.
    const far = known(chart.budget) && chart.budget > 5 * peak;
    const most = Math.max(peak, known(chart.budget) && !far ? chart.budget : 0, 1) * 1.08;
    const y = (size) => bottom - size / most * CHART;
    const colour = theme[deviceLook(chart.device)];
    drawing.textBaseline = 'middle';
    drawing.font = '12px system-ui, "DejaVu Sans", sans-serif';
    drawing.fillStyle = theme.ink;
    drawing.fillText(shorten(drawing, String(chart.device), GUTTER - 24), 12, top + 8);
    drawing.fillStyle = theme.soft;
    drawing.font = '11px system-ui, "DejaVu Sans", sans-serif';
    drawing.fillText(`most ${bytes(peak)}`, 12, top + 26);
    if (known(chart.budget)) drawing.fillText(`budget ${bytes(chart.budget)}`, 12, top + 42);
    if (far) drawing.fillText('(above the drawing)', 12, top + 58);
    drawing.save();
    drawing.beginPath();
    drawing.rect(GUTTER, top - 8, this.pixels + RIGHT, CHART + 9);
    drawing.clip();
    drawing.beginPath();
    chart.points.forEach(([time, size], at) => {
      const x = this.x(time, 0);
      if (at) drawing.lineTo(x, y(chart.points[at - 1][1]));
      drawing[at ? 'lineTo' : 'moveTo'](x, y(size));
    });
    const final = chart.points[chart.points.length - 1], end = Math.max(this.lengths[0], final[0]);
    drawing.lineTo(this.x(end, 0), y(final[1]));
    drawing.strokeStyle = colour;
    drawing.lineWidth = 2;
    drawing.stroke();
    drawing.lineTo(this.x(end, 0), bottom);
    drawing.lineTo(this.x(chart.points[0][0], 0), bottom);
    drawing.globalAlpha = 0.2;
    drawing.fillStyle = colour;
    drawing.fill();
    drawing.globalAlpha = 1;
    if (known(chart.budget) && !far) {
      drawing.strokeStyle = theme.ink;
      drawing.lineWidth = 1.5;
      drawing.setLineDash([7, 4]);
      drawing.beginPath();
      drawing.moveTo(GUTTER, y(chart.budget));
      drawing.lineTo(GUTTER + this.pixels, y(chart.budget));
      drawing.stroke();
      drawing.setLineDash([]);
    }
    drawing.restore();
  }

  memoryTip(x, y) {
    const chart = this.charts[Math.floor(y / (CHART + CHART_SPACE))];
    if (!chart || x < GUTTER) return null;
    const time = (this.from + (this.to - this.from) * (x - GUTTER) / this.pixels) * this.whole(0);
    let size = null;
    for (const point of chart.points) if (point[0] <= time) size = point[1];
    return {title: String(chart.device), lines: [['at', seconds(time)], ['in use', bytes(size)],
      ['budget', known(chart.budget) ? bytes(chart.budget) : null]]};
  }
}
