"""EOWClassifier on wide and small tables: are fresh rows of the known classes answered, and what does it cost?

    OMP_NUM_THREADS=1 python benchmarks/wide.py                    # three seeds, two minutes on one core
    OMP_NUM_THREADS=1 python benchmarks/wide.py --json wide.json

scikit-learn's `make_classification` with two classes, three quarters of the rows to train on and 1000 more to ask
about, and digits of which 100 are trained on. Means over seeds. `expected` is the share of unknowns that predictions
expect; of the mean unknown on fresh rows it should be the most. `answered` is the share of fresh rows that
`predict_open` gives a class, `right` the accuracy on those, `permuted` the AUROC of unknown between fresh rows and the
same with every column shuffled for itself, and the share of these that is answered. Log-loss and ECE are those of
`predict_proba`, accuracy is that of `predict`; seconds are processor time of one training.
"""

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
from arguments import whole, writable
from sklearn.datasets import load_digits, make_classification
from sklearn.metrics import log_loss

from eow.console import in_one_line, print_table
from eow.estimator import EOWClassifier
from eow.metrics import auroc, ece

SHAPES = ((1500, 20, 10), (375, 50, 10), (1500, 300, 20), (225, 100, 10), (750, 500, 50))  # rows, columns, informative
Problem = tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def problems(seed: int) -> Iterator[Problem]:
    for rows, columns, informative in SHAPES:
        X, y = make_classification(rows + 1000, columns, n_informative=informative, random_state=seed)
        yield f"{rows} x {columns}", X[:rows], y[:rows], X[rows:], y[rows:]
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    X, y = X[order], y[order]
    yield "digits, 100 x 64", X[:100], y[:100], X[100:], y[100:]


def measured(problem: Problem, seed: int) -> dict[str, float]:
    _, X, y, fresh, true = problem
    began = time.process_time()
    classifier = EOWClassifier(random_state=seed).fit(X, y)
    seconds = time.process_time() - began
    said, unknown, answered = (
        each(fresh) for each in (classifier.predict_proba, classifier.predict_unknown, classifier.predict_open)
    )
    correct, answered = classifier.classes_[said.argmax(1)] == true, answered != -1
    permuted = np.random.default_rng(seed).permuted(fresh, axis=0)
    return {
        "accuracy": correct.mean(),
        "log_loss": log_loss(true, said, labels=classifier.classes_),
        "ece": ece(said.max(1), correct),
        "expected": classifier.unknown_rate_,
        "unknown_trained": classifier.predict_unknown(X).mean(),
        "unknown_fresh": unknown.mean(),
        "answered": answered.mean(),
        "right": correct[answered].mean(),
        "auroc_permuted": auroc(-unknown, -classifier.predict_unknown(permuted)),
        "answered_permuted": np.mean(classifier.predict_open(permuted) != -1),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=whole, default=3, help="how many")
    parser.add_argument("--json", type=writable, help="write the figures there")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(arguments.seeds):
        for problem in problems(seed):
            found.setdefault(problem[0], []).append(measured(problem, seed))
    means = {
        name: {key: float(np.mean([each[key] for each in rows])) for key in rows[0]} for name, rows in found.items()
    }
    header = ["rows x columns", *(key.replace("_", " ") for key in next(iter(means.values())))]
    print_table(
        f"{arguments.seeds} seeds",
        header,
        [[name, *(f"{value:.2f}" for value in row.values())] for name, row in means.items()],
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"seeds": arguments.seeds, "tables": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with in_one_line():
        main()
