
// The page: what is in sight, what is chosen, and what follows from it.

const $ = id => document.getElementById(id);
const meta = JSON.parse($('meta').textContent);
const MARGIN = { left: 78, right: 12, top: 10, bottom: 24 };
// Rows of the table; the rest is one line.
const MOST_ROWS = 200;

let trace;
let view;
let shown = null;
const chosen = { event: 0, number: -1, sort: 'size' };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function bandColour(band) {
  return colour(band === 0 ? '--before' : `--b${(band - 1) % 11}`);
}

function bandName(band) {
  return band === 0 ? '(before the trace began)' : meta.bandNames[band - 1];
}

function labelName(number) {
  return meta.labels[trace.label[number]] || '(unlabelled)';
}

async function unpack(text) {
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), character => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).arrayBuffer();
}

/** A canvas ready to be drawn on, as many pixels as the screen has. */
function canvas(element, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(200, element.clientWidth);
  const tall = height ?? element.clientHeight;
  if (height) element.style.height = `${height}px`;
  element.width = width * ratio;
  element.height = tall * ratio;
  const context = element.getContext('2d');
  context.scale(ratio, ratio);
  context.font = '12px system-ui, sans-serif';
  return { context, width, height: tall };
}

/** Fills the bands of a stack from the bottom up. */
function fillBands(context, columns, box, top) {
  const { bands } = trace;
  const y = value => box.bottom - value / top * (box.bottom - box.top);
  const foot = new Float64Array(box.width);
  for (let band = 0; band < bands; band++) {
    if (trace.bandPeak[band] === 0) continue;
    context.fillStyle = bandColour(band);
    context.beginPath();
    context.moveTo(box.left, y(foot[0]));
    const head = new Float64Array(box.width);
    for (let x = 0; x < box.width; x++) {
      head[x] = foot[x] + columns.stacks[x * bands + band];
      context.lineTo(box.left + x, y(head[x]));
      context.lineTo(box.left + x + 1, y(head[x]));
    }
    for (let x = box.width - 1; x >= 0; x--) {
      context.lineTo(box.left + x + 1, y(foot[x]));
      context.lineTo(box.left + x, y(foot[x]));
    }
    context.fill();
    foot.set(head);
  }
}

/** Lines between allocations that are large enough to be told apart. */
function strokeEdges(context, columns, box, top) {
  if (columns.high - columns.low > MOST_EXACT) return;
  const y = value => box.bottom - value / top * (box.bottom - box.top);
  const least = 4 * top / (box.bottom - box.top);
  context.strokeStyle = colour('--panel');
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.beginPath();
  for (const { number, feet } of trace.edges(columns, least)) {
    for (let x = 0; x < box.width; x++) {
      if (Number.isNaN(feet[x])) continue;
      let head = feet[x] + trace.size[number];
      for (let band = 0; band < trace.band[number]; band++) {
        head += columns.stacks[x * trace.bands + band];
      }
      context.moveTo(box.left + x, y(head));
      context.lineTo(box.left + x + 1, y(head));
    }
  }
  context.stroke();
  context.globalAlpha = 1;
}

/** A line of a value that changes at some events; in each column its highest. */
function strokeSeries(context, name, style, box, top, add) {
  const at = trace[name + 'At'];
  if (!at.length) return;
  const y = value => box.bottom - Math.min(value, top * 1.05) / top * (box.bottom - box.top);
  context.strokeStyle = colour(style);
  context.lineWidth = 1.5;
  context.beginPath();
  let place = bound(at, box.moments[0], true) - 1;
  for (let x = 0; x < box.width; x++) {
    const end = box.moments[x];
    let most = place < 0 ? 0 : trace[name + 'Value'][place];
    while (place + 1 < at.length && at[place + 1] <= end) {
      most = Math.max(most, trace[name + 'Value'][++place]);
    }
    const level = y(most + (add ? box.totals[x] : 0));
    context.lineTo(box.left + x, level);
    context.lineTo(box.left + x + 1, level);
  }
  context.stroke();
}

function axes(context, box, top) {
  context.fillStyle = colour('--faint');
  context.strokeStyle = colour('--grid');
  context.lineWidth = 1;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  const step = ticks(top, 6, 2);
  for (let value = 0; value <= top; value += step) {
    const y = box.bottom - value / top * (box.bottom - box.top);
    context.beginPath();
    context.moveTo(box.left, y);
    context.lineTo(box.left + box.width, y);
    context.stroke();
    context.fillText(bytes(value), box.left - 6, y);
  }
  context.textAlign = 'center';
  context.textBaseline = 'top';
  const pace = ticks(view.to - view.from, 8, 10);
  const first = Math.ceil((view.from - trace.first) / pace) * pace;
  for (let since = first; since <= view.to - trace.first; since += pace) {
    const x = box.left + (since + trace.first - view.from) / (view.to - view.from) * box.width;
    context.fillText(seconds(since), Math.min(x, box.left + box.width - 20), box.bottom + 6);
  }
}

/** The highest that is to be seen, with some room. */
function scaleOf(columns) {
  let top = 1;
  columns.totals.forEach(total => { top = Math.max(top, total); });
  const { low, high } = columns;
  for (const name of ['reserved', 'mapped']) {
    const at = trace[name + 'At'];
    let place = Math.max(0, bound(at, low, true) - 1);
    for (; place < at.length && at[place] <= high; place++) {
      const value = trace[name + 'Value'][place];
      top = Math.max(top, name === 'mapped' ? value + trace.peak * (value > 0) : value);
    }
  }
  const limit = trace.value('limit', high);
  if (limit > 0 && limit < top * 1.3) top = Math.max(top, limit);
  return top * 1.06;
}

function drawChart() {
  const { context, width, height } = canvas($('chart'));
  const box = {
    left: MARGIN.left, top: MARGIN.top, bottom: height - MARGIN.bottom,
    width: Math.floor(width - MARGIN.left - MARGIN.right),
  };
  const columns = trace.columns(view.from, view.to, box.width);
  const top = scaleOf(columns);
  // The last event of each column: lines go up to it.
  box.moments = Array.from(columns.moments, (moment, x) => {
    const end = view.from + (x + 1) / box.width * (view.to - view.from);
    return Math.max(moment, bound(trace.time, end, true) - 1);
  });
  box.totals = columns.totals;
  axes(context, box, top);
  context.save();
  context.beginPath();
  context.rect(box.left, 0, box.width, height);
  context.clip();
  fillBands(context, columns, box, top);
  strokeEdges(context, columns, box, top);
  if (trace.mappedValue.some(value => value > 0)) {
    strokeSeries(context, 'mapped', '--mapped', box, top, true);
  }
  strokeSeries(context, 'reserved', '--reserved', box, top, false);
  context.setLineDash([6, 4]);
  const limit = trace.value('limit', columns.high);
  if (limit > 0 && limit <= top) strokeSeries(context, 'limit', '--limit', box, top, false);
  const working = meta.begin?.own ? meta.begin.workingSet : 0;
  if (working > 0 && working <= top) {
    const y = box.bottom - working / top * (box.bottom - box.top);
    context.strokeStyle = colour('--faint');
    context.beginPath();
    context.moveTo(box.left, y);
    context.lineTo(box.left + box.width, y);
    context.stroke();
  }
  context.setLineDash([]);
  shown = { box, columns, top };
  outline(context);
  const at = trace.time[chosen.event];
  if (at >= view.from && at <= view.to) {
    const x = box.left + (at - view.from) / (view.to - view.from) * box.width;
    context.strokeStyle = colour('--chosen');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, box.bottom);
    context.stroke();
  }
  context.restore();
  Object.assign($('chart').dataset, {
    left: box.left, width: box.width, top: box.top, bottom: box.bottom, most: top,
    from: view.from, to: view.to,
  });
}

/** Outlines the chosen allocation where it lies in the stack. */
function outline(context) {
  const { number } = chosen;
  const { box, columns, top } = shown;
  if (number < 0) return;
  const xs = [];
  for (let x = 0; x < box.width; x++) {
    if (columns.moments[x] >= 0 && trace.isLive(number, columns.moments[x])) xs.push(x);
  }
  if (!xs.length) return;
  const feet = trace.footings(number, xs.map(x => columns.moments[x]));
  const y = value => box.bottom - value / top * (box.bottom - box.top);
  context.fillStyle = colour('--chosen');
  context.globalAlpha = 0.55;
  xs.forEach((x, index) => {
    let foot = feet[index];
    for (let band = 0; band < trace.band[number]; band++) {
      foot += columns.stacks[x * trace.bands + band];
    }
    const head = y(foot + trace.size[number]);
    context.fillRect(box.left + x, head, 1, Math.max(1, y(foot) - head));
  });
  context.globalAlpha = 1;
}

function drawOverview() {
  const { context, width, height } = canvas($('overview'));
  const box = {
    left: MARGIN.left, top: 3, bottom: height - 3,
    width: Math.floor(width - MARGIN.left - MARGIN.right),
  };
  fillBands(context, trace.columns(trace.first, trace.last, box.width), box, trace.peak || 1);
  const x = time => box.left + (time - trace.first) / (trace.last - trace.first) * box.width;
  context.fillStyle = colour('--paper');
  context.globalAlpha = 0.7;
  context.fillRect(box.left, 0, x(view.from) - box.left, height);
  context.fillRect(x(view.to), 0, box.left + box.width - x(view.to), height);
}

/** The allocation and the moment under a point of the chart. */
function under(x, y) {
  if (!shown) return null;
  const { box, columns, top } = shown;
  const column = Math.floor(x - box.left);
  if (column < 0 || column >= box.width || y > box.bottom) return null;
  const event = columns.moments[column];
  if (event < 0) return null;
  let value = (box.bottom - y) / (box.bottom - box.top) * top;
  for (let band = 0; band < trace.bands; band++) {
    const size = columns.stacks[column * trace.bands + band];
    if (value < size) return { event, number: band ? trace.find(event, band, value) : -1, band };
    value -= size;
  }
  return { event, number: -1, band: -1 };
}

function queueName(number) {
  return trace.queue[number] === NONE ? 'the CPU' : String(trace.queue[number]);
}

function ageOf(number, event) {
  return trace.time[event] - trace.time[trace.start[number]];
}

function facts(number) {
  const end = trace.end[number];
  const from = trace.time[trace.start[number]];
  const to = end === NONE ? null : trace.time[end];
  const padding = trace.size[number] - trace.asked[number];
  const lifetime = to === null ? `from ${seconds(from - trace.first)} to the end`
    : `${seconds(to - from)}, from ${seconds(from - trace.first)} to ${seconds(to - trace.first)}`;
  const block = trace.block[number];
  return [
    ['size', `${bytes(trace.size[number])} (${trace.size[number]} bytes; `
      + `${trace.asked[number]} asked, ${padding} padding)`],
    ['label', labelName(number)],
    ['lifetime', lifetime],
    ['queue', queueName(number)],
    ['thread', String(trace.thread[number])],
    ['place', block === NONE ? 'not known'
      : `block ${meta.blocks[block][0]} (${meta.blocks[block][1]}), byte ${trace.offset[number]}`],
    ['call site', meta.stacks[trace.site[number]] || 'not recorded (AQUIFER_TRACE_STACKS=1 does)'],
  ];
}

function showDetails() {
  const { number } = chosen;
  const details = $('details');
  if (number < 0) {
    details.textContent = 'None is chosen.';
    return;
  }
  const list = document.createElement('dl');
  for (const [name, value] of facts(number)) {
    const term = document.createElement('dt');
    const text = document.createElement('dd');
    term.textContent = name;
    text.textContent = value;
    list.append(term, text);
  }
  details.replaceChildren(list);
}

function sorted(numbers) {
  const by = {
    size: (a, b) => trace.size[b] - trace.size[a] || a - b,
    age: (a, b) => a - b,
    label: (a, b) => labelName(a).localeCompare(labelName(b)) || trace.size[b] - trace.size[a],
  };
  return numbers.sort(by[chosen.sort]);
}

function cell(row, text, kind) {
  const data = row.insertCell();
  data.textContent = text;
  if (kind) data.className = kind;
  return data;
}

function showTable() {
  const { event } = chosen;
  const numbers = trace.live(event);
  const total = trace.at(event).reduce((all, one) => all + one, 0);
  const since = trace.time[event] - trace.first;
  $('moment').textContent = `${numbers.length} allocations at ${seconds(since)} (event ${event}): `
    + `${bytes(total)}, ${(100 * total / (trace.peak || 1)).toFixed(1)} % of the peak.`;
  Object.assign($('moment').dataset, { total, count: numbers.length, event });
  const body = $('table').tBodies[0];
  const rows = sorted(numbers).slice(0, MOST_ROWS).map(number => {
    const row = document.createElement('tr');
    row.tabIndex = 0;
    row.dataset.number = number;
    row.setAttribute('aria-selected', String(number === chosen.number));
    cell(row, bytes(trace.size[number]), 'number');
    const part = trace.size[number] / (trace.peak || 1);
    const share = cell(row, '');
    const bar = document.createElement('span');
    bar.className = 'share';
    bar.style.width = `${Math.max(1, 60 * part)}px`;
    share.append(bar, `${(100 * part).toFixed(1)} %`);
    const label = cell(row, '');
    const mark = document.createElement('i');
    mark.style.background = bandColour(trace.band[number]);
    label.append(mark, labelName(number));
    cell(row, seconds(ageOf(number, event)), 'number');
    cell(row, queueName(number), 'number');
    cell(row, String(trace.thread[number]), 'number');
    cell(row, (meta.stacks[trace.site[number]] || '').split('\n')[0]);
    return row;
  });
  body.replaceChildren(...rows);
  const rest = numbers.slice(MOST_ROWS);
  if (rest.length) {
    const size = rest.reduce((all, number) => all + trace.size[number], 0);
    const row = body.insertRow();
    cell(row, bytes(size), 'number');
    const text = cell(row, `${rest.length} more allocations`);
    text.colSpan = 6;
  }
}

let placed = [];

/** The range that holds a byte of a block; they are sorted by block and offset. */
function rangeOf(ranges, block, offset) {
  let low = 0;
  let high = ranges.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    const { block: at, to } = ranges[middle];
    if (at < block || (at === block && to <= offset)) low = middle + 1;
    else high = middle;
  }
  const found = ranges[low];
  return found && found.block === block && found.from <= offset ? found : null;
}

/** Who sits where at the chosen moment: every block's memory, row by row. */
function drawMap() {
  const { event } = chosen;
  const ranges = trace.backed(event);
  const total = ranges.reduce((all, range) => all + range.to - range.from, 0);
  placed = [];
  const live = trace.live(event);
  const known = live.some(number => trace.block[number] !== NONE);
  if (!total || (live.length && !known)) {
    canvas($('map'), 24);
    $('placed').textContent = trace.blockStart.length && !live.length
      ? 'Nothing is held at this moment.'
      : 'The trace does not say where allocations lie; aquifer view --replayed shows where aquifer '
        + 'would put them.';
    return;
  }
  const rows = Math.min(28, Math.max(12, Math.ceil(ranges.length / 6)));
  const { context, width } = canvas($('map'), rows * 20 + 6);
  const perRow = total / rows;
  const starts = new Map();
  let at = 0;
  for (const range of ranges) {
    starts.set(range, at);
    at += range.to - range.from;
  }
  // A stretch of the strip, wrapped into rows.
  const stretch = (from, to, draw) => {
    while (from < to) {
      const row = Math.min(rows - 1, Math.floor(from / perRow + 1e-9));
      const end = row === rows - 1 ? to : Math.min(to, (row + 1) * perRow);
      const x = (from - row * perRow) / perRow * width;
      draw(x, row * 20 + 3, Math.max(0.5, (end - from) / perRow * width), 16);
      if (end <= from) break;
      from = end;
    }
  };
  context.fillStyle = colour('--free');
  stretch(0, total, (x, y, w, h) => context.fillRect(x, y, w, h));
  let used = 0;
  let padding = 0;
  for (const number of live) {
    const block = trace.block[number];
    const offset = trace.offset[number];
    const range = rangeOf(ranges, block, offset);
    if (!range) continue;
    const from = starts.get(range) + offset - range.from;
    const size = trace.size[number];
    const idle = size - trace.asked[number];
    used += size;
    padding += idle;
    context.fillStyle = bandColour(trace.band[number]);
    stretch(from, from + size, (x, y, w, h) => {
      context.globalAlpha = 1;
      context.fillRect(x, y, w, h);
      placed.push({ x, y, w, h, number });
    });
    context.fillStyle = colour('--panel');
    stretch(from, from + 1, (x, y, w, h) => context.fillRect(x, y, 0.7, h));
    context.globalAlpha = 0.6;
    if (idle > 0) stretch(from + size - idle, from + size, (x, y, w, h) => context.fillRect(x, y, w, h));
    context.globalAlpha = 1;
    if (number === chosen.number) {
      context.strokeStyle = colour('--chosen');
      context.lineWidth = 2;
      stretch(from, from + size, (x, y, w, h) => context.strokeRect(x, y, w, h));
    }
  }
  context.fillStyle = colour('--ink');
  for (const range of ranges) {
    stretch(starts.get(range), starts.get(range) + 1, (x, y) => context.fillRect(x, y - 2, 1, 20));
  }
  const free = total - used;
  $('placed').textContent = `${bytes(total)} held in ${ranges.length} ranges of `
    + `${new Set(ranges.map(range => range.block)).size} blocks: ${bytes(used)} live (${bytes(padding)} `
    + `of it padding, drawn pale), ${bytes(free)} free (${(100 * free / total).toFixed(1)} %). A dark line `
    + 'begins a range.';
  Object.assign($('map').dataset, { total, live: used, free });
}

let waiting = false;
/** Draws the chart once before the next frame. */
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawChart();
    drawOverview();
  });
}

function choose(event, number) {
  chosen.event = Math.min(Math.max(event, 0), Math.max(0, trace.events - 1));
  chosen.number = number;
  draw();
  showDetails();
  showTable();
  drawMap();
}

function look(from, to) {
  const whole = trace.last - trace.first;
  const span = Math.min(whole, Math.max(to - from, Math.min(whole, 100)));
  const start = Math.min(Math.max(from, trace.first), trace.last - span);
  view = { from: start, to: start + span };
  draw();
}

function zoom(factor, around) {
  const middle = around ?? (view.from + view.to) / 2;
  look(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}

function timeAt(x) {
  const { left, width } = $('chart').dataset;
  return view.from + (x - left) / width * (view.to - view.from);
}

function listen() {
  const chart = $('chart');
  let drag = null;
  chart.addEventListener('wheel', event => {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.0015), timeAt(event.offsetX));
  }, { passive: false });
  chart.addEventListener('pointerdown', event => {
    chart.setPointerCapture(event.pointerId);
    drag = { x: event.offsetX, from: view.from, to: view.to, moved: false };
  });
  chart.addEventListener('pointermove', event => {
    if (drag) {
      const shift = (drag.x - event.offsetX) / chart.dataset.width * (drag.to - drag.from);
      drag.moved ||= Math.abs(event.offsetX - drag.x) > 3;
      if (drag.moved) look(drag.from + shift, drag.to + shift);
    }
    tip(event);
  });
  chart.addEventListener('pointerup', event => {
    if (drag && !drag.moved) {
      const found = under(event.offsetX, event.offsetY);
      if (found) choose(found.event, found.number);
    }
    drag = null;
  });
  chart.addEventListener('pointerleave', () => { $('tip').hidden = true; });
  chart.addEventListener('dblclick', () => look(trace.first, trace.last));
  chart.addEventListener('keydown', event => {
    const step = (view.to - view.from) / 10;
    const keys = {
      ArrowLeft: () => look(view.from - step, view.to - step),
      ArrowRight: () => look(view.from + step, view.to + step),
      '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1 / 0.7),
      0: () => look(trace.first, trace.last), Home: () => look(trace.first, trace.last),
      p: () => choose(trace.peakEvent, chosen.number),
      '[': () => choose(chosen.event - 1, chosen.number),
      ']': () => choose(chosen.event + 1, chosen.number),
    };
    const action = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  });
  $('overview').addEventListener('pointerdown', event => {
    const part = (event.offsetX - MARGIN.left)
      / ($('overview').clientWidth - MARGIN.left - MARGIN.right);
    const middle = trace.first + part * (trace.last - trace.first);
    const half = (view.to - view.from) / 2;
    look(middle - half, middle + half);
  });
  const body = $('table').tBodies[0];
  const pick = event => {
    const row = event.target.closest('tr[data-number]');
    if (!row) return;
    const number = Number(row.dataset.number);
    choose(chosen.event, number);
    body.querySelector(`tr[data-number="${number}"]`)?.focus();
  };
  body.addEventListener('click', pick);
  body.addEventListener('keydown', event => {
    const row = event.target.closest('tr');
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      pick(event);
    } else if (event.key === 'ArrowDown') {
      event.preventDefault();
      row.nextElementSibling?.focus();
    } else if (event.key === 'ArrowUp') {
      event.preventDefault();
      row.previousElementSibling?.focus();
    }
  });
  for (const button of document.querySelectorAll('th button')) {
    button.addEventListener('click', () => {
      chosen.sort = button.dataset.sort;
      for (const other of document.querySelectorAll('th button')) {
        other.setAttribute('aria-pressed', String(other === button));
      }
      showTable();
    });
  }
  $('map').addEventListener('click', event => {
    const found = placed.find(one => event.offsetX >= one.x && event.offsetX < one.x + one.w
      && event.offsetY >= one.y && event.offsetY < one.y + one.h);
    if (found) choose(chosen.event, found.number);
  });
  const again = () => { draw(); drawMap(); showTable(); legend(); };
  window.addEventListener('resize', again);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
}

let pointed = null;
/** Says what is under the pointer, at most once a frame. */
function tip(event) {
  const first = pointed === null;
  pointed = { x: event.offsetX, y: event.offsetY };
  if (!first) return;
  requestAnimationFrame(() => {
    const { x, y } = pointed;
    pointed = null;
    const found = under(x, y);
    const box = $('tip');
    box.hidden = !found;
    if (!found) return;
    const since = seconds(trace.time[found.event] - trace.first);
    const total = trace.at(found.event).reduce((all, one) => all + one, 0);
    let text = `${since}: ${bytes(total)} active, `
      + `${bytes(trace.value('reserved', found.event))} reserved`;
    if (found.number >= 0) {
      const { number } = found;
      const site = (meta.stacks[trace.site[number]] || '').split('\n')[0];
      const end = trace.end[number];
      const lived = end === NONE ? 'and to the end'
        : `of ${seconds(trace.time[end] - trace.time[trace.start[number]])}`;
      text += `\n${bytes(trace.size[number])} of ${labelName(number)}, for `
        + `${seconds(ageOf(number, found.event))} ${lived}, thread ${trace.thread[number]}, `
        + `queue ${queueName(number)}${site ? `\n${site}` : ''}`;
    } else if (found.band === 0) {
      text += `\n${bandName(0)}`;
    }
    box.textContent = text;
    const right = x > $('chart').clientWidth / 2;
    box.style.left = right ? '' : `${x + 14}px`;
    box.style.right = right ? `${$('chart').clientWidth - x + 14}px` : '';
    box.style.top = `${y + 12}px`;
  });
}

function legend() {
  const entry = (name, value, style, stroke) => {
    const item = document.createElement('span');
    item.setAttribute('role', 'listitem');
    const mark = document.createElement('i');
    if (stroke) {
      mark.className = 'stroke';
      mark.style.borderColor = style;
    } else {
      mark.style.background = style;
    }
    const size = document.createElement('b');
    size.textContent = value;
    item.append(mark, name, size);
    return item;
  };
  const entries = [];
  for (let band = 0; band < trace.bands; band++) {
    if (trace.bandPeak[band] > 0) {
      entries.push(entry(bandName(band), bytes(trace.bandPeak[band]), bandColour(band)));
    }
  }
  const most = values => values.reduce((all, one) => Math.max(all, one), 0);
  entries.push(entry('reserved', bytes(most(trace.reservedValue)), colour('--reserved'), true));
  if (most(trace.mappedValue) > 0) {
    entries.push(entry('mapped on top', bytes(most(trace.mappedValue)), colour('--mapped'), true));
  }
  if (meta.begin?.own) {
    const limit = trace.value('limit', trace.events);
    entries.push(entry('memory limit', bytes(limit), colour('--limit'), true));
    entries.push(entry('working set', bytes(meta.begin.workingSet), colour('--faint'), true));
  }
  $('legend').replaceChildren(...entries);
}

/** What the picture says, in words. */
function summarize() {
  const { peak, peakEvent } = trace;
  const reserved = trace.reservedValue.reduce((all, one) => Math.max(all, one), 0);
  const bands = trace.at(peakEvent);
  const parts = [...bands.keys()].filter(band => bands[band] > 0)
    .sort((a, b) => bands[b] - bands[a]).slice(0, 3)
    .map(band => `${bandName(band)} ${bytes(bands[band])}`);
  const since = seconds(trace.time[peakEvent] - trace.first);
  $('summary').textContent = trace.events
    ? `Peak ${bytes(peak)} after ${since}, of ${seconds(trace.last - trace.first)}: `
      + `${parts.join(', ')}. At most ${bytes(reserved)} reserved; ${trace.count} allocations, `
      + `${trace.events} events.`
    : 'The trace has no events.';
  Object.assign($('summary').dataset, { peak, event: peakEvent });
}

async function begin() {
  const started = performance.now();
  trace = new Trace(meta, await unpack($('data').textContent));
  $('data').textContent = '';
  document.title = `${meta.name}: memory`;
  $('title').textContent = meta.name;
  const { begin: of } = meta;
  const program = of?.program ? ` of ${of.program} (process ${of.pid}) on ${of.api} (${of.device})` : '';
  $('source').textContent = [`${meta.format}${program}`, ...meta.notes].join('. ');
  view = { from: trace.first, to: trace.last };
  listen();
  summarize();
  legend();
  if (trace.events) choose(trace.peakEvent, -1);
  document.documentElement.dataset.ready = String(Math.round(performance.now() - started));
}

begin().catch(error => {
  $('summary').textContent = `The page cannot show the trace: ${error.message}`;
  throw error;
});
