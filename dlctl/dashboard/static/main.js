// Choose the page that the URL names, and what all pages have in common.
import { readAddress, takeToken } from './address.js';
import { getReport, listen, saved } from './api.js';
import { showKeys } from './actions.js';
import { ComparePage } from './compare.js';
import { button, el, setText } from './dom.js';
import { clock } from './format.js';
import { ListPage } from './list.js';
import { download } from './save.js';
import { SearchPage } from './search.js';
import { TrainingPage } from './training.js';

const main = document.getElementById('main');
const notice = document.getElementById('notice');
let current = null;
let listening = null;
let goesTo = false;

function show() {
  takeToken();
  if (saved?.first && !location.hash) history.replaceState(null, '', saved.first);
  const { page, id } = readAddress();
  current?.stop();
  document.title = 'dlctl';
  if (page === 'training' && id) current = new TrainingPage(main, id);
  else if (page === 'search' && id) current = new SearchPage(main, id);
  else if (page === 'compare') current = new ComparePage(main);
  else current = new ListPage(main);
  for (const link of document.querySelectorAll('nav a')) {
    link.setAttribute('aria-current', link.dataset.page === page ? 'page' : 'false');
  }
  window.scrollTo(0, 0);
  current.start().catch((error) => say(error.message));
  listenTo(current.ids);
}

function listenTo(ids) {
  listening?.abort();
  listening = new AbortController();
  listen(ids, (changed) => {
    const mine = current.ids;
    if (!mine.length || changed.some((id) => mine.includes(id))) current.changed();
  }, say, listening.signal);
}

// A hidden page listens to nothing: browsers allow six connections to a server, and sites rest.
function onVisibility() {
  if (document.hidden) listening?.abort();
  else {
    current.changed();
    listenTo(current.ids);
  }
}

function say(text) {
  setText(notice, text);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(document.getElementById('theme'), theme === 'dark' ? 'Light' : 'Dark');
  current?.redraw?.();
}

function otherTheme() {
  const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  localStorage.setItem('dlctl-theme', next);
  setTheme(next);
}

function onKey(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && !/^(checkbox|range)$/.test(event.target.type);
  if (event.key === 'Escape' && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog')) return;
  if (event.target.type === 'range' && event.key.startsWith('Arrow')) return;
  if (event.target.closest?.('.scroll, .log') && event.key.startsWith('Arrow')) return;
  const pages = { t: '#/', c: '#/compare' };
  if (goesTo && pages[event.key]) location.hash = pages[event.key];
  else if (event.key === '?') showKeys();
  else if (event.key === 'd') otherTheme();
  else if (event.key !== 'g' && !current.key(event.key)) return;
  goesTo = event.key === 'g';
  event.preventDefault();
}

async function saveReport() {
  const { page, id, query } = readAddress();
  const ids = page === 'training' || page === 'search' ? [id] : (query.get('runs') || '').split(',').filter(Boolean);
  say('Writing the report …');
  try {
    download(await getReport(ids), 'report.html', 'text/html');
    say('');
  } catch (error) {
    say(error.message);
  }
}

if (!saved?.first) document.getElementById('pages').append(
  el('a', { href: '#/', 'data-page': 'list' }, 'Trainings'), el('a', { href: '#/compare', 'data-page': 'compare' }, 'Compare'));
if (saved) say(`A report of ${clock(saved.made_at)}`);
else document.getElementById('keys').before(button('Report', saveReport, { class: 'quiet', title: 'Save what this page shows as one file' }));
document.getElementById('theme').addEventListener('click', otherTheme);
document.getElementById('keys').addEventListener('click', showKeys);
document.addEventListener('keydown', onKey);
document.addEventListener('visibilitychange', onVisibility);
document.addEventListener('shown', (event) => listenTo(event.detail));
window.addEventListener('hashchange', show);
const darkSystem = matchMedia('(prefers-color-scheme: dark)');
const chosenTheme = () => localStorage.getItem('dlctl-theme') || (darkSystem.matches ? 'dark' : 'light');
darkSystem.addEventListener('change', () => setTheme(chosenTheme()));
setTheme(chosenTheme());
show();
