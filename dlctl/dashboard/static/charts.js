// The charts of a page: one for each metric, made, updated and removed as the data wants.
import { Chart } from './chart.js';
import { button, el } from './dom.js';

const FIRST_SHOWN = 24;

export class Charts {
  constructor(actions) {
    this.actions = actions;
    this.known = new Map();
    this.limits = new Map();
    this.element = el('div', {});
  }

  // sections: a list of [heading, sentences, Map of a metric's name to curves].
  update(sections, view, range, marks) {
    const wanted = new Set();
    this.last = [sections, view, range, marks];
    const window = view.logx ? positive(range, sections.flatMap(([, , charts]) => [...charts.values()].flat())) : range;
    const parts = sections.filter(([, , charts]) => charts.size).map(([heading, words, charts]) => {
      const shown = [...charts].slice(0, this.limits.get(heading) || FIRST_SHOWN);
      const cards = shown.map(([name, curves]) => {
        const id = `${heading}/${name}`;
        wanted.add(id);
        return [this.chart(id, name), curves];
      });
      return { heading, words, cards, more: charts.size - shown.length };
    });
    for (const [id, chart] of this.known) {
      if (!wanted.has(id)) {
        chart.destroy();
        this.known.delete(id);
      }
    }
    this.place(parts);
    for (const { cards } of parts) for (const [chart, curves] of cards) chart.update(curves, view, window, marks);
  }

  chart(id, name) {
    if (!this.known.has(id)) this.known.set(id, new Chart(name, this.actions));
    return this.known.get(id);
  }

  // Only what has changed its place is moved: a chart under the pointer stays as it is.
  place(parts) {
    const layout = JSON.stringify(parts.map((part) => [part.heading, part.words, part.more, part.cards.map(([chart]) => chart.name)]));
    if (layout === this.layout) return;
    this.layout = layout;
    this.element.replaceChildren(...parts.map(({ heading, words, cards, more }) => el('section', { 'aria-label': heading },
      el('h2', {}, heading), words.map((word) => el('p', { class: 'words' }, word)),
      el('div', { class: 'grid' }, cards.map(([chart]) => chart.element)),
      more > 0 ? button(`Show ${more} more`, () => this.showMore(heading), { class: 'more' }) : null)));
  }

  showMore(heading) {
    this.limits.set(heading, Infinity);
    this.update(...this.last);
  }

  redraw() {
    for (const chart of this.known.values()) chart.redraw();
  }

  get all() {
    return [...this.known.values()];
  }

  destroy() {
    for (const chart of this.known.values()) chart.destroy();
    this.known.clear();
  }
}

// A logarithmic axis begins at the first x above zero, the same for all charts.
function positive([from, to], curves) {
  if (from > 0) return [from, to];
  let low = Infinity;
  for (const curve of curves) for (const x of curve.x) if (x > 0 && x < low) low = x;
  return [low < to ? low : to / 1000 || 1, to];
}
