// Draw columns of a curve with a pen: on a canvas, or as the path of an SVG picture.
import { el } from './dom.js';

// Forty colours, light and dark: of 970 the farthest from all before them in OKLab, with a contrast of 3 to the paper.
const LIGHT = '2563c9 d9600f 14865d 8a4fc4 b8336a 0e8a9b 8a6d00 6b5b53 084b0f 46335a a27ea4 db41c0 48a515 f73066 7e77fa 819465 7d2a79 058dfa 85362c cf6192 2a5775 af59f7 4e3906 6b618e ab0fa5 b25f52 b58037 7288cf 295f47 aa6ecd 2ba287 799199 aa55a4 934d7b 578c19 5f7043 b37c73 f93825 ec3596 af3c3c'.split(' ');
const DARK = '6ea8ff ff9f55 4fcf9b c595ff ff7fab 4cd0e0 dcc04a c4ada2 bbfcb9 efe1ff a27ea4 db41c0 48a515 f73066 7e77fa 819465 feb4f7 058dfa f9c2b8 cf6192 a8d8fb af59f7 fee5b3 bcb2e4 fb8af2 e1897b b58037 7288cf a8e0c3 aa6ecd 2ba287 799199 d87fd1 ec9ece 81b84d afc392 b37c73 f93825 ec3596 fe9b95'.split(' ');
export const PALETTE = LIGHT.length;

// The colour of a number of the palette; what a person has chosen, such as `#ff0000`, stays as it is.
export function inkOf(colour, theme = document.documentElement.dataset.theme) {
  return typeof colour === 'string' ? colour : `#${(theme === 'dark' ? DARK : LIGHT)[colour % PALETTE]}`;
}

export function swatch(colour, kind = '') {
  const mark = el('i', { class: `swatch ${kind}` });
  mark.style.color = inkOf(colour, 'light');
  mark.style.color = `light-dark(${inkOf(colour, 'light')}, ${inkOf(colour, 'dark')})`; // older browsers keep the first
  return mark;
}

export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    text: get('--text'), quiet: get('--text-2'), grid: get('--grid'), paper: get('--surface'),
    band: get('--band'), mark: get('--mark'), bad: get('--bad'), font: get('--font'),
  };
}

// Nothing was measured between attempts: by time, a line ends at each of `breaks`.
function isBroken(x, n, breaks) {
  return n > 0 && breaks.some((at) => x[n - 1] < at && at <= x[n]);
}

// A column shows its first, lowest, highest and last value at one x: no spike is lost.
export function traceColumns(curve, toX, toY, pen, breaks = []) {
  const { x, last, low, high, first } = curve;
  let open = false;
  let alone = null;
  const end = () => {
    if (alone) pen.dot(...alone);
    alone = null;
  };
  for (let n = 0; n < x.length; n += 1) {
    const bottom = toY(low ? low[n] : last[n]);
    const top = toY(high ? high[n] : last[n]);
    const right = toY(last[n]) ?? top;
    if (right === null || x[n] === null) {
      end();
      open = false;
      continue;
    }
    const at = toX(x[n]);
    const left = (first ? toY(first[n]) : right) ?? right;
    if (open && !isBroken(x, n, breaks)) {
      pen.line(at, left);
      alone = null;
    } else {
      end();
      pen.move(at, left);
      alone = [at, left];
    }
    if (low && bottom !== top) {
      pen.line(at, bottom ?? right);
      pen.line(at, top ?? right);
      pen.line(at, right);
      alone = null;
    }
    open = true;
  }
  end();
}

export function traceLine(x, values, toX, toY, pen, breaks = []) {
  let open = false;
  for (let n = 0; n < x.length; n += 1) {
    const at = toY(values[n]);
    if (at === null) open = false;
    else if (open && !isBroken(x, n, breaks)) pen.line(toX(x[n]), at);
    else {
      pen.move(toX(x[n]), at);
      open = true;
    }
  }
}

// The range of repetitions: a closed line along what is highest, and back along what is lowest.
export function traceBand({ x, low, high }, toX, toY, pen) {
  const known = x.map((_, n) => n).filter((n) => toY(low[n]) !== null && toY(high[n]) !== null);
  [...known.map((n) => [n, high]), ...known.reverse().map((n) => [n, low])]
    .forEach(([n, values], place) => pen[place ? 'line' : 'move'](toX(x[n]), toY(values[n])));
}

export function canvasPen(context, dot) {
  return {
    move: (x, y) => context.moveTo(x, y),
    line: (x, y) => context.lineTo(x, y),
    dot: (x, y) => {
      context.moveTo(x - dot, y);
      context.lineTo(x + dot, y);
      context.moveTo(x, y - dot);
      context.lineTo(x, y + dot);
      context.moveTo(x, y);
    },
  };
}

export function pathPen() {
  const parts = [];
  const at = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  return {
    move: (x, y) => parts.push(`M${at(x, y)}`),
    line: (x, y) => parts.push(`L${at(x, y)}`),
    dot: (x, y) => parts.push(`M${at(x - 2, y)}h4m-2 -2v4`),
    text: () => parts.join(''),
  };
}

export function highest(columns) {
  return columns.high || columns.last;
}

export function lowest(columns) {
  return columns.low || columns.last;
}

// The range of y: all that is drawn, or without the rarest values.
export function rangeOfY(curves, robust, log) {
  const values = [];
  for (const curve of curves) {
    for (const list of robust ? [curve.smooth || curve.last] : [lowest(curve), highest(curve)]) {
      for (const value of list) if (value !== null && (!log || value > 0)) values.push(value);
    }
  }
  if (!values.length) return null;
  let [low, high] = [Infinity, -Infinity];
  if (robust && values.length > 20) {
    values.sort((a, b) => a - b);
    low = values[Math.floor(values.length * 0.01)];
    high = values[Math.ceil(values.length * 0.99) - 1];
  } else {
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return widened(low, high, log);
}

function widened(low, high, log) {
  if (log) return low === high ? [low / 2, high * 2] : [low / 1.08, high * 1.08];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const margin = (high - low) * 0.06;
  const floor = low >= 0 && low - margin < 0 ? 0 : low - margin;
  return [floor, high + margin];
}

export function nearest(x, value) {
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && Math.abs(x[low - 1] - value) < Math.abs(x[low] - value) ? low - 1 : low;
}

// Round numbers, at any scale that a number can have.
export function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, n) => (Math.ceil(low / step) + n) * step);
}

// Ticks of a logarithmic axis: within a decade round numbers, else 1, 2 and 5, or powers of ten.
export function logTicks(low, high, most) {
  const decades = Math.log10(high / low);
  if (decades < 1) return ticks(low, high, most);
  const factors = decades * 3 <= most ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / most));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every === 0) for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.filter((value) => value >= low && value <= high);
}
