// Build elements. Text only ever becomes a text node, so nothing of a training is read as HTML.

// What moves a cursor, or turns the direction of writing, is shown as an escape.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

export function printable(text) {
  return text.replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'class') node.setAttribute('class', value);
    else if (name === 'value' || name === 'checked' || name === 'disabled') node[name] = value;
    else node.setAttribute(name, value === true ? '' : printable(String(value)));
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined);
  node.append(...shown.map((child) => (typeof child === 'string' ? printable(child) : child)));
  return node;
}

export function button(label, onclick, attributes = {}) {
  return el('button', { type: 'button', onclick, ...attributes }, label);
}

// A table in a box of its own, which scrolls when the page is too narrow for it.
export function table(caption, columns, rows) {
  const head = el('tr', {}, columns.map((column) => el('th', { scope: 'col' }, column)));
  const body = rows.map((row) => el('tr', {}, row.map((cell) => el('td', {}, cell))));
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    el('table', {}, el('thead', {}, head), el('tbody', {}, body)));
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
