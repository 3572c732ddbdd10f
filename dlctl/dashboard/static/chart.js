// One chart: uPlot draws the axes and knows the cursor; the columns are painted here.
import { button, el, printable, setText } from './dom.js';
import { isMemory, metricValue, title, xTick, xValue } from './format.js';
import { canvasPen, inkOf, logTicks, nearest, rangeOfY, swatch, themeColours, ticks, traceBand, traceColumns, traceLine } from './paint.js';
import { saveMenu } from './save.js';

const TIME_STEPS = [...[-6, -5, -4, -3, -2, -1].flatMap((power) => [1, 2, 5].map((factor) => Number(`${factor}e${power}`))), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const BYTE_STEPS = Array.from({ length: 50 }, (_, n) => 2 ** n);
const FEW = 40;
const NEAR = 5;
const MOST_ENTRIES = 12;

export class Chart {
  constructor(name, actions) {
    this.name = name;
    this.actions = actions;
    this.curves = [];
    this.hidden = new Set();
    this.plot = null;
    this.options = '';
    this.limit = MOST_ENTRIES;
    this.at = el('span', { class: 'at' });
    this.legend = el('div', { class: 'legend', role: 'group', 'aria-label': `Curves of ${title(name)}` });
    this.box = el('div', { class: 'plot', role: 'img' });
    this.pin = button('Pin', () => actions.pin(name), { class: 'quiet pin', 'aria-label': `Pin the chart of ${title(name)}` });
    this.more = button('', () => this.showAllEntries(), { class: 'entry more-entries' });
    this.element = el('section', { class: 'card chart' },
      el('header', {}, el('h3', {}, title(name)), this.at, this.pin, saveMenu(this)), this.legend, this.box);
    this.observers = [
      new ResizeObserver(() => this.resize()),
      new IntersectionObserver((entries) => this.comeNear(entries.at(-1).isIntersecting), { rootMargin: '100%' })];
    for (const observer of this.observers) observer.observe(this.box);
  }

  destroy() {
    for (const observer of this.observers) observer.disconnect();
    this.plot?.destroy();
    this.element.remove();
  }

  // curves: columns with `label`, `colour` (of `inkOf`), `dashed`, and `band` if they are the mean and the range of several.
  update(curves, view, range, marks) {
    Object.assign(this, { curves, view, marks });
    this.rangeX = range[0] < range[1] ? range : [range[0], range[0] + 1];
    this.drawLegend();
    this.redraw();
  }

  get breaks() {
    return this.view.x === 'time' ? this.marks.attempts.slice(1).map((attempt) => attempt.begin).filter((x) => x !== null) : [];
  }

  get visible() {
    return this.curves.filter((curve) => !this.hidden.has(curve.label));
  }

  redraw() {
    const range = rangeOfY(this.visible, this.view.robust, this.view.logy);
    this.log = this.view.logy && range !== null;
    this.rangeY = range || [0, 1];
    const options = `${this.view.x}|${this.view.logx}|${this.log}|${document.documentElement.dataset.theme}`;
    if (options !== this.options) {
      this.plot?.destroy();
      this.plot = null;
      this.options = options;
    }
    this.box.setAttribute('aria-label', printable(this.summary()));
    const width = this.box.clientWidth;
    this.isLate = !width || !this.isNear;
    if (this.isLate) return;
    const data = [this.rangeX, [null, null]];
    if (this.plot) this.plot.setData(data, true);
    else this.plot = new uPlot(this.settings(width), data, this.box);
  }

  // Charts that are folded, or further away than a screen, are drawn when they come near.
  comeNear(isNear) {
    this.isNear = isNear;
    if (isNear && this.isLate && this.view) this.redraw();
  }

  resize() {
    const width = this.box.clientWidth;
    if (this.plot && width && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: this.height() });
  }

  height() {
    return this.box.clientHeight || 200;
  }

  settings(width) {
    const colours = themeColours();
    const font = `11px ${colours.font}`;
    const axis = { stroke: colours.quiet, font, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false } };
    const { x } = this.view;
    const logarithmic = (space) => ({
      splits: (plot, number, low, high) => logTicks(low, high, Math.max(2, (number ? this.height() : plot.width) / space)),
      filter: (_, splits) => splits,
    });
    const digits = (splits) => Math.max(3, Math.min(12, spread(splits)));
    return {
      width, height: this.height(), padding: [6, 14, 0, 0], legend: { show: false },
      scales: {
        x: { time: false, distr: this.view.logx ? 3 : 1, range: () => this.rangeX },
        y: { distr: this.log ? 3 : 1, range: () => this.rangeY },
      },
      axes: [
        { ...axis, size: 20, gap: 4, space: 64, label: x, labelSize: 14, labelGap: 0, labelFont: font, ...(this.view.logx ? logarithmic(70) : x === 'time' ? { incrs: TIME_STEPS } : {}),
          values: (_, splits) => splits.map((value) => (value === null ? '' : xTick(x, value, Math.max(4, digits(splits)), gapOf(splits)))) },
        { ...axis, size: (_, values) => Math.max(62, 14 + 6 * Math.max(...(values || ['']).map((value) => value.length))), gap: 6, space: 30, ...(this.log ? logarithmic(36) : isMemory(this.name) ? { incrs: BYTE_STEPS } : { incrs: [Number.MAX_VALUE], splits: (_, number, low, high) => ticks(low, high, this.height() / 30) }),
          values: (_, splits) => splits.map((value) => (value === null ? '' : metricValue(this.name, value, digits(splits)))) },
      ],
      series: [{}, { scale: 'y', points: { show: false } }],
      cursor: {
        drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false,
        sync: { key: 'dlctl', scales: ['x', null], setSeries: false },
        bind: { dblclick: () => () => this.actions.zoom(null, null) },
      },
      hooks: {
        draw: [(plot) => this.paint(plot)],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => this.select(plot)],
      },
    };
  }

  paint(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const colours = themeColours();
    const [toX, toY] = this.places((x) => plot.valToPos(x, 'x', true), (y) => plot.valToPos(y, 'y', true));
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    this.paintMarks(ctx, bbox, toX, colours, ratio);
    for (const curve of this.visible) this.paintCurve(ctx, curve, toX, toY, ratio);
    ctx.restore();
  }

  places(toX, toY) {
    const far = 1e5;
    const [bottom, top] = this.rangeY;
    const beyond = (bottom > top ? -1 : 1) * far;
    return [
      (x) => (this.view.logx && x <= 0 ? toX(this.rangeX[0]) : toX(x)),
      (y) => {
        if (y === null || (this.log && y <= 0)) return null;
        return Math.max(-beyond, Math.min(beyond, toY(y)));
      },
    ];
  }

  paintCurve(ctx, curve, toX, toY, ratio) {
    const pen = canvasPen(ctx, 2 * ratio);
    ctx.strokeStyle = inkOf(curve.colour);
    ctx.lineJoin = 'round';
    ctx.lineCap = 'round';
    ctx.setLineDash(curve.dashed ? [5 * ratio, 4 * ratio] : []);
    ctx.globalAlpha = curve.smooth ? 0.28 : 1;
    ctx.lineWidth = (curve.smooth ? 1 : 1.4) * ratio;
    if (curve.band) {
      ctx.fillStyle = ctx.strokeStyle;
      ctx.globalAlpha = 0.18;
      ctx.beginPath();
      traceBand(curve, toX, toY, pen);
      ctx.fill();
      ctx.globalAlpha = 1;
    }
    ctx.beginPath();
    if (curve.band) traceLine(curve.x, curve.last, toX, toY, pen, this.breaks);
    else traceColumns(curve, toX, toY, pen, this.breaks);
    ctx.stroke();
    ctx.globalAlpha = 1;
    if (curve.smooth) {
      ctx.lineWidth = 1.8 * ratio;
      ctx.beginPath();
      traceLine(curve.x, curve.smooth, toX, toY, pen, this.breaks);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    if (curve.x.length <= FEW && !curve.low) this.paintDots(ctx, curve, toX, toY, ratio);
  }

  paintDots(ctx, curve, toX, toY, ratio) {
    ctx.fillStyle = ctx.strokeStyle;
    for (let n = 0; n < curve.x.length; n += 1) {
      const y = toY(curve.last[n]);
      if (y === null) continue;
      ctx.beginPath();
      ctx.arc(toX(curve.x[n]), y, 2.2 * ratio, 0, 7);
      ctx.fill();
    }
  }

  // Attempts as bands, so that every second one is tinted, and events as thin lines.
  paintMarks(ctx, bbox, toX, colours, ratio) {
    this.marks.attempts.forEach((attempt, n) => {
      if (n % 2 === 0 || attempt.begin === null) return;
      const begin = toX(attempt.begin);
      const end = attempt.end === null ? bbox.left + bbox.width : toX(attempt.end);
      ctx.fillStyle = colours.band;
      ctx.fillRect(begin, bbox.top, end - begin, bbox.height);
    });
    ctx.lineWidth = ratio;
    ctx.font = `${10 * ratio}px ${colours.font}`;
    for (const event of this.marks.events) {
      if (event.x === null) continue;
      const x = Math.round(toX(event.x)) + 0.5;
      const major = event.kind === 'verdict' || event.kind === 'learning_rate' || event.kind === 'order' || event.kind === 'plateau';
      ctx.strokeStyle = event.kind === 'verdict' ? colours.bad : colours.mark;
      ctx.setLineDash(major ? [] : [2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top + (major ? 0 : bbox.height - 8 * ratio));
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
  }

  point(plot) {
    const { left } = plot.cursor;
    const inside = left !== undefined && left >= 0;
    const x = inside ? plot.posToVal(left, 'x') : null;
    const event = inside ? this.marks.events.find((each) => each.x !== null && Math.abs(plot.valToPos(each.x, 'x') - left) < NEAR) : null;
    setText(this.at, inside ? [xValue(this.view.x, x), event?.text].filter(Boolean).join(' · ') : '');
    this.curves.forEach((curve, n) => {
      const place = inside && curve.x.length ? nearest(curve.x, x) : -1;
      const value = place < 0 ? curve.newest : (curve.smooth || curve.last)[place];
      const shown = this.entries[n]?.lastChild;
      if (shown) setText(shown, metricValue(this.name, value ?? null));
    });
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [from, to] = [plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.actions.zoom(from, to);
  }

  drawLegend() {
    const shown = this.curves.slice(0, this.limit);
    const labels = JSON.stringify([this.curves.length, shown.map((curve) => [curve.label, curve.colour])]);
    if (labels !== this.labels) {
      this.labels = labels;
      this.more.textContent = `and ${this.curves.length - shown.length} more`;
      this.entries = shown.map((curve) => this.legendItem(curve));
      this.legend.replaceChildren(...this.entries, ...(this.curves.length > shown.length ? [this.more] : []));
    }
    this.entries.forEach((item, n) => {
      item.setAttribute('aria-pressed', String(!this.hidden.has(this.curves[n].label)));
      setText(item.lastChild, metricValue(this.name, this.curves[n].newest ?? null));
      item.title = `${this.extremes(this.curves[n])}Hide or show; with Shift: only this one`;
    });
  }

  legendItem(curve) {
    return el('button', {
      type: 'button', class: 'entry',
      onclick: (event) => this.toggle(curve.label, event.shiftKey),
    }, swatch(curve.colour, curve.dashed ? 'dashed' : ''), el('span', { class: 'label' }, curve.label), el('b'));
  }

  showAllEntries() {
    this.limit = Infinity;
    this.drawLegend();
  }

  extremes({ ends }) {
    if (!ends) return '';
    const inWords = ([step, value]) => `${metricValue(this.name, value, 10)}${step < 0 ? '' : ` at ${xValue('step', step)}`}`;
    return `Lowest ${inWords(ends.lowest)}, highest ${inWords(ends.highest)}. `;
  }

  toggle(label, alone) {
    if (alone) {
      const others = this.curves.map((curve) => curve.label).filter((other) => other !== label);
      const isAlone = others.every((other) => this.hidden.has(other)) && !this.hidden.has(label);
      this.hidden = new Set(isAlone ? [] : others);
    } else if (!this.hidden.delete(label)) this.hidden.add(label);
    this.drawLegend();
    this.redraw();
  }

  summary() {
    const newest = this.visible.slice(0, 6).map((curve) => `${curve.label}: ${metricValue(this.name, curve.newest ?? null)}`);
    return `Chart of ${title(this.name)}. Newest values: ${newest.join(', ') || 'none'}.`;
  }
}

function gapOf(splits) {
  const [first, next] = splits.filter((value) => value !== null);
  return next === undefined ? 0 : Math.abs(next - first);
}

function spread(splits) {
  const gap = gapOf(splits);
  return gap > 0 ? Math.ceil(Math.log10(Math.max(...splits.map(Math.abs)) / gap)) + 1 : 4;
}
