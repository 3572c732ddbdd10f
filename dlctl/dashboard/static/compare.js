// The page that compares trainings.
import { address, readAddress, rewrite } from './address.js';
import { getCurves, getDetails, getTrainings } from './api.js';
import { Charts } from './charts.js';
import { button, el } from './dom.js';
import { metricValue, title } from './format.js';
import { stateChip } from './list.js';
import { inkOf } from './paint.js';
import { shortNames } from './parallel.js';
import { Picker } from './picker.js';
import { differences, meanAndSpread, meanCurve, repetitions } from './repeats.js';
import { csvText, download } from './save.js';
import { SortedTable } from './table.js';
import { Repeater, Toolbar } from './toolbar.js';
import { chartOf, chartWidth, curveLabel, isMaximum, windowOf } from './training.js';

const MOST_COLUMNS = 12;

export class ComparePage {
  constructor(main) {
    const { query } = readAddress();
    this.runs = (query.get('runs') || '').split(',').filter(Boolean);
    this.ids = this.runs;
    this.places = new Map();
    this.inks = new Map((query.get('inks') || '').split(',').filter(Boolean).map((pair) => pair.split('~')));
    this.joined = query.has('repeats');
    this.span = [0, 1];
    this.known = new Map();
    this.limit = MOST_COLUMNS;
    this.picker = new Picker(this);
    this.repeats = button('repetitions', () => this.join(), { class: 'choice', title: 'Draw trainings that differ in nothing but the seed as their mean, within the lowest and the highest' });
    this.toolbar = new Toolbar((again) => (again ? this.repeater.ask() : this.showCurves()), [this.repeats,
      button('CSV', () => download(csvText(this.charts.all), 'comparison.csv', 'text/csv'), { class: 'choice', title: 'Save the numbers of all charts' })]);
    this.charts = new Charts({ zoom: (from, to) => this.toolbar.zoom(from, to) });
    this.message = el('p', { class: 'empty', role: 'status' });
    this.table = new SortedTable('Newest and best values, and parameters that differ');
    this.more = button('', () => this.showAllColumns(), { class: 'more' });
    this.card = el('section', { class: 'card values', 'aria-label': 'Values and parameters', hidden: true }, this.table.element, this.more);
    main.replaceChildren(el('div', { class: 'head' }, el('h1', {}, 'Comparison')), this.picker.element, this.card, this.toolbar.element, this.message, this.charts.element);
    this.repeater = new Repeater(() => this.load(), 1000);
  }

  async start() {
    document.title = 'Comparison · dlctl';
    this.rows = await getTrainings();
    this.picker.update(this.rows);
    await this.repeater.ask();
  }

  changed() {
    this.repeater.ask();
  }

  // A training keeps its colour while others come and go.
  colour(id) {
    if (this.inks.has(id)) return `#${this.inks.get(id)}`;
    if (!this.places.has(id)) {
      const taken = new Set(this.runs.map((run) => this.places.get(run)));
      let place = 0;
      while (taken.has(place)) place += 1;
      this.places.set(id, place);
    }
    return this.places.get(id);
  }

  dye(id, colour) {
    this.inks.set(id, colour.slice(1));
    rewrite({ inks: [...this.inks].filter(([run]) => this.runs.includes(run)).map((pair) => pair.join('~')).join(',') });
    this.picker.show();
    this.showCurves();
  }

  choose(ids) {
    for (const id of this.runs) if (!ids.includes(id)) this.places.delete(id);
    this.runs = ids;
    this.ids = ids;
    rewrite({ runs: ids.join(',') });
    this.picker.show();
    this.repeater.ask();
    document.dispatchEvent(new CustomEvent('shown', { detail: ids }));
  }

  join() {
    this.joined = !this.joined;
    rewrite({ repeats: this.joined ? '1' : null });
    this.showCurves();
    this.showTable();
  }

  async load() {
    const view = { ...this.toolbar.view, width: chartWidth() };
    const before = this.known;
    const found = await Promise.all(this.runs.map(async (id) => {
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
    const had = [...this.known.values()].every((run) => run.details || !run.data);
    await Promise.all([...this.known].filter(([, run]) => run.data).map(async ([id, run]) => {
      run.details = await getDetails(id).catch(() => run.details);
    }));
    this.showTable();
    if (this.joined && !had) this.showCurves();
  }

  // Lists of trainings that are shown as one, in the order in which they were chosen.
  groups() {
    const ready = this.runs.map((id) => [id, this.known.get(id)]).filter(([, run]) => run?.data);
    const [keys, plans] = differences(ready.map(([, run]) => run.details?.plan));
    const names = shortNames(keys.map((name) => ({ name })));
    const isKnown = ready.every(([, run]) => run.details);
    const lists = this.joined && isKnown ? repetitions(keys, plans) : ready.map((_, n) => [n]);
    const groups = lists.map((places, place) => {
      const [id] = ready[places[0]];
      const members = places.map((n) => ({ id: ready[n][0], ...ready[n][1], plan: plans[n] }));
      const same = keys.filter((key) => members.every((each) => each.plan.get(key) === members[0].plan.get(key)));
      const words = same.map((key) => `${names.get(key)}=${members[0].plan.get(key) ?? '–'}`).join(' ');
      const colour = members.length > 1 && !this.inks.has(id) ? place : this.colour(id);
      return { id, members, colour, label: members.length > 1 ? `${words || id} ×${members.length}` : id };
    });
    return { groups, keys, names };
  }

  showCurves() {
    const { view } = this.toolbar;
    const charts = { own: new Map(), measured: new Map() };
    let [begin, end] = [Infinity, -Infinity];
    const problems = [...this.known].filter(([, run]) => run.error || run.data.problem).map(([id, run]) => `${id}: ${run.error || run.data.problem}`);
    for (const group of this.groups().groups) {
      const shown = group.members.filter(({ data }) => data.x === view.x);
      for (const { data } of shown) [begin, end] = [Math.min(begin, data.span[0]), Math.max(end, data.span[1])];
      this.addCurves(charts, group, shown.flatMap(({ data }) => data.curves).filter((curve) => !curve.learner));
    }
    this.repeats.setAttribute('aria-pressed', String(this.joined));
    this.span = end >= begin ? [begin, end] : [0, 1];
    this.message.hidden = this.runs.length > 0 && !problems.length;
    this.message.textContent = problems.join('; ') || 'Choose trainings above.';
    this.charts.update(charts, view, windowOf(view, this.span), { attempts: [], events: [] });
  }

  // The curves of a group, each with those of its repetitions.
  addCurves(charts, { members, label, colour }, curves) {
    const alike = new Map();
    for (const curve of curves) {
      const other = (curve.group && curve.group !== 'train') || isMaximum(curve);
      const about = curve.source === 'node' ? curveLabel(curve).replace('learner 0', '').trim() : other ? curve.group : '';
      const name = chartOf(curve);
      const key = JSON.stringify([curve.source === 'node', name, about]);
      if (!alike.has(key)) alike.set(key, { of: curve.source === 'node' ? charts.measured : charts.own, name, about, other, all: [] });
      alike.get(key).all.push(curve);
    }
    for (const { of, name, about, other, all } of alike.values()) {
      if (!of.has(name)) of.set(name, []);
      const look = { label: [label, about].filter(Boolean).join(' '), colour, dashed: other };
      of.get(name).push(...(members.length > 1 ? [meanCurve(all)] : all).map((curve) => ({ ...curve, ...look })));
    }
  }

  showTable() {
    const { groups, keys, names } = this.groups();
    const rows = groups.filter(({ members }) => members.every((each) => each.details)).map((group) => ({ ...group, values: valuesOf(group) }));
    const metrics = new Map(rows.flatMap((row) => [...row.values]).map(([shown, { curve }]) => [shown, curve]));
    const shown = this.joined ? keys.filter((key) => rows.some(({ members }) => new Set(members.map(({ plan }) => plan.get(key))).size === 1)) : keys;
    const left = [metrics.size, shown.length].map((count) => Math.max(0, count - this.limit));
    this.card.hidden = !rows.length;
    this.more.hidden = !left[0] && !left[1];
    this.more.textContent = `and ${[left[0] && `${left[0]} more metrics`, left[1] && `${left[1]} more parameters`].filter(Boolean).join(' and ')}`;
    this.table.update([
      { name: 'training', key: (row) => row.label, cell: (row) => this.whoseCell(row), kind: 'whose' },
      { name: 'state', key: (row) => row.members[0].details.state, cell: ({ members }) => stateChip(members[0].details) },
      ...shown.slice(0, this.limit).map((key) => parameterColumn(key, names.get(key))),
      ...[...metrics].slice(0, this.limit).flatMap(([name, curve]) => valueColumns(name, curve)),
    ], rows);
  }

  whoseCell({ id, members, label, colour }) {
    return el('span', {}, el('input', { type: 'color', value: inkOf(colour), 'aria-label': `Colour of ${label}`, onchange: (event) => this.dye(id, event.target.value) }),
      members.length > 1 ? el('b', { title: members.map((each) => each.id).join(', ') }, label) : el('a', { href: address('training', id) }, label));
  }

  showAllColumns() {
    this.limit = Infinity;
    this.showTable();
  }

  redraw() {
    this.charts.redraw();
    this.showTable();
  }

  key(key) {
    return this.toolbar.key(key, this.span);
  }

  stop() {
    this.repeater.stop();
    this.charts.destroy();
  }
}

// By a metric's name the newest and the best values of all repetitions.
function valuesOf({ members }) {
  const found = new Map();
  for (const curve of members.flatMap(({ data }) => data.curves).filter((each) => !each.learner)) {
    if (!found.has(curve.shown)) found.set(curve.shown, { curve, newest: [], best: [] });
    found.get(curve.shown).newest.push(curve.newest);
    if (curve.better && curve.ends) found.get(curve.shown).best.push((curve.better === 'lower' ? curve.ends.lowest : curve.ends.highest)[1]);
  }
  return found;
}

function valueColumns(name, curve) {
  const first = curve.better === 'higher' ? -1 : 1;
  const column = (which, words) => {
    const of = (row) => meanAndSpread(row.values.get(name)?.[which] || []);
    return { name: `${words}${name}`, label: `${words}${title(name)}`, first, kind: 'number', key: (row) => of(row)[0],
      cell: (row) => of(row).filter((value, n) => value !== null || !n).map((value, n) => metricValue(curve.name, value, n ? 2 : 0)).join(' ± ') };
  };
  return [column('newest', ''), ...(curve.better ? [column('best', 'best ')] : [])];
}

function parameterColumn(key, name) {
  const value = ({ members }) => (new Set(members.map(({ plan }) => plan.get(key))).size > 1 ? null : members[0].plan.get(key) ?? null);
  const sorted = (row) => (value(row) === null || value(row).trim() === '' || Number.isNaN(Number(value(row))) ? value(row) : Number(value(row)));
  return { name: key, label: name, title: key, key: sorted, cell: (row) => value(row) ?? '–' };
}
