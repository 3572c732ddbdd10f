// What all charts of a page have in common: axis, smoothing, scales, window.
import { readAddress, rewrite } from './address.js';
import { button, el } from './dom.js';

export function readView() {
  const { query } = readAddress();
  const number = (name) => (query.has(name) && Number.isFinite(Number(query.get(name))) ? Number(query.get(name)) : null);
  const kind = query.get('x');
  return {
    x: ['step', 'epoch', 'time'].includes(kind) ? kind : 'step',
    smooth: Math.min(0.99, Math.max(0, number('smooth') ?? 0)),
    logx: query.has('logx'), logy: query.has('logy'), robust: query.has('robust'),
    from: number('from'), to: number('to'), find: query.get('find') || '', width: 800,
  };
}

export class Toolbar {
  // changed(again): the view has changed; `again` says that the data must be asked for.
  constructor(changed, more = []) {
    this.changed = changed;
    this.view = readView();
    this.element = el('div', { class: 'toolbar', role: 'toolbar', 'aria-label': 'How charts are drawn' });
    this.element.append(this.axes(), this.smoothing(), this.switches(), this.windows(), this.finder(), el('span', { class: 'grow' }), ...more);
    this.show();
  }

  set(changes, again = true) {
    Object.assign(this.view, changes);
    const flag = (value) => (value ? '1' : null);
    const { x, smooth, logx, logy, robust, from, to, find } = this.view;
    rewrite({
      x: x === 'step' ? null : x, smooth: smooth || null, logx: flag(logx), logy: flag(logy), robust: flag(robust),
      from: from === null ? null : Number(from.toPrecision(8)), to: to === null ? null : Number(to.toPrecision(8)), find: find || null,
    });
    this.show();
    this.changed(again);
  }

  zoom(from, to) {
    this.set({ from, to });
  }

  // Move or stretch the window; shares of its width.
  move(span, left, right) {
    const [from, to] = [this.view.from ?? span[0], this.view.to ?? span[1]];
    const width = to - from || 1;
    const next = [Math.max(span[0], from + left * width), Math.min(span[1], to + right * width)];
    if (next[1] - next[0] < (span[1] - span[0]) * 1e-9) return;
    const whole = next[0] <= span[0] && next[1] >= span[1];
    this.zoom(whole ? null : next[0], whole ? null : next[1]);
  }

  axes() {
    const choose = (x) => this.set({ x, from: null, to: null });
    this.kinds = ['step', 'epoch', 'time'].map((x) => button(x, () => choose(x), { class: 'choice' }));
    return el('div', { class: 'choices', role: 'group', 'aria-label': 'Axis' }, this.kinds);
  }

  smoothing() {
    this.slider = el('input', {
      type: 'range', min: '0', max: '0.99', step: '0.01', id: 'smooth',
      oninput: () => this.set({ smooth: Number(this.slider.value) }),
    });
    this.smoothTold = el('output', { for: 'smooth' });
    return el('label', { class: 'slider' }, 'Smooth', this.slider, this.smoothTold);
  }

  switches() {
    const make = (name, label, help) => button(label, () => this.set({ [name]: !this.view[name] }, false), { class: 'choice', title: help });
    this.toggles = {
      logx: make('logx', 'log x', 'Logarithmic x axis (L)'),
      logy: make('logy', 'log y', 'Logarithmic y axis (l)'),
      robust: make('robust', 'robust', 'Leave the rarest values out of the range of y (r)'),
    };
    return el('div', { class: 'choices', role: 'group', 'aria-label': 'Scales' }, Object.values(this.toggles));
  }

  windows() {
    this.reset = button('Whole range', () => this.zoom(null, null), { class: 'choice', title: 'Show all (0, or a double click)' });
    return this.reset;
  }

  finder() {
    let waiting = 0;
    this.input = el('input', {
      type: 'search', placeholder: 'Find metrics', title: 'A regular expression, such as ^val', 'aria-label': 'Find metrics by a regular expression', id: 'find',
      oninput: () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => this.set({ find: this.input.value }), 200);
      },
    });
    return this.input;
  }

  show() {
    const { view } = this;
    for (const kind of this.kinds) kind.setAttribute('aria-pressed', String(kind.textContent === view.x));
    for (const [name, toggle] of Object.entries(this.toggles)) toggle.setAttribute('aria-pressed', String(view[name]));
    this.slider.value = view.smooth;
    this.smoothTold.textContent = view.smooth ? view.smooth.toFixed(2) : 'off';
    this.reset.hidden = view.from === null && view.to === null;
    if (document.activeElement !== this.input) this.input.value = view.find;
  }

  key(key, span) {
    const moves = { ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], '+': [0.2, -0.2], '=': [0.2, -0.2], '-': [-0.35, 0.35] };
    if (moves[key]) this.move(span, ...moves[key]);
    else if (key === '0') this.zoom(null, null);
    else if (key === 'l') this.set({ logy: !this.view.logy }, false);
    else if (key === 'L') this.set({ logx: !this.view.logx }, false);
    else if (key === 'r') this.set({ robust: !this.view.robust }, false);
    else if (key === 'x') this.set({ x: { step: 'epoch', epoch: 'time', time: 'step' }[this.view.x], from: null, to: null });
    else if (key === 's') this.set({ smooth: this.view.smooth ? 0 : 0.6 });
    else if (key === '/') this.input.focus();
    else return false;
    return true;
  }
}

// Runs a task when asked, never twice at once, and at most every so often; the last wish counts.
export class Repeater {
  constructor(task, pause = 500) {
    Object.assign(this, { task, pause, running: false, wished: false, stopped: false });
  }

  async ask() {
    this.wished = true;
    if (this.running) return;
    this.running = true;
    while (this.wished && !this.stopped) {
      this.wished = false;
      await this.task();
      if (this.wished) await new Promise((done) => setTimeout(done, this.pause));
    }
    this.running = false;
  }

  stop() {
    this.stopped = true;
  }
}
