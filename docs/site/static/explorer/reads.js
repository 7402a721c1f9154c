// What a warp reads at once, and in how many wavefronts: a model of the 32 banks of 4 bytes.

import { CHUNK } from "./layout.js";

export const LINE = 128; // bytes that all banks hold side by side
export const WARP = 32;
const BANKS = 32;

/** A pattern gives the row, and the vector in it, that a warp's lane reads. */
export const PATTERNS = {
  row: {
    label: "rows",
    title: "Neighbouring threads read neighbouring vectors, as pipe.indices() and vectors() do.",
    vector: (n, rows, across) => [Math.floor(n / across), n % across],
  },
  column: {
    label: "columns",
    title: "Neighbouring threads read rows below each other, as a transpose does.",
    vector: (n, rows) => [n % rows, Math.floor(n / rows)],
  },
  ldmatrix: {
    label: "ldmatrix.x4",
    title: "Four 8x8 matrices of 16-bit elements: 16 rows of 32 bytes.",
    width: 16,
    block: [16, 2],
    lane: (lane) => [lane % 16, Math.floor(lane / 16)],
  },
  fragment: {
    label: "fragment",
    title: "Four lanes read the 16 bytes of a row: 8 rows, as mma.sync has its operands.",
    width: 4,
    block: [8, 4],
    lane: (lane) => [Math.floor(lane / 4), lane % 4],
  },
};

export const WIDTHS = { element: "1 element", 4: "4 B", 8: "8 B", 16: "16 B" };

/** The reads of a tile by a block of threads; `violation` says why there are none. */
export class Reads {
  constructor(tile, { pattern, width, threads }) {
    Object.assign(this, { tile, threads, pattern: PATTERNS[pattern] });
    const chosen = this.pattern.width ?? width;
    const { sharedBits } = tile.dtype;
    this.vector = chosen === "element" ? 1 : Math.floor((8 * chosen) / sharedBits);
    this.nbytes = chosen === "element" ? tile.dtype.bits / 8 : Number(chosen);
    this.violation = this.#violation();
    this.across = tile.inner / this.vector;
    this.count = this.violation ? 0 : Math.ceil((tile.rows * this.across) / threads);
  }

  #violation() {
    const { tile, vector, nbytes, pattern } = this;
    if (tile.isPacked)
      return (
        `${tile.dtypeName} has ${tile.dtype.bits} bits, no whole number of bytes: count the ` +
        "bytes of several elements, Tile.nbytes or DType.nbytes(elements)");
    if (!vector)
      return `${tile.dtypeName} has ${tile.dtype.bits / 8} B, more than the ${nbytes} B of a read`;
    if (tile.inner % vector)
      return (
        `vectors of ${tile}: its rows of ${tile.inner} elements are no multiple of the ` +
        `${vector} in ${nbytes} B: use indices, one element at a time`);
    const [rows, vectors] = pattern.block ?? [1, 1];
    if (tile.rows % rows || (tile.inner / vector) % vectors)
      return (
        `${pattern.label} reads ${rows} rows of ${vectors * nbytes} B at once, and ${tile} has ` +
        `${tile.rows} rows of ${tile.sharedBytes(tile.inner)} B: use multiples of both`);
    return "";
  }

  /** The row and column of the first element that a lane reads; null if none is left. */
  element(step, warp, lane) {
    const { tile, across, pattern, vector } = this;
    let place;
    if (pattern.block) {
      const [rows, vectors] = pattern.block;
      const down = tile.rows / rows;
      const block = step * (this.threads / WARP) + warp;
      const [row, v] = pattern.lane(lane);
      place = [(block % down) * rows + row, Math.floor(block / down) * vectors + v];
    } else place = pattern.vector(step * this.threads + warp * WARP + lane, tile.rows, across);
    const [row, v] = place;
    return row < tile.rows && v < across ? [row, v * vector] : null;
  }

  /** What one instruction of a warp reads: lanes, and the wavefronts of its phases. */
  instruction(step, warp) {
    const lanes = [];
    for (let lane = 0; lane < WARP; lane++) {
      const element = this.element(step, warp, lane);
      if (element) lanes.push({ lane, element, offset: this.tile.place(...element) });
    }
    return { lanes, phases: this.#phases(lanes) };
  }

  /** Lanes whose data fill a line read together: 32 of up to 4 B, 16 of 8 B, 8 of 16 B. */
  #phases(lanes) {
    const together = Math.min(WARP, LINE / this.nbytes);
    const phases = [];
    for (let first = 0; first < WARP; first += together) {
      const words = new Set();
      for (const { lane, offset } of lanes)
        if (lane >= first && lane < first + together)
          for (let word = offset >> 2; word <= (offset + this.nbytes - 1) >> 2; word++)
            words.add(word);
      if (!words.size) continue;
      const banks = Array(BANKS).fill(0);
      for (const word of words) banks[word % BANKS]++;
      phases.push({ banks, wavefronts: Math.max(...banks), least: Math.ceil(words.size / BANKS) });
    }
    return phases;
  }

  /** Wavefronts of the whole tile, read once, and the fewest that its bytes take. */
  get total() {
    let [wavefronts, least] = [0, 0];
    for (let step = 0; step < this.count; step++)
      for (let warp = 0; warp < this.threads / WARP; warp++)
        for (const phase of this.instruction(step, warp).phases) {
          wavefronts += phase.wavefronts;
          least += phase.least;
        }
    return { wavefronts, least };
  }
}

/** What stands in the chunks of some lines: the first element that begins in each. */
export function chunksOf(tile, firstLine, lines) {
  const found = new Map();
  const [begin, end] = [firstLine * LINE, (firstLine + lines) * LINE];
  const step = tile.inner % tile.chunk ? 1 : tile.chunk;
  for (let row = 0; row < tile.rows; row++)
    for (let column = 0; column < tile.inner; column += step) {
      const offset = tile.place(row, column);
      if (offset < begin || offset >= end) continue;
      const chunk = Math.floor(offset / CHUNK);
      if (!found.has(chunk)) found.set(chunk, { row, column, last: column });
      found.get(chunk).last = column + step - 1;
    }
  return found;
}
