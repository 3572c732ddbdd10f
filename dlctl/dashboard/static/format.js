// Turn numbers into short words.

const PREFIXES = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];

export function shortNumber(exact, digits = 4) {
  if (exact === null || exact === undefined || !Number.isFinite(exact)) return '–';
  const value = Number(exact.toPrecision(digits));
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(digits > 4 ? digits - 1 : digits > 3 ? 2 : 1);
  for (const [limit, prefix] of PREFIXES) {
    if (size >= limit * 10 || (size >= limit && limit > 1e3)) return trimmed(value / limit, digits) + prefix;
  }
  return trimmed(value, digits);
}

function trimmed(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

// Memory is told in powers of 1024; files and transfers in powers of 1000. The command line does alike.
const MEMORY = /memory|rss/;

export function memorySize(value, digits = 3) {
  return scaled(value, 1024, 1000, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'], (number) => trimmed(number, digits));
}

export function fileSize(value, digits = 0) {
  return scaled(value, 1000, 999.95, ['B', 'kB', 'MB', 'GB', 'TB', 'PB'], (number, unit) => (digits ? trimmed(number, digits) : number.toFixed(unit ? 1 : 0)));
}

export function isMemory(name) {
  return MEMORY.test(name) && /bytes(_per_s)?(_max)?$/.test(name);
}

function scaled(value, base, limit, units, shown) {
  if (value === null || value === undefined) return '–';
  let [number, unit] = [value, 0];
  for (; Math.abs(number) >= limit && unit < units.length - 1; unit += 1) number /= base;
  return `${shown(number, unit)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–';
  const whole = Math.round(Math.abs(seconds));
  if (seconds !== 0 && Math.abs(seconds) < 0.001) return `${trimmed(seconds * 1e6, 3)} µs`;
  if (seconds !== 0 && Math.abs(seconds) < 0.9995) return `${trimmed(seconds * 1e3, 3)} ms`;
  if (whole < 60) return Math.abs(seconds) < 10 ? `${trimmed(seconds, 2)} s` : `${whole} s`;
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${String(minutes).padStart(2, '0')} min`;
  return whole % 60 && whole < 600 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
}

// An estimate, to its largest unit.
export function roughly(seconds) {
  return duration(seconds).replace(/ \d+ (s|min)$/, '');
}

// The three numbers of an estimate: at least, probably, at most.
export function leftWords(left) {
  if (!left) return '';
  const [low, middle, high] = left.map(roughly);
  return low === high ? middle : `${middle} (${low} – ${high})`;
}

// A time of the site is its clock's; this machine's may be ahead.
export function ago(unixSeconds, aheadSeconds = 0) {
  if (!unixSeconds) return '–';
  const seconds = Date.now() / 1000 - aheadSeconds - unixSeconds;
  return seconds < 5 ? 'now' : `${duration(seconds).replace(/ \d+ (s|min|h)$/, '')} ago`;
}

export function clock(unixSeconds) {
  if (!unixSeconds) return '–';
  return new Date(unixSeconds * 1000).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? '–' : `${(share * 100).toFixed(digits)} %`;
}

// A value of a metric, in the unit that its name ends with.
export function metricValue(name, value, digits = 0) {
  const unit = /bytes(_per_s)?(_max)?$/.exec(name);
  if (unit) return `${isMemory(name) ? memorySize(value, Math.max(3, digits)) : fileSize(value, digits && Math.max(3, digits))}${unit[1] && value !== null ? '/s' : ''}`;
  if (/(^|[^r])_s$/.test(name) && !/per_s$/.test(name)) return value === null ? '–' : duration(value);
  return shortNumber(value, digits || 4);
}

export function xValue(kind, value) {
  if (kind === 'time') return duration(value);
  if (kind === 'epoch') return `epoch ${trimmed(value, 4)}`;
  return `step ${Math.round(value).toLocaleString('en').replaceAll(',', ' ')}`;
}

// gap: the distance to the next tick, which must read as another number.
export function xTick(kind, value, digits = 4, gap = 1) {
  if (kind === 'step') return shortNumber(value, digits);
  return kind === 'epoch' ? trimmed(value, digits) : timeTick(value, gap);
}

function timeTick(value, gap) {
  const decimals = gap > 0 && gap < 1 ? Math.min(20, Math.ceil(-Math.log10(gap) - 1e-9)) : 0;
  let rest = Number(value.toFixed(decimals));
  const parts = [];
  for (const [seconds, unit] of [[86400, 'd'], [3600, 'h'], [60, 'm']]) {
    const count = Math.floor(rest / seconds);
    rest -= count * seconds;
    if (count) parts.push(`${count}${unit}`);
  }
  const seconds = Number(rest.toFixed(decimals));
  return [...parts, ...(seconds || !parts.length ? [`${seconds}s`] : [])].join(' ');
}

// What a person looks for in a text: a regular expression, or the text itself where it is none.
export function matcher(wanted) {
  try {
    const pattern = new RegExp(wanted, 'i');
    return (text) => pattern.test(text);
  } catch {
    return (text) => text.toLowerCase().includes(wanted.toLowerCase());
  }
}

const WORDS = new Intl.Collator('en', { numeric: true });

// Order numbers as numbers, and texts so that w2 comes before w10; what has no value comes last.
export function compared(a, b, direction = 1) {
  const [none, other] = [a, b].map((value) => value === null || value === undefined || value === '' || Number.isNaN(value));
  if (none || other) return none - other;
  return direction * (typeof a === 'number' && typeof b === 'number' ? a - b : WORDS.compare(String(a), String(b)));
}

export function title(name) {
  return name.replace(/_bytes(_per_s)?$/, (_, rate) => (rate ? ' / s' : '')).replace(/_percent$/, ' %').replace(/_per_s$/, ' / s')
    .replace(/_rss$/, '').replace(/_s$/, ' time').replace(/^gpu(?=\d|_| |$)/, 'GPU ').replace(/^cpu(?=_| )/, 'CPU ').replaceAll('_', ' ').replaceAll('  ', ' ');
}

export function progressWords(row) {
  if (row.epoch !== null && row.epoch !== undefined) {
    return `epoch ${row.epoch}${row.epochs ? `/${row.epochs}` : ''}`;
  }
  return row.step === null || row.step === undefined || row.step < 0 ? '' : `step ${shortNumber(row.step)}`;
}
