"""`EOWClassifier`: the K+1 softmax for tables, scikit-learn's way.

    classifier = EOWClassifier(random_state=0).fit(X, y)
    classifier.predict(X)                         # always a class
    classifier.predict_proba(X)                   # (N, K): which class, if it is one of them
    classifier.predict_unknown(X)                 # (N,): that it is none of them
    classifier.predict_open(X, threshold=0.5)     # a class, or None (for numbers -1) where no class is sure enough

A multi-layer perceptron on standardised columns, cut off at five deviations, trained with `EOW`
(tabular/training.py). Its chains live in the space of the columns: half start from noise around the data, half between
two rows of different classes, and a few short Langevin steps take both to where the network still sees a class.

No chain goes far out, and the network is often surest there: a fence stands around the training rows (tabular/rows.py).

Half of the chains start beside a class whatever its share of the rows, so a rare class has more negatives around it
than rows, and λ would leave it never answered. Unless you state a rate, predictions expect unknowns at the odds

    λ · K · (the rarest class's share of the rows) : 1

at which the rarest class stands against "unknown" as a class of equal share does at λ. Equal classes: λ, as trained.

A network on many columns, or of few rows, knows its training rows by heart and calls most new ones unknown. So a second
one is trained on four fifths of the rows first, and what it says of the others sets how sure the first may be: a
temperature, and a shift of the unknown after which fresh rows of the classes have a mean unknown of that share at most
(tabular/rehearsal.py). That takes as long again as the training itself.

The defaults were chosen for breast cancer, wine and digits together, by cross-validation inside one half of each: by
log-loss, and where that is within its error by the AUROC of unknown. benchmarks/tabular.py tests the other halves and
says what was looked at when. The second hidden layer is for classes that enclose one another: units of one layer cannot
part them from one another and from the negatives (benchmarks/nested.py, records/2026-11-19_tabular).
"""

import copy
import math
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from eow.config import LARGEST, WIDEST
from eow.errors import EowError
from eow.methods.fence import Fence
from eow.models import SplitModel
from eow.openworld import LEAST_ODDS, MOST_ODDS, prior_shift, shifted_probabilities
from eow.seeds import derive
from eow.tabular.rehearsal import Rehearsal, fit_head, rehearse
from eow.tabular.rows import FARTHEST, fence_around, in_parts, rows_to_fence, scaler_of, standardised, table_of
from eow.tabular.training import trained, training_alone, validation_split
from eow.threads import one_thread
from eow.typed import as_python, check_range, convert

KINDS: dict[str, Any] = {
    "hidden_layer_sizes": tuple[int, ...], "lam": float, "max_iter": int, "learning_rate_init": float,
    "weight_decay": float, "early_stopping": bool, "validation_fraction": float, "n_iter_no_change": int,
    "warm_start": bool, "device": str,
}  # fmt: skip


class EOWClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that can say "unknown", as a scikit-learn estimator. Rows are standardised inside. In a pipeline,
    which forwards scikit-learn's own methods only, the others are reached by
    `pipeline[-1].predict_unknown(pipeline[:-1].transform(X))`.

    hidden_layer_sizes    how many units each hidden layer has
    lam                   λ, the weight of the energy term: the prior odds of "unknown" while training
    max_iter              epochs; the learning rate rises and falls once within them, and the energy term sets in after
                          30 % of them
    batch_size            rows in a step; "auto" takes an eighth of the rows, from 16 to 256
    learning_rate_init    the peak of the learning rate, for Adam
    weight_decay          decoupled from the gradient, as in AdamW; not scikit-learn's alpha
    early_stopping        stop when the log-loss on `validation_fraction` of the rows has not improved for
                          `n_iter_no_change` epochs, and keep the weights of the best epoch. Since the end is not known
                          beforehand, the learning rate stays at its peak and the energy term is on from the start. How
                          sure predictions may be is measured on the same rows, and no second network is trained
    warm_start            `fit` goes on from the fitted weights, scaler and classes. It may be given other rows, but a
                          class that it does not know is an error; the fence and the default `unknown_rate` are those of
                          the new rows alone
    unknown_rate          the share of unknowns to expect at prediction, from 0 to below 1. None: λ/(1+λ), as in
                          training, if all classes are equally frequent; lower by as much as the rarest class falls
                          short of an equal share. At None fresh rows of the classes have that mean unknown, or a lower
                          one where they are easily told from the negatives. Another rate is a prior: it multiplies the
                          odds of unknown by the ratio of its own odds to those of the rate at None. The higher it is,
                          the less often rare classes are answered; what is far outside the fence is unknown at any rate
                          but 0. It can be set after fitting, and changes `predict_unknown` and `predict_open`, never
                          `predict` and `predict_proba`
    random_state          an int makes `fit` give the same bytes again, on the same machine
    device                where to train: "cpu", "cuda" or "auto"; predictions are made on the CPU, in double precision
    verbose               a progress bar of each training

    Fitted:
    classes_, n_features_in_, feature_names_in_   as everywhere in scikit-learn (the names for data frames)
    n_iter_, loss_curve_  the number of epochs and the loss of each; a warm start continues both
    validation_scores_    mean log-likelihood of the held-out rows after each epoch, with early stopping
    unknown_rate_         what `unknown_rate=None` means
    scaler_, model_       the scaler, and a SplitModel in double precision for standardised rows that are cut off at 5
                          deviations
    fence_                the fence, for standardised rows that are not cut off
    network_, rehearsal_  what a warm start goes on from: the model as it was trained, and the one that was shown four
                          fifths of the rows, with its scaler

    A `fit` that fails leaves everything as it was.
    """

    classes_: np.ndarray
    n_iter_: int
    loss_curve_: list[float]
    validation_scores_: list[float] | None
    scaler_: StandardScaler
    lam_: float
    unknown_rate_: float
    model_: SplitModel
    network_: SplitModel
    rehearsal_: Rehearsal | None
    fence_: Fence

    def __init__(
        self,
        hidden_layer_sizes: Any = (100, 100),
        *,
        lam: float = 0.3,
        max_iter: int = 50,
        batch_size: int | str = "auto",
        learning_rate_init: float = 5e-3,
        weight_decay: float = 0.1,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        unknown_rate: float | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.lam = lam
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.unknown_rate = unknown_rate
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "EOWClassifier":
        """Train on rows X (N, D) of finite numbers and their labels y: strings, numbers or booleans."""
        before = dict(self.__dict__)
        try:
            return self._fit(X, y)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit(self, X: Any, y: Any) -> "EOWClassifier":
        chosen = self._checked()
        warm = chosen["warm_start"] and hasattr(self, "model_")
        # One order in memory, so that a data frame gives the bytes that its array gives.
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", reset=not warm)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise EowError(
                f"y holds one class only, {classes.tolist()[0]!r}: a classifier needs rows of at least 2 classes"
            )
        if warm:
            classes, labels = self.classes_, self._known_labels(classes, chosen["hidden_layer_sizes"])[labels]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        seed = derive("warm start", seed, self.n_iter_) if warm else seed
        rows, held_out = np.arange(len(X)), None
        if chosen["early_stopping"]:
            rows, held_out = validation_split(labels, chosen["validation_fraction"], seed)
        scaler = self.scaler_ if warm else scaler_of(X[rows])
        data, fenced = table_of(scaler, X, labels, len(classes)), rows_to_fence(labels, seed)
        held_data = None if held_out is None else data.subset(held_out)
        counts = np.unique(labels, return_counts=True)[1]
        odds = chosen["lam"] * float(counts.min() / counts.mean())
        rate, verbose = min(odds / (1 + odds), 1 - 2**-53), bool(self.verbose)
        with training_alone():
            network, rehearsal = None, None
            if warm:  # one that was pickled before there were rehearsals goes on from the network that it has
                network = copy.deepcopy(getattr(self, "network_", self.model_)).float()
                rehearsal = copy.deepcopy(getattr(self, "rehearsal_", None))
            network, losses, scores = trained(network, data.subset(rows), held_data, chosen, seed, verbose)
            self.network_ = asked = network.cpu()
            self.model_, fresh = copy.deepcopy(asked).double().eval(), held_data
            if held_data is None:
                rehearsal, fresh = rehearse(rehearsal, X, labels, len(classes), chosen, seed, verbose)
                asked = rehearsal[0] if rehearsal else asked
            if fresh is not None:
                fit_head(self.model_, asked, fresh, rate, chosen["lam"])
            self.rehearsal_, self.fence_ = rehearsal, fence_around(standardised(scaler, X[fenced]), labels[fenced])
        self.loss_curve_ = [*self.loss_curve_, *losses] if warm else losses
        self.n_iter_ = len(self.loss_curve_)
        self.validation_scores_ = scores if chosen["early_stopping"] else None
        self.classes_, self.scaler_, self.lam_, self.unknown_rate_ = classes, scaler, chosen["lam"], rate
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row, whatever the probability of "unknown"."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, K): the probability of each class given that the row belongs to one of them. The K+1 softmax
        renormalised over the K classes, so that rows sum to 1; `unknown_rate` drops out."""
        return shifted_probabilities(self.logits_of(self.checked_rows(X), fenced=False), -math.inf)[0]

    def predict_unknown(self, X: Any) -> np.ndarray:
        """(N,): the probability that a row belongs to none of the classes, at `unknown_rate`."""
        return shifted_probabilities(self._logits(X), self._shift())[1]

    def predict_open(self, X: Any, threshold: float = 0.5) -> np.ndarray:
        """The most probable class where its probability in the K+1 softmax, at `unknown_rate`, is at least `threshold`:
        it must be neither another class nor unknown. Elsewhere -1 where the classes are numbers, and None, in an array
        of objects, where they are strings or booleans. Classes of which one is -1, or too large for int64, are an
        error."""
        threshold = convert(as_python(threshold), float, "threshold")
        if not 0 <= threshold <= 1:
            raise EowError(f"a threshold of {threshold} is not a confidence: give a number from 0 to 1")
        logits = self._logits(X)
        unsure = shifted_probabilities(logits, self._shift())[0].max(1) < threshold
        labels = self.classes_[logits[:, :-1].argmax(1)]  # where all is unknown, no probability of a class is left
        if self.classes_.dtype.kind not in "iuf":
            labels = labels.astype(object)
            labels[unsure] = None
            return labels
        if -1 in self.classes_:
            raise EowError(
                "-1 is one of the classes and cannot stand for unknown too: use strings as labels, or predict_unknown"
            )
        if self.classes_.dtype.kind == "u" and self.classes_.max() > np.iinfo(np.int64).max:
            raise EowError(
                f"the class {self.classes_.max()} is too large for int64, in which -1 would stand for unknown: use "
                "strings as labels, or predict_unknown"
            )
        if self.classes_.dtype.kind == "u":  # an unsigned type has no -1
            labels = labels.astype(np.int64 if self.classes_.itemsize == 8 else np.result_type(labels, np.int8))
        labels[unsure] = -1
        return labels

    def checked_rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return cast(np.ndarray, validate_data(self, X, dtype=np.float64, order="C", reset=False))

    def logits_of(self, checked: np.ndarray, *, fenced: bool = True) -> np.ndarray:
        """(N, K+1), in double precision; the fence is in the last."""
        parts = []
        with torch.no_grad(), one_thread():
            for rows in in_parts(checked):
                z = torch.from_numpy(standardised(self.scaler_, rows))
                logits = self.model_(z.clamp(-FARTHEST, FARTHEST))
                if fenced:
                    logits[:, -1] += self.fence_.rise(z)
                parts.append(logits)
        return torch.cat(parts).numpy()

    def _logits(self, X: Any) -> np.ndarray:
        return self.logits_of(self.checked_rows(X))

    def expected_rate(self) -> float:
        """The share of unknowns that predictions expect."""
        rate = as_python(self.unknown_rate)
        return self.unknown_rate_ if rate is None else convert(rate, float, "unknown_rate")

    def _shift(self) -> float:
        return prior_shift(self.expected_rate(), self.lam_)

    def _checked(self) -> dict[str, Any]:
        """The parameters, each of its type and in its range. `fit` asks for them: scikit-learn wants to be able to set
        anything before."""
        chosen = {name: convert(as_python(getattr(self, name)), kind, name) for name, kind in KINDS.items()}
        for name in ("lam", "learning_rate_init"):
            if chosen[name] <= 0:
                raise EowError(f"{name} is {chosen[name]}: it must be above 0")
        check_range("lam", chosen["lam"], LEAST_ODDS, MOST_ODDS)
        for name in ("max_iter", "n_iter_no_change"):
            check_range(name, chosen[name], 1)
        check_range("weight_decay", chosen["weight_decay"], 0)
        for width in chosen["hidden_layer_sizes"]:
            check_range("hidden_layer_sizes", width, 1, WIDEST)
        if not 0 < chosen["validation_fraction"] < 1:
            raise EowError(f"validation_fraction is {chosen['validation_fraction']}: give a share between 0 and 1")
        size = as_python(self.batch_size)
        chosen["batch_size"] = size if size == "auto" else convert(size, int, "batch_size")
        if size != "auto":
            check_range("batch_size", size, 1, LARGEST)
        if self.unknown_rate is not None:
            prior_shift(convert(as_python(self.unknown_rate), float, "unknown_rate"), chosen["lam"])
        return chosen

    def _known_labels(self, classes: np.ndarray, hidden: tuple[int, ...]) -> np.ndarray:
        """The numbers that the classes of a warm start have in the network that is there."""
        numbers = {label: number for number, label in enumerate(self.classes_.tolist())}
        new = [label for label in classes.tolist() if label not in numbers]
        if new:
            raise EowError(
                f"warm_start goes on with the classes of before, and {new[0]!r} is none of them: "
                "fit all classes at once, or set warm_start=False"
            )
        widths = tuple(layer.out_features for layer in self.model_.modules() if isinstance(layer, nn.Linear))[:-1]
        if widths != hidden:
            raise EowError(
                f"warm_start goes on with hidden layers of {widths}, not {hidden}: leave hidden_layer_sizes as it was"
            )
        return np.array([numbers[label] for label in classes.tolist()])
