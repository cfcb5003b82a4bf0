"""Is EOWClassifier as good a classifier as scikit-learn's MLPClassifier, whatever the shape of the classes?

    OMP_NUM_THREADS=1 python benchmarks/nested.py                    # three seeds, three minutes on one core
    OMP_NUM_THREADS=1 python benchmarks/nested.py --json nested.json

Both with their defaults (MLPClassifier after a StandardScaler), and EOWClassifier with one hidden layer, as it was
before this was asked: one layer has to tell the classes from one another and from the negatives by the same units. Four
kinds of tables: shells around one another (`make_gaussian_quantiles`, ten columns), the inside and the outside of a
ball (`make_hastie_10_2`), moons, clusters among columns of noise (`make_classification`), each with as many rows more
to ask about as it says; and the first halves of four real sets, in four folds. No row that tabular.py tests is read
here, so that defaults may be chosen by it.

Log-loss is that of `predict_proba`. `permuted` is the AUROC of unknown (MLPClassifier: of the largest probability)
between fresh rows and the same with every column shuffled for itself: .5 where columns are independent, as those of
shells are. Seconds are processor time of one training.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from arguments import whole, writable
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_gaussian_quantiles,
    make_hastie_10_2,
    make_moons,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabular import familiarity, halves

from eow.console import in_one_line, print_table
from eow.estimator import EOWClassifier
from eow.metrics import auroc

FRESH = 1000  # rows of a made table that are asked about
REAL = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer, "iris": load_iris}
NAMES = ("EOWClassifier", "one layer", "MLPClassifier")
Problem = tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def classifier(name: str, seed: int) -> Any:
    if name == "MLPClassifier":
        return make_pipeline(StandardScaler(), MLPClassifier(random_state=seed))
    before = {} if name == "EOWClassifier" else {"hidden_layer_sizes": (100,), "learning_rate_init": 1e-2}
    return EOWClassifier(random_state=seed, **before)


def made(seed: int) -> Iterator[Problem]:
    """Tables of so many rows to train on."""
    tables: dict[str, tuple[int, Any]] = {
        "shells": (1500, partial(make_gaussian_quantiles, n_features=10, n_classes=3)),
        "ball": (1500, make_hastie_10_2),
        "moons": (500, partial(make_moons, noise=0.3)),
        "four classes, 1000 x 20": (1000, partial(make_classification, n_informative=10, n_classes=4)),
        "two classes, 1500 x 20": (1500, partial(make_classification, n_features=20, n_informative=10)),
        "two classes, 375 x 50": (375, partial(make_classification, n_features=50, n_informative=10)),
        "two classes, 225 x 100": (225, partial(make_classification, n_features=100, n_informative=10)),
        "two classes, 750 x 500": (750, partial(make_classification, n_features=500, n_informative=50)),
    }
    for name, (rows, make) in tables.items():
        X, y = make(n_samples=rows + FRESH, random_state=seed)
        yield name, X[:rows], y[:rows], X[rows:], y[rows:]


def real() -> Iterator[Problem]:
    for name, load in REAL.items():
        X, y = load(return_X_y=True)
        X, y = X[halves(y)[0]], y[halves(y)[0]]
        for train, test in StratifiedKFold(4, shuffle=True, random_state=0).split(X, y):
            yield name, X[train], y[train], X[test], y[test]


def measured(name: str, problem: Problem, seed: int) -> dict[str, float]:
    _, X, y, fresh, true = problem
    began = time.process_time()
    model = classifier(name, seed).fit(X, y)
    seconds = time.process_time() - began
    said = model.predict_proba(fresh)
    permuted = np.random.default_rng(seed).permuted(fresh, axis=0)
    return {
        "accuracy": float((model.classes_[said.argmax(1)] == true).mean()),
        "log_loss": float(log_loss(true, said, labels=model.classes_)),
        "permuted": auroc(familiarity(model, fresh), familiarity(model, permuted)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=partial(whole, least=1), default=3)
    parser.add_argument("--json", type=writable, help="write the figures there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in range(arguments.seeds):
        for problem in [*made(seed), *(real() if seed == 0 else ())]:
            for name in NAMES:
                found.setdefault(problem[0], {}).setdefault(name, []).append(measured(name, problem, seed))
    rows = []
    for table, by_name in found.items():
        for name, figures in by_name.items():
            mean = {key: np.mean([each[key] for each in figures]) for key in figures[0]}
            rows.append([table, name, *(f"{mean[key]:.3f}" for key in list(mean)[:3]), f"{mean['seconds']:.1f}"])
    header = ["table", "classifier", "accuracy", "log-loss", "permuted", "seconds"]
    print_table(f"{arguments.seeds} seeds; real sets: four folds of their first halves", header, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with in_one_line():
        main()
