// The state of the page, which is all in the URL behind `#`: a link shows the same again.

export function readAddress() {
  const text = location.hash.slice(1) || '/';
  const [path, query = ''] = text.split('?');
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  return { page: parts[0] || 'list', id: parts[1] || '', query: new URLSearchParams(query) };
}

export function address(page, id, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== '' && value !== undefined && value !== false) found.set(name, value);
  }
  const path = page === 'list' ? '/' : `/${page}${id ? `/${encodeURIComponent(id)}` : ''}`;
  const text = found.toString();
  return `#${path}${text ? `?${text}` : ''}`;
}

// Change parts of the state; the page that is shown stays.
export function rewrite(changes) {
  const { page, id, query } = readAddress();
  const next = address(page, id, { ...Object.fromEntries(query), ...changes });
  if (next !== location.hash) history.replaceState(null, '', next);
}

// Take the token out of the URL, so that nobody copies it with a link.
export function takeToken() {
  const { page, id, query } = readAddress();
  const token = query.get('token');
  if (token) {
    query.delete('token');
    localStorage.setItem('dlctl-token', token);
    history.replaceState(null, '', address(page, id, Object.fromEntries(query)));
  }
}
