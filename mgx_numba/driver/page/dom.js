"use strict";

// Elements, numbers and colours that all parts of the page share.

const KINDS = {
  contraction: "products and convolutions",
  attention: "attention",
  recurrent: "recurrent layers",
  rows: "reductions and rows",
  pointwise: "pointwise",
  data: "data movement",
  host: "on the host (NumPy)",
};

const byId = (id) => document.getElementById(id);
const colour = (kind) => `var(--${kind})`;

/** An element with attributes and children; strings become text. */
function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

/** Makes an element a button for mouse and keyboard. */
function pressable(element, label, action) {
  element.setAttribute("tabindex", "0");
  element.setAttribute("role", "button");
  element.setAttribute("aria-label", label);
  element.addEventListener("click", action);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      action();
    }
  });
  return element;
}

/** The mean of the middle half, as the text report has it. */
function average(values) {
  const ordered = [...values].sort((a, b) => a - b);
  const quarter = Math.floor(ordered.length / 4);
  const middle = ordered.slice(quarter, ordered.length - quarter);
  return middle.reduce((sum, value) => sum + value, 0) / middle.length;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
const duration = (seconds) => (Math.abs(seconds) < 1e-4 ? `${digits(seconds * 1e6)} µs` : `${digits(seconds * 1e3)} ms`);
const percent = (part) => `${(100 * part).toFixed(1)}%`;

/** Bytes in the unit that suits `like`. */
function bytes(count, like = count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  const unit = like < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(like) / 10));
  return `${digits(count / 1024 ** unit)} ${units[unit]}`;
}

/** About `most` round numbers from 0 to `end`: multiples of 1, 2 or 5 times a power of 10, or of a power of 2. */
function ticks(end, most, binary = false) {
  const raw = Math.max(end / most, 1);
  const power = binary ? 2 ** Math.ceil(Math.log2(raw)) : 10 ** Math.floor(Math.log10(raw));
  const step = binary ? power : power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, k) => k * step);
}

/** Steps of one label together, the longest first; `steps` are those of a page. */
function grouped(steps) {
  const groups = new Map();
  for (const step of steps) {
    const group = groups.get(step.label) ?? { label: step.label, count: 0, seconds: 0, flops: 0, bytes: 0, steps: [] };
    group.count += 1;
    group.seconds += step.seconds;
    group.flops += step.flops;
    group.bytes += step.bytes;
    group.steps.push(step);
    groups.set(step.label, group);
  }
  return [...groups.values()].sort((a, b) => b.seconds - a.seconds);
}

/** A table's head and rows; the first column heads its row. */
function fillTable(table, titles, rows) {
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

/** A cell with a bar of a part of its width. */
function bar(part, kind) {
  const width = `width:${Math.max(0.5, 100 * part)}%;background:${colour(kind)}`;
  return make("td", { class: "bar" }, make("span", { style: width }));
}
