"use strict";

// Each kernel under the two roofs of the machine: what its multiply-add units and its memory can do at most.

function drawRoofline(page, choose) {
  const figure = byId("roofline-figure");
  const groups = grouped(page.steps).filter((g) => g.flops > 0 && g.bytes > 0 && g.seconds > 0);
  if (!page.limits || !groups.length) {
    byId("roofline-about").textContent =
      "There is nothing to draw: the target's limits are not known, or no kernel tells its operations and bytes.";
    figure.remove();
    return;
  }
  const { gflops, gbytes, threads, device } = page.limits;
  const units = Object.entries(page.limits.units ?? {});
  byId("roofline-about").textContent =
    `Limits ${device || `on ${threads} thread${threads > 1 ? "s" : ""}`}, measured: ${digits(gflops)} GFLOP/s in float32, ` +
    units.map(([name, rate]) => `${digits(rate)} in ${name}, `).join("") +
    `${digits(gbytes)} GB/s copied. A kernel's area is its share of the time. Above the slope it works from the ` +
    "caches; above the flat roof it needs fewer operations than are counted (Winograd's and Strassen's methods).";
  const width = figure.clientWidth;
  const box = { width, height: Math.max(360, Math.min(520, width * 0.5)), left: 56, right: 20, top: 20, bottom: 48 };
  const points = groups.map((g) => ({ ...g, x: g.flops / g.bytes, y: g.flops / g.seconds / 1e9 }));
  const ridge = gflops / gbytes;
  const roofs = [gflops, ...units.map(([, rate]) => rate)];
  const scale = logScales(box, [...points.map((p) => p.x), ridge / 4, ridge * 4], [...points.map((p) => p.y), ...roofs]);
  const drawing = svg("svg", {
    viewBox: `0 0 ${box.width} ${box.height}`,
    role: "group",
    "aria-label": "Roofline: operations a second over operations for each byte",
  });
  drawAxes(drawing, box, scale);
  for (const rate of roofs) {
    const roof = [[scale.xs[0], scale.xs[0] * gbytes], [rate / gbytes, rate], [Math.max(scale.xs[1], rate / gbytes), rate]];
    if (roof[0][1] < scale.ys[0]) roof[0] = [scale.ys[0] / gbytes, scale.ys[0]];
    const points = roof.map(([x, y]) => `${Math.min(scale.x(x), box.width - box.right)},${scale.y(y)}`).join(" ");
    drawing.append(svg("polyline", { class: "roof", points }));
  }
  const taken = [];
  for (const [name, rate] of [["float32", gflops], ...units]) {
    const text = `${name}: ${digits(rate)} GFLOP/s`;
    const place = { class: "name muted", x: box.width - box.right, y: scale.y(rate) - 6, "text-anchor": "end" };
    drawing.append(svg("text", place, text));
    taken.push(spaceOf(text, place.x - widthOf(text), place.y));
  }
  const slope = `copy: ${digits(gbytes)} GB/s`;
  const middle = Math.max(scale.xs[0], scale.ys[0] / gbytes) ** 0.5 * ridge ** 0.5;
  const at = { class: "name muted", x: scale.x(middle) + 8, y: scale.y(middle * gbytes) + 14 };
  drawing.append(svg("text", at, slope));
  taken.push(spaceOf(slope, at.x, at.y));
  const total = sum(page.steps.map((s) => s.seconds));
  for (const point of points) {
    const kind = kindOf(page, point.steps[0]);
    const text = `${point.label}: ${duration(point.seconds)}, ${digits(point.y)} GFLOP/s, ${digits(point.bytes / point.seconds / 1e9)} GB/s`;
    const radius = 4 + 26 * Math.sqrt(point.seconds / total);
    const dot = svg("circle", { class: "dot", cx: scale.x(point.x), cy: scale.y(point.y), r: radius, fill: colour(kind) });
    dot.append(svg("title", {}, text));
    drawing.append(pressable(dot, text, () => choose(point.steps[0].instruction)));
  }
  labelLargest(drawing, points.map((p) => ({ ...p, r: 4 + 26 * Math.sqrt(p.seconds / total) })), scale, box, taken);
  figure.append(drawing);
}

function kindOf(page, step) {
  if (step.reason) return "host";
  return page.instructions[step.instruction]?.kind ?? "data";
}

function logScales(box, xs, ys) {
  const ends = (values) => [0.7 * Math.min(...values), 1.5 * Math.max(...values)];
  const along = ([low, high], from, to) => (value) =>
    from + ((to - from) * Math.log(value / low)) / Math.log(high / low);
  const [x, y] = [ends(xs), ends(ys)];
  return { xs: x, ys: y, x: along(x, box.left, box.width - box.right), y: along(y, box.height - box.bottom, box.top) };
}

function drawAxes(drawing, box, scale) {
  const bottom = box.height - box.bottom;
  for (const value of powers(scale.xs)) {
    const x = scale.x(value);
    drawing.append(svg("line", { class: "grid", x1: x, x2: x, y1: box.top, y2: bottom }));
    const anchor = x > box.width - box.right - 16 ? "end" : "middle"; // not cut off at the edge
    drawing.append(svg("text", { class: "muted", x, y: bottom + 16, "text-anchor": anchor }, digits(value)));
  }
  for (const value of powers(scale.ys)) {
    const y = scale.y(value);
    drawing.append(svg("line", { class: "grid", x1: box.left, x2: box.width - box.right, y1: y, y2: y }));
    drawing.append(svg("text", { class: "muted", x: box.left - 6, y: y + 4, "text-anchor": "end" }, digits(value)));
  }
  const middle = (box.left + box.width - box.right) / 2;
  drawing.append(svg("text", { x: middle, y: box.height - 10, "text-anchor": "middle" }, "operations for each byte that must move"));
  const turned = `translate(14 ${(box.top + bottom) / 2}) rotate(-90)`;
  drawing.append(svg("text", { transform: turned, "text-anchor": "middle" }, "GFLOP/s"));
}

/** Powers of ten between two ends, and 2 and 5 times these where there are fewer than three. */
function powers([low, high]) {
  const within = (factors) => {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.floor(Math.log10(high)); e++)
      found.push(...factors.map((factor) => factor * 10 ** e));
    return found.filter((value) => low <= value && value <= high);
  };
  const tens = within([1]);
  return tens.length < 3 ? within([1, 2, 5]) : tens;
}

/** Names of the kernels that take longest, beside their dots, where neither a name nor a dot is in the way. */
function labelLargest(drawing, points, scale, box, taken) {
  const dots = points.map((p) => ({ left: scale.x(p.x) - p.r, right: scale.x(p.x) + p.r, top: scale.y(p.y) - p.r, bottom: scale.y(p.y) + p.r }));
  for (const [number, point] of points.slice(0, 8).entries()) {
    const text = shortLabel(point.label);
    const [x, y, width] = [scale.x(point.x), scale.y(point.y), widthOf(text)];
    const places = [[x + point.r + 4, y + 4], [x - point.r - 4 - width, y + 4], [x - width / 2, y - point.r - 6], [x - width / 2, y + point.r + 14]];
    const free = places.map(([left, base]) => spaceOf(text, left, base)).find((space) =>
      space.left >= box.left && space.right <= box.width - box.right && space.top >= 0 && space.bottom <= box.height - box.bottom &&
      ![...taken, ...dots.filter((_, k) => k !== number)].some((other) => overlap(space, other)));
    if (!free) continue;
    taken.push(free);
    drawing.append(svg("text", { class: "name", x: free.left, y: free.bottom - 3 }, text));
  }
}

/** Pixels of a text in the figure's font of 12 pixels: about 6.6 a character. */
const widthOf = (text) => 6.6 * text.length;
const spaceOf = (text, left, base) => ({ left, right: left + widthOf(text), top: base - 11, bottom: base + 3 });
const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

const shortLabel = (label) => {
  const plain = label.replace(/^\w+::/, "").replace(/_kernel$/, "");
  return plain.length > 28 ? `${plain.slice(0, 27)}…` : plain;
};
