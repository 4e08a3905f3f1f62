"use strict";

// Puts the parts of the page together.

(function start() {
  const page = JSON.parse(byId("data").textContent);
  showHead(page);
  let graph;
  const choose = (id) => graph?.choose(id, true);
  drawRoofline(page, choose);
  showKernels(page, choose);
  showInstructions(page, choose);
  drawMemory(page, choose);
  showComparison(page);
  if (page.instructions.length) {
    graph = new Graph(page);
    graph.start();
    showLegend(page);
    listenToSearch(page, choose);
  } else {
    byId("graph").replaceChildren(make("h2", {}, "Graph"), make("p", {}, "No step serves an instruction of the program."));
  }
  for (const section of document.querySelectorAll("main section")) {
    const title = section.querySelector("h2").textContent;
    document.querySelector("nav").append(make("a", { href: `#${section.id}` }, title));
  }
})();

function showHead(page) {
  byId("title").textContent = page.title;
  const machine = [page.machine.cpu ?? page.machine.model ?? "machine not known"];
  if (page.limits?.threads) machine.push(`${page.limits.threads} threads`);
  byId("about").textContent = [`mgx_numba ${page.version}`, `target ${page.target}`, ...machine, page.date].join(", ");
  const seconds = average(page.total);
  const facts = {
    "time of a run": duration(seconds),
    [page.batch.origin ? `batch: ${page.batch.origin}` : "batch"]: page.batch.size,
    "inferences a second": digits(page.batch.size / seconds),
    "fastest and slowest run": `${duration(Math.min(...page.total))}, ${duration(Math.max(...page.total))}`,
    "call without steps": duration(average(page.idle)),
    "steps": page.steps.length,
    "kernels": page.kernels.length,
    "on the host": page.steps.filter((s) => s.reason).length,
    "memory between steps": page.memory ? bytes(page.memory.arena) : "–",
  };
  for (const [name, value] of Object.entries(facts)) {
    byId("facts").append(make("div", {}, make("dt", {}, name), make("dd", {}, String(value))));
  }
}

function showLegend(page) {
  const used = new Set(page.steps.map((s) => kindOf(page, s)));
  for (const [kind, text] of Object.entries(KINDS)) {
    if (used.has(kind)) byId("legend").append(make("span", {}, make("i", { style: `background:${colour(kind)}` }), text));
  }
}

/** From a node of the model, an instruction or an operator to its box. */
function listenToSearch(page, choose) {
  const places = new Map();
  page.instructions.forEach((ins, k) => {
    for (const name of [...ins.nodes, ins.name, ...ins.operators]) if (!places.has(name)) places.set(name, k);
  });
  for (const node of page.nodes) {
    const gone = places.has(node.name) ? node.operators : `${node.operators}: folded or removed`;
    byId("names").append(make("option", { value: node.name }, gone));
  }
  for (const name of places.keys()) byId("names").append(make("option", { value: name }));
  byId("search").addEventListener("change", (event) => {
    const name = event.target.value.trim();
    if (places.has(name)) choose(places.get(name));
    else if (name) byId("details").replaceChildren(make("p", {}, `Nothing of ${name} is left in the compiled program, or there is no such name.`));
  });
}
