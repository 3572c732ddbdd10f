// The page of one search: the best so far, parallel coordinates, importance, all trials.
import { address } from './address.js';
import { getSearch, saved } from './api.js';
import { button, el, table } from './dom.js';
import { clock, duration, shortNumber } from './format.js';
import { stateChip } from './list.js';
import { goodness, goodnessColour, Parallel, shortNames } from './parallel.js';
import { themeColours } from './paint.js';
import { ProgressChart } from './progress_chart.js';
import { SortedTable } from './table.js';
import { Repeater } from './toolbar.js';

export class SearchPage {
  constructor(main, id) {
    Object.assign(this, { id, ids: [id], inside: null });
    this.table = new SortedTable('Table of the trials', { sorting: ['trial', -1], tall: true });
    this.head = el('div', { class: 'head' });
    this.facts = el('div', { class: 'facts' });
    this.message = el('p', { class: 'empty', role: 'status' }, 'Reading the trials …');
    this.chart = new ProgressChart({ pointed: (place) => this.parallel.mark(place) });
    this.important = el('section', { class: 'card', 'aria-label': 'Importance' });
    this.parallel = new Parallel({ chosen: (inside) => this.choose(inside), pointed: (place) => this.pointed(place) });
    this.failedToo = el('input', { type: 'checkbox', id: 'failed-too', onchange: () => this.showParallel() });
    this.pointedTo = el('p', { class: 'pointed' });
    this.all = button('Show all trials', () => this.parallel.clear(), { class: 'choice', hidden: true });
    this.scale = el('span', { class: 'ramp' });
    this.trialsHead = el('header', { class: 'row' });
    this.noTrial = el('p', { class: 'empty' }, 'No trial so far.');
    this.trials = el('section', { class: 'card', 'aria-label': 'Trials' }, this.trialsHead, this.noTrial, this.table.element);
    this.work = el('section', { class: 'card', 'aria-label': 'Workers and brokers' });
    this.body = el('div', { class: 'search', hidden: true },
      el('div', { class: 'pair' }, this.chart.element, this.important),
      el('section', { class: 'card', 'aria-label': 'Parallel coordinates of the trials' },
        el('header', { class: 'row' }, el('h2', {}, 'Parallel coordinates'), el('span', { class: 'sub' }, 'best'), this.scale, el('span', { class: 'sub' }, 'worst, by rank'),
          el('label', { class: 'check', for: 'failed-too' }, this.failedToo, 'failed trials'), el('span', { class: 'grow' }), this.all),
        el('p', { class: 'sub' }, 'Drag along an axis to choose trials; a click on it takes that back.'), this.parallel.element, this.pointedTo),
      this.trials, this.work);
    main.replaceChildren(this.head, this.facts, this.message, this.body);
    this.again = new Repeater(() => this.load(), 1500);
  }

  start() {
    return this.again.ask();
  }

  changed() {
    this.again.ask();
  }

  async load() {
    try {
      this.data = await getSearch(this.id);
    } catch (error) {
      this.message.hidden = false;
      this.message.textContent = error.message;
      return;
    }
    this.message.hidden = true;
    this.body.hidden = false;
    this.showAll();
  }

  showAll() {
    this.good = goodness(this.data.trials.metric, this.data.maximize);
    this.showSearchHead();
    this.chart.update(this.data);
    this.showImportance();
    this.showParallel();
    this.showTrials();
    this.showWork();
  }

  showSearchHead() {
    const { data } = this;
    document.title = `${this.id} · dlctl`;
    const hub = !saved || saved.details[this.id] ? el('a', { class: 'button', href: address('training', this.id) }, 'Hub') : null;
    this.head.replaceChildren(...[el('h1', {}, this.id), stateChip(data), el('span', { class: 'grow' }), hub].filter(Boolean));
    const fact = (label, value) => (value ? el('div', {}, el('dt', {}, label), el('dd', {}, value)) : null);
    const troubles = data.state === 'FAILED' ? [data.reason, ...data.waits] : data.waits;
    this.facts.replaceChildren(
      ...troubles.map((reason) => el('p', { class: 'trouble' }, reason.split('`').map((part, n) => (n % 2 ? el('code', {}, part) : part)))),
      el('dl', {}, [
        fact('Trials', data.counts), fact('Left', data.left), fact('Best', data.best),
        fact('Strategy', data.strategy), fact('Metric', `${data.metric}, ${data.maximize ? 'maximized' : 'minimized'}`), fact('Site', data.site),
      ].filter(Boolean)));
  }

  showImportance() {
    const { of, method, least } = this.data.importance;
    const names = shortNames(this.data.space);
    const known = of.filter((each) => each.share !== null);
    const rows = known.map((each) => {
      const bar = el('i', {});
      bar.style.width = `${Math.round(100 * each.share)}%`;
      const words = each.by_chance ? 'no more than chance' : each.best ? `best at ${each.best}` : '';
      return el('div', { class: each.by_chance ? 'share faint' : 'share', role: 'listitem' },
        el('span', { class: 'what', title: each.name }, names.get(each.name)), el('span', { class: 'track', 'aria-hidden': 'true' }, bar),
        el('b', {}, `${Math.round(100 * each.share)} %`), el('span', { class: 'sub' }, words));
    });
    const left = of.length - known.length;
    const why = left && rows.length ? `${left} of ${of.length} parameters exist in too few trials with a metric, or have one value: ${least} are needed. ` : '';
    this.important.replaceChildren(el('h2', {}, 'Importance'),
      rows.length ? el('div', { class: 'shares', role: 'list' }, rows) : el('p', { class: 'empty' }, `Too few trials have ended well: ${least} are needed.`),
      el('p', { class: 'sub' }, why, method));
  }

  showParallel() {
    const colours = themeColours();
    this.scale.style.background = `linear-gradient(90deg, ${[0, 0.5, 1].map((part) => goodnessColour(colours, part)).join(', ')})`;
    this.parallel.update(this.data, this.failedToo.checked);
  }

  choose(inside) {
    this.inside = inside;
    this.all.hidden = inside === null;
    if (this.data) this.showTrials();
  }

  pointed(place) {
    const { trials, metric } = this.data;
    this.pointedTo.textContent = place === null ? '' : `trial ${trials.number[place]} · ${trials.metric[place] === null ? trials.outcome[place] : `${metric} ${shortNumber(trials.metric[place], 6)}`} · ${this.pointWords(place)}`;
  }

  pointWords(place) {
    return this.data.space.map((each) => [each.name, this.value(each, place)]).filter(([, value]) => value !== '–').map(([name, value]) => `${name} ${value}`).join(' · ');
  }

  value(parameter, place) {
    const value = this.data.trials.point[parameter.name][place];
    if (value === null) return '–';
    return parameter.kind === 'choice' ? parameter.choices[value] : shortNumber(value);
  }

  tableColumns() {
    const { trials, space, metric } = this.data;
    const names = shortNames(space);
    const column = (name, key, cell) => ({ name, key, cell });
    const plain = (name) => (n) => trials[name][n];
    return [
      column('trial', plain('number'), (n) => String(trials.number[n])),
      column('outcome', plain('outcome'), (n) => trials.outcome[n]),
      column(metric, plain('metric'), (n) => (trials.metric[n] === null ? '–' : shortNumber(trials.metric[n], 6))),
      ...space.map((each) => column(names.get(each.name), (n) => trials.point[each.name][n], (n) => this.value(each, n))),
      column('took', plain('seconds'), (n) => (trials.ended[n] === null ? '–' : duration(trials.seconds[n]))),
      column('worker', plain('worker'), (n) => trials.worker[n] || '–'),
      column('ended', plain('ended'), (n) => clock(trials.ended_at[n])),
      column('error', plain('error'), (n) => trials.error[n]),
    ];
  }

  showTrials() {
    const { trials } = this.data;
    const rows = trials.number.map((_, n) => n).filter((n) => this.inside === null || this.inside.has(n));
    const best = trials.number.indexOf(this.data.best_trial);
    this.table.update(this.tableColumns(), rows, (n) => ({
      class: n === best ? 'best' : trials.ended[n] !== null && trials.metric[n] === null ? 'failed' : null,
      onpointerenter: () => this.parallel.mark(n), onpointerleave: () => this.parallel.mark(null),
    }));
    const all = this.data.all_trials;
    const kept = all > trials.number.length ? `; of ${all} trials this page holds the best and the newest` : '';
    const count = this.inside === null ? `${rows.length} ${rows.length === 1 ? 'trial' : 'trials'}${kept}` : `${rows.length} of ${trials.number.length} trials are chosen${kept}`;
    this.trialsHead.replaceChildren(el('h2', {}, 'Trials'), el('span', { class: 'sub', role: 'status' }, count), el('span', { class: 'grow' }),
      el('span', { class: 'sub' }, el('code', {}, `dlctl show ${this.id} --trial N`)));
    this.noTrial.hidden = trials.number.length > 0;
    this.table.element.hidden = !trials.number.length;
  }

  showWork() {
    const { brokers, workers } = this.data;
    const queues = brokers.map((each) => [each.broker, each.owned, each.helper, each.processing, each.results, each.accepted, each.failed, each.dropped].map(String));
    const known = new Map(brokers.flatMap((each) => each.workers).map((each) => [each.name, each]));
    const trained = (name) => this.data.trials.worker.filter((worker) => worker === name || (name.endsWith('*') && worker?.startsWith(name.slice(0, -1)))).length;
    const rows = workers.map((job) => [job.name, job.job_id, job.state.toLowerCase(), job.nodes || job.reason || '–', String(trained(job.name)), known.has(job.name) ? String(known.get(job.name).running) : '–']);
    this.work.hidden = !queues.length && !rows.length;
    this.work.replaceChildren(el('h2', {}, 'Workers and brokers'),
      rows.length ? table('Workers', ['worker', 'job', 'state', 'where or why', 'trials', 'running'], rows) : '',
      queues.length ? table('Brokers', ['broker', 'owned', 'helped', 'processing', 'results', 'accepted', 'failed', 'dropped'], queues) : '');
  }

  redraw() {
    if (!this.data) return;
    this.chart.redraw();
    this.showParallel();
  }

  key() {
    return false;
  }

  stop() {
    this.again.stop();
    this.chart.destroy();
    this.parallel.destroy();
  }
}
