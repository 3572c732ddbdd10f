// What a person can ask a training to do, each after a question.
import { act } from './api.js';
import { button, el } from './dom.js';

export function actionButtons(details) {
  return details.offers.map((offer) => button(offer.label, () => confirmAction(details.id, offer), { class: offer.loses ? 'danger' : '' }));
}

export function confirmAction(id, { verb, label, question, yes, settings, loses }) {
  const inputs = settings.map((name) => el('input', { name, inputmode: 'decimal', autocomplete: 'off', id: `set-${name}` }));
  const message = el('p', { role: 'status', class: 'message' });
  const go = button(yes, () => send(), { class: loses ? 'danger strong' : 'strong' });
  const close = button('Close', () => dialog.close(), {});
  const dialog = el('dialog', { 'aria-label': label, onclose: () => dialog.remove() }, el('h2', {}, `${label} ${id}`), el('p', {}, question),
    inputs.map((input) => el('label', { class: 'setting' }, el('code', {}, input.name), input)), message, el('div', { class: 'buttons' }, close, go));
  async function send() {
    const values = Object.fromEntries(inputs.filter((input) => input.value).map((input) => [input.name, input.value]));
    go.disabled = true;
    message.textContent = 'Asking …';
    try {
      message.textContent = await act(id, verb, values);
      go.remove();
    } catch (error) {
      message.textContent = error.message;
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
