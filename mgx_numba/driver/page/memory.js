"use strict";

// Which bytes of the arena are in use during which steps.

function drawMemory(page, choose) {
  const figure = byId("memory-figure");
  const about = byId("memory-about");
  if (!page.memory || !page.memory.uses.length) {
    about.textContent = "There is nothing to draw: the program has no one plan, or its steps keep nothing for each other.";
    figure.remove();
    return;
  }
  const { arena, constants, uses } = page.memory;
  const held = sum(uses.map((u) => u.bytes));
  about.textContent =
    `One arena of ${bytes(arena)} holds values of ${bytes(held)} in turns; constants take ${bytes(constants)} besides. ` +
    "Each bar is a value, from the step that writes it to the last one that reads it; a bar on another is written in its place.";
  const box = { width: figure.clientWidth, height: 340, left: 72, right: 12, top: 12, bottom: 44 };
  const steps = page.steps.length;
  const x = (step) => box.left + ((box.width - box.left - box.right) * step) / steps;
  const y = (offset) => box.height - box.bottom - ((box.height - box.top - box.bottom) * offset) / arena;
  const drawing = svg("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "group", "aria-label": "Memory over the steps of the plan" });
  for (const at of ticks(arena, 6, true)) {
    drawing.append(svg("line", { class: "grid", x1: box.left, x2: box.width - box.right, y1: y(at), y2: y(at) }));
    drawing.append(svg("text", { class: "muted", x: box.left - 6, y: y(at) + 4, "text-anchor": "end" }, bytes(at, arena)));
  }
  for (const step of ticks(steps, 8)) {
    const anchor = step === steps ? "end" : "middle";
    drawing.append(svg("text", { class: "muted", x: x(step), y: box.height - box.bottom + 16, "text-anchor": anchor }, String(step)));
  }
  drawing.append(svg("text", { x: (box.left + box.width) / 2, y: box.height - 8, "text-anchor": "middle" }, "step of the plan"));
  for (const use of uses) {
    const step = page.steps[use.first];
    const text = `${bytes(use.bytes)} at ${bytes(use.offset)}, steps ${use.first} to ${use.last}: ${step.label}`;
    const rect = svg("rect", {
      class: "use", x: x(use.first), width: Math.max(1, x(use.last + 1) - x(use.first)),
      y: y(use.offset + use.bytes), height: Math.max(0.5, y(use.offset) - y(use.offset + use.bytes)),
      fill: colour(kindOf(page, step)), "fill-opacity": 0.7,
    }, svg("title", {}, text));
    rect.addEventListener("click", () => choose(step.instruction));
    drawing.append(rect);
  }
  figure.append(drawing);
}
