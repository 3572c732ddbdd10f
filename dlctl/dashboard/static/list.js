// The page of all trainings.
import { address, readAddress, rewrite } from './address.js';
import { getTrainings, saved } from './api.js';
import { button, el, svg } from './dom.js';
import { ago, clock, matcher, percent, progressWords, roughly, shortNumber } from './format.js';
import { Repeater } from './toolbar.js';

export function stateChip(row) {
  const stale = row.stale_since ? ` · stale since ${clock(row.stale_since)}` : '';
  return el('span', { class: `state is-${String(row.state).toLowerCase()}` }, row.state, stale);
}

export function sparkLine(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return el('span', { class: 'quiet-text' }, '–');
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const place = (value, n) => `${((n / (values.length - 1)) * 118 + 1).toFixed(1)} ${(25 - ((value - low) / (high - low || 1)) * 22).toFixed(1)}`;
  const parts = values.map((value, n) => (value === null ? null : place(value, n))).filter(Boolean);
  return svg('svg', { class: 'spark', viewBox: '0 0 120 28', 'aria-hidden': 'true' },
    svg('path', { d: `M${parts.join('L')}` }));
}

// What a person can find a training by.
export function rowText(row) {
  return [row.id, row.name, row.site, row.state, row.varied, ...(row.tags || [])].join(' ');
}

// Where an id is too long, its unique end stays.
function idParts(id) {
  const end = id.lastIndexOf('-');
  return end < 1 ? [el('span', {}, id)] : [el('span', {}, id.slice(0, end)), el('b', {}, id.slice(end))];
}

export function progressBar(row) {
  const done = row.moved ?? row.done ?? null;
  const bar = el('progress', { max: '1', 'aria-label': 'Share that is done' });
  if (done !== null) bar.value = done;
  return el('div', { class: 'bar' }, done === null ? null : bar,
    el('span', {}, [done === null ? '' : percent(done), progressWords(row)].filter(Boolean).join(' · ') || '–'));
}

const FIRST_ROWS = 200;
const SPARKS = 40; // as the server reads

export class ListPage {
  constructor(main) {
    this.main = main;
    this.ids = [];
    this.chosen = new Set();
    this.rows = [];
    this.limit = FIRST_ROWS;
    this.more = button('', () => this.showAll(), { class: 'more', hidden: true });
    this.repeater = new Repeater(() => this.load(), 700);
    this.input = el('input', { type: 'search', id: 'find', placeholder: 'Find trainings', title: 'A regular expression: of ids, names, sites, states, tags and varied values',
      'aria-label': 'Find trainings by a regular expression', value: readAddress().query.get('find') || '', oninput: () => this.find() });
    this.compare = el('a', { class: 'button', href: '#/compare' }, 'Compare');
    this.body = el('div', { class: 'trainings', role: 'list' });
    this.sparks = el('p', { class: 'empty', hidden: true }, `Curves, time left and GPU use stand here for the ${SPARKS} newest trainings; open an older one to see its own.`);
    main.replaceChildren(
      el('div', { class: 'head' }, el('h1', {}, 'Trainings'), el('span', { class: 'grow' }), this.input, this.compare), this.body, this.sparks, this.more);
  }

  start() {
    return this.repeater.ask();
  }

  changed() {
    this.repeater.ask();
  }

  async load() {
    const rows = await getTrainings();
    const text = JSON.stringify(rows);
    if (text === this.text) return;
    this.text = text;
    this.rows = rows;
    this.show();
  }

  find() {
    rewrite({ find: this.input.value });
    this.show();
  }

  show() {
    const fits = matcher(this.input.value);
    const focused = document.activeElement?.dataset?.id;
    const rows = this.rows.filter((row) => fits(rowText(row)));
    this.body.replaceChildren(...rows.slice(0, this.limit).map((row) => this.row(row)));
    this.body.classList.toggle('no-gpu', rows.every((row) => row.gpu === null));
    this.sparks.hidden = this.rows.length <= SPARKS || Boolean(saved);
    this.more.hidden = rows.length <= this.limit;
    this.more.textContent = `Show ${rows.length - this.limit} older ones`;
    if (!rows.length) this.body.replaceChildren(el('p', { class: 'empty', role: 'listitem' }, this.rows.length ? 'No training fits.' : 'No trainings yet: dlctl submit starts one.'));
    if (focused) this.body.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
    this.showCompare();
  }

  showAll() {
    this.limit = Infinity;
    this.show();
  }

  showCompare() {
    const chosen = this.rows.map((row) => row.id).filter((id) => this.chosen.has(id));
    this.compare.textContent = chosen.length ? `Compare ${chosen.length}` : 'Compare';
    this.compare.href = address('compare', '', { runs: chosen.join(',') });
  }

  row(row) {
    const choose = (event) => {
      if (event.target.checked) this.chosen.add(row.id);
      else this.chosen.delete(row.id);
      this.showCompare();
    };
    const line = (text) => el('span', { class: 'sub line', title: text }, text);
    const cell = (kind, label, ...content) => el('div', { class: `cell ${kind}` }, el('span', { class: 'tag' }, label), ...content);
    const time = row.live ? (row.left_s ? roughly(row.left_s[1]) : '–') : (row.ended_at ? ago(row.ended_at, row.clock_ahead_s) : ago(row.created_at));
    return el('div', { class: 'training', role: 'listitem' },
      el('input', { type: 'checkbox', checked: this.chosen.has(row.id), onchange: choose, 'data-id': `box ${row.id}`, 'aria-label': `Choose ${row.id} for a comparison` }),
      el('div', { class: 'cell who' }, el('a', { href: address(row.is_search ? 'search' : 'training', row.id), 'data-id': row.id, 'aria-label': row.id, title: row.id }, idParts(row.id)),
        line([row.varied, row.name === row.id.split('-')[0] ? '' : row.name, row.site].filter(Boolean).join(' · '))),
      el('div', { class: 'cell what' }, stateChip(row), line(row.trouble ? `${row.site} does not answer` : row.reason || '')),
      cell('done', 'Progress', progressBar(row)), cell('time', row.live ? 'Time left' : 'Ended', el('span', {}, time)),
      cell('measure', row.spark_name || 'loss', el('span', {}, shortNumber(row.spark_name ? row.spark_last : row.loss))),
      el('div', { class: 'cell curve' }, sparkLine(row.spark || [])),
      cell('gpu', 'GPU use', el('span', {}, row.gpu === null ? '–' : `${Math.round(row.gpu)} %`)));
  }

  key(key) {
    if (key === '/') this.input.focus();
    else return false;
    return true;
  }

  stop() {
    this.repeater.stop();
  }
}
