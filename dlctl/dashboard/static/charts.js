// The charts of a page: one for each metric, made, updated and removed as the data wants.
import { readAddress, rewrite } from './address.js';
import { Chart } from './chart.js';
import { button, el } from './dom.js';

const FIRST_SHOWN = 24;

export class Charts {
  constructor(actions) {
    this.actions = { ...actions, pin: (name) => this.pin(name) };
    this.known = new Map();
    this.limits = new Map();
    this.folded = new Set();
    this.pins = (readAddress().query.get('pin') || '').split('\n').filter(Boolean);
    this.element = el('div', {});
  }

  // own, measured: by a metric's name the curves of a program, and those of its nodes; words: sentences about these.
  update({ own, measured, words = [] }, view, range, marks) {
    const wanted = new Set();
    this.last = [{ own, measured, words }, view, range, marks];
    const window = view.logx ? positive(range, [own, measured].flatMap((charts) => [...charts.values()].flat())) : range;
    const parts = [...this.sections(own), ['Utilisation', words, [...measured]]].filter(([, , charts]) => charts.length).map(([heading, about, charts]) => {
      const shown = charts.slice(0, this.limits.get(heading) || FIRST_SHOWN);
      const cards = shown.map(([name, curves]) => {
        const id = `${heading}/${name}`;
        wanted.add(id);
        return [this.chart(id, name), curves];
      });
      return { heading, words: about, cards, more: charts.length - shown.length };
    });
    for (const [id, chart] of this.known) {
      if (!wanted.has(id)) {
        chart.destroy();
        this.known.delete(id);
      }
    }
    this.place(parts);
    for (const { cards } of parts) {
      for (const [chart, curves] of cards) {
        chart.pin.setAttribute('aria-pressed', String(this.pins.includes(chart.name)));
        chart.update(curves, view, window, marks);
      }
    }
  }

  // Pinned charts come first; the others stand together by what is before the `/` of their names.
  sections(charts) {
    const found = new Map([['Pinned', []]]);
    for (const [name, curves] of charts) {
      const heading = this.pins.includes(name) ? 'Pinned' : name.includes('/') ? name.slice(0, name.indexOf('/')) : 'Curves';
      if (!found.has(heading)) found.set(heading, []);
      found.get(heading).push([name, curves]);
    }
    found.get('Pinned').sort((a, b) => this.pins.indexOf(a[0]) - this.pins.indexOf(b[0]));
    return [...found].map(([heading, of]) => [heading, [], of]);
  }

  pin(name) {
    this.pins = this.pins.includes(name) ? this.pins.filter((other) => other !== name) : [...this.pins, name];
    rewrite({ pin: this.pins.join('\n') });
    this.update(...this.last);
  }

  fold(heading, open) {
    if (open) this.folded.delete(heading);
    else this.folded.add(heading);
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
    this.element.replaceChildren(...parts.map(({ heading, words, cards, more }) => el('details', { class: 'section', 'aria-label': heading, open: !this.folded.has(heading), ontoggle: (event) => this.fold(heading, event.target.open) },
      el('summary', {}, el('h2', {}, heading), el('span', { class: 'sub' }, `${cards.length + more} ${cards.length + more === 1 ? 'chart' : 'charts'}`)), words.map((word) => el('p', { class: 'words' }, word)),
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
