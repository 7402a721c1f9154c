// Shared memory as a table: lines of 128 bytes, and the chunks of 16 bytes in four banks each.

import { element } from "./dom.js";
import { CHUNK, tuple } from "./layout.js";
import { LINE, chunksOf } from "./reads.js";

const GROUPS = LINE / CHUNK;
const SHOWN = 64; // lines at most
const HUES = 8;
const range = (first, last) => (first === last ? `${first}` : `${first}-${last}`);

/** The picture of a tile around the lanes that read it. */
export function picture(tile, lanes, nbytes) {
  const all = Math.ceil(tile.sharedNbytes / LINE);
  const lowest = lanes.length ? Math.min(...lanes.map((lane) => lane.offset)) : 0;
  const first = Math.floor(lowest / LINE);
  const begin = Math.max(0, Math.min(first - (first % 8), all - SHOWN));
  const shown = Math.min(SHOWN, all);
  const chunks = chunksOf(tile, begin, shown);
  const readers = readersOf(lanes, nbytes);
  const banks = Array.from({ length: GROUPS }, (_, g) =>
    element("th", { scope: "col" }, `${4 * g}-${4 * g + 3}`));
  const rows = Array.from({ length: shown }, (_, i) => line(tile, begin + i, chunks, readers));
  const part = shown < all ? ` (lines ${begin} to ${begin + shown - 1} of ${all})` : "";
  const caption =
    `${tile} in shared memory, in lines of 128 B${part}. A cell is 16 B: the row and column of ` +
    "its first element, and the lanes that read from it.";
  const table = element(
    "table",
    { role: "grid", "aria-label": `${tile} in shared memory` },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "banks"), ...banks)),
    element("tbody", {}, ...rows));
  const detail = element("p", { class: "detail" });
  follow(table, detail);
  return element("div", { class: "picture" }, element("div", { class: "lines" }, table), detail);
}

/** The lanes that read from each chunk. */
function readersOf(lanes, nbytes) {
  const found = new Map();
  for (const { lane, offset } of lanes)
    for (let c = Math.floor(offset / CHUNK); c <= Math.floor((offset + nbytes - 1) / CHUNK); c++)
      found.set(c, [...(found.get(c) ?? []), lane]);
  return found;
}

function line(tile, number, chunks, readers) {
  const places = Array.from({ length: GROUPS }, (_, g) => number * GROUPS + g);
  const rows = places.filter((p) => chunks.has(p)).map((p) => chunks.get(p).row);
  const title = rows.length ? `row ${range(Math.min(...rows), Math.max(...rows))}` : "padding";
  const cells = places.map((place) => cell(tile, place, chunks.get(place), readers.get(place)));
  return element("tr", {}, element("th", { scope: "row" }, title), ...cells);
}

function cell(tile, place, chunk, lanes = []) {
  const group = place % GROUPS;
  let content = "padding, or the end of an element";
  if (chunk) {
    const { row, column, last } = chunk;
    const index = (c) => tuple([...tile.outer(row), c]);
    content = index(column);
    if (last > column) content += ` to ${index(Math.min(last, tile.inner - 1))}`;
  }
  const by = lanes.length ? `, read by lane${lanes.length > 1 ? "s" : ""} ${listed(lanes)}` : "";
  const says = `byte ${place * CHUNK}, banks ${4 * group} to ${4 * group + 3}: ${content}${by}`;
  const hue = chunk ? Math.floor(chunk.column / tile.chunk) % HUES : "none";
  const made = element("td", {
    role: "gridcell", tabindex: "-1", "aria-label": says, "data-hue": hue,
  });
  if (chunk) made.append(element("span", { class: "first" }, `${chunk.row},${chunk.column}`));
  if (lanes.length) {
    made.classList.add("read");
    made.append(element("span", { class: "lanes" }, listed(lanes)));
  }
  return made;
}

/** Numbers with their runs as ranges: 0-7, 16-23. */
function listed(numbers) {
  const runs = [];
  for (const n of numbers) {
    if (runs.length && runs.at(-1)[1] === n - 1) runs.at(-1)[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([first, last]) => range(first, last)).join(",");
}

/** Let arrow keys and the pointer move over the cells, and say what is in them. */
function follow(table, detail) {
  const cells = [...table.querySelectorAll("td")];
  let current = table.querySelector("td.read") ?? cells[0];
  const choose = (target) => {
    current.tabIndex = -1;
    current = target;
    current.tabIndex = 0;
    detail.textContent = current.getAttribute("aria-label");
  };
  choose(current);
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -GROUPS, ArrowDown: GROUPS };
  table.addEventListener("keydown", (event) => {
    const index = cells.indexOf(current);
    const start = index - (index % GROUPS);
    const next = { Home: start, End: start + GROUPS - 1 }[event.key] ?? index + moves[event.key];
    if (!cells[next]) return;
    event.preventDefault();
    cells[next].focus();
  });
  for (const kind of ["focusin", "pointerover"])
    table.addEventListener(kind, (event) => {
      const target = event.target.closest("td");
      if (target) choose(target);
    });
}

/** The words that a phase reads from each bank, as bars. */
export function banksOf({ banks, wavefronts }) {
  const bars = banks.map((words) => {
    const bar = element("span", {});
    bar.style.height = `${(100 * words) / wavefronts}%`;
    return bar;
  });
  const busy = listed(banks.flatMap((words, bank) => (words === wavefronts ? [bank] : [])));
  const label = `${wavefronts} word${wavefronts > 1 ? "s" : ""} in banks ${busy}`;
  return element(
    "figure",
    { class: "banks" },
    element("div", { role: "img", "aria-label": label }, ...bars),
    element("figcaption", {}, `The phase with the most wavefronts: ${label}`));
}
