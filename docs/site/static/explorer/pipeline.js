// The shared memory of a TilePipeline, as numba_tma/pipeline/stage_layout.py and tile.py count it.

import { LIMITS, SHARED } from "./facts.js";
import { roundUp, tuple } from "./layout.js";

const NAMES = ["a", "b", "c", "d"];
const thousands = (n) => n.toLocaleString("en-US");

/** A ring whose stages have `tiles` names with `kGroup` tiles each, all of one kind. */
export class Pipeline {
  constructor(numStages, tile, { tiles = 1, kGroup = 1 } = {}) {
    Object.assign(this, { numStages, tile, kGroup });
    this.names = tiles === 1 ? ["x"] : NAMES.slice(0, tiles);
    this.slots = numStages * kGroup;
    this.tileStride = roundUp(tile.sharedNbytes, tile.alignment);
    this.txBytes = tiles * kGroup * tile.nbytes;
    this.storageNbytes = tiles * this.slots * this.tileStride;
    // Two barriers a stage, and the tile numbers that a TileQueue's producer publishes.
    this.barrierNbytes = roundUp(16 * numStages + 4 * numStages, 8);
    this.nbytes = roundUp(this.storageNbytes, 8) + this.barrierNbytes;
  }

  /** Bytes by part, as the library's error lists them. */
  get parts() {
    const group = this.kGroup > 1 ? ` ${this.kGroup} x` : "";
    const size = `${this.numStages} stages x${group} ${thousands(this.tileStride)} B`;
    const parts = this.names.map((name) => [`${name}: ${size}`, this.slots * this.tileStride]);
    return [...parts, ["barriers", this.nbytes - this.storageNbytes]];
  }

  /** The error of a ring that a block of the target has no room for; "" if it has. */
  violation(target) {
    if (this.nbytes <= SHARED[target]) return "";
    const terms = this.parts.map(([name, n]) => `${thousands(n)} B (${name})`).join(" + ");
    return (
      `${this} needs ${terms} = ${thousands(this.nbytes)} B of shared memory, but a block has ` +
      `${thousands(SHARED[target])} B on ${target}: use fewer stages or smaller tiles`
    );
  }

  toString() {
    const tiles = this.names.map((name) => `${name}=${this.tile}`).join(", ");
    const group = this.kGroup > 1 ? `, k_group=${this.kGroup}` : "";
    return `TilePipeline(${this.numStages}, ${tiles}${group})`;
  }
}

/** The most stages that fit beside `other` bytes; 0 if not one does. */
export function mostStages(tile, options, target, other) {
  const fits = (n) => new Pipeline(n, tile, options).nbytes + other <= SHARED[target];
  let low = 0;
  let high = LIMITS.stages;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (fits(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The Python that makes the tile, and the pipeline if there is one. */
export function pythonOf(tile, pipeline) {
  const swizzle = tile.swizzle === "NONE" ? "" : `, tma.Swizzle.${tile.swizzle}`;
  const lines = [
    "import numba_tma as tma",
    "",
    `TILE = tma.Tile(${tuple(tile.shape)}, "${tile.dtypeName}"${swizzle})`,
  ];
  if (pipeline) {
    const tiles = pipeline.names.map((name) => `${name}=TILE`).join(", ");
    const group = pipeline.kGroup > 1 ? `, k_group=${pipeline.kGroup}` : "";
    lines.push(`PIPE = tma.TilePipeline(${pipeline.numStages}, ${tiles}${group})`);
  }
  return `${lines.join("\n")}\n`;
}
