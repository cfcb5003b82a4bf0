"""How well a temperature can calibrate when it is fitted on few samples: the floor of ECE, by simulation.

    OMP_NUM_THREADS=1 python benchmarks/floor.py                    # five minutes on one core
    OMP_NUM_THREADS=1 python benchmarks/floor.py --json floor.json

The best case that a temperature can meet: a network whose logits are T times the true ones, log p(k|x) = g_k - log Z,
so that one temperature calibrates it perfectly. Whatever is above the null then comes from the choice of the held-out
samples alone. g = a·(N(0, I) + b·e_1) over 100 classes: noise, and one class that leads it. a and b are such that
accuracy and NLL are those of ResNet-50 on CIFAR-100 over 30 epochs with its temperature (75.8 %, .860), and T = 1.41 is
vanilla's (records/2026-11-16_recipe-30). That this is like the real network is checked on what was not put in: the null
(.98), vanilla's ECE (8.33) and vanilla's NLL (.932).

A draw: n held-out samples, T by `fit_temperature`, ECE on 10,000 others. `excess` is ECE - null, `gap` the size of
mean confidence - accuracy as the fitted model would have it on infinitely many samples, `NLL` what is lost to T's
error there. A table of five seeds has five such draws and one test set, with the same labels (as if all five networks
were right about the same images, which makes the most of chance): the middle 95 % of such tables, and the share at most
0.3 points above the null; in the JSON also the share that is as far above it as what was measured.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from arguments import several, whole, writable
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from eow.console import in_one_line, print_table
from eow.methods.temperature import fit_temperature
from eow.metrics import ece, null_ece

ACCURACY, NLL = 0.7579, 0.860  # of a temperature, five seeds (records/2026-11-16_settled)
TEMPERATURE, CLASSES = 1.41, 100
MEASURED = {"temperature": 0.50, "eow": 0.68}  # ECE - null of 894 held-out images, the same record
POOL, TEST, SEEDS, GOAL = 200_000, 10_000, 5, 0.3
AROUND = np.exp(np.linspace(-0.3, 0.3, 25))  # fitted over true temperature, where figures of many samples are tabled


def true_logits(draw: np.random.Generator, count: int, scale: float, lead: float) -> np.ndarray:
    noise = draw.standard_normal((count, CLASSES), dtype=np.float32)
    noise[:, 0] += lead
    return noise * np.float32(scale)


def entropy(probs: np.ndarray) -> float:
    return float(-(probs * np.log(probs + 1e-30)).sum(1).mean())


def like_cifar100() -> tuple[float, float]:
    """The scale and lead at which the true probabilities have that accuracy and NLL."""

    def distance(place: np.ndarray) -> float:
        probs = softmax(true_logits(np.random.default_rng(0), 100_000, *place), axis=1)
        return float((probs.max(1).mean() - ACCURACY) ** 2 + (entropy(probs) - NLL) ** 2)

    found = minimize(distance, [3.0, 3.0], method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-9})
    return float(found.x[0]), float(found.x[1])


def labels_of(draw: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    return np.minimum((probs.cumsum(1) < draw.random((len(probs), 1))).sum(1), CLASSES - 1)


def sample(draw: np.random.Generator, true: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows = true[draw.integers(len(true), size=size)]
    return rows, labels_of(draw, softmax(rows, axis=1))


def at_infinity(true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean confidence - accuracy, and NLL, at each of AROUND, with the labels' own probabilities in place of labels."""
    probs = softmax(true, axis=1)
    gaps = [softmax(true / ratio, axis=1).max(1).mean() - probs.max(1).mean() for ratio in AROUND]
    losses = [-(probs * log_softmax(true / ratio, axis=1)).sum(1).mean() for ratio in AROUND]
    return np.array(gaps), np.array(losses)


def tables(true: np.ndarray, count: int, number: int, seed: int) -> Iterator[list[dict[str, float]]]:
    gaps, losses = at_infinity(true[: len(true) // 10])
    for table in range(number):
        draw = np.random.default_rng([seed, count, table])

        test, labels = sample(draw, true, TEST)
        right, rows = test.argmax(1) == labels, []
        for _ in range(SEEDS):
            held, answers = sample(draw, true, count)
            fitted = fit_temperature(TEMPERATURE * held, answers)
            sure, ratio = softmax(TEMPERATURE / fitted * test, axis=1).max(1), fitted / TEMPERATURE
            rows.append({
                "excess": 100 * (ece(sure, right) - null_ece(sure).mean),
                "gap": 100 * abs(float(np.interp(ratio, AROUND, gaps))),
                "nll": float(np.interp(ratio, AROUND, losses) - losses.min()),
                "temperature": fitted,
            })  # fmt: skip
        yield rows


def summary(found: list[list[dict[str, float]]]) -> dict[str, Any]:
    of = {key: np.array([[row[key] for row in rows] for rows in found]) for key in found[0][0]}
    means = of["excess"].mean(1)
    return {
        **{key: float(of[key].mean()) for key in ("excess", "gap", "nll")},
        "error": float(means.std(ddof=1) / len(means) ** 0.5),
        "low": float(np.quantile(means, 0.025)),
        "high": float(np.quantile(means, 0.975)),
        "reached": float((means <= GOAL).mean()),
        "measured": {name: float((means >= value).mean()) for name, value in MEASURED.items()},
        "temperature_std": float(of["temperature"].std(ddof=1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=partial(several, least=2), default=[250, 500, 894, 1342, 1789, 2500, 5000])
    parser.add_argument("--tables", type=partial(whole, least=2), default=400)
    parser.add_argument("--seed", type=partial(whole, least=0), default=0)
    parser.add_argument("--json", type=writable, help="write the figures there")
    arguments = parser.parse_args()

    scale, lead = like_cifar100()
    true = true_logits(np.random.default_rng([arguments.seed, POOL]), POOL, scale, lead)
    draw, probs = np.random.default_rng(arguments.seed), softmax(true, axis=1)
    labels, sharp = labels_of(draw, probs), softmax(TEMPERATURE * true, axis=1)
    network = {
        "scale": scale,
        "lead": lead,
        "accuracy": float((labels == true.argmax(1)).mean()),
        "nll": float(-np.log(probs[np.arange(POOL), labels]).mean()),
        "null": 100 * null_ece(probs.max(1)[:TEST]).mean,
        "vanilla ece": 100 * ece(sharp.max(1)[:TEST], (labels == true.argmax(1))[:TEST]),
        "vanilla nll": float(-np.log(sharp[np.arange(POOL), labels]).mean()),
    }
    print("  ".join(f"{name} {value:.3f}" for name, value in network.items()), flush=True)
    found = {count: summary(list(tables(true, count, arguments.tables, arguments.seed))) for count in arguments.counts}
    print_table(
        f"{arguments.tables} tables of five seeds; points, but for NLL",
        ["held out", "ECE - null", "middle 95 % of tables", f"share of at most {GOAL}", "gap", "NLL lost"],
        [
            [
                str(count), f"{row['excess']:.2f} ± {row['error']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}",
                f"{row['reached']:.2f}", f"{row['gap']:.2f}", f"{row['nll']:.4f}",
            ]
            for count, row in found.items()
        ],
    )  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps({"network": network, "held out": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with in_one_line():
        main()
