// Elements of the page.

/** An element with attributes and children; strings become text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A number of bytes for people. */
export function sizeOf(nbytes) {
  const exact = `${nbytes.toLocaleString("en-US")} B`;
  return nbytes < 1024 ? exact : `${exact} (${+(nbytes / 1024).toPrecision(4)} KiB)`;
}

/** A list of terms and what is said of each. */
export function terms(rows) {
  const pairs = rows.map(([term, text]) =>
    element("div", {}, element("dt", {}, term), element("dd", {}, text)));
  return element("dl", {}, ...pairs);
}
