'use strict';

// What the trace is, and how much of what was live when. Sizes are bytes, times nanoseconds, moments
// the numbers of events: what holds at a moment holds after that event.

const NONE = 0xffffffff;
// Events whose highest moment is kept; what is drawn from far away is drawn from these.
const BUCKET = 64;
// With more events than this in sight, buckets are drawn.
const MOST_EXACT = 60000;
// Allocations whose edges are drawn: the largest in sight.
const MOST_EDGES = 64;

/** The first index whose value is above `value` (or not below it). */
function bound(sorted, value, above) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (above ? sorted[middle] <= value : sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Trace {
  constructor(meta, buffer) {
    this.meta = meta;
    for (const [name, [kind, offset, count]] of Object.entries(meta.columns)) {
      const Kind = kind === 'u32' ? Uint32Array : Float64Array;
      this[name] = new Kind(buffer, offset, count);
    }
    this.count = this.start.length;
    this.events = this.time.length;
    this.first = this.events ? this.time[0] : 0;
    this.last = this.events ? Math.max(this.time[this.events - 1], this.first + 1) : 1;
    // The band of what was there before comes first: it lies at the bottom.
    this.bands = meta.bandNames.length + 1;
    this.band = Uint8Array.from(this.label, label => 1 + (meta.bands[label] ?? 0));
    this.bandPeak = new Float64Array(this.bands);
    this.prepare();
  }

  /** What changes at an event: applied to the sizes of the bands. */
  apply(event, now) {
    const change = this.change[event];
    if (change === NONE) return 0;
    const number = change >>> 1;
    const size = change & 1 ? -this.size[number] : this.size[number];
    now[this.band[number]] += size;
    return size;
  }

  prepare() {
    const { bands, events } = this;
    const buckets = Math.ceil(events / BUCKET);
    this.bucketStart = new Float64Array(buckets * bands);
    this.bucketPeak = new Float64Array(buckets * bands);
    this.bucketEvent = new Uint32Array(buckets);
    this.bucketTotal = new Float64Array(buckets);
    const now = new Float64Array(bands);
    let total = 0;
    let before = 0;
    for (let bucket = 0; bucket < buckets; bucket++) {
      this.bucketStart.set(now, bucket * bands);
      let most = -1;
      const end = Math.min(events, (bucket + 1) * BUCKET);
      for (let event = bucket * BUCKET; event < end; event++) {
        if (before < this.beforeAt.length && this.beforeAt[before] === event) {
          total += this.beforeValue[before] - now[0];
          now[0] = this.beforeValue[before++];
        }
        total += this.apply(event, now);
        if (total > most) {
          most = total;
          this.bucketPeak.set(now, bucket * bands);
          this.bucketEvent[bucket] = event;
        }
      }
      this.bucketTotal[bucket] = most;
    }
    let peak = 0;
    for (let bucket = 1; bucket < buckets; bucket++) {
      if (this.bucketTotal[bucket] > this.bucketTotal[peak]) peak = bucket;
    }
    this.peakEvent = buckets ? this.bucketEvent[peak] : 0;
    this.peak = buckets ? this.bucketTotal[peak] : 0;
    for (let place = 0; place < this.bucketPeak.length; place++) {
      const band = place % bands;
      this.bandPeak[band] = Math.max(this.bandPeak[band], this.bucketPeak[place]);
    }
  }

  /** The sizes of the bands at a moment, and before it. */
  at(event, inclusive = true) {
    if (!this.events || event < 0) return new Float64Array(this.bands);
    const bucket = Math.min(Math.floor(event / BUCKET), this.bucketEvent.length - 1);
    const now = this.bucketStart.slice(bucket * this.bands, (bucket + 1) * this.bands);
    const end = inclusive ? event + 1 : event;
    for (let at = bucket * BUCKET; at < Math.min(end, this.events); at++) this.apply(at, now);
    now[0] = this.value('before', inclusive ? event : event - 1);
    return now;
  }

  /** A value that changes at some events, at a moment. */
  value(name, event) {
    const place = bound(this[name + 'At'], event, true) - 1;
    return place < 0 ? 0 : this[name + 'Value'][place];
  }

  /** For each column of pixels the highest moment in it, with the sizes of the bands then. */
  columns(from, to, width) {
    const { bands, time } = this;
    const stacks = new Float64Array(width * bands);
    const moments = new Int32Array(width).fill(-1);
    const totals = new Float64Array(width).fill(-1);
    const low = bound(time, from, false);
    const high = bound(time, to, true);
    const scale = width / (to - from);
    const column = at => Math.min(width - 1, Math.max(0, Math.floor((at - from) * scale)));
    const offer = (x, event, total, sizes, offset) => {
      if (total <= totals[x]) return;
      totals[x] = total;
      moments[x] = event;
      for (let band = 0; band < bands; band++) stacks[x * bands + band] = sizes[offset + band];
    };
    const sum = sizes => sizes.reduce((all, one) => all + one, 0);
    let filled = 0;
    const carry = (x, event, sizes) => {
      const total = sum(sizes);
      for (; filled <= x; filled++) offer(filled, event, total, sizes, 0);
    };
    // Plays events one by one, from the state before the first.
    const walk = (begin, end, now) => {
      let total = sum(now);
      let before = bound(this.beforeAt, begin, false);
      for (let event = begin; event < end; event++) {
        const x = column(time[event]);
        if (filled <= x) carry(x, event - 1, now);
        if (this.beforeAt[before] === event) {
          total += this.beforeValue[before] - now[0];
          now[0] = this.beforeValue[before++];
        }
        total += this.apply(event, now);
        offer(x, event, total, now, 0);
      }
    };
    if (high - low <= MOST_EXACT) {
      walk(low, high, this.at(low - 1));
    } else {
      for (let bucket = Math.floor(low / BUCKET); bucket * BUCKET < high; bucket++) {
        const begin = Math.max(low, bucket * BUCKET);
        const end = Math.min(high, (bucket + 1) * BUCKET, this.events);
        const x = column(time[begin]);
        const whole = begin === bucket * BUCKET && end - begin === BUCKET;
        if (whole && column(time[end - 1]) === x) {
          // All of it is in one column: its highest moment stands for it.
          const at = bucket * bands;
          if (filled <= x) carry(x, begin - 1, this.bucketStart.subarray(at, at + bands));
          offer(x, this.bucketEvent[bucket], this.bucketTotal[bucket], this.bucketPeak, at);
        } else {
          walk(begin, end, this.at(begin - 1));
        }
      }
    }
    carry(width - 1, high - 1, this.at(high - 1));
    return { stacks, moments, totals, low, high };
  }

  isLive(number, event) {
    return this.start[number] <= event && (this.end[number] === NONE || event < this.end[number]);
  }

  /** Everything live at a moment, in the order in which it was made. */
  live(event) {
    const found = [];
    const { start, end, count } = this;
    for (let number = 0; number < count && start[number] <= event; number++) {
      if (event < end[number]) found.push(number);
    }
    return found;
  }

  /** The allocation that lies `within` bytes above the foot of a band. */
  find(event, band, within) {
    const { start, end, size, count } = this;
    let height = 0;
    for (let number = 0; number < count && start[number] <= event; number++) {
      if (event < end[number] && this.band[number] === band) {
        height += size[number];
        if (height > within) return number;
      }
    }
    return -1;
  }

  /**
   * The largest allocations in sight, of at least `least` bytes, with how far above the foot of its
   * band each lies in every column.
   */
  edges(columns, least) {
    const { start, end, size, band, count } = this;
    const { moments, low, high } = columns;
    const inSight = [];
    for (let number = 0; number < count && start[number] < high; number++) {
      if (size[number] >= least && end[number] > low) inSight.push(number);
    }
    inSight.sort((a, b) => size[b] - size[a]);
    const edges = inSight.slice(0, MOST_EDGES).sort((a, b) => a - b)
      .map(number => ({ number, foot: 0, feet: new Float64Array(moments.length).fill(NaN) }));
    const byNumber = new Map(edges.map(edge => [edge.number, edge]));
    const now = new Float64Array(this.bands);
    for (let number = 0; number < count && start[number] < low; number++) {
      if (end[number] < low) continue;
      const edge = byNumber.get(number);
      if (edge) edge.foot = now[band[number]];
      now[band[number]] += size[number];
    }
    let event = low;
    for (let x = 0; x < moments.length; x++) {
      for (; event <= moments[x]; event++) {
        const change = this.change[event];
        if (change === NONE) continue;
        const number = change >>> 1;
        if (change & 1) {
          now[band[number]] -= size[number];
          for (const edge of edges) {
            if (edge.number > number && band[edge.number] === band[number]) {
              edge.foot -= size[number];
            }
          }
        } else {
          const edge = byNumber.get(number);
          if (edge) edge.foot = now[band[number]];
          now[band[number]] += size[number];
        }
      }
      for (const edge of edges) {
        if (this.isLive(edge.number, moments[x])) edge.feet[x] = edge.foot;
      }
    }
    return edges;
  }

  /** How far above the foot of its band an allocation lies at each of some moments, in order. */
  footings(number, moments) {
    const band = this.band[number];
    let foot = this.at(this.start[number], false)[band];
    let event = this.start[number];
    return moments.map(moment => {
      for (; event <= moment; event++) {
        const change = this.change[event];
        if (change !== NONE && change & 1 && change >>> 1 < number
          && this.band[change >>> 1] === band) {
          foot -= this.size[change >>> 1];
        }
      }
      return foot;
    });
  }

  /** What backs each block that is held at a moment: ranges of offsets. */
  backed(event) {
    const held = [];
    const marks = new Map();
    for (let block = 0; block < this.blockStart.length; block++) {
      if (this.blockStart[block] > event || event >= this.blockEnd[block]) continue;
      if (this.blockSpan[block]) marks.set(block, new Map());
      else held.push({ block, from: 0, to: this.blockSize[block] });
    }
    for (let index = 0; index < this.commitAt.length && this.commitAt[index] <= event; index++) {
      const mark = marks.get(this.commitBlock[index]);
      if (!mark) continue;
      const len = this.commitLen[index];
      const from = this.commitOffset[index];
      const to = from + Math.abs(len);
      mark.set(from, (mark.get(from) ?? 0) + Math.sign(len));
      mark.set(to, (mark.get(to) ?? 0) - Math.sign(len));
    }
    for (const [block, mark] of marks) {
      let depth = 0;
      let from = 0;
      for (const [at, step] of [...mark].sort((a, b) => a[0] - b[0])) {
        if (depth === 0 && depth + step > 0) from = at;
        if (depth > 0 && depth + step === 0) held.push({ block, from, to: at });
        depth += step;
      }
    }
    return held.sort((a, b) => a.block - b.block || a.from - b.from);
  }
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

/** Bytes for people: three digits and a binary unit. */
function bytes(value) {
  if (value < 1024) return `${value} B`;
  let unit = 0;
  while (value >= 1023.5 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${UNITS[unit]}`;
}

/** A time or a length of time for people. */
function seconds(ns) {
  if (ns < 1e3) return `${ns.toFixed(0)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(2)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

/** Round steps for an axis: about `count` of them up to `most`. */
function ticks(most, count, base) {
  const rough = most / count;
  let step = base === 2 ? 2 ** Math.ceil(Math.log2(Math.max(rough, 1)))
    : 10 ** Math.floor(Math.log10(rough));
  if (base === 10) step *= [1, 2, 5, 10].find(factor => step * factor >= rough) ?? 10;
  return step;
}
