"""Draws two of the pictures beside this file, from the runs of `make demo`:

    python docs/img/draw.py                  # digits.json -> softmax.svg, confidence.svg
    python docs/img/draw.py runs/demo        # the runs -> digits.json first

softmax.svg shows one digit that was not chosen by hand: the 8 whose unknown is nearest to the median of all unseen
digits. confidence.svg counts all of them. Both expect one unknown in twenty (RATE). The pictures follow the reader's
light or dark mode. architecture.svg is written by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBERS = HERE / "digits.json"
BINS = 20
RATE = 0.05  # of unknowns: the demo's own share of them is 20 %, its recipe's 0.2 %
STYLE = """<style>
svg { --text: #1d2129; --quiet: #5b6371; --line: #c9c5bb; --known: #0067a5; --unknown: #c2255c; --ink: 29, 33, 41;
  --fill: .35; }
@media (prefers-color-scheme: dark) {
  svg { --text: #e6e8ec; --quiet: #a2a9b5; --line: #4a505c; --known: #6cb4f0; --unknown: #ff8fb0; --ink: 230, 232, 236;
    --fill: .6; }
}
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; fill: var(--text); }
.title { font-weight: 600; } .quiet { fill: var(--quiet); font-size: 12px; } .end { text-anchor: end; }
.middle { text-anchor: middle; } .known { fill: var(--known); } .unknown { fill: var(--unknown); }
.axis { stroke: var(--line); } .pixel { fill: rgb(var(--ink)); }
.filled { fill: var(--known); opacity: var(--fill); } .outline { fill: none; stroke: var(--unknown); stroke-width: 2; }
</style>"""


def numbers(folder: Path) -> dict[str, Any]:
    """What both pictures show, from the runs vanilla and eow in `folder`."""
    import numpy as np

    from eow.data import load
    from eow.evaluate import evaluate, read_all

    both = {method: read_all(folder / method, RATE if method == "eow" else None) for method in ("vanilla", "eow")}
    unseen = {method: others["unknown"] for method, (_, others) in both.items()}
    digits = load("digits", split="test")
    images = digits.inputs[digits.labels >= 8]
    eights = np.flatnonzero(unseen["eow"].labels == 0)  # the held-out classes count from 0 again
    away = np.abs(unseen["eow"].unknown - np.median(unseen["eow"].unknown))
    shown = int(eights[away[eights].argmin()])
    told: dict[str, Any] = {"shown": shown, "pixels": images[shown, 0].tolist()}
    for method, said in unseen.items():
        known, figures = both[method][0], evaluate(folder / method)
        counts = {name: np.histogram(each.confidence, BINS, (0, 1))[0] for name, each in
                  (("known", known), ("unseen", said))}  # fmt: skip
        own = read_all(folder / method)[1]["unknown"].confidence
        told[method] = {
            "probs": [round(float(p), 4) for p in said.probs[shown]], "unknown": round(float(said.unknown[shown]), 4),
            "counts": {name: each.tolist() for name, each in counts.items()},
            "surer_than_0.9": round(float((said.confidence > 0.9).mean()), 4),
            "surer_by_recipe": round(float((own > 0.9).mean()), 4),
            "ece": figures["test"]["ece"], "auroc": figures["unknown"]["auroc_confidence"],
        }  # fmt: skip
    return told


def picture(width: int, height: int, words: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">'
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def bar(x: float, top: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{top:.1f}" width="{width:g}" height="{height:.1f}" rx="1.5" class="{kind}"/>'


def softmax(told: dict[str, Any]) -> str:
    base, tall = 206, 132
    parts = [text(20, 30, "An 8.", "title"), text(20, 48, "Trained on 0 to 7 only.", "quiet")]
    for row, line in enumerate(told["pixels"]):
        for column, value in enumerate(line):
            at = f'x="{20 + 17.5 * column:g}" y="{base - tall - 4 + 17.5 * row:g}" width="17" height="17"'
            parts.append(f'<rect {at} class="pixel" opacity="{0.06 + 0.94 * value / 255:.2f}"/>')
    for left, method, title, about in (
        (212, "vanilla", "Softmax over K = 8", "All belief goes to what it knows."),
        (452, "eow", "Softmax over K + 1", "Belief can go elsewhere."),
    ):
        values = [*told[method]["probs"], *([told[method]["unknown"]] if method == "eow" else [])]
        parts += [text(left, 30, title, "title"), text(left, 48, about, "quiet")]
        parts.append(
            f'<line x1="{left}" x2="{left + 26 * 8 + 50 * (method == "eow")}" y1="{base}" y2="{base}" class="axis"/>'
        )
        for place, value in enumerate(values):
            last = place == 8
            x = left + 26 * place + 24 * last
            parts.append(bar(x + 3, base - tall * value, 20, tall * value, "unknown" if last else "known"))
            parts.append(text(x + 13, base + 17, "unknown" if last else str(place), "middle quiet"))
            if value > 0.1:
                parts.append(text(x + 13, base - tall * value - 5, f"{value:.2f}", "middle"))
    return picture(740, 236, "One image under a softmax over K and over K + 1 classes", parts)


def confidence(told: dict[str, Any]) -> str:
    base, tall, wide = 216, 150, 290
    parts = []
    for left, method, title in ((52, "vanilla", "vanilla"), (422, "eow", "EOW-Softmax")):
        parts.append(text(left, 26, title, "title"))
        for share in (0, 25, 50, 75, 100):
            y = base - tall * share / 100
            parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:g}" y2="{y:g}" class="axis" opacity=".5"/>')
            parts.append(text(left - 7, y + 4, f"{share}%" if share == 100 else str(share), "end quiet"))
        for tick in range(6):
            parts.append(text(left + wide * tick / 5, base + 18, f"{tick / 5:g}", "middle quiet"))
        parts.append(text(left + wide / 2, base + 38, "confidence", "middle quiet"))
        known, unseen = ([value / sum(each) for value in each] for each in told[method]["counts"].values())
        for place, value in enumerate(known):
            parts.append(bar(left + wide * place / BINS, base - tall * value, wide / BINS - 1, tall * value, "filled"))
        steps = "".join(f"V{base - tall * v:.1f}H{left + wide * (i + 1) / BINS:g}" for i, v in enumerate(unseen))
        parts.append(f'<path d="M{left} {base}{steps}V{base}" class="outline"/>')
    parts += [bar(52, 44, 14, 10, "filled"), text(72, 53, "known digits, 0 to 7", "quiet")]
    parts += ['<path d="M200 49h14" class="outline"/>', text(220, 53, "unseen, 8 and 9", "quiet")]
    parts.append(text(422, 53, "one unknown in twenty expected", "quiet"))
    return picture(740, 264, "Confidence on known and unseen digits, vanilla beside EOW-Softmax", parts)


def drawn(told: dict[str, Any]) -> dict[str, str]:
    return {"softmax.svg": softmax(told), "confidence.svg": confidence(told)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        NUMBERS.write_text(json.dumps(numbers(Path(sys.argv[1]))) + "\n", encoding="utf-8")
    for name, content in drawn(json.loads(NUMBERS.read_text(encoding="utf-8"))).items():
        (HERE / name).write_text(content, encoding="utf-8")
