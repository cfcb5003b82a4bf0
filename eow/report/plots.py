"""Figures as matplotlib draws them, from numbers that are already there. Nothing is computed here but positions."""

from pathlib import Path
from typing import Any

from eow.storage import atomic

PANELS = (("accuracy", "accuracy, %", 100, ".0f", "viridis"), ("ece", "ECE, %", 100, ".1f", "magma_r"),
          ("nll", "NLL", 1, ".2f", "magma_r"))  # fmt: skip


def save(figure: Any, path: Path) -> None:
    """As the path's ending says, whole or not at all."""
    from matplotlib import pyplot

    kind = path.suffix.lstrip(".") or "png"
    atomic(path, lambda file: figure.savefig(file, format=kind, dpi=150))
    pyplot.close(figure)


def draw_corruptions(figures: dict[str, Any], path: Path) -> None:
    """The corruption × severity matrix as three heat maps side by side: accuracy, ECE, NLL."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names, severities = figures["corruptions"], figures["severities"]
    sheet, axes = pyplot.subplots(1, 3, figsize=(11, 1.2 + 0.3 * len(names)), layout="constrained", sharey=True)
    for axis, (key, title, factor, form, colours) in zip(axes, PANELS):
        values = [[factor * value for value in row] for row in figures[key]]
        image = axis.imshow(values, cmap=colours, aspect="auto")
        axis.set_title(title, fontsize=11)
        axis.set_xticks(range(len(severities)), severities)
        axis.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        axis.tick_params(length=0)
        axis.set_xlabel("severity")
        for side in axis.spines.values():
            side.set_visible(False)
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                red, green, blue, _ = image.cmap(image.norm(value))
                light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
                axis.text(x, y, format(value, form), ha="center", va="center", fontsize=8, color="k" if light else "w")
    sheet.suptitle(f"corruptions {figures['source']}", fontsize=11)
    save(sheet, path)
