// The choices of the explorer, their form, and their place in the page's address.

import { DTYPES, SHARED, SWIZZLES } from "./facts.js";
import { PATTERNS, WARP, WIDTHS } from "./reads.js";
import { element } from "./dom.js";

const same = (names) => Object.fromEntries(names.map((name) => [name, name]));
const labels = (table) =>
  Object.fromEntries(Object.entries(table).map(([key, { label }]) => [key, label]));

export const FIELDS = {
  Tile: {
    dtype: { label: "Element type", options: same(Object.keys(DTYPES)), value: "bf16" },
    shape: { label: "Shape", value: "64,64" },
    swizzle: { label: "Swizzle", options: same(Object.keys(SWIZZLES)), value: "B128" },
    map: { label: "Map of", options: { tile: "the Tile", box: "one box" }, value: "tile" },
  },
  "A warp's read": {
    pattern: { label: "Pattern", options: labels(PATTERNS), value: "column" },
    width: { label: "Bytes of a lane", options: WIDTHS, value: "16" },
    threads: { label: "Threads", value: "128", min: WARP, max: 1024, step: WARP },
    warp: { label: "Warp", value: "0", min: 0, max: 31 },
    step: { label: "Step", value: "0", min: 0, max: 1 << 20 },
  },
  Pipeline: {
    target: { label: "Target", options: same(Object.keys(SHARED)), value: "sm_90a" },
    stages: { label: "Stages", value: "", min: 1, max: 1024, hint: "all that fit" },
    tiles: { label: "Tiles of a stage", value: "1", min: 1, max: 4 },
    k_group: { label: "k_group", value: "1", min: 1, max: 64 },
    other: { label: "Other shared bytes", value: "0", min: 0, max: 232448 },
  },
};

const ALL = Object.assign({}, ...Object.values(FIELDS));

/** The rule that a field's text breaks; "" if none. */
function violation({ label, value, options, min, max, step = 1 }, text) {
  if (options || min === undefined || (text === "" && value === "")) return "";
  const number = Number(text);
  if (/^\d+$/.test(text) && number >= min && number <= max && number % step === 0) return "";
  const kind = step > 1 ? `a multiple of ${step}` : "a whole number";
  return `${label} is ${kind} from ${min} to ${max.toLocaleString("en-US")}`;
}

/** The choices as the form has them, and what is wrong with them. */
export function readForm(form) {
  const state = {};
  const violations = [];
  for (const [key, field] of Object.entries(ALL)) {
    const control = form.elements[key];
    const text = control.value.trim();
    const wrong = violation(field, text);
    control.setAttribute("aria-invalid", String(wrong !== ""));
    if (wrong) violations.push(wrong);
    state[key] = text;
  }
  if (!violations.length && Number(state.warp) * WARP >= Number(state.threads))
    violations.push(`Warp is a whole number from 0 to ${Number(state.threads) / WARP - 1}`);
  return { state, violations };
}

/** The address's fragment for some choices: those that differ from the first ones. */
export function fragmentOf(state) {
  const changed = Object.keys(ALL).filter((key) => state[key] !== ALL[key].value);
  const query = new URLSearchParams(changed.map((key) => [key, state[key]])).toString();
  return query.replaceAll("%2C", ",").replaceAll("+", "");
}

/** Put the choices of a fragment into the form; false if it has none, as a heading's. */
export function restore(form, fragment) {
  const query = new URLSearchParams(fragment);
  if (fragment && ![...query.keys()].some((key) => Object.hasOwn(ALL, key))) return false;
  for (const [key, field] of Object.entries(ALL)) {
    const text = query.get(key) ?? field.value;
    const known = !field.options || Object.hasOwn(field.options, text);
    form.elements[key].value = known ? text : field.value;
  }
  return true;
}

/** A form with a labelled control for each choice. */
export function makeForm() {
  const groups = Object.entries(FIELDS).map(([title, fields]) =>
    element("fieldset", {}, element("legend", {}, title), ...Object.entries(fields).map(control)));
  const form = element("form", { "aria-label": "Choices" }, ...groups);
  form.addEventListener("submit", (event) => event.preventDefault());
  restore(form, "");
  return form;
}

function control([key, { label, options, min, max, step, hint }]) {
  const id = `explorer-${key}`;
  const name = { id, name: key, autocomplete: "off" };
  const choices = Object.entries(options ?? {}).map(([value, text]) =>
    element("option", { value }, text));
  let input = element("input", { ...name, type: "text", spellcheck: "false" });
  if (options) input = element("select", name, ...choices);
  else if (min !== undefined)
    input = element("input", { ...name, type: "number", min, max, step: step ?? 1 });
  if (hint) input.placeholder = hint;
  return element("div", {}, element("label", { for: id }, label), input);
}
