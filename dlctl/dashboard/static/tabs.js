// What stands below the charts: logs, events, checkpoints, learners, attempts, plan.
import { followLog } from './api.js';
import { readAddress, rewrite } from './address.js';
import { button, el, table } from './dom.js';
import { ago, fileSize, clock, duration, shortNumber } from './format.js';

const MOST_LINES = 4000;

export class Tabs {
  constructor(id) {
    this.id = id;
    this.names = ['Logs', 'Events', 'Checkpoints', 'Learners', 'Attempts', 'Plan'];
    const first = readAddress().query.get('tab');
    this.open = this.names.includes(first) ? first : this.names[0];
    this.buttons = this.names.map((name) => button(name, () => this.choose(name), {
      role: 'tab', id: `tab-${name}`, 'aria-controls': `panel-${name}`, onkeydown: (event) => this.move(event, name) }));
    this.panels = Object.fromEntries(this.names.map((name) => [name, el('div', { role: 'tabpanel', id: `panel-${name}`, 'aria-labelledby': `tab-${name}` })]));
    this.log = new LogView(this.panels.Logs);
    this.element = el('section', { class: 'card tabs', 'aria-label': 'More about this training' },
      el('div', { role: 'tablist', class: 'tablist', 'aria-label': 'More about this training' }, this.buttons), Object.values(this.panels));
    this.choose(this.open);
  }

  choose(name) {
    if (name !== this.names[0] || this.open !== name) rewrite({ tab: name === this.names[0] ? null : name });
    this.open = name;
    this.buttons.forEach((each, n) => {
      const mine = this.names[n] === name;
      each.setAttribute('aria-selected', String(mine));
      each.tabIndex = mine ? 0 : -1;
      this.panels[this.names[n]].hidden = !mine;
    });
    if (name === 'Logs') this.log.start(this.id, this.attempt);
  }

  move(event, name) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    const next = (this.names.indexOf(name) + step + this.names.length) % this.names.length;
    this.choose(this.names[next]);
    this.buttons[next].focus();
  }

  update(details, data) {
    this.attempt = details.attempt;
    if (this.open === 'Logs' && details.live) this.log.start(this.id, details.attempt);
    this.log?.tell(details.trouble ? `The log goes on when ${details.site} answers.` : '');
    const text = JSON.stringify([details.checkpoints, details.learners, details.attempts, details.verdicts, details.plan, data?.events]);
    if (text === this.text) return;
    this.text = text;
    const fill = (name, content, empty) => this.panels[name].replaceChildren(content || el('p', { class: 'empty' }, empty));
    fill('Events', eventTable(data?.events || []), 'Nothing has happened yet.');
    const none = (words) => (details.checkpoints ? words : 'The site has not told yet.');
    fill('Checkpoints', checkpointTable(details.checkpoints || [], details.clock_ahead_s), none('There is no checkpoint yet.'));
    fill('Learners', learnerTable(details.learners || [], details.clock_ahead_s), none('No learner has reported yet.'));
    fill('Attempts', attemptTable(details, data?.attempts || []), 'No attempt is known.');
    fill('Plan', planList(details), 'The plan is not known.');
  }

  stop() {
    this.log?.stop();
  }
}

class LogView {
  constructor(panel) {
    this.lines = el('div', { class: 'log', tabindex: '0', role: 'log', 'aria-label': 'Log' });
    this.filter = el('input', { type: 'search', placeholder: 'Find lines', 'aria-label': 'Find lines of the log', oninput: () => this.show() });
    this.message = el('span', { class: 'quiet-text' });
    panel.append(el('div', { class: 'logbar' }, this.filter, this.message), this.lines);
    this.pending = [];
    this.over = null;
  }

  // Follow the log, or go on with that of the next attempt; after an end of another kind, begin anew.
  start(id, attempt) {
    if (this.end || this.over === attempt) return;
    if (!this.over) this.lines.replaceChildren();
    this.message.textContent = '';
    this.end = followLog(id, (piece) => this.add(piece), (why) => {
      this.end = null;
      this.over = why ? null : this.attempt ?? null;
      this.message.textContent = why || 'The log has ended.';
    });
  }

  // Say why nothing comes, as long as the log is followed.
  tell(words) {
    if (this.end) this.message.textContent = words;
  }

  // Many pieces may come at once: they are shown together.
  add(piece) {
    this.attempt = piece.attempt;
    if (!this.pending.length) requestAnimationFrame(() => this.flush());
    this.pending.push(piece);
  }

  flush() {
    const box = this.lines;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const made = [];
    for (const { source, text } of this.pending.splice(0)) {
      for (const line of text.replace(/\n$/, '').split('\n').slice(-MOST_LINES)) {
        made.push(el('div', {}, el('span', { class: 'source' }, source), el('span', {}, withoutColours(line))));
      }
    }
    box.append(...made.slice(-MOST_LINES));
    while (box.childElementCount > MOST_LINES) box.firstChild.remove();
    if (this.filter.value) this.show();
    if (follows) box.scrollTop = box.scrollHeight;
  }

  show() {
    const wanted = this.filter.value.toLowerCase();
    for (const line of this.lines.children) line.hidden = !line.textContent.toLowerCase().includes(wanted);
  }

  stop() {
    this.end?.();
    this.end = null;
  }
}

// A progress bar begins its line anew: what stands last is shown.
function withoutColours(line) {
  // eslint-disable-next-line no-control-regex
  return line.replace(/\x1b\[[0-9;]*[A-Za-z]/g, '').replace(/\r+$/, '').replace(/^.*\r/, '');
}

function eventTable(events) {
  const words = (event) => Object.entries(event.values || {}).map(([name, value]) => `${name.replace(/^(seconds|bytes)$/, '')} ${name === 'bytes' ? fileSize(value) : name === 'seconds' ? duration(value) : shortNumber(value)}`.trim()).join(', ');
  const rows = events.slice(-200).reverse().map((event) => [event.step < 0 ? '–' : String(event.step), clock(event.time), String(event.attempt), event.kind.replaceAll('_', ' ') || 'note', event.text, words(event)]);
  return rows.length ? table('Events', ['step', 'time', 'attempt', 'kind', 'what', 'values'], rows) : null;
}

function checkpointTable(checkpoints, aheadSeconds) {
  const rows = checkpoints.map((c) => [c.name || String(c.step), c.epoch === null ? '–' : String(c.epoch), fileSize(c.size_bytes), ago(c.written_at, aheadSeconds), c.complete === null ? '?' : c.complete ? 'yes' : 'no', c.kept_for_ever ? 'for ever' : '–']);
  return rows.length ? table('Checkpoints', ['step', 'epoch', 'size', 'written', 'complete', 'kept'], rows) : null;
}

function learnerTable(learners, aheadSeconds) {
  const end = (l) => (l.signal !== null && l.signal !== undefined ? `signal ${l.signal}` : l.exit_code === null || l.exit_code === undefined ? l.state : `exit code ${l.exit_code}`);
  const rows = learners.map((l) => [String(l.rank), l.host, end(l), l.step === null ? '–' : String(l.step), ago(l.heartbeat_at, aheadSeconds), l.reason || '']);
  return rows.length ? table('Learners', ['learner', 'host', 'state', 'step', 'heartbeat', 'reason'], rows) : null;
}

function attemptTable(details, spans) {
  const verdicts = Object.fromEntries((details.verdicts || []).map((verdict) => [verdict.attempt, verdict]));
  const known = Object.fromEntries(spans.map((span) => [span.attempt, span]));
  const numbers = [...new Set([...spans.map((s) => s.attempt), ...Object.keys(verdicts).map(Number), ...(details.attempts || []).map((a) => a.attempt)])].sort((a, b) => a - b);
  const rows = numbers.map((n) => {
    const [verdict, span] = [verdicts[n] || {}, known[n] || {}];
    return [String(n), span.first_step === undefined ? '–' : String(span.first_step), clock(span.began_at || (n === details.attempt && details.started_at)), verdict.state || span.state || '–', String(verdict.kind || '').replaceAll('_', ' '), verdict.reason || '', n === numbers.at(-1) ? verdict.hint || '' : ''];
  });
  return rows.length ? table('Attempts', ['attempt', 'from step', 'began', 'verdict', 'kind', 'reason', 'next'], rows) : null;
}

export function flatten(value, prefix = '', found = new Map()) {
  if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
    for (const [name, inner] of Object.entries(value)) flatten(inner, prefix ? `${prefix}.${name}` : name, found);
  } else if (value !== null && value !== undefined && value !== '' && !(Array.isArray(value) && !value.length)) {
    found.set(prefix, typeof value === 'string' ? value : JSON.stringify(value));
  }
  return found;
}

function planList(details) {
  const rows = [...flatten(details.plan || {})].map(([name, value]) => [name, el('code', {}, value)]);
  return rows.length ? table('Plan', ['key', 'value'], rows) : null;
}
