"use strict";

// This run beside an earlier one, kernel by kernel.

function showComparison(page) {
  const other = page.other;
  if (!other) {
    byId("comparison").remove();
    return;
  }
  const [now, before] = [average(page.total), average(other.total)];
  const about = [`Before: ${other.title}, ${other.date}, version ${other.version}, target ${other.target}, batch ${other.batch.size}.`];
  about.push(`A run took ${duration(before)} and takes ${duration(now)} now (${change(now, before)}).`);
  const differing = [...new Set([...Object.keys(page.options), ...Object.keys(other.options)])].filter((k) => page.options[k] !== other.options[k]);
  if (differing.length) about.push(`Options that differ: ${differing.map((k) => `${k} ${other.options[k]} → ${page.options[k]}`).join(", ")}.`);
  if (page.limits && other.limits) {
    about.push(`The machine did ${digits(other.limits.gflops)} GFLOP/s and ${digits(other.limits.gbytes)} GB/s then, ${digits(page.limits.gflops)} and ${digits(page.limits.gbytes)} now.`);
  }
  byId("comparison-about").textContent = about.join(" ");
  const groups = new Map(grouped(page.steps).map((g) => [g.label, { now: g }]));
  for (const g of grouped(other.steps)) groups.set(g.label, { ...groups.get(g.label), before: g });
  const rows = [...groups].map(([label, pair]) => ({ label, apart: (pair.now?.seconds ?? 0) - (pair.before?.seconds ?? 0), ...pair }));
  rows.sort((a, b) => Math.abs(b.apart) - Math.abs(a.apart));
  const cells = rows.map(({ label, apart, now: a, before: b }) =>
    make("tr", {}, ...[label, b ? `${b.count}` : "–", b ? duration(b.seconds) : "–", a ? `${a.count}` : "–", a ? duration(a.seconds) : "–",
      `${apart > 0 ? "+" : ""}${duration(apart)}`, a && b ? change(a.seconds, b.seconds) : a ? "new" : "gone"].map((text) => make("td", {}, text))));
  fillTable(byId("comparison-table"), ["kernel", "steps before", "before", "steps now", "now", "difference", "change"], cells);
}

function change(now, before) {
  const part = now / before - 1;
  return `${part > 0 ? "+" : ""}${percent(part)}`;
}
