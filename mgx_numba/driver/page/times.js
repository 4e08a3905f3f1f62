"use strict";

// Times by kernel and by instruction.

function showKernels(page, choose) {
  const groups = grouped(page.steps);
  const total = sum(groups.map((g) => g.seconds));
  const passed = { gflops: false, gbytes: false };
  const rate = (amount, seconds, limit, unit) => {
    if (!amount || !seconds) return ["–", "–"];
    const value = amount / seconds / 1e9;
    if (!page.limits) return [digits(value), "–"];
    const most = (limit === "gflops" && page.limits.units?.[unit]) || page.limits[limit];
    passed[limit] ||= value > most;
    return [digits(value), percent(value / most)];
  };
  const rows = groups.map((g) => {
    const step = g.steps[0];
    const name = make("button", { type: "button", class: "link", click: () => choose(step.instruction) }, g.label);
    const cells = [g.count, duration(g.seconds), percent(g.seconds / total)];
    cells.push(...rate(g.flops, g.seconds, "gflops", step.unit), ...rate(g.bytes, g.seconds, "gbytes"), step.unit ?? "");
    const head = step.instruction < 0 ? g.label : name;
    return make("tr", {}, make("td", {}, head), bar(g.seconds / groups[0].seconds, kindOf(page, step)),
      ...cells.map((text) => make("td", {}, String(text))));
  });
  const titles = ["kernel", "", "steps", "time", "share", "GFLOP/s", "of limit", "GB/s", "of limit", "unit"];
  fillTable(byId("kernel-table"), titles, rows);
  const notes = [];
  if (passed.gflops) notes.push("GFLOP/s above the limit: operations count as the plain algorithm needs them; Winograd's and Strassen's methods need fewer.");
  if (passed.gbytes) notes.push("GB/s above the limit: the limit is that of memory; what fits into the caches moves faster.");
  byId("kernel-notes").textContent = notes.join("\n");
}

function showInstructions(page, choose) {
  const seconds = page.instructions.map(() => 0);
  const labels = page.instructions.map(() => new Set());
  for (const step of page.steps) {
    if (step.instruction < 0) continue;
    seconds[step.instruction] += step.seconds;
    labels[step.instruction].add(step.label);
  }
  const most = Math.max(...seconds);
  const total = sum(page.steps.map((s) => s.seconds));
  const rows = page.instructions.map((instruction, k) => {
    const text = `${instruction.name} = ${instruction.operators.join(", ")}`;
    const name = make("button", { type: "button", class: "link", click: () => choose(k) }, text);
    const nodes = instruction.nodes.length ? make("div", { class: "note" }, instruction.nodes.join(", ")) : undefined;
    return make("tr", {}, make("td", {}, name, nodes), bar(seconds[k] / most, instruction.kind),
      make("td", {}, duration(seconds[k])), make("td", {}, percent(seconds[k] / total)), make("td", {}, [...labels[k]].join(", ")));
  });
  fillTable(byId("instruction-table"), ["instruction", "", "time", "share", "steps"], rows);
}
