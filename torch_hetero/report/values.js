'use strict';

// ---- Text and elements

const byId = (id) => document.getElementById(id);
const list = (value) => Array.isArray(value) ? value : [];
const known = (value) => value !== null && value !== undefined;
const NOTHING = '–';

/** Makes an element; children are elements or text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function digits(value) {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(3)));
}

const SECONDS = [['s', 1], ['ms', 1e-3], ['µs', 1e-6], ['ns', 1e-9]];
const secondsUnit = (value) => SECONDS.find(([, size]) => Math.abs(value) >= size) || SECONDS[3];

function seconds(value) {
  if (!known(value)) return NOTHING;
  if (!value) return '0 s';
  const [unit, size] = secondsUnit(value);
  return `${digits(value / size)} ${unit}`;
}

function bytes(value) {
  if (!known(value)) return NOTHING;
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let power = 0;
  for (; Math.abs(value) >= 1024 && power < 4; ++power) value /= 1024;
  return `${digits(value)} ${units[power]}`;
}

function figure(name, value) {
  if (typeof value !== 'number') return known(value) ? String(value) : NOTHING;
  return name.includes('bytes') ? bytes(value) : name.includes('seconds') ? seconds(value) : digits(value);
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;
const ratio = (over, under) => known(over) && under > 0 ? over / under : null;
const times = (value) => known(value) ? `${digits(value)} ×` : NOTHING;
const shortName = (op) => String(known(op) ? op : NOTHING).replace(/^aten::/, '');

// ---- Colours: one look for a device or a direction of copies, everywhere

let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ['page', 'panel', 'ink', 'soft', 'line', 'edge', 'pick', 'cpu', 'accelerator', 'h2d', 'd2h', 'other'];
  theme = {};
  for (const name of names) theme[name] = style.getPropertyValue(`--${name}`).trim();
  for (const name of names.slice(7)) theme[`${name}-ink`] = style.getPropertyValue(`--${name}-ink`).trim();
}

const deviceLook = (device) => device === 'cpu' || device === 'accelerator' ? device : 'other';

function spanLook(span) {
  const queue = String(span.queue);
  if (span.kind === 'copy') return queue.endsWith('d2h') ? 'd2h' : 'h2d';
  return deviceLook(queue.split(' ')[0]);
}

function legend(target, entries) {
  target.replaceChildren(...entries.map(([style, text]) => element('span', {class: 'key'}, element('i', {style}), text)));
}

// ---- A program, with what is derived from it

/** Returns the program with no list missing, its nodes by id, and the ids that read each node. */
function prepare(raw, index) {
  const program = {...raw, name: raw.name || `program ${index + 1}`};
  for (const name of ['nodes', 'spans', 'memory', 'decisions']) program[name] = list(raw[name]);
  program.counts = raw.counts || {};
  program.byId = new Map(program.nodes.map((node) => [node.id, node]));
  program.readers = new Map();
  for (const node of program.nodes) {
    for (const input of list(node.inputs)) {
      if (!program.readers.has(input)) program.readers.set(input, []);
      program.readers.get(input).push(node.id);
    }
  }
  return program;
}

function nodeLines(node, program) {
  const readers = program.readers.get(node.id) || [];
  const share = ratio(node.measured, node.predicted);
  return {title: `${node.id}  ${node.op}`, lines: [
    ['device', node.device], ['because', node.reason], ['result', node.shape],
    ['predicted', seconds(node.predicted)], ['measured', seconds(node.measured)],
    ['measured / predicted', share === null ? null : times(share)],
    ['predicted elsewhere', known(node.other_device) ? seconds(node.other_device) : null],
    ['bytes', bytes(node.bytes)], ['fused group', node.group],
    ['reads', list(node.inputs).join(', ')], ['read by', readers.join(', ')],
    ['', node.live === false ? 'dead: nobody needs the value, so it never runs' : null]]};
}

function spanLines(span, program) {
  const node = program.byId.get(span.node);
  const whether = (begin, end) => known(begin) && known(end) ? `${seconds(begin)} + ${seconds(end - begin)}` : NOTHING;
  return {title: String(span.name), lines: [
    ['queue', span.queue], ['kind', span.kind], ['node', span.node], ['because', node && node.reason],
    ['result', node && node.shape], ['buffer', span.buffer], ['bytes', known(span.bytes) ? bytes(span.bytes) : null],
    ['predicted', whether(span.begin, span.end)], ['measured', whether(span.measured_begin, span.measured_end)],
    ['waits before it', span.stall > 0 ? seconds(span.stall) : null]]};
}
