"""How sure `EOWClassifier` may be: measured on rows that a network was not trained on.

A network on many columns knows its training rows by heart and tells them from the negatives by that: on 750 rows of 500
columns its mean unknown was .10 for them and .85 for new rows of the same classes, hardly one of which was answered. Of
the classes it is too sure there as well. Training rows show neither. So there is a rehearsal: a network is trained as
the classifier's is, on four fifths of the rows, and asked about the others. Two numbers then make up for what it gets
wrong there, and go into the head of the classifier's own network, which is trained on all rows:

    T    divides the logits: the most probable temperature for the K classes where log T is N(0, `WIDTH`²) beforehand
    b    shifts the unknown until its mean there, at the rate ρ that predictions expect, is ρ; where it is less, as
         on tables that are not wide, until it is what it was before T

T changes no order of the K classes, and b none of the unknown. With early stopping there are rows that the network was
not trained on, so nothing is rehearsed.

Tried by cross-validation inside the first halves of benchmarks/tabular.py and on synthetic tables of ten shapes
(records/2026-11-18_tabular): no T (log-loss of the 750 rows .86, with T .61; no difference on tables with nothing to
mend); widths of T from .1 to .5; half of the rows held out (less is answered where rows are few) and a tenth (as good,
but of a hundred rows ten say little); a tenth that the classifier itself goes without (accuracy and likelihood are
lost); the mean unknown raised to ρ where it is less (fewer known rows are answered); and b where the objective of
training is lowest on fresh rows and their chains (twice as many shuffled rows are answered where nothing was to mend).
"""

from typing import Any

import numpy as np
import torch
from scipy.special import expit
from sklearn.preprocessing import StandardScaler

from eow.data.dataset import Dataset
from eow.methods.onset import scale_head
from eow.methods.temperature import fit_temperature_and_bias, unknown_log_odds
from eow.models import SplitModel
from eow.openworld import prior_shift
from eow.seeds import derive
from eow.tabular.rows import in_parts, scaler_of, table_of
from eow.tabular.training import trained

Rehearsal = tuple[SplitModel, StandardScaler]  # what a warm start goes on from

EVERY = 5  # one row in so many is kept from the rehearsal
WIDTH = 0.25  # of log T: twenty rows say little about T


def set_apart(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows to rehearse on and rows to be asked about, each class in proportion. One row of every class is always
    rehearsed on, so of two rows none is left. The same rows are parted the same way every time: a warm start would else
    be asked about what it was trained on before."""
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    spare = order[np.concatenate([[False], np.diff(labels[order]) == 0])]
    asked = np.sort(spare[EVERY // 2 :: EVERY])
    return np.setdiff1d(np.arange(len(labels)), asked), asked


def rehearse(
    before: Rehearsal | None,
    X: np.ndarray,
    labels: np.ndarray,
    classes: int,
    chosen: dict[str, Any],
    seed: int,
    verbose: bool,
) -> tuple[Rehearsal | None, Dataset | None]:
    """A network that was trained on four fifths of the rows, from the one of `before` on if there is one, with its
    scaler, and the other rows as it takes them; or None and None where no row is to spare. The scaler is its own: rows
    that took part in the means lie opposite to the rest, and the more so the more columns there are."""
    shown, asked = set_apart(labels)
    if not len(asked):
        return None, None
    model, scaler = before or (None, scaler_of(X[shown]))
    data = table_of(scaler, X, labels, classes)
    model = trained(model, data.subset(shown), None, chosen, derive("rehearsal", seed), verbose)[0]
    return (model.cpu(), scaler), data.subset(asked)


def fit_head(model: SplitModel, asked: SplitModel, fresh: Dataset, rate: float, lam: float) -> None:
    """T and b, of what `asked` says about fresh rows, in the weights of the model's head. `rate` is the share of
    unknowns that predictions expect, `lam` the odds of training."""
    asked.eval()
    with torch.no_grad():
        z = torch.cat([asked(torch.from_numpy(part)) for part in in_parts(fresh.inputs)]).double().numpy()
    shift = prior_shift(rate, lam)
    z[:, -1] += shift
    too_many = expit(unknown_log_odds(z)).mean() > rate
    temperature, bias = fit_temperature_and_bias(z, fresh.labels, rate if too_many else None, WIDTH)
    # Predictions add the shift after the division.
    scale_head(model.head, 1 / temperature, bias + shift / temperature - shift)
