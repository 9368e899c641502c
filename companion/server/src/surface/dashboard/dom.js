// Makes elements. Text is only ever set as text, so that a name that a client chose can't become markup.

const SVG = "http://www.w3.org/2000/svg";

const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter(child => child !== undefined && child !== null && child !== false));
  return node;
};

/** An HTML element with attributes, listeners (`onclick`) and children; a string is a text. */
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** The same as an element of a drawing. */
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = id => document.getElementById(id);

/** Sets a text if it differs, so that screen readers read it once. */
export const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Replaces the options of a `<select>`, each `{value, text}`, and keeps its choice. */
export const setOptions = (select, options, chosen) => {
  const key = JSON.stringify(options);
  if (select.dataset.options !== key) {
    select.dataset.options = key;
    select.replaceChildren(...options.map(({value, text}) => el("option", {value}, text)));
  }
  select.value = chosen;
};
