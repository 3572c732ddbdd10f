// The page of one training.
import { address } from './address.js';
import { getCurves, getDetails, saved } from './api.js';
import { actionButtons } from './actions.js';
import { Charts } from './charts.js';
import { button, el } from './dom.js';
import { ago, clock, duration, leftWords, metricValue, shortNumber, title } from './format.js';
import { progressBar, stateChip } from './list.js';
import { csvText, download } from './save.js';
import { Tabs } from './tabs.js';
import { Repeater, Toolbar } from './toolbar.js';

const GROUPS = { '': 0, train: 0, validation: 1, test: 2 };

// The colour says which data a curve is of; other learners and nodes get the others.
export function colourOf(curve, n) {
  if (curve.source === 'node') return curve.learner;
  return curve.learner === 0 && curve.group in GROUPS ? GROUPS[curve.group] : 3 + n;
}

export function chartWidth() {
  const main = document.getElementById('main');
  return Math.min(1600, Math.max(200, Math.round(main.clientWidth * (main.clientWidth > 900 ? 0.5 : 1) * (devicePixelRatio || 1))));
}

export function windowOf(view, span) {
  return [view.from ?? span[0], view.to ?? span[1]];
}

export class TrainingPage {
  constructor(main, id) {
    this.id = id;
    this.ids = [id];
    this.span = [0, 1];
    this.words = [];
    this.head = el('div', { class: 'head' });
    this.facts = el('div', { class: 'facts' });
    this.answers = el('div', { class: 'answers' });
    this.toolbar = new Toolbar((again) => this.viewChanged(again), [
      button('CSV', () => download(csvText(this.charts.all), `${id}.csv`, 'text/csv'), { class: 'choice', title: 'Save the numbers of all charts' })]);
    this.charts = new Charts({ zoom: (from, to) => this.toolbar.zoom(from, to) });
    this.tabs = new Tabs(id);
    this.message = el('p', { class: 'empty', role: 'status' }, 'Reading the metrics …');
    main.replaceChildren(this.head, this.facts, this.answers, this.toolbar.element, this.message, this.charts.element, this.tabs.element);
    this.curvesAgain = new Repeater(() => this.loadCurves(), 800);
    this.detailsAgain = new Repeater(() => this.loadDetails(), 2000);
  }

  async start() {
    await Promise.all([this.detailsAgain.ask(), this.curvesAgain.ask()]);
  }

  changed() {
    this.curvesAgain.ask();
    this.detailsAgain.ask();
  }

  viewChanged(again) {
    if (again) this.curvesAgain.ask();
    else if (this.data) this.showCurves();
  }

  async loadDetails() {
    try {
      this.details = await getDetails(this.id);
    } catch (error) {
      this.message.hidden = false;
      this.message.textContent = error.message;
      return;
    }
    this.showHead();
    this.showAnswers();
    this.words = this.details.utilisation || [];
    this.tabs.update(this.details, this.data);
    if (this.data) this.showCurves();
  }

  async loadCurves() {
    const view = { ...this.toolbar.view, width: chartWidth() };
    try {
      this.data = await getCurves(this.id, view);
    } catch (error) {
      this.message.hidden = false;
      this.message.textContent = error.message;
      return;
    }
    this.showCurves();
    if (this.details) this.tabs.update(this.details, this.data);
  }

  showCurves() {
    const { data, toolbar: { view } } = this;
    if (data.x !== view.x) return;
    this.span = data.span;
    const [own, measured] = [new Map(), new Map()];
    for (const curve of data.curves) {
      const charts = curve.source === 'node' ? measured : own;
      const name = chartOf(curve);
      if (!charts.has(name)) charts.set(name, []);
      const mine = charts.get(name);
      mine.push({ ...curve, label: curveLabel(curve), colour: colourOf(curve, mine.length), dashed: isMaximum(curve) });
    }
    const left = data.fitting - data.curves.length;
    this.message.hidden = data.curves.length > 0 && left <= 0;
    this.message.textContent = left > 0 ? `${data.curves.length} of ${data.fitting} curves are shown: find others by their name.` : data.problem || (data.total ? 'No metric has this in its name.' : this.whyNothing());
    const x = view.x === 'step' ? data.step_word : view.x;
    this.charts.update({ own, measured, words: this.words }, { ...view, x }, windowOf(view, data.span), data);
  }

  whyNothing() {
    if (this.details && this.details.metrics_known !== false) return 'There are no metrics yet.';
    return this.details?.trouble ? 'The metrics are read as soon as the site answers.' : 'Reading the metrics …';
  }

  showHead() {
    const { details } = this;
    document.title = `${this.id} · dlctl`;
    const name = details.name && details.name !== this.id ? el('span', { class: 'sub' }, details.name) : null;
    this.head.replaceChildren(el('div', {}, el('h1', {}, this.id), name), stateChip(details), el('span', { class: 'grow' }),
      details.is_search || details.plan?.framework?.name === 'search' ? el('a', { class: 'button', href: address('search', this.id) }, 'Trials of the search') : '',
      ...(saved ? [] : actionButtons(details)),
      el('a', { class: 'button', href: address('compare', '', { runs: this.id }) }, 'Compare'));
    const fact = (label, value) => (value ? el('div', {}, el('dt', {}, label), el('dd', {}, value)) : null);
    this.facts.replaceChildren(
      details.trouble ? el('p', { class: 'trouble', role: 'status' }, troubleWords(details)) : '',
      details.reason ? el('p', { class: 'reason' }, details.reason) : '',
      details.problem ? el('p', { class: 'hint' }, details.problem) : '',
      details.output ? el('p', { class: 'output' }, `Output: ${details.output}`) : '',
      details.hint ? el('p', { class: 'hint' }, el('code', {}, details.hint)) : '',
      el('dl', {}, [
        fact('Progress', progressBar(details)), fact('Time left', leftWords(details.left_s)),
        fact('Loss', details.loss !== null && shortNumber(details.loss)),
        fact('GPU use', details.gpu !== null && `${Math.round(details.gpu)} %`),
        fact('Site', details.site), fact('Attempt', String(details.attempt)), fact('Job', details.job_id),
        fact('Submitted', ago(details.created_at)), fact('Ran', details.elapsed_s && duration(details.elapsed_s)),
      ].filter(Boolean)));
  }

  showAnswers() {
    const answers = this.details.answers || [];
    const open = new Set([...this.answers.querySelectorAll('details[open]')].map((each) => each.dataset.key));
    this.answers.replaceChildren(...answers.map((answer) => el('section', { class: `answer ${answer.state}` },
      el('h2', {}, answer.question), el('p', {}, answer.text), evidenceOf(answer, open.has(answer.key)))));
    this.answers.hidden = !answers.length;
  }

  redraw() {
    this.charts.redraw();
  }

  key(key) {
    return this.toolbar.key(key, this.span);
  }

  stop() {
    this.curvesAgain.stop();
    this.detailsAgain.stop();
    this.charts.destroy();
    this.tabs.stop();
  }
}

// One sentence about a site that does not answer.
export function troubleWords({ site, trouble, metrics_known: known, metrics_at: at }) {
  const what = known ? `these curves are as of ${clock(at)}` : 'only the local record is shown';
  return `${site} does not answer, ${what}, and ${trouble}`;
}

// What an answer is based on: names and single values. The sentence itself says how old something is.
function evidenceOf({ key, evidence }, open) {
  const known = Object.entries(evidence || {}).filter(([name, value]) => value !== null && typeof value !== 'object' && !name.endsWith('_at'));
  if (!known.length) return null;
  return el('details', { class: 'evidence', 'data-key': key, open }, el('summary', {}, 'Evidence'),
    el('dl', {}, known.map(([name, value]) => el('div', {}, el('dt', {}, title(name)), el('dd', {}, typeof value === 'number' ? shown(name, value) : value)))));
}

function shown(name, value) {
  return /step/.test(name) ? String(Math.round(value)) : metricValue(name, value);
}

// Of nodes, the mean and the maximum of all GPUs share a chart.
export function chartOf(curve) {
  return curve.source === 'node' ? curve.name.replace(/^gpu\d+_/, 'gpu_').replace(/_max$/, '') : curve.name;
}

export function isMaximum(curve) {
  return curve.source === 'node' && curve.name.endsWith('_max');
}

export function curveLabel(curve) {
  const parts = [curve.learner ? `learner ${curve.learner}` : ''];
  if (curve.source === 'node') {
    const gpu = /^gpu(\d+)_/.exec(curve.name);
    parts[0] = `learner ${curve.learner}`;
    parts.push(gpu ? `GPU ${gpu[1]}` : '', isMaximum(curve) ? 'maximum' : '');
  } else parts.push(curve.group || 'train');
  return parts.filter(Boolean).join(' ');
}
