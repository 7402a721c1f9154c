// The explorer: what the choices say is computed anew at each change.

import { element, sizeOf, terms } from "./dom.js";
import { SHARED } from "./facts.js";
import { Tile, oneBoxViolations, parseShape, tileViolations, tuple } from "./layout.js";
import { picture, banksOf } from "./picture.js";
import { Pipeline, mostStages, pythonOf } from "./pipeline.js";
import { Reads } from "./reads.js";
import { fragmentOf, makeForm, readForm, restore } from "./state.js";

const DRAWN = Math.max(...Object.values(SHARED)); // bytes of shared memory

/** Everything that some choices say; a RangeError if they make no tile. */
export function explore(state) {
  const tile = new Tile(parseShape(state.shape), state.dtype, state.swizzle);
  const violations = state.map === "box" ? oneBoxViolations(tile) : tileViolations(tile);
  const options = { tiles: Number(state.tiles), kGroup: Number(state.k_group) };
  const [other, limit] = [Number(state.other), SHARED[state.target]];
  const most = mostStages(tile, options, state.target, other);
  const stages = state.stages === "" ? Math.max(most, 1) : Number(state.stages);
  const pipeline = new Pipeline(stages, tile, options);
  const unfit = pipeline.violation(state.target);
  if (unfit) violations.push(unfit);
  else if (pipeline.nbytes + other > limit)
    violations.push(
      `${pipeline} needs ${sizeOf(pipeline.nbytes)}, and ${sizeOf(other)} are taken, but a block ` +
        `has ${sizeOf(limit)} on ${state.target}: use fewer stages or smaller tiles`);
  const reads = new Reads(tile, { ...state, threads: Number(state.threads) });
  const python = pythonOf(tile, pipeline);
  return { tile, violations, pipeline, most, reads, python, other, limit };
}

function tileSection({ tile }) {
  const { box, copies } = tile;
  return terms([
    ["A load copies", sizeOf(tile.nbytes)],
    ["Shared memory", sizeOf(tile.sharedNbytes)],
    ["Alignment", sizeOf(tile.alignment)],
    ["From row to row", sizeOf(tile.pitch)],
    ["Copies", copies === 1 ? "1" : `${copies} of the box ${tuple(box)}`],
    ["Slabs", tile.numSlabs === 1 ? "1" : `${tile.numSlabs} of ${tile.slab} columns`],
  ]);
}

function readSection({ tile, reads }, state) {
  if (tile.sharedNbytes > DRAWN)
    return [element("p", {}, `No block has room for ${tile}: it is not drawn.`)];
  const about = element("p", { class: "about" }, reads.pattern.title);
  if (reads.violation) return [about, messages([reads.violation]), picture(tile, [], 1)];
  const { lanes, phases } = reads.instruction(Number(state.step), Number(state.warp));
  const drawn = picture(tile, lanes, reads.nbytes);
  if (!phases.length) return [about, element("p", {}, "Nothing is left for this warp."), drawn];
  const sum = (key) => phases.reduce((total, phase) => total + phase[key], 0);
  const { wavefronts, least } = reads.total;
  const worst = phases.reduce((a, b) => (b.wavefronts > a.wavefronts ? b : a));
  return [
    about,
    terms([
      ["This read", `${sum("wavefronts")} wavefronts, ${sum("least")} without conflicts`],
      ["The whole tile", `${wavefronts} wavefronts, ${least} without conflicts`],
      ["Reads of a warp", `${reads.count}`],
    ]),
    banksOf(worst),
    drawn,
  ];
}

function pipelineSection({ pipeline, most, other, limit }) {
  const used = pipeline.nbytes + other;
  const bounds = { min: 0, max: limit, value: used };
  const meter = element("meter", { ...bounds, "aria-label": "Shared memory in use" });
  return [
    terms([
      ["Stages", `${pipeline.numStages}; ${most} fit`],
      ["Bytes of a stage", sizeOf(pipeline.txBytes)],
      ["Tiles", sizeOf(pipeline.storageNbytes)],
      ["Barriers", sizeOf(pipeline.nbytes - pipeline.storageNbytes)],
      ["In use", `${sizeOf(used)} of ${sizeOf(limit)}`],
    ]),
    meter,
  ];
}

function messages(violations) {
  const items = violations.map((text) => element("li", {}, text));
  return element("ul", { class: "violations" }, ...items);
}

/** The sections for some choices, and the rules that these break. */
function sectionsOf(state) {
  try {
    const found = explore(state);
    const python = element("pre", { tabindex: "0", "aria-label": "Python" }, found.python);
    const sections = [
      section("The tile", tileSection(found)),
      section("The read", ...readSection(found, state)),
      section("The pipeline", ...pipelineSection(found)),
      section("Python", python),
    ];
    return { violations: found.violations, sections };
  } catch (error) {
    if (error instanceof RangeError) return { violations: [error.message], sections: [] };
    throw error;
  }
}

function section(title, ...content) {
  return element("section", { "aria-label": title }, element("h3", {}, title), ...content);
}

function start(place) {
  const form = makeForm();
  const status = element("div", { role: "status" });
  const output = element("div");
  const update = () => {
    const { state, violations: wrong } = readForm(form);
    const { violations, sections } = wrong.length
      ? { violations: wrong, sections: [] }
      : sectionsOf(state);
    status.replaceChildren(...(violations.length ? [messages(violations)] : []));
    output.replaceChildren(...sections);
    return state;
  };
  const follow = () => restore(form, location.hash.slice(1)) && update();
  form.addEventListener("input", () => {
    const fragment = fragmentOf(update());
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  });
  addEventListener("hashchange", follow);
  place.replaceChildren(form, status, output);
  if (!follow()) update();
}

const place = document.getElementById("tile-explorer");
if (place) start(place);
