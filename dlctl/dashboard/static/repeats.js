// Repetitions: trainings whose plans differ in nothing but the seed, drawn as their mean and range.
import { nearest } from './paint.js';
import { flatten } from './tabs.js';

const OFTEN_DIFFERENT = /^(created_at|training_id|.*digest|.*_dir|.*job_id|runtime.*|submission.*|batch\.(output|comment|name).*)$/;
const SEED = /(^|\.)seed$/;

// The keys in which plans differ, seeds at the end, and the plans as maps of keys.
export function differences(plans) {
  const flat = plans.map((plan) => flatten(plan || {}));
  const keys = [...new Set(flat.flatMap((plan) => [...plan.keys()]))].filter((key) => !OFTEN_DIFFERENT.test(key));
  const differ = keys.filter((key) => new Set(flat.map((plan) => plan.get(key))).size > 1);
  return [differ.sort((a, b) => SEED.test(a) - SEED.test(b)), flat];
}

// Lists of places of plans that differ in nothing but the seed.
export function repetitions(keys, plans) {
  const found = new Map();
  const varied = keys.filter((key) => !SEED.test(key));
  plans.forEach((plan, n) => {
    const text = JSON.stringify(varied.map((key) => plan.get(key) ?? null));
    if (!found.has(text)) found.set(text, []);
    found.get(text).push(n);
  });
  return [...found.values()];
}

export function meanAndSpread(values) {
  const known = values.filter((value) => Number.isFinite(value));
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const spread = Math.sqrt(known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (known.length - 1));
  return [known.length ? mean : null, known.length > 1 ? spread : null];
}

// One curve for several, at the places of the one with the most points: the mean, the lowest and the highest.
export function meanCurve(curves) {
  const longest = curves.reduce((a, b) => (b.x.length > a.x.length ? b : a));
  const known = longest.x.map((x) => curves.map((curve) => valueAt(curve, x)).filter((value) => value !== null));
  const of = (make) => known.map((values) => (values.length ? make(values) : null));
  return { ...longest, band: true, smooth: null, ends: null, first: null, last: of((values) => meanAndSpread(values)[0]),
    low: of((values) => Math.min(...values)), high: of((values) => Math.max(...values)), newest: meanAndSpread(curves.map((curve) => curve.newest))[0] };
}

// The value at a place, by proportion between two neighbours; nothing beyond the ends.
function valueAt(curve, x) {
  const values = curve.smooth || curve.last;
  const at = nearest(curve.x, x);
  const before = curve.x[at] > x ? at - 1 : at;
  if (!curve.x.length || before < 0 || x > curve.x.at(-1)) return null;
  const [a, b] = [values[before], values[before + 1]];
  if (curve.x[before] === x || a === null) return a;
  return b === null ? null : a + ((b - a) * (x - curve.x[before])) / (curve.x[before + 1] - curve.x[before]);
}
