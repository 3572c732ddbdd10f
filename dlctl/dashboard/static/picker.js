// Choose the trainings of a comparison: the chosen ones first, then those that a person finds.
import { button, el } from './dom.js';
import { matcher } from './format.js';
import { rowText } from './list.js';
import { swatch } from './paint.js';

const MOST_CHOSEN = 24;
const MOST_OTHERS = 12;
const AT_ONCE = 100;

export class Picker {
  // page: has `runs`, `colour(id)` and `choose(ids)`.
  constructor(page) {
    Object.assign(this, { page, rows: [], limit: MOST_CHOSEN });
    this.input = el('input', { type: 'search', id: 'find-trainings', placeholder: 'Find trainings', title: 'A regular expression: of ids, names, sites, states, tags and varied values', 'aria-label': 'Find trainings by a regular expression', oninput: () => this.show() });
    this.all = button('', () => this.chooseAll(), {});
    this.none = button('Choose none', () => page.choose([]), {});
    this.chips = el('div', { class: 'picker', role: 'group', 'aria-label': 'Trainings' });
    this.element = el('div', {}, el('div', { class: 'row' }, this.input, this.all, this.none), this.chips);
  }

  update(rows) {
    this.rows = rows;
    this.show();
  }

  show() {
    const { runs } = this.page;
    const fits = matcher(this.input.value);
    const focused = document.activeElement?.dataset?.id;
    const found = this.rows.filter((row) => fits(rowText(row)));
    const others = found.filter((row) => !runs.includes(row.id));
    this.found = others.slice(0, AT_ONCE).map((row) => row.id);
    this.chips.replaceChildren(
      ...runs.slice(0, this.limit).map((id) => this.chip(id)),
      runs.length > this.limit ? button(`and ${runs.length - this.limit} more`, () => this.showAll(), { class: 'entry' }) : '',
      ...others.slice(0, MOST_OTHERS).map((row) => this.chip(row.id)),
      others.length > MOST_OTHERS ? el('span', { class: 'sub' }, `and ${others.length - MOST_OTHERS} more: find them`) : '');
    this.all.hidden = !this.input.value || !others.length;
    this.all.textContent = others.length > AT_ONCE ? `Choose the newest ${AT_ONCE} of ${others.length} found` : `Choose ${others.length} found`;
    this.none.hidden = !runs.length;
    if (focused) this.chips.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  chip(id) {
    const { runs } = this.page;
    const on = runs.includes(id);
    const others = runs.filter((other) => other !== id);
    return el('button', { type: 'button', class: 'entry pick', 'data-id': id, 'aria-pressed': String(on), onclick: () => this.page.choose(on ? others : [...others, id]) },
      on ? swatch(this.page.colour(id)) : null, el('span', {}, id));
  }

  showAll() {
    this.limit = Infinity;
    this.show();
  }

  chooseAll() {
    this.page.choose([...this.page.runs, ...this.found]);
  }
}
