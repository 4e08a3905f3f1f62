"use strict";

// The compiled program as a layered graph: layout, drawing, zooming, and what is known of one box.

const BOX_WIDTH = 190;
const LINE = 15;
const GAP_X = 26;
const GAP_Y = 44;
const SHOWN_MEMBERS = 7;

/** Boxes of inputs and instructions with their places. */
function layout(page) {
  const boxes = [
    ...page.inputs.map((p, k) => ({ id: -1 - k, lines: [p.name, p.shape.split(",")[0]], kind: undefined, inputs: [] })),
    ...page.instructions.map((ins, k) => ({ id: k, lines: boxLines(ins), kind: ins.kind, inputs: ins.inputs })),
  ];
  const byNumber = new Map(boxes.map((b) => [b.id, b]));
  const layers = [];
  for (const box of boxes) {
    box.height = LINE * box.lines.length + 12;
    box.sources = box.inputs.map((i) => byNumber.get(i)).filter(Boolean);
    box.layer = Math.max(-1, ...box.sources.map((s) => s.layer)) + 1;
    (layers[box.layer] ??= []).push(box);
  }
  for (const box of boxes) for (const source of box.sources) (source.users ??= []).push(box);
  for (const box of boxes.filter((b) => b.id < 0 && b.users)) {  // an input stands beside who reads it first
    layers[box.layer].splice(layers[box.layer].indexOf(box), 1);
    box.layer = Math.max(0, Math.min(...box.users.map((u) => u.layer)) - 1);
    layers[box.layer].push(box);
  }
  place(layers);
  return boxes;
}

function boxLines(ins) {
  const shown = ins.operators.slice(0, SHOWN_MEMBERS);
  const rest = ins.operators.length - shown.length;
  return [ins.name, ...shown, ...(rest > 0 ? [`and ${rest} more`] : [])];
}

/** Orders layers by the middles of neighbours, then gives places. */
function place(layers) {
  for (const layer of layers) layer.forEach((box, k) => (box.x = (k - (layer.length - 1) / 2) * (BOX_WIDTH + GAP_X)));
  for (let sweep = 0; sweep < 6; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      for (const box of layer) {
        const near = down ? box.sources : (box.users ?? []);
        box.wish = near.length ? sum(near.map((n) => n.x)) / near.length : box.x;
      }
      layer.sort((a, b) => a.wish - b.wish);
      spread(layer);
    }
  }
  let y = 0;
  for (const layer of layers) {
    for (const box of layer) box.y = y;
    y += Math.max(...layer.map((b) => b.height)) + GAP_Y;
  }
}

/** Places of a layer near to what its boxes wish, in order and apart; the whole is moved to the mean of the wishes. */
function spread(layer) {
  let last = -Infinity;
  for (const box of layer) {
    box.x = Math.max(box.wish, last + BOX_WIDTH + GAP_X);
    last = box.x;
  }
  const shift = sum(layer.map((b) => b.wish - b.x)) / layer.length;
  for (const box of layer) box.x += shift;
}

class Graph {
  constructor(page) {
    this.page = page;
    this.boxes = layout(page);
    this.seconds = page.instructions.map(() => 0);
    for (const step of page.steps) if (step.instruction >= 0) this.seconds[step.instruction] += step.seconds;
    this.elements = new Map();
    this.svg = svg("svg", { role: "group", "aria-label": "Graph of the compiled program" });
    for (const box of this.boxes) for (const source of box.sources) this.svg.append(edge(source, box));
    for (const box of this.boxes) this.svg.append(this.draw(box));
    byId("graph-figure").append(this.svg);
    this.fit();
    this.listen();
  }

  draw(box) {
    const instruction = this.page.instructions[box.id];
    const heat = instruction ? this.seconds[box.id] / Math.max(...this.seconds) : 0;
    const stroke = box.kind ? colour(box.kind) : "var(--muted)";
    const rect = svg("rect", { width: BOX_WIDTH, height: box.height, rx: 6, stroke, "stroke-opacity": 0.35 + 0.65 * heat });
    const group = svg("g", { class: "box", transform: `translate(${box.x - BOX_WIDTH / 2} ${box.y})` }, rect);
    group.append(svg("rect", { width: 6, height: box.height, rx: 3, style: `fill:${stroke};stroke:none` }));
    box.lines.forEach((line, k) => {
      const text = line.length > 24 ? `${line.slice(0, 23)}…` : line;
      group.append(svg("text", { x: 14, y: LINE * (k + 1) + 2, class: k ? "muted" : undefined }, text));
    });
    if (!instruction) return group;
    group.append(svg("text", { x: BOX_WIDTH - 8, y: LINE + 2, "text-anchor": "end" }, duration(this.seconds[box.id])));
    this.elements.set(box.id, group);
    const label = `${instruction.name}: ${instruction.operators.join(", ")}, ${duration(this.seconds[box.id])}`;
    group.append(svg("title", {}, label));
    return pressable(group, label, () => this.dragged || this.choose(box.id));
  }

  /** Show what is known of an instruction; with `move`, bring its box to the middle. */
  choose(id, move = false) {
    if (!(id in this.page.instructions)) return;
    for (const [other, element] of this.elements) element.classList.toggle("chosen", other === id);
    showDetails(this.page, id, this.seconds[id]);
    if (!move) return;
    const box = this.boxes.find((b) => b.id === id);
    const width = Math.max(700, BOX_WIDTH * 2);
    this.view = { x: box.x - width / 2, y: box.y + box.height / 2 - (width * this.ratio()) / 2, width };
    this.apply();
    byId("graph").scrollIntoView();
  }

  ratio() {
    return this.svg.clientHeight / Math.max(1, this.svg.clientWidth) || 0.6;
  }

  fit() {
    const left = Math.min(...this.boxes.map((b) => b.x)) - BOX_WIDTH / 2 - 20;
    const right = Math.max(...this.boxes.map((b) => b.x)) + BOX_WIDTH / 2 + 20;
    const height = Math.max(...this.boxes.map((b) => b.y + b.height)) + 40;
    const width = Math.max(right - left, height / this.ratio());
    this.view = { x: (left + right - width) / 2, y: -20, width };
    this.apply();
  }

  /** The beginning of the graph, large enough to be read. */
  start() {
    const first = this.boxes.filter((b) => b.layer === 0);
    const width = Math.min(this.view.width, this.svg.clientWidth);
    this.view = { x: sum(first.map((b) => b.x)) / first.length - width / 2, y: -20, width };
    this.apply();
  }

  zoom(factor, at = { x: 0.5, y: 0.5 }) {
    const { x, y, width } = this.view;
    const next = Math.min(Math.max(width * factor, 120), 400000);
    this.view = { x: x + (width - next) * at.x, y: y + (width - next) * this.ratio() * at.y, width: next };
    this.apply();
  }

  move(dx, dy) {
    this.view.x += dx * this.view.width;
    this.view.y += dy * this.view.width * this.ratio();
    this.apply();
  }

  apply() {
    const { x, y, width } = this.view;
    this.svg.setAttribute("viewBox", `${x} ${y} ${width} ${width * this.ratio()}`);
  }

  listen() {
    const keys = { "+": [0.8], "=": [0.8], "-": [1.25] };
    const arrows = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    byId("zoom-in").addEventListener("click", () => this.zoom(0.7));
    byId("zoom-out").addEventListener("click", () => this.zoom(1.4));
    byId("zoom-fit").addEventListener("click", () => this.fit());
    this.svg.addEventListener("keydown", (event) => {
      this.dragged = false;
      if (event.key in keys) this.zoom(...keys[event.key]);
      else if (event.key in arrows) this.move(...arrows[event.key]);
      else return;
      event.preventDefault();
    });
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const at = { x: event.offsetX / this.svg.clientWidth, y: event.offsetY / this.svg.clientHeight };
      this.zoom(event.deltaY > 0 ? 1.15 : 0.87, at);
    }, { passive: false });
    let from;
    this.svg.addEventListener("pointerdown", (event) => {
      from = event;
      this.dragged = false;
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      if (!this.dragged && Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) < 4) return;
      this.dragged = true;  // what follows is no click on a box
      this.move((from.clientX - event.clientX) / this.svg.clientWidth, (from.clientY - event.clientY) / this.svg.clientHeight);
      from = event;
    });
    this.svg.addEventListener("pointerup", () => (from = undefined));
    window.addEventListener("resize", () => this.apply());
    this.svg.addEventListener("focusin", (event) => {
      const found = [...this.elements].find(([, element]) => element === event.target);
      if (found) this.reveal(this.boxes.find((b) => b.id === found[0]));
    });
  }

  /** Move as little as needed for a box to be seen. */
  reveal(box) {
    const { x, y, width } = this.view;
    const height = width * this.ratio();
    const [left, right] = [box.x - BOX_WIDTH / 2, box.x + BOX_WIDTH / 2];
    this.view.x = Math.min(Math.max(x, right - width + 10), left - 10);
    this.view.y = Math.min(Math.max(y, box.y + box.height - height + 10), box.y - 10);
    this.apply();
  }
}

function edge(source, box) {
  const [x1, y1, x2, y2] = [source.x, source.y + source.height, box.x, box.y];
  const bend = (y2 - y1) / 2;
  const long = box.layer - source.layer > 1 && Math.abs(x1 - x2) < BOX_WIDTH;
  const aside = long ? 0.9 * BOX_WIDTH : 0;  // around the boxes between
  const path = `M${x1} ${y1}C${x1 + aside} ${y1 + bend} ${x2 + aside} ${y2 - bend} ${x2} ${y2}`;
  return svg("path", { class: "edge", d: path });
}

function showDetails(page, id, seconds) {
  const ins = page.instructions[id];
  const own = page.steps.filter((s) => s.instruction === id);
  const parts = [make("h3", {}, `${ins.name}: ${duration(seconds)}`), make("p", {}, ins.shape)];
  if (ins.nodes.length) parts.push(make("p", {}, `Nodes of the model: ${ins.nodes.join(", ")}`));
  if (ins.solver) parts.push(make("p", {}, `Solver: ${ins.solver}`));
  parts.push(make("pre", {}, [ins.text, ...ins.members].join("\n")));
  for (const step of own) {
    const amounts = step.flops || step.bytes ? `, ${digits(step.flops)} operations, ${bytes(step.bytes)}` : "";
    parts.push(make("p", {}, `${step.label}: ${duration(step.seconds)}${amounts}${step.reason ? `, on the host: ${step.reason}` : ""}`));
  }
  const kernels = [...new Set(own.map((s) => s.kernel).filter((k) => k >= 0))];
  for (const k of kernels) {
    const summary = make("summary", {}, `Source of ${page.kernels[k].name}`);
    parts.push(make("details", kernels.length === 1 ? { open: "" } : {}, summary, make("pre", {}, page.kernels[k].text)));
  }
  byId("details").replaceChildren(...parts);
}
