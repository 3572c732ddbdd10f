// Ask the server; or, in a report, the data that the file itself holds.

import { matcher } from './format.js';

const embedded = document.getElementById('report');
export const saved = embedded ? JSON.parse(embedded.textContent) : null;

function token() {
  return localStorage.getItem('dlctl-token') || '';
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { 'x-dlctl-token': token() } });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Error(body.error || `the server answered ${answer.status}`);
  }
  return answer;
}

const path = (id) => `/api/trainings/${encodeURIComponent(id)}`;

export async function getTrainings() {
  return saved ? saved.trainings : (await ask('/api/trainings')).json();
}

export async function getDetails(id) {
  if (!saved) return (await ask(path(id))).json();
  if (!saved.details[id]) throw new Error(`no training ${id} is in this report`);
  return saved.details[id];
}

export async function getSearch(id) {
  if (!saved) return (await ask(`${path(id)}/search`)).json();
  if (!saved.searches[id]) throw new Error(`no search ${id} is in this report`);
  return saved.searches[id];
}

export async function getCurves(id, view, names = []) {
  if (saved) return savedCurves(id, view, names);
  const query = new URLSearchParams({ x: view.x, width: String(view.width), smooth: String(view.smooth) });
  if (view.from !== null) query.set('from', String(view.from));
  if (view.to !== null) query.set('to', String(view.to));
  if (view.find) query.set('find', view.find);
  for (const name of names) query.append('name', name);
  return (await ask(`${path(id)}/curves?${query}`)).json();
}

export async function act(id, verb, values = {}) {
  const answer = await ask(`${path(id)}/${verb}`, { method: 'POST', body: JSON.stringify(values) });
  return (await answer.json()).told;
}

export async function getReport(ids) {
  const query = new URLSearchParams(ids.map((id) => ['id', id]));
  return (await ask(`/api/report?${query}`)).text();
}

// Call `changed` with the ids of trainings that have changed, until the signal says to stop.
export async function listen(ids, changed, tell, signal) {
  const query = new URLSearchParams(ids.map((id) => ['id', id]));
  let pause = 500;
  while (!saved && !signal.aborted) {
    try {
      const answer = await ask(`/api/changes?${query}`, { signal });
      tell('');
      pause = 500;
      await readEvents(answer.body.getReader(), changed);
    } catch (error) {
      if (signal.aborted) return;
      tell(error instanceof TypeError ? 'No connection: is dlctl still running?' : error.message);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

async function readEvents(reader, changed) {
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (text + decoder.decode(value, { stream: true })).split('\n\n');
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      const ids = JSON.parse(event.slice(6));
      if (ids.length) changed(ids);
    }
  }
}

// Call `piece` with each piece of the log; return what ends it.
export function followLog(id, piece, ended) {
  if (saved) {
    const pieces = saved.logs[id] || [];
    pieces.forEach(piece);
    ended(pieces.length ? 'The last lines of the newest attempt.' : 'The log was not there when this report was made.');
    return () => {};
  }
  const url = `ws://${location.host}/ws/trainings/${encodeURIComponent(id)}/logs`;
  const socket = new WebSocket(url, ['dlctl', `token.${token()}`]);
  socket.onmessage = (message) => piece(JSON.parse(message.data));
  socket.onclose = (event) => ended(event.reason);
  return () => {
    socket.onclose = null;
    socket.close();
  };
}

function savedCurves(id, view, names) {
  const whole = saved.curves[id];
  if (!whole) throw new Error(`no training ${id} is in this report`);
  const axis = view.x === 'step' ? { ...whole, columns: whole.curves } : whole[view.x];
  const find = matcher(view.find);
  const curves = whole.curves
    .map((curve, n) => ({ ...curve, ...axis.columns[n] }))
    .filter(() => !axis.problem)
    .filter((curve) => (!names.length || names.includes(curve.name)) && find(curve.shown))
    .map((curve) => smoothedHere(curve, view.smooth, axis.span));
  const { span, problem, events, attempts } = axis;
  return { ...whole, x: view.x, span, problem, events, attempts, curves };
}

// As the server smooths, on the columns that the report holds.
function smoothedHere(curve, factor, span) {
  if (!factor) return curve;
  const unit = (span[1] - span[0]) / 1000 || 1;
  let [sum, weight, place] = [0, 0, null];
  const smooth = curve.last.map((last, n) => {
    if (last !== null) {
      const kept = place === null || curve.x[n] <= place ? factor : factor ** ((curve.x[n] - place) / unit);
      sum = kept * sum + (1 - kept) * last;
      weight = kept * weight + 1 - kept;
      place = curve.x[n];
    }
    return weight ? sum / weight : null;
  });
  return { ...curve, smooth };
}
