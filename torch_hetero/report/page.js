// ---- Tables and figures

function showFigures(program) {
  const of = (device) => program.nodes.filter((node) => node.device === device && node.live !== false).length;
  const groups = new Set(program.nodes.map((node) => node.group).filter(known)).size;
  const figures = [
    ['nodes', count(program.nodes.length, 'node'), 'node-count'],
    ['predicted', seconds(program.predicted_seconds)], ['measured', seconds(program.measured_seconds)],
    ['measured / predicted', times(ratio(program.measured_seconds, program.predicted_seconds))],
    ['run on the accelerator', of('accelerator')], ['run on the CPU', of('cpu')],
    ['dead', program.nodes.filter((node) => node.live === false).length], ['fused groups', groups],
    ['profile', known(program.profile) ? program.profile : NOTHING],
    ['accelerator budget', bytes(program.budget_bytes)],
    ...Object.entries(program.counts).map(([name, value]) => [name.replace(/_seconds$/, '').replaceAll('_', ' '), figure(name, value)]),
  ];
  byId('figures').replaceChildren(...figures.map(([name, value, id]) => element('div', {},
    element('dt', {}, name), element('dd', id ? {id} : {}, String(value)))));
}

function showDecisions(program) {
  const target = byId('decisions'), slowest = Math.max(...program.decisions.map((each) => each.seconds || 0));
  target.hidden = !program.decisions.length;
  byId('decisions-empty').hidden = !target.hidden;
  const head = element('tr', {}, ...['candidate', 'chosen', 'predicted', '', 'detail'].map((name) => element('th',
    name === 'predicted' ? {class: 'number'} : {}, name)));
  const rows = program.decisions.map((each) => element('tr', each.chosen ? {class: 'picked'} : {},
    element('td', {}, String(known(each.candidate) ? each.candidate : NOTHING)),
    element('td', {}, each.chosen ? '✓ chosen' : ''), element('td', {class: 'number'}, seconds(each.seconds)),
    element('td', {}, element('span', {class: 'length',
      style: `width: ${slowest > 0 ? Math.round(120 * (each.seconds || 0) / slowest) : 0}px`})),
    element('td', {class: 'wide'}, String(known(each.detail) ? each.detail : ''))));
  target.replaceChildren(element('table', {}, element('thead', {}, head), element('tbody', {}, ...rows)));
}

const COLUMNS = [
  {name: 'id', value: (node) => node.id, number: true},
  {name: 'operator', value: (node) => node.op},
  {name: 'device', value: (node) => node.device},
  {name: 'because', value: (node) => node.reason, wide: true},
  {name: 'group', value: (node) => node.group, number: true},
  {name: 'result', value: (node) => node.shape},
  {name: 'bytes', value: (node) => node.bytes, number: true, text: bytes},
  {name: 'predicted', value: (node) => node.predicted, number: true, text: seconds},
  {name: 'measured', value: (node) => node.measured, number: true, text: seconds},
  {name: 'measured / predicted', value: (node) => ratio(node.measured, node.predicted), number: true, text: times},
  {name: 'predicted elsewhere', value: (node) => node.other_device, number: true, text: seconds},
  {name: 'lives', value: (node) => node.live === false ? 'dead' : 'yes'},
];
const FIRST_ROWS = 200;

class NodeTable {
  constructor() {
    this.column = 0;
    this.descending = false;
    byId('filter').addEventListener('input', () => this.draw());
    byId('more').addEventListener('click', () => {
      this.limit = Infinity;
      this.draw();
    });
  }

  show(program) {
    this.program = program;
    this.limit = FIRST_ROWS;
    this.draw();
  }

  sortBy(column) {
    this.descending = column === this.column ? !this.descending : Boolean(COLUMNS[column].number && column);
    this.column = column;
    this.draw();
    byId('nodes').querySelectorAll('th button')[column].focus();
  }

  /** Nodes that pass the filter, in order; unknown values are last either way. */
  sorted() {
    const wanted = byId('filter').value.trim().toLowerCase();
    const nodes = this.program.nodes.filter((node) => !wanted ||
      [node.id, node.op, node.device, node.reason, node.shape].some((part) => String(part).toLowerCase().includes(wanted)));
    const value = COLUMNS[this.column].value, sign = this.descending ? -1 : 1;
    const compare = (a, b) => typeof a === 'number' && typeof b === 'number' ? a - b : String(a) < String(b) ? -1 :
      String(a) > String(b) ? 1 : 0;
    return nodes.sort((left, right) => {
      const a = value(left), b = value(right);
      return !known(a) || !known(b) ? Number(!known(a)) - Number(!known(b)) : sign * compare(a, b);
    });
  }

  draw() {
    const nodes = this.sorted(), shown = nodes.slice(0, this.limit);
    byId('nodes').hidden = !nodes.length;
    byId('nodes-empty').hidden = nodes.length > 0;
    byId('shown').textContent = `${shown.length} of ${this.program.nodes.length} shown`;
    byId('more').hidden = shown.length === nodes.length;
    byId('more').textContent = `Show all ${nodes.length}`;
    const head = COLUMNS.map((column, at) => {
      const sorting = at === this.column;
      const button = element('button', {type: 'button'}, column.name + (sorting ? this.descending ? ' ▾' : ' ▴' : ''));
      button.addEventListener('click', () => this.sortBy(at));
      const order = sorting ? {'aria-sort': this.descending ? 'descending' : 'ascending'} : {};
      return element('th', {...order, ...(column.number ? {class: 'number'} : {})}, button);
    });
    this.rows = new Map(shown.map((node) => [node.id, this.row(node)]));
    const body = element('tbody', {}, ...this.rows.values());
    byId('nodes').replaceChildren(element('table', {}, element('thead', {}, element('tr', {}, ...head)), body));
    this.mark();
  }

  /** Shows which node is marked. */
  mark() {
    for (const [id, row] of this.rows) row.classList.toggle('picked', id === selected);
  }

  row(node) {
    const made = element('tr', {}, ...COLUMNS.map((column) => {
      const value = column.value(node);
      const text = column.text ? column.text(value) : known(value) ? String(value) : NOTHING;
      return element('td', column.number ? {class: 'number'} : column.wide ? {class: 'wide'} : {}, text);
    }));
    made.addEventListener('click', () => select(node.id === selected ? null : node.id, true));
    return made;
  }
}

// ---- The page

const data = JSON.parse(byId('data').textContent);
const programs = data.programs.map(prepare);

function showSummary() {
  const nodes = programs.reduce((total, program) => total + program.nodes.length, 0);
  const sum = (name) => {
    const values = programs.map((program) => program[name]).filter(known);
    const of = values.length && values.length < programs.length ? ` for ${values.length} of them` : '';
    return values.length ? seconds(values.reduce((total, value) => total + value, 0)) + of : 'unknown';
  };
  byId('summary').textContent = !programs.length && list(data.transfers).length ?
    `No programs were kept; ${count(data.transfers.length, 'transfer')} of keys and values.` : programs.length ? `${count(programs.length, 'program')}, ${nodes} recorded operators, ` +
    `predicted time ${sum('predicted_seconds')}, measured time ${sum('measured_seconds')}.` :
    'No programs were kept. Set torch.hetero.config.keep_plans = True before the work that is to be shown.';
}

function showLegends() {
  const box = (look, more = '') => `background: var(--${look}); ${more}`;
  const line = (look) => `height: 3px; background: var(--${look})`;
  const outline = 'border: 2px solid var(--ink); border-radius: 4px';
  legend(byId('graph-legend'), [[box('accelerator', 'border-radius: 6px'), 'accelerator (round)'], [box('cpu'), 'CPU (square)'],
    [outline, 'fused: one kernel'], ['border: 2px dashed var(--edge)', 'dead'], [line('edge'), 'value'],
    [line('h2d'), 'value goes to the accelerator'], [line('d2h'), 'value goes to the CPU']]);
  legend(byId('time-legend'), [[box('accelerator'), 'accelerator runs'], [box('cpu'), 'CPU runs'],
    [outline, 'fused kernel'], [box('h2d'), 'copy to the accelerator'], [box('d2h'), 'copy from the accelerator'],
    ['height: 0; border-top: 2px dashed var(--soft)', 'waits']]);
}

function whenTheLookChanges(redraw) {
  const changed = () => {
    readTheme();
    redraw();
  };
  window.addEventListener('resize', changed);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', changed);
}

function start() {
  readTheme();
  showSummary();
  const chooser = byId('programs');
  programs.forEach((program, index) => chooser.append(element('option', {value: index},
    `${index + 1}. ${program.name} (${count(program.nodes.length, 'node')}, ${seconds(program.predicted_seconds)} predicted)`)));
  byId('content').hidden = !programs.length;
  const transfers = showTransfers();
  if (!programs.length) {
    byId('summary').after(element('p', {id: 'node-count'}, count(0, 'node')));
    if (transfers) whenTheLookChanges(transfers.requestDraw);
    return;
  }
  showLegends();
  const graph = new GraphView(byId('graph')), time = new TimeView(byId('time'), byId('memory')), table = new NodeTable();

  function show(index) {
    selected = null;
    chooser.value = index;
    for (const part of [showFigures, showDecisions]) part(programs[index]);
    for (const view of [graph, time, table]) view.show(programs[index]);
  }
  function redraw() {
    readTheme();
    for (const view of [graph, time, transfers]) if (view) view.requestDraw();
  }
  select = (id, reveal) => {
    selected = id;
    if (reveal && id !== null) graph.reveal(id);
    table.mark();
    redraw();
  };
  for (const [id, view] of [['graph-fit', graph], ['time-fit', time], ['stretch', time]]) {
    byId(id).addEventListener('click', () => {
      view.fit();
      view.requestDraw();
    });
  }
  chooser.addEventListener('change', () => show(Number(chooser.value)));
  whenTheLookChanges(redraw);
  // The program that takes longest is what most readers come for.
  const cost = (program) => program.measured_seconds || program.predicted_seconds || 0;
  const wanted = Number(location.hash.slice(1)) - 1;
  show(wanted in programs ? wanted : programs.reduce((best, each, at) => cost(each) > cost(programs[best]) ? at : best, 0));
}

start();
