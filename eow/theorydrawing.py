"""The picture of `eow theory`: where each energy of theory.py comes to rest, and how a descent gets there."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from eow.errors import EowError
from eow.storage import atomic, make_folder
from eow.theory import Row, descend, fixed_point, mixture, summary_rows

SMALLEST, LARGEST = 1e-6, 1e6  # λ that is drawn


def draw(path: str | Path, lam: float = 0.1, points: int = 400, steps: int = 2000) -> list[Row]:
    """Draws `mixture` and what each energy makes of it into a PNG at `path`; returns its `summary_rows`."""
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix.lower() != ".png":
        raise EowError(f"{path} does not end in .png: the drawing is a PNG file.")
    if not SMALLEST <= lam <= LARGEST:  # beyond, float64 cannot tell s or u from 0 any more
        raise EowError(f"λ is {lam:g}: give a weight from {SMALLEST:g} to {LARGEST:g}.")
    x, joint = mixture(points)
    rows = summary_rows(joint, lam)
    figure = Figure(figsize=(13, 7.6), layout="constrained")
    axes: Any = figure.subplots(2, 3, sharex="row", sharey=True)
    figure.suptitle(f"Known and unknown probability at the rest point of each energy, λ = {lam:g}", fontsize=17)
    for column, row in zip(axes.T, rows):
        draw_energy(column, row, x, joint, lam, steps)
    for axis in axes.flat:
        axis.tick_params(labelsize=11)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(-0.03, 1.04)
    axes[0, 0].set_ylabel("probability", fontsize=13)
    axes[1, 0].set_ylabel("s / max s", fontsize=13)
    handles = [*axes[0, 0].get_legend_handles_labels()[0], axes[1, 0].lines[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=12, frameon=False, columnspacing=1.6)
    save(figure, path)
    return rows


def draw_energy(axes: Any, row: Row, x: np.ndarray, joint: np.ndarray, lam: float, steps: int) -> None:
    """One column of `draw`: the probabilities over x, and under them s against p."""
    p, h = joint.sum(1), descend(joint, row.energy, lam, steps, start=3.0)
    law = {
        "paper": r"$E=\log\,u$:   $s/u^2\propto p$",
        "proof": r"$E=-\log\,u$:   $s=\min(1,\ pZ/\lambda)$",
        "complement": r"$E=-\log\,s$:   $s=\min(1,\ pZ'/\lambda)$",
    }[row.energy]
    note = f"rank correlation with p: {row.rank_correlation:.3f}\ns/p varies by up to {row.deviation:.1%}"
    note += f"\nat s = 1: {row.saturated:.0%} of the points"
    if np.isnan(row.deviation):
        s, law, note = (
            np.full_like(p, np.nan),
            r"$E=-\log\,s$:   no rest point at $\lambda>1$",
            "s falls to 0 everywhere",
        )
    else:
        s = fixed_point(p, row.energy, lam)
        if row.energy == "complement" and lam == 1:
            law = r"$E=-\log\,s$:   $s=cp$, the start chooses $c$"
    known, unknown, dots = "#0072B2", "#D55E00", slice(None, None, max(1, len(x) // 40))  # Okabe and Ito's colours
    over_x, over_p = axes
    over_x.fill_between(x, p / p.max(), color="0.85", label="data density p / max p")
    over_x.plot(x, s, color=known, lw=2.4, label="known, $s=\\Sigma_k\\,h[k]$")
    over_x.plot(x, 1 - s, color=unknown, lw=2, ls="--", label="unknown, $u=h[K+1]$")
    over_x.plot(x[dots], 1 - h[dots, -1], "o", color=known, mfc="white", ms=4.5, label=f"s after {steps} steps")
    over_x.set_title(f"{row.energy}\n{law}", fontsize=14)
    over_x.set_xlabel("x", fontsize=13)
    over_p.plot([0, 1], [0, 1], color="0.45", lw=1.4, ls=":", label="proportional to p")
    over_p.plot(p / p.max(), s / s.max(), ".", color=known, ms=5)
    over_p.set_xlabel("p / max p", fontsize=13)
    over_p.text(0.98, 0.04, note, transform=over_p.transAxes, ha="right", va="bottom", fontsize=11.5)


def save(figure: Any, path: Path) -> None:
    drawn = io.BytesIO()
    make_folder(path.absolute().parent)
    figure.savefig(drawn, format="png", dpi=120)
    atomic(path, lambda file: file.write(drawn.getvalue()))
