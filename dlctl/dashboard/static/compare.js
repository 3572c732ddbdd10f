// The page that compares trainings.
import { address, readAddress, rewrite } from './address.js';
import { getCurves, getDetails, getTrainings } from './api.js';
import { Charts } from './charts.js';
import { button, el, table } from './dom.js';
import { metricValue, title } from './format.js';
import { stateChip } from './list.js';
import { PALETTE } from './paint.js';
import { csvText, download } from './save.js';
import { flatten } from './tabs.js';
import { Repeater, Toolbar } from './toolbar.js';
import { chartOf, chartWidth, curveLabel, isMaximum, windowOf } from './training.js';

const MOST_COLUMNS = 12;
const OFTEN_DIFFERENT = /^(created_at|training_id|.*digest|.*_dir|.*job_id|runtime.*|submission.*|batch\.(output|comment|name).*)$/;

export class ComparePage {
  constructor(main) {
    this.runs = (readAddress().query.get('runs') || '').split(',').filter(Boolean);
    this.ids = this.runs;
    this.span = [0, 1];
    this.known = new Map();
    this.sorting = ['', 1];
    this.picker = el('div', { class: 'picker', role: 'group', 'aria-label': 'Trainings' });
    this.toolbar = new Toolbar((again) => (again ? this.repeater.ask() : this.showCurves()), [
      button('CSV', () => download(csvText(this.charts.all), 'comparison.csv', 'text/csv'), { class: 'choice', title: 'Save the numbers of all charts' })]);
    this.charts = new Charts({ zoom: (from, to) => this.toolbar.zoom(from, to) });
    this.message = el('p', { class: 'empty', role: 'status' });
    this.tables = el('div', { class: 'tables' });
    main.replaceChildren(el('div', { class: 'head' }, el('h1', {}, 'Comparison')), this.picker, this.tables, this.toolbar.element, this.message, this.charts.element);
    this.repeater = new Repeater(() => this.load(), 1000);
  }

  async start() {
    document.title = 'Comparison · dlctl';
    this.all = await getTrainings();
    this.showPicker();
    await this.repeater.ask();
  }

  changed() {
    this.repeater.ask();
  }

  colour(id) {
    return this.runs.indexOf(id) % PALETTE;
  }

  showPicker() {
    this.picker.replaceChildren(...this.all.map((row) => {
      const on = this.runs.includes(row.id);
      return el('button', { type: 'button', class: 'entry pick', 'aria-pressed': String(on), onclick: () => this.pick(row.id) },
        el('i', { class: `swatch ${on ? `s${this.colour(row.id)}` : 'off'}` }), el('span', {}, row.id));
    }));
  }

  pick(id) {
    this.runs = this.runs.includes(id) ? this.runs.filter((other) => other !== id) : [...this.runs, id];
    rewrite({ runs: this.runs.join(',') });
    this.showPicker();
    this.repeater.ask();
    document.dispatchEvent(new CustomEvent('shown', { detail: this.runs }));
  }

  async load() {
    const view = { ...this.toolbar.view, width: chartWidth() };
    const runs = [...this.runs];
    const before = this.known;
    const found = await Promise.all(runs.map(async (id) => {
      try {
        return [id, { data: await getCurves(id, view), details: before.get(id)?.details }];
      } catch (error) {
        return [id, { error: error.message }];
      }
    }));
    this.known = new Map(found);
    this.showCurves();
    await this.loadDetails();
  }

  // Curves come first: the answers to questions about them take longer.
  async loadDetails() {
    await Promise.all([...this.known].filter(([, run]) => run.data).map(async ([id, run]) => {
      run.details = await getDetails(id).catch(() => run.details);
    }));
    this.showTables();
  }

  showCurves() {
    const { view } = this.toolbar;
    const charts = [new Map(), new Map()];
    let [begin, end] = [Infinity, -Infinity];
    const problems = [];
    for (const [id, { data, error }] of this.known) {
      if (error) problems.push(`${id}: ${error}`);
      if (!data || data.x !== view.x) continue;
      if (data.problem) problems.push(`${id}: ${data.problem}`);
      [begin, end] = [Math.min(begin, data.span[0]), Math.max(end, data.span[1])];
      for (const curve of data.curves) this.addCurve(charts[curve.source === 'node' ? 1 : 0], id, curve);
    }
    this.span = end >= begin ? [begin, end] : [0, 1];
    this.message.hidden = this.runs.length > 0 && !problems.length;
    this.message.textContent = problems.join('; ') || 'Choose trainings above.';
    this.charts.update([['Curves', [], charts[0]], ['Utilisation', [], charts[1]]], view, windowOf(view, this.span), { attempts: [], events: [] });
  }

  addCurve(charts, id, curve) {
    if (curve.learner) return;
    const name = chartOf(curve);
    if (!charts.has(name)) charts.set(name, []);
    const other = (curve.group && curve.group !== 'train') || isMaximum(curve);
    charts.get(name).push({ ...curve, label: [id, ...(curve.source === 'node' ? [curveLabel(curve).replace('learner 0', '').trim()] : other ? [curve.group] : [])].filter(Boolean).join(' '), colour: this.colour(id), dashed: other });
  }

  showTables() {
    this.tables.replaceChildren();
    if (this.known.size) this.tables.append(this.metrics());
    if (this.known.size > 1) this.tables.append(this.parameters());
  }

  metrics() {
    const rows = [...this.known].filter(([, run]) => run.data && run.details).map(([id, { data, details }]) => {
      const values = new Map(data.curves.filter((curve) => !curve.learner).map((curve) => [curve.shown, curve]));
      return { id, details, values };
    });
    const names = [...new Set(rows.flatMap((row) => [...row.values.keys()]))].slice(0, MOST_COLUMNS);
    const [by, direction] = this.sorting;
    const value = (row) => (by ? row.values.get(by)?.newest ?? Infinity * direction : 0);
    rows.sort((a, b) => (by ? direction * (value(a) - value(b)) : 0));
    const sortBy = (name) => {
      this.sorting = [name, by === name ? -direction : 1];
      this.showTables();
      [...this.tables.querySelectorAll('th button')].find((each) => each.dataset.name === name)?.focus();
    };
    const head = names.map((name) => el('th', { scope: 'col', 'aria-sort': by === name ? (direction > 0 ? 'ascending' : 'descending') : 'none' },
      button(title(name), () => sortBy(name), { class: 'sort', 'data-name': name })));
    const body = rows.map((row) => el('tr', {}, el('th', { scope: 'row' }, el('i', { class: `swatch s${this.colour(row.id)}` }), el('a', { href: address('training', row.id) }, row.id)),
      el('td', {}, stateChip(row.details)), names.map((name) => {
        const curve = row.values.get(name);
        return el('td', { class: 'number' }, curve ? metricValue(curve.name, curve.newest) : '–');
      })));
    return el('section', { class: 'card' }, el('h2', {}, 'Newest values'),
      el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Newest values' },
        el('table', {}, el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'training'), el('th', { scope: 'col' }, 'state'), head)), el('tbody', {}, body))));
  }

  parameters() {
    const plans = [...this.known].filter(([, run]) => run.details).map(([id, { details }]) => [id, flatten(details.plan || {})]);
    const keys = [...new Set(plans.flatMap(([, plan]) => [...plan.keys()]))].filter((key) => !OFTEN_DIFFERENT.test(key));
    const different = keys.filter((key) => new Set(plans.map(([, plan]) => plan.get(key))).size > 1);
    const rows = different.map((key) => [el('code', {}, key), ...plans.map(([, plan]) => plan.get(key) ?? '–')]);
    return el('section', { class: 'card' }, el('h2', {}, 'Parameters that differ'),
      rows.length ? table('Parameters that differ', ['parameter', ...plans.map(([id]) => id)], rows) : el('p', { class: 'empty' }, 'None.'));
  }

  redraw() {
    this.charts.redraw();
  }

  key(key) {
    return this.toolbar.key(key, this.span);
  }

  stop() {
    this.repeater.stop();
    this.charts.destroy();
  }
}
