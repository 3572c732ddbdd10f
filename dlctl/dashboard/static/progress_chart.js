// The best value of a search so far, and the value of each trial.
import { button, el, setText } from './dom.js';
import { clock, shortNumber } from './format.js';
import { inkOf, swatch, themeColours } from './paint.js';

const CHART_HEIGHT = 260;
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

export class ProgressChart {
  constructor({ pointed }) {
    Object.assign(this, { pointed, byTime: false, logarithmic: false });
    this.at = el('span', { class: 'at' });
    this.plotBox = el('div', { class: 'progress-plot' });
    this.choices = [
      button('by time', () => this.toggle('byTime'), { class: 'choice', 'aria-pressed': 'false' }),
      button('log', () => this.toggle('logarithmic'), { class: 'choice', 'aria-pressed': 'false' })];
    this.element = el('section', { class: 'card chart', 'aria-label': 'Best so far' },
      el('header', {}, el('h2', {}, 'Best so far'), this.at, el('div', { class: 'choices' }, this.choices)),
      el('div', { class: 'legend' },
        el('span', { class: 'entry' }, swatch(1), el('span', { class: 'label' }, 'best so far')),
        el('span', { class: 'entry' }, swatch(0, 'dot'), el('span', { class: 'label' }, 'each trial'))),
      this.plotBox);
    this.resizes = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.resizes.observe(this.plotBox);
  }

  toggle(name) {
    this[name] = !this[name];
    this.choices.forEach((each, n) => each.setAttribute('aria-pressed', String(this[['byTime', 'logarithmic'][n]])));
    this.redraw();
  }

  size() {
    return { width: Math.max(120, this.plotBox.clientWidth), height: CHART_HEIGHT };
  }

  update(data) {
    this.data = data;
    this.redraw();
  }

  // Trials in the order of their ends, with the best value by then.
  columns() {
    const { trials, best_over_time: steps } = this.data;
    const order = trials.number.map((_, n) => n).filter((n) => trials.ended[n] !== null).sort((a, b) => trials.ended[a] - trials.ended[b]);
    let step = 0;
    const best = order.map((n) => {
      while (step < steps.length && steps[step].ended <= trials.ended[n]) step += 1;
      return step ? steps[step - 1].metric : null;
    });
    const times = order.map((n) => trials.ended_at[n]);
    for (let n = 1; n < times.length; n += 1) times[n] = Math.max(times[n], times[n - 1]);
    return { order, x: this.byTime ? times : order.map((n) => trials.ended[n]), best, each: order.map((n) => trials.metric[n]) };
  }

  redraw() {
    if (!this.data) return;
    this.plot?.destroy();
    this.plot = null;
    const { order, x, best, each } = this.columns();
    this.order = order;
    if (!each.some((value) => value !== null)) {
      this.plotBox.replaceChildren(el('p', { class: 'empty' }, 'No trial has ended well so far.'));
      return;
    }
    this.plotBox.replaceChildren();
    const colours = themeColours();
    const positive = each.every((value) => value === null || value > 0);
    const font = `11px ${colours.font}`;
    const axis = (more) => ({ stroke: colours.quiet, font, grid: { stroke: colours.grid, width: 1 }, ticks: { stroke: colours.grid, width: 1 }, ...more });
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      scales: { x: { time: this.byTime, range: x.length > 1 ? undefined : () => [x[0] - 1, x[0] + 1] }, y: { distr: this.logarithmic && positive ? 3 : 1 } },
      axes: [axis({ label: this.byTime ? 'time' : 'trials that have ended', labelSize: 16, labelGap: 0, labelFont: font, ...(this.byTime ? {} : { incrs: WHOLE }) }),
        axis({ size: 62, label: this.data.metric, labelSize: 16, labelFont: font, values: (_, ticks) => ticks.map((value) => (value === null ? '' : shortNumber(value, 3))) })],
      series: [{}, { stroke: inkOf(1), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: x.length < 2, size: 6 }, spanGaps: true },
        { stroke: inkOf(0), paths: () => null, points: { show: true, size: x.length > 300 ? 3 : 5, fill: inkOf(0) } }],
      hooks: { setCursor: [(plot) => this.onCursor(plot.cursor.idx)] },
    }, [x, best, each], this.plotBox);
  }

  onCursor(index) {
    const place = index === null || index === undefined ? null : this.order[index];
    this.pointed(place);
    const { trials, metric } = this.data;
    setText(this.at, place === null ? '' : `trial ${trials.number[place]}, ended ${clock(trials.ended_at[place])}: ${trials.metric[place] === null ? trials.outcome[place] : `${metric} ${shortNumber(trials.metric[place], 6)}`}`);
  }

  destroy() {
    this.resizes.disconnect();
    this.plot?.destroy();
  }
}
