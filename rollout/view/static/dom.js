// Building pages from data. Text only ever becomes text nodes: nothing a policy wrote is parsed as HTML.

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function svg(tag, properties = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
export const signed = (value, digits = 2) => (value > 0 ? "+" : "") + number(value, digits);
export const count = (value) => value.toLocaleString("en");
export const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

// Ten steps from poor to good; the classes are in style.css.
export function rewardClass(value) {
  return value === null ? "r-none" : `r-${Math.min(9, Math.max(0, Math.floor(value * 10)))}`;
}

export async function getJson(path) {
  const response = await fetch(path);
  const data = await response.json();
  if (!response.ok) throw new Error(data.error || response.statusText);
  return data;
}
