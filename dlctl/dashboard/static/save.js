// Save what a chart shows: as a picture, or as numbers.
import { button, el, svg } from './dom.js';
import { title } from './format.js';
import { inkOf, pathPen, themeColours, traceBand, traceColumns, traceLine } from './paint.js';

export function saveMenu(chart) {
  const entries = [['PNG', savePng], ['SVG', saveSvg], ['CSV', saveCsv]];
  const menu = el('details', { class: 'menu' },
    el('summary', { 'aria-label': `Save the chart of ${title(chart.name)}` }, 'Save'));
  const choose = (save) => {
    menu.open = false;
    save(chart);
  };
  menu.append(el('div', { class: 'sheet' }, entries.map(([label, save]) => button(label, () => choose(save)))));
  return menu;
}

export function download(content, name, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // a busy browser begins to read it late
}

function fileName(chart, ending) {
  return `${chart.name.replace(/[^\w.-]+/g, '_').slice(0, 60) || 'chart'}.${ending}`;
}

// Where the names of the curves stand above a picture, in as many rows as they need.
function legendOf(chart) {
  let [x, row] = [10, 0];
  const entries = chart.visible.map((curve) => {
    const width = 32 + curve.label.length * 6.5;
    if (x > 10 && x + width > chart.plot.width) [x, row] = [10, row + 1];
    x += width;
    return { curve, x: x - width, y: 31 + 16 * row };
  });
  return { entries, head: 44 + 16 * row };
}

function savePng(chart) {
  const source = chart.plot.ctx.canvas;
  const colours = themeColours();
  const ratio = devicePixelRatio || 1;
  const { entries, head: height } = legendOf(chart);
  const head = height * ratio;
  const canvas = el('canvas', { width: source.width, height: source.height + head });
  const ctx = canvas.getContext('2d');
  ctx.fillStyle = colours.paper;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(source, 0, head);
  ctx.fillStyle = colours.text;
  ctx.font = `600 ${13 * ratio}px ${colours.font}`;
  ctx.fillText(title(chart.name), 10 * ratio, 18 * ratio);
  ctx.font = `${11 * ratio}px ${colours.font}`;
  for (const { curve, x, y } of entries) {
    ctx.fillStyle = inkOf(curve.colour);
    ctx.fillRect(x * ratio, y * ratio, 12 * ratio, 3 * ratio);
    ctx.fillStyle = colours.text;
    ctx.fillText(curve.label, (x + 16) * ratio, (y + 5) * ratio);
  }
  canvas.toBlob((blob) => download(blob, fileName(chart, 'png')));
}

function saveSvg(chart) {
  const text = new XMLSerializer().serializeToString(chartPicture(chart));
  download(text, fileName(chart, 'svg'), 'image/svg+xml');
}

export function chartPicture(chart) {
  const { plot } = chart;
  const colours = themeColours();
  const ratio = devicePixelRatio || 1;
  const box = Object.fromEntries(Object.entries(plot.bbox).map(([name, value]) => [name, value / ratio]));
  const { entries, head } = legendOf(chart);
  const [toX, toY] = chart.places((x) => plot.valToPos(x, 'x') + box.left, (y) => plot.valToPos(y, 'y') + box.top);
  const picture = svg('svg', {
    xmlns: 'http://www.w3.org/2000/svg', viewBox: `0 0 ${plot.width} ${plot.height + head}`,
    width: plot.width, height: plot.height + head, 'font-family': 'sans-serif', 'font-size': 11,
  });
  picture.append(svg('rect', { width: '100%', height: '100%', fill: colours.paper }));
  picture.append(svg('text', { x: 10, y: 18, fill: colours.text, 'font-size': 13, 'font-weight': 600 }, title(chart.name)));
  for (const { curve, x, y } of entries) {
    picture.append(svg('rect', { x, y, width: 12, height: 3, fill: inkOf(curve.colour) }));
    picture.append(svg('text', { x: x + 16, y: y + 5, fill: colours.text }, curve.label));
  }
  const body = svg('g', { transform: `translate(0 ${head})` });
  axesOfPicture(plot, box, body, colours);
  const clip = svg('clipPath', { id: 'inside' }, svg('rect', { x: box.left, y: box.top, width: box.width, height: box.height }));
  const lines = svg('g', { 'clip-path': 'url(#inside)', fill: 'none', 'stroke-linejoin': 'round' });
  for (const curve of chart.visible) curveOfPicture(curve, lines, [toX, toY], colours, chart.breaks);
  body.append(clip, lines);
  picture.append(body);
  return picture;
}

function curveOfPicture(curve, lines, [toX, toY], colours, breaks) {
  const look = { stroke: inkOf(curve.colour), 'stroke-dasharray': curve.dashed ? '5 4' : null };
  const pen = pathPen();
  if (curve.band) {
    const area = pathPen();
    traceBand(curve, toX, toY, area);
    lines.append(svg('path', { d: area.text(), fill: look.stroke, opacity: 0.18 }));
    traceLine(curve.x, curve.last, toX, toY, pen, breaks);
  } else traceColumns(curve, toX, toY, pen, breaks);
  lines.append(svg('path', { ...look, d: pen.text(), 'stroke-width': curve.smooth ? 1 : 1.4, opacity: curve.smooth ? 0.3 : null }));
  if (!curve.smooth) return;
  const smooth = pathPen();
  traceLine(curve.x, curve.smooth, toX, toY, smooth, breaks);
  lines.append(svg('path', { ...look, d: smooth.text(), 'stroke-width': 1.8 }));
}

function axesOfPicture(plot, box, body, colours) {
  const [across, up] = plot.axes;
  across._splits.forEach((value, n) => {
    const x = box.left + plot.valToPos(value, 'x');
    body.append(svg('line', { x1: x, x2: x, y1: box.top, y2: box.top + box.height, stroke: colours.grid }));
    body.append(svg('text', { x, y: box.top + box.height + 15, fill: colours.quiet, 'text-anchor': 'middle' }, across._values[n] ?? ''));
  });
  up._splits.forEach((value, n) => {
    const y = box.top + plot.valToPos(value, 'y');
    body.append(svg('line', { x1: box.left, x2: box.left + box.width, y1: y, y2: y, stroke: colours.grid }));
    body.append(svg('text', { x: box.left - 6, y: y + 4, fill: colours.quiet, 'text-anchor': 'end' }, up._values[n] ?? ''));
  });
}

// A spreadsheet would run a text that begins like a formula.
function csvCell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}

export function csvText(charts) {
  const rows = [['metric', 'curve', 'x', 'low', 'high', 'first', 'last', 'smooth'].join(',')];
  for (const chart of charts) {
    for (const curve of chart.visible) {
      curve.x.forEach((x, n) => {
        const of = (name) => (curve[name] || (name === 'smooth' ? [] : curve.last))[n];
        rows.push([chart.name, curve.label, x, of('low'), of('high'), of('first'), of('last'), of('smooth')].map(csvCell).join(','));
      });
    }
  }
  return `${rows.join('\n')}\n`;
}

function saveCsv(chart) {
  download(csvText([chart]), fileName(chart, 'csv'), 'text/csv');
}
