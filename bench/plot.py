"""The roofline plot: every kernel of the measured models under the two roofs of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.roofs import Roofs
from bench.steps import StepTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_roofline"]

# Categorical colours that stay apart under colour-vision deficiency (Okabe and Ito, 2008).
_COLOURS = {
    "contraction": "#0072B2",
    "winograd": "#56B4E9",
    "attention": "#CC79A7",
    "recurrent": "#F0E442",
    "rows": "#D55E00",
    "data": "#009E73",
    "pointwise": "#E69F00",
}
_NAMES = {
    "contraction": "convolutions and products",
    "winograd": "Winograd convolutions, as if direct",
    "attention": "attention",
    "recurrent": "recurrent layers, all steps",
    "rows": "row kernels",
    "data": "data movement",
    "pointwise": "pointwise",
}
_INK, _MUTED, _GRID = "#1a1a1a", "#6b6b6b", "#e3e3e3"
_SMALLEST, _LARGEST = 14.0, 260.0
_BELOW = 2e-4


def draw_roofline(path: Path, steps: Sequence[StepTime], roofs: Roofs, subtitle: str) -> None:
    """Write a PNG; a kernel's area grows with its share of its model's time.

    Steps without operations or bytes (copies, fallback steps) have no place in it.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    totals: dict[str, float] = {}
    for step in steps:
        totals[step.model] = totals.get(step.model, 0.0) + step.seconds
    shown = [step for step in steps if step.flops > 0 and step.bytes > 0 and step.seconds > 0]
    figure, axes = plt.subplots(figsize=(10, 6.2), dpi=150)
    left, right, bottom, top = _limits(shown, roofs)
    _draw_roofs(axes, roofs, left, right)
    for kind, colour in _COLOURS.items():
        members = [step for step in shown if step.kind == kind]
        if not members:
            continue
        shares = np.array([step.seconds / totals[step.model] for step in members])
        axes.scatter(
            [step.flops / step.bytes for step in members],
            [step.flops / step.seconds / 1e9 for step in members],
            s=_SMALLEST + (_LARGEST - _SMALLEST) * np.minimum(shares / 0.2, 1.0),
            color=colour,
            alpha=0.6,
            linewidths=0.6,
            edgecolors="white",
            label=_NAMES[kind],
            zorder=3,
        )
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    axes.set_xlabel("operations per byte moved at least", color=_INK)
    axes.set_ylabel("GFLOP/s", color=_INK)
    axes.grid(True, which="major", color=_GRID, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=_MUTED, labelsize=9, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    if shown:
        legend = axes.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=_INK)
        for handle in legend.legend_handles:
            handle.set_sizes([45])  # type: ignore[union-attr]
    figure.suptitle("Kernels under the roofs", x=0.02, ha="left", fontsize=14, fontweight="bold", color=_INK)
    figure.text(0.02, 0.922, subtitle, ha="left", va="top", fontsize=9, linespacing=1.4, color=_MUTED)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    _label_slope(axes, roofs, left)
    figure.savefig(path)
    plt.close(figure)


def _limits(steps: Sequence[StepTime], roofs: Roofs) -> tuple[float, float, float, float]:
    ridge = roofs.flops / roofs.bandwidth
    intensities = [step.flops / step.bytes for step in steps] or [1.0]
    rates = [step.flops / step.seconds / 1e9 for step in steps] or [1.0]
    left = min(min(intensities) / 2, ridge / 30)
    right = max(max(intensities) * 2, ridge * 30)
    top = max(max(rates) * 1.5, roofs.flops / 1e9 * 2.5)
    return left, right, max(min(rates) / 2, roofs.flops / 1e9 * _BELOW), top


def _draw_roofs(axes: Axes, roofs: Roofs, left: float, right: float) -> None:
    """Draw the roofs as one line, with the value of the flat roof."""
    peak = roofs.flops / 1e9
    ridge = roofs.flops / roofs.bandwidth
    axes.plot([left, ridge, right], [roofs.bandwidth * left / 1e9, peak, peak], color=_INK, linewidth=1.6, zorder=2)
    cores = f"{roofs.threads} thread{'s' if roofs.threads > 1 else ''}"
    axes.annotate(
        f"multiply-add peak, {cores}: {peak:,.0f} GFLOP/s",
        (ridge, peak),
        xytext=(-8, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=9,
        color=_INK,
    )


def _label_slope(axes: Axes, roofs: Roofs, left: float) -> None:
    """Label the slanted roof along its line, whose angle is known once the axes have their final size."""
    from matplotlib.patheffects import withStroke

    start, end = ((x, roofs.bandwidth * x / 1e9) for x in (left, roofs.flops / roofs.bandwidth))
    (x0, y0), (x1, y1) = axes.transData.transform([start, end])
    place = start[0] * 1.15
    label = axes.annotate(
        f"copy bandwidth: {roofs.bandwidth / 1e9:,.0f} GB/s",
        (place, roofs.bandwidth * place / 1e9),
        xytext=(-2, 8),
        textcoords="offset points",
        rotation=float(np.degrees(np.arctan2(y1 - y0, x1 - x0))),
        rotation_mode="anchor",
        ha="left",
        fontsize=9,
        color=_INK,
    )
    label.set_path_effects([withStroke(linewidth=3, foreground="white")])
