// Parallel coordinates of trials: an axis for each parameter and one for the metric.
import { el, svg } from './dom.js';
import { shortNumber } from './format.js';
import { inkOf, themeColours } from './paint.js';

const [TOP, BOTTOM, SIDE, HEIGHT, LEAST_GAP] = [46, 34, 64, 320, 104];
const SLOT = 20; // below an axis: trials without a value there
const REACH = 8;
const GRIP = 16;

// A parameter's name without the sections of a manifest, where that leaves no two alike.
export function shortNames(space) {
  const short = (name) => name.replace(/^(framework\.arguments|training)\./, '');
  const all = space.map((each) => short(each.name));
  return new Map(space.map((each, n) => [each.name, all.indexOf(all[n]) === all.lastIndexOf(all[n]) ? all[n] : each.name]));
}

// Where a value lies on an axis, from 0 at the bottom to 1 at the top; null: it has none.
export function axisOf(parameter) {
  const { kind, low, high, log, choices } = parameter;
  if (kind === 'choice') {
    return { ...parameter, share: (value) => (value === null ? null : (value + 0.5) / choices.length), shown: (value) => choices[value],
      ticks: choices.map((text, n) => [(n + 0.5) / choices.length, text]) };
  }
  const to = log ? Math.log : (value) => value;
  const share = (value) => {
    if (value === null) return null;
    return high === low ? 0.5 : Math.min(1, Math.max(0, (to(value) - to(low)) / (to(high) - to(low))));
  };
  const at = (part) => (log ? low * (high / low) ** part : low + (high - low) * part);
  const values = [0, 0.25, 0.5, 0.75, 1].map((part) => (kind === 'int' ? Math.round(at(part)) : at(part)));
  const ticks = [...new Set(kind === 'int' && high - low < 9 ? Array.from({ length: high - low + 1 }, (_, n) => low + n) : values)]
    .map((value) => [share(value), shortNumber(value, 3)]);
  return { ...parameter, share, ticks, shown: (value) => shortNumber(value) };
}

// The axis of the metric; the better end is at the top.
export function metricAxis(name, values, maximize) {
  const known = values.filter((value) => value !== null);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  const axis = axisOf({ name, kind: 'float', low, high, log: low > 0 && high / low > 100 });
  if (!known.length) return { ...axis, ticks: [] };
  if (maximize) return axis;
  return { ...axis, share: (value) => (value === null ? null : 1 - axis.share(value)), ticks: axis.ticks.map(([part, text]) => [1 - part, text]) };
}

// How good each trial is by its rank: 0 the best one, 1 the worst one, null without a metric.
export function goodness(values, maximize) {
  const order = values.map((value, n) => [value, n]).filter(([value]) => value !== null).sort((a, b) => (maximize ? b[0] - a[0] : a[0] - b[0]));
  const found = values.map(() => null);
  order.forEach(([, n], place) => {
    found[n] = order.length > 1 ? place / (order.length - 1) : 0;
  });
  return found;
}

export function goodnessColour(colours, part) {
  const [best, middle, worst] = [inkOf(0), colours.mark, inkOf(1)];
  const [from, to, share] = part < 0.5 ? [best, middle, part * 2] : [middle, worst, part * 2 - 1];
  return `color-mix(in srgb, ${to} ${Math.round(share * 100)}%, ${from})`;
}

export class Parallel {
  // chosen: called with the places of the trials that all brushes hold; null: there is no brush.
  // pointed: called with the place of the trial under the pointer, or null.
  constructor({ chosen, pointed }) {
    Object.assign(this, { chosen, pointed, brushes: new Map(), over: null, marked: null });
    this.canvas = el('canvas', { 'aria-hidden': 'true' });
    this.overlay = svg('svg', { class: 'axes' });
    this.box = el('div', { class: 'parallel' }, this.canvas, this.overlay);
    this.element = el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Parallel coordinates' }, this.box);
    this.overlay.addEventListener('pointerdown', (event) => this.press(event));
    this.overlay.addEventListener('pointermove', (event) => this.move(event));
    this.overlay.addEventListener('pointerup', () => this.release());
    this.overlay.addEventListener('pointerleave', () => this.point(null));
    this.resizes = new ResizeObserver(() => this.redraw());
    this.resizes.observe(this.element);
  }

  update(data, failedToo) {
    const { trials } = data;
    this.axes = [...data.space.map(axisOf), { ...metricAxis(data.metric, trials.metric, data.maximize), isMetric: true }];
    this.names = shortNames(data.space);
    for (const name of this.brushes.keys()) if (!this.axes.some((axis) => axis.name === name)) this.brushes.delete(name);
    this.columns = this.axes.map((axis) => (axis.isMetric ? trials.metric : trials.point[axis.name]));
    this.good = goodness(trials.metric, data.maximize);
    this.lines = trials.number.map((_, n) => n).filter((n) => trials.metric[n] !== null || (failedToo && trials.ended[n] !== null));
    this.best = trials.number.indexOf(data.best_trial);
    this.numbers = trials.number;
    this.choose();
    this.redraw();
  }

  clear() {
    this.brushes.clear();
    this.choose();
    this.redraw();
  }

  mark(place) {
    if (this.marked === place) return;
    this.marked = place;
    this.draw();
  }

  x(n) {
    return this.axes.length < 2 ? this.width / 2 : SIDE + (n * (this.width - 2 * SIDE)) / (this.axes.length - 1);
  }

  y(share) {
    return share === null ? HEIGHT - BOTTOM + SLOT : TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  }

  // The height of a trial at an axis.
  at(place, n) {
    return this.y(this.axes[n].share(this.columns[n][place]));
  }

  holds(place) {
    for (const [name, [low, high]] of this.brushes) {
      const n = this.axes.findIndex((axis) => axis.name === name);
      const y = this.at(place, n);
      if (y < low || y > high) return false;
    }
    return true;
  }

  choose() {
    this.inside = new Set(this.lines.filter((place) => this.holds(place)));
    this.chosen(this.brushes.size ? this.inside : null);
  }

  redraw() {
    if (!this.axes || !this.element.clientWidth) return;
    this.width = Math.max(this.element.clientWidth, 2 * SIDE + LEAST_GAP * (this.axes.length - 1));
    this.box.style.width = `${this.width}px`;
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(this.width * ratio), height: Math.round(HEIGHT * ratio) });
    this.drawAxes();
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const colours = themeColours();
    const ratio = devicePixelRatio || 1;
    const context = this.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, HEIGHT);
    const many = this.inside.size > 200;
    const stroke = (place, style, width, alpha) => {
      context.beginPath();
      this.axes.forEach((_, n) => context.lineTo(this.x(n), this.at(place, n)));
      Object.assign(context, { strokeStyle: style, lineWidth: width, globalAlpha: alpha });
      context.stroke();
    };
    for (const place of this.lines) if (!this.inside.has(place)) stroke(place, colours.grid, 1, 0.8);
    const inside = [...this.inside].sort((a, b) => (this.good[b] ?? 2) - (this.good[a] ?? 2));
    for (const place of inside) {
      const part = this.good[place];
      context.setLineDash(part === null ? [3, 3] : []);
      stroke(place, part === null ? colours.bad : goodnessColour(colours, part), 1.2, many ? 0.4 : 0.75);
    }
    context.setLineDash([]);
    if (this.inside.has(this.best)) stroke(this.best, inkOf(0), 3, 1);
    const marked = this.marked ?? this.over;
    if (marked !== null && marked !== undefined) stroke(marked, colours.text, 2.5, 1);
  }

  drawAxes() {
    const [bottom, top] = [HEIGHT - BOTTOM, TOP];
    this.overlay.replaceChildren();
    this.overlay.setAttribute('viewBox', `0 0 ${this.width} ${HEIGHT}`);
    this.overlay.setAttribute('width', this.width);
    this.overlay.setAttribute('height', HEIGHT);
    this.overlay.append(svg('title', {}, `${this.lines.length} trials over ${this.axes.map((axis) => axis.name).join(', ')}`));
    const room = this.axes.length < 2 ? this.width : (this.width - 2 * SIDE) / (this.axes.length - 1);
    this.axes.forEach((axis, n) => {
      const x = this.x(n);
      const missing = this.lines.some((place) => this.columns[n][place] === null);
      const group = svg('g', { class: axis.isMetric ? 'axis metric' : 'axis', 'data-axis': axis.name },
        svg('text', { x, y: 18, class: 'name' }, fittedEnd(this.names.get(axis.name) || axis.name, room / 7.6), svg('title', {}, axis.name)),
        svg('text', { x, y: 33, class: 'kind' }, axis.isMetric ? 'best at the top' : axis.log ? 'logarithmic' : ''),
        svg('line', { x1: x, x2: x, y1: top, y2: bottom }));
      for (const [share, text] of thinned(axis.ticks)) {
        group.append(svg('line', { x1: x - 4, x2: x, y1: this.y(share), y2: this.y(share) }), ...label(x - 7, this.y(share) + 4, fitted(text, Math.min(SIDE, room) / 6.6)));
      }
      if (missing) group.append(svg('circle', { cx: x, cy: this.y(null), r: 2.5 }), ...label(x - 7, this.y(null) + 4, axis.isMetric ? 'failed' : 'absent'));
      const brush = this.brushes.get(axis.name);
      if (brush) group.append(svg('rect', { class: 'brush', x: x - 7, width: 14, y: brush[0], height: Math.max(1, brush[1] - brush[0]) }));
      group.append(svg('rect', { class: 'grip', x: x - GRIP, width: 2 * GRIP, y: top - 6, height: bottom - top + SLOT + 12 }));
      this.overlay.append(group);
    });
  }

  place(event) {
    const box = this.overlay.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  press(event) {
    const [x, y] = this.place(event);
    const n = this.axes.findIndex((_, each) => Math.abs(this.x(each) - x) <= GRIP);
    if (n < 0) return;
    this.drag = { name: this.axes[n].name, from: y };
    this.brushes.delete(this.drag.name);
    this.overlay.setPointerCapture(event.pointerId);
    this.choose();
    this.redraw();
    event.preventDefault();
  }

  move(event) {
    const [x, y] = this.place(event);
    if (!this.drag) {
      this.point(this.nearest(x, y));
      return;
    }
    if (Math.abs(y - this.drag.from) < 3) return;
    this.brushes.set(this.drag.name, [Math.min(y, this.drag.from), Math.max(y, this.drag.from)]);
    this.choose();
    this.redraw();
  }

  release() {
    this.drag = null;
  }

  point(place) {
    if (place === this.over) return;
    this.over = place;
    this.pointed(place);
    this.draw();
  }

  nearest(x, y) {
    const n = Math.min(this.axes.length - 2, Math.max(0, Math.floor(((x - SIDE) / (this.width - 2 * SIDE)) * (this.axes.length - 1))));
    if (this.axes.length < 2) return null;
    const part = (x - this.x(n)) / (this.x(n + 1) - this.x(n));
    let [found, distance] = [null, REACH];
    for (const place of this.inside) {
      const [a, b] = [this.at(place, n), this.at(place, n + 1)];
      const away = Math.abs(a + (b - a) * Math.min(1, Math.max(0, part)) - y);
      if (away < distance) [found, distance] = [place, away];
    }
    return found;
  }

  destroy() {
    this.resizes.disconnect();
  }
}

// A text on paper of its own, so that no line runs through it.
function label(x, y, text) {
  const width = 7.4 * text.length + 6;
  return [svg('rect', { x: x + 3 - width, y: y - 11, width, height: 15, rx: 3, class: 'paper' }), svg('text', { x, y, class: 'tick' }, text)];
}

function fitted(text, most) {
  const whole = String(text);
  return whole.length > most ? `${whole.slice(0, Math.max(1, Math.floor(most) - 1))}…` : whole;
}

// The end of a path says more than its beginning.
function fittedEnd(text, most) {
  return text.length > most ? `…${text.slice(1 - Math.max(2, Math.floor(most)))}` : text;
}

// Not so many that they lie over each other.
function thinned(ticks) {
  const every = Math.ceil(ticks.length / 14);
  return ticks.filter((_, n) => n % every === 0);
}
