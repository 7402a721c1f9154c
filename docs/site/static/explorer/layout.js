// Tiles in shared memory, as numba_tma/host/layout.py has them; a test compares the two.

import { DTYPES, LIMITS, SWIZZLES, UNPACKED_SWIZZLES } from "./facts.js";

export const CHUNK = 16; // bytes
const MOST = 2 ** 31; // elements along an axis, so that numbers stay exact
const ceilDiv = (n, divisor) => Math.ceil(n / divisor);
export const roundUp = (n, multiple) => ceilDiv(n, multiple) * multiple;
const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

/** A tuple as Python prints it. */
export const tuple = (numbers) => `(${numbers.join(", ")}${numbers.length === 1 ? "," : ""})`;

/** The shape that a text such as "64, 128" gives. */
export function parseShape(text) {
  const parts = text.replace(/[()]/g, "").split(/\s*[,x\s]\s*/).filter((part) => part);
  if (!parts.length || !parts.every((part) => /^-?\d+$/.test(part)))
    throw new RangeError(
      `Tile(shape='${text}'): shape is an integer, or a tuple of one for each axis`);
  const shape = parts.map(Number);
  const large = shape.find((extent) => extent > MOST);
  if (large) throw new RangeError(`${large} elements along an axis are more than this page counts`);
  return shape;
}

/** The offset in the swizzled tile of a byte of the row-major tile. */
export function swizzleIndex(swizzle, byteOffset) {
  const { span, atom } = SWIZZLES[swizzle];
  return byteOffset ^ (((byteOffset >> 7) * atom) & (span - atom));
}

export class Tile {
  constructor(shape, dtypeName, swizzle) {
    const given = `Tile(shape=${tuple(shape)}): tile`;
    if (shape.length > LIMITS.rank)
      throw new RangeError(
        `${given} shape ${tuple(shape)} has ${shape.length} axes; a tile has 1 to 5`);
    shape.forEach((extent, axis) => {
      if (extent < 1)
        throw new RangeError(
          `${given} axis ${axis} is ${extent}; a tile needs at least 1 element`);
    });
    Object.assign(this, { shape, dtypeName, swizzle, dtype: DTYPES[dtypeName] });
    const { span, alignment } = SWIZZLES[swizzle];
    const plain = swizzle === "NONE";
    this.alignment = alignment;
    this.inner = shape.at(-1);
    this.rows = product(shape.slice(0, -1));
    this.size = product(shape);
    this.slab = plain ? this.inner : Math.min(this.inner, (8 * span) / this.dtype.sharedBits);
    this.numSlabs = ceilDiv(this.inner, this.slab);
    this.pitch = plain ? this.sharedBytes(this.slab) : span;
    this.slabNbytes = this.rows * this.pitch;
    if (this.numSlabs > 1) this.slabNbytes = roundUp(this.slabNbytes, alignment);
    this.sharedNbytes = this.numSlabs * this.slabNbytes;
    this.nbytes = Math.floor((this.rows * this.numSlabs * this.slab * this.dtype.bits) / 8);
  }

  get isPacked() {
    return this.dtype.bits < 8;
  }

  get isUnpacked() {
    return this.dtype.bits !== this.dtype.sharedBits;
  }

  /** Elements in 16 bytes of shared memory. */
  get chunk() {
    return (8 * CHUNK) / this.dtype.sharedBits;
  }

  /** Bytes of adjacent elements in shared memory, gaps included. */
  sharedBytes(elements) {
    return Math.floor((elements * this.dtype.sharedBits) / 8);
  }

  /** The byte in a row in which an element begins. */
  sharedOffset(element) {
    const { bits, sharedBits } = this.dtype;
    if (!this.isPacked) return (element * bits) / 8;
    return Math.floor(element / 16) * 2 * sharedBits + Math.floor(((element % 16) * bits) / 8);
  }

  /** The indices of the outer axes of a row, counted from 0. */
  outer(row) {
    const index = [];
    for (const extent of this.shape.slice(0, -1).reverse()) {
      index.unshift(row % extent);
      row = Math.floor(row / extent);
    }
    return index;
  }

  /** The byte offset of a row's element, through the swizzle. */
  place(row, column) {
    const linear = Math.floor(column / this.slab) * this.slabNbytes + row * this.pitch;
    return swizzleIndex(this.swizzle, linear + this.sharedOffset(column % this.slab));
  }

  /** The byte offset of an element from the aligned base of the tile. */
  offset(...index) {
    const outer = index.slice(0, -1);
    return this.place(outer.reduce((row, i, axis) => row * this.shape[axis] + i, 0), index.at(-1));
  }

  /** The largest box that cuts the tile into equal copies. */
  get box() {
    const shape = [...this.shape.slice(0, -1), this.slab];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const inner = axis === shape.length - 1;
      const most = inner ? this.dtype.maxInnerBox : LIMITS.box;
      if (shape[axis] <= most) continue;
      const row = product(shape.slice(axis + 1, -1)) * this.pitch;
      for (let extent = most; extent > 0; extent--) {
        const nbytes = inner ? this.sharedBytes(extent) : extent * row;
        if (shape[axis] % extent === 0 && nbytes % this.alignment === 0)
          return [...Array(axis).fill(1), extent, ...shape.slice(axis + 1)];
      }
      break;
    }
    return shape;
  }

  /** The number of copies that move the tile. */
  get copies() {
    return product(this.shape.map((extent, axis) => ceilDiv(extent, this.box[axis])));
  }

  toString() {
    return `Tile(${tuple(this.shape)}, ${this.dtypeName}, ${this.swizzle})`;
  }
}

/** What a map of such tiles breaks: the rules of tensor_map that concern the tile alone. */
export function tileViolations(tile) {
  const unmoved = copiesViolations(tile);
  const clamped = () => tile.box.map((extent, axis) => Math.min(extent, limitOf(tile, axis)));
  const box = unmoved.length ? clamped() : tile.box;
  return [...typeViolations(tile), ...unmoved, ...boxViolations(box, tile)];
}

/** What a map with a box of one copy breaks, whose shape is the tile's. */
export function oneBoxViolations(tile) {
  return [...typeViolations(tile), ...boxViolations(tile.shape, tile)];
}

function typeViolations(tile) {
  if (!tile.isUnpacked || UNPACKED_SWIZZLES[tile.swizzle]) return [];
  return [
    `swizzle is ${tile.swizzle}, but tiles of ${tile.dtypeName} have none, B128 or ` +
      "B128_ATOM_32B: use Swizzle.B128",
  ];
}

/** The most elements of a copy along an axis; a complex number is two words of it. */
function limitOf(tile, axis) {
  return axis === tile.shape.length - 1 ? LIMITS.box / tile.dtype.words : LIMITS.box;
}

function copiesViolations(tile) {
  const { box, copies } = tile;
  for (let axis = box.length - 1; axis >= 0; axis--) {
    const most = limitOf(tile, axis);
    if (box[axis] <= most) continue;
    let whole = box[axis] + 1;
    while (withExtent(tile, axis, whole).box[axis] > most) whole++;
    return [
      `tile axis ${axis} is ${box[axis]}; TMA copies 1 to ${most} elements along an axis, ` +
        `and no box of ${most} or fewer divides ${tile} into parts aligned to ` +
        `${tile.alignment} B: use ${whole}`,
    ];
  }
  if (copies <= LIMITS.copies) return [];
  return [
    `tile ${tile} takes ${copies} copies of the box ${tuple(box)}; a load is unrolled into at ` +
      `most ${LIMITS.copies}: use a smaller tile, a swizzle, or fold=True`,
  ];
}

function withExtent(tile, axis, extent) {
  const shape = [...tile.shape];
  shape[axis] = extent;
  return new Tile(shape, tile.dtypeName, tile.swizzle);
}

function boxViolations(shape, tile) {
  const { dtypeName, dtype, swizzle, chunk } = tile;
  const violations = [];
  shape.forEach((extent, axis) => {
    const most = limitOf(tile, axis);
    const words = most < LIMITS.box ? ` ${dtypeName} of ${dtype.words} words` : "";
    if (extent > most)
      violations.push(
        `box axis ${axis} is ${extent}${words}; TMA copies 1 to ${most} elements along ` +
          `${words ? "that" : "an"} axis: split it into ${ceilDiv(extent, most)} boxes of ` +
          `${most} or fewer; a Tile is split by itself`);
  });
  const inner = shape.at(-1);
  const nbytes = tile.sharedBytes(inner);
  const what = `box axis ${shape.length - 1} is ${inner} ${dtypeName}`;
  if (tile.isUnpacked && inner !== dtype.maxInnerBox)
    violations.push(
      `${what}; TMA copies exactly ${dtype.maxInnerBox} along the innermost axis of ` +
        `${dtype.tensorMap}: use ${dtype.maxInnerBox}`);
  else if (inner % chunk) {
    const whole = [Math.floor(inner / chunk) * chunk, roundUp(inner, chunk)];
    violations.push(
      `${what} = ${nbytes} B; TMA needs a multiple of 16 B along the innermost axis: use ` +
        whole.filter((n) => n >= 1 && n <= dtype.maxInnerBox).join(" or "));
  }
  const { span } = SWIZZLES[swizzle];
  if (swizzle !== "NONE" && nbytes > span) {
    const fits = (8 * span) / dtype.sharedBits;
    violations.push(
      `${what} = ${nbytes} B; swizzle ${swizzle} spans ${span} B: use ${fits} or fewer ` +
        `elements, Swizzle.NONE, or Tile(${tuple(shape)}, ${dtypeName}, ${swizzle}), which ` +
        `splits it into ${ceilDiv(inner, fits)} boxes`);
  }
  return violations;
}
