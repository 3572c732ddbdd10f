// A table that is sorted by a click on a column, and shows more rows on demand.
import { button, el } from './dom.js';
import { compared } from './format.js';

export class SortedTable {
  // sorting: the name of a column, and 1 or -1; the order of the rows until one is chosen.
  constructor(caption, { sorting = ['', 1], limit = 100, tall = false } = {}) {
    Object.assign(this, { caption, sorting, limit });
    this.element = el('div', {});
    this.box = el('div', { class: tall ? 'scroll tall' : 'scroll', tabindex: '0', role: 'region', 'aria-label': caption });
  }

  // columns: objects with `name`, and of a row its `key` to sort by, its `cell` and perhaps `label`, `title`, `kind` (a class) and `first`:
  // -1 if its largest value comes first.
  update(columns, rows, attributes = () => ({})) {
    this.last = [columns, rows, attributes];
    const [by, direction] = this.sorting;
    const sorted = columns.find((column) => column.name === by);
    const ordered = sorted ? rows.map((row) => [row, sorted.key(row)]).sort((a, b) => compared(a[1], b[1], direction)).map(([row]) => row) : rows;
    const head = columns.map((column) => el('th', { scope: 'col', 'aria-sort': by === column.name ? (direction > 0 ? 'ascending' : 'descending') : 'none', class: column.kind },
      button(column.label || column.name, () => this.sortBy(column.name), { class: 'sort', 'data-name': column.name, title: column.title })));
    const body = ordered.slice(0, this.limit).map((row) => el('tr', attributes(row), columns.map((column) => el('td', { class: column.kind }, column.cell(row)))));
    const { scrollLeft, scrollTop } = this.box;
    const focused = this.box.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    this.box.replaceChildren(el('table', {}, el('thead', {}, el('tr', {}, head)), el('tbody', {}, body)));
    const more = rows.length - this.limit;
    this.element.replaceChildren(this.box, more > 0 ? button(`Show ${more} more`, () => this.showAll(), { class: 'more' }) : '');
    Object.assign(this.box, { scrollLeft, scrollTop });
    if (focused) this.box.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
  }

  sortBy(name) {
    const [by, direction] = this.sorting;
    const { first = 1 } = this.last[0].find((column) => column.name === name);
    this.sorting = [name, by === name ? -direction : first];
    this.update(...this.last);
  }

  showAll() {
    this.limit = Infinity;
    this.update(...this.last);
  }
}
