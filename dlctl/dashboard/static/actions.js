// What a person can ask a training to do, each after a question.
import { act } from './api.js';
import { button, el } from './dom.js';

const ACTIONS = {
  checkpoint: ['Checkpoint', 'Save a checkpoint now? The training goes on.', 'Save'],
  tune: ['Tune', 'Change settings while it trains, at the same step on all learners.', 'Change'],
  halt: ['Halt', 'Save a checkpoint and stop? You can resume it.', 'Halt'],
  cancel: ['Cancel', 'End it without saving? What came after the newest checkpoint is lost.', 'End it'],
  resume: ['Resume', 'Continue from the newest checkpoint, with the same resources?', 'Resume'],
};
const SETTINGS = ['lr', 'batch_size', 'clip_gradient_norm', 'momentum', 'weight_decay'];

export function actionButtons(details) {
  const verbs = details.live ? ['checkpoint', 'tune', 'halt', 'cancel'] : ['resume'];
  if (details.state === 'COMPLETED') return [];
  return verbs.map((verb) => button(ACTIONS[verb][0], () => confirmAction(details.id, verb), { class: verb === 'cancel' ? 'danger' : '' }));
}

export function confirmAction(id, verb) {
  const [label, question, yes] = ACTIONS[verb];
  const inputs = verb === 'tune' ? SETTINGS.map((name) => el('input', { name, inputmode: 'decimal', autocomplete: 'off', id: `set-${name}` })) : [];
  const told = el('p', { role: 'status', class: 'told' });
  const go = button(yes, () => send(), { class: verb === 'cancel' ? 'danger strong' : 'strong' });
  const close = button('Close', () => dialog.close(), {});
  const dialog = el('dialog', { 'aria-label': label, onclose: () => dialog.remove() }, el('h2', {}, `${label} ${id}`), el('p', {}, question),
    inputs.map((input) => el('label', { class: 'setting' }, el('code', {}, input.name), input)), told, el('div', { class: 'buttons' }, close, go));
  async function send() {
    const values = Object.fromEntries(inputs.filter((input) => input.value).map((input) => [input.name, input.value]));
    go.disabled = true;
    told.textContent = 'Asking …';
    try {
      told.textContent = await act(id, verb, values);
      go.remove();
    } catch (error) {
      told.textContent = error.message;
      go.disabled = false;
    }
  }
  document.body.append(dialog);
  dialog.showModal();
}

const KEYS = [
  ['?', 'these keys'], ['g, then t or c', 'go to all trainings, or to the comparison'], ['← →', 'move the window'], ['+ −', 'zoom in and out'], ['0', 'show the whole range'],
  ['x', 'step, epoch or time'], ['s', 'smooth, or not'], ['l  L', 'logarithmic y, x'], ['r', 'robust range'], ['d', 'dark or light'], ['/', 'find'],
  ['drag', 'zoom into a chart; a double click shows all again'],
];

export function showKeys() {
  if (document.querySelector('dialog')) return;
  const dialog = el('dialog', { 'aria-label': 'Keys', onclose: () => dialog.remove() }, el('h2', {}, 'Keys'),
    el('dl', { class: 'keys' }, KEYS.map(([key, what]) => el('div', {}, el('dt', {}, el('kbd', {}, key)), el('dd', {}, what)))),
    el('div', { class: 'buttons' }, button('Close', () => dialog.close(), {})));
  document.body.append(dialog);
  dialog.showModal();
}
