"""TrustScore (Jiang, Kim, Guan, Gupta: NeurIPS 2018, "To Trust Or Not To Trust A Classifier").

    score(x) = d(x, nearest training sample of another class) / (d(x, nearest of the predicted class) + 1e-12)

Distances are Euclidean between the features of a layer. The paper first drops, from each class, the share `alpha` with
the largest radius to its k-th nearest sample of that class (k = 10; the sample itself is the first), and uses
alpha = 0 where classes are clean.

A score is not a probability. Our link, not in the paper: confidence = sigmoid(a·log score + b), the logistic
regression of "the label is right" on held-out data, with Platt's smoothed targets, so that it is finite on any split.
Where all held-out labels are right (or wrong) nothing can be learned about a: it stays 1, b sets the mean confidence to
(right + 1)/(N + 2), and a warning says so. Scores beyond the fences of the held-out ones, three times the quartiles'
distance outside of them, count as lying on them: CIFAR-100 holds some images twice, with two labels, and a single
held-out sample at distance 0 from its wrong twin would decide the slope alone (ECE 13.9 and 14.2 % in two seeds with
ResNet-50 over 30 epochs, records/2026-11-16_cifar100-30; with the fences 1.9 and 2.4). The label is the network's; the
other classes share 1 - confidence in proportion to the softmax, so that an NLL exists. Hence argmax of probs may differ
from label where confidence is low.

The training features are part of the weights: 4 bytes · samples · width, 26 MB for 100,000 samples of width 64, 819 MB
at width 2048. Above `memory_mb` an equal share of every class is kept, drawn from the run's seed.

Our result on digits, 8 and 9 unseen, `modern`, three seeds (records/2026-11-18_demo-full; vanilla 98.4, 1.2, 96.0):
accuracy 98.5 %, ECE 1.0 %, AUROC known/unseen 96.9 %. On CIFAR-10, VGG11, three seeds (records/2026-11-16_cifar10): ECE
1.3 % (vanilla 3.0), NLL .332 (.321), before there were fences; on CIFAR-100, ResNet-50, with them: over 15 epochs
(records/2026-11-16_tables) ECE 3.0 % (vanilla 5.4), NLL 1.035 (1.017), over 30 (records/2026-11-16_methods-30) 2.4 %
(8.2), .906 (.932).
"""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from eow.data.dataset import stratified_split
from eow.data.loader import Batches
from eow.errors import EowError
from eow.methods.base import Prediction
from eow.methods.holdout import at_rest, checked, collect, require_fitted
from eow.methods.vanilla import Vanilla, VanillaOptions
from eow.models import SplitModel

TREES = 15  # dimensions up to which a kd-tree is faster than comparing with all
CANDIDATES = 3  # for the nearest, by distances that are rounded
ENTRIES = 1 << 23  # of a matrix of features in float64: 64 MB
DISTANCES = 1 << 21  # of one of distances: 16 MB, beyond which fetching the memory takes longer than the product
SMALLEST = 1e-12  # added to a distance of 0; scores are cut to SMALLEST and 1/SMALLEST before the logarithm


@dataclass(frozen=True)
class TrustScoreOptions(VanillaOptions):
    name: ClassVar[str] = "trust_score"
    layer: str = "penultimate"  # any cut of the model; "input" for the inputs themselves
    alpha: float = 0.0  # share of each class that the density filter drops; 0: no filter
    k: int = 10  # of the filter's radius
    memory_mb: int = 1024  # what the training features may take


class TrustScore(Vanilla):
    Options = TrustScoreOptions
    summary = "vanilla, confidence from the distances to the nearest training samples"
    needs_holdout = True
    post_hoc = True
    costlier = "a nearest-neighbour search among the training features"

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__(model, options, classes, in_shape, seed)
        if not 0 <= options.alpha < 1 or options.k < 2 or options.memory_mb < 1:
            raise EowError(
                f"method.alpha is {options.alpha}, method.k {options.k} and method.memory_mb {options.memory_mb}: "
                "alpha must be from 0 to below 1, k at least 2, memory_mb at least 1"
            )
        self.width = int(np.prod(model.recut(options.layer).feature_shape(self.in_shape)))
        self.features: Tensor  # of the training set, class after class
        self.counts: Tensor  # how many of each class
        self.link: Tensor  # a and b, and the fences of the scores
        self.register_buffer("features", torch.empty(0, self.width))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.long))
        self.register_buffer("link", torch.full((4,), torch.nan, dtype=torch.float64))
        self.searches: list[Any] = []  # one a class, made from the features when they are first needed

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        """How many features there are is only known from the state."""
        link = state_dict.get(f"{prefix}link", self.link)
        if link.shape == (2,):  # of eow before there were fences
            state_dict[f"{prefix}link"] = torch.cat([link, link.new_tensor([-torch.inf, torch.inf])])
        stored, counts = (state_dict.get(f"{prefix}{name}", getattr(self, name)) for name in ("features", "counts"))
        if not stored.is_floating_point() or not bool(stored.isfinite().all()):
            raise ValueError("training features that are not finite numbers")
        if bool((counts < 0).any()) or int(counts.sum()) != len(stored):
            raise ValueError("other counts than training features")
        if stored.dim() == 2 and stored.shape[1] == self.width:
            self.features = torch.empty_like(stored, device=self.features.device)
        self.searches = []
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def finish(self, train: Any, holdout: Any) -> None:
        checked(self, holdout)
        self.remember(checked(self, train))
        predicted, labels = collect(self, holdout, lambda x: self.model(x).argmax(1))
        scores, _ = collect(self, holdout, lambda x: self.judge(x)[1])
        low, high = fences(scores.numpy())
        link = fit_link(scores.numpy().clip(low, high), (predicted == labels).numpy())
        self.link.copy_(torch.tensor((*link, low, high), dtype=torch.float64))

    def remember(self, train: Batches) -> None:
        """Keep the training set's features, those that the memory and the density filter allow."""
        labels = train.dataset.labels
        kept, limit = np.arange(len(labels)), self.options.memory_mb * 2**20 // (4 * self.width)
        if limit < len(labels):
            kept, _ = stratified_split(labels, len(labels) - max(limit, self.classes), self.seed)
            warnings.warn(
                f"the features of {len(labels)} samples of width {self.width} exceed method.memory_mb="
                f"{self.options.memory_mb}: {len(kept)} are kept",
                stacklevel=2,
            )
        order = kept[np.argsort(labels[kept], kind="stable")]
        place = np.full(len(labels), -1)  # where each sample's features go
        place[order] = np.arange(len(order))
        features, first = np.empty((len(order), self.width), np.float32), 0
        with at_rest(self, train.device):
            encoder = self.model.recut(self.options.layer).encoder
            for x, _ in train.in_order():
                goal = place[first : first + len(x)]
                features[goal[goal >= 0]] = encoder(x).flatten(1).float().cpu().numpy()[goal >= 0]
                first += len(x)
        if not np.isfinite(features).all():
            raise EowError(
                f"trust_score: the network's features at {self.options.layer} are not all finite: train it again at a "
                "lower rate"
            )
        counts = np.bincount(labels[order], minlength=self.classes)
        if self.options.alpha:
            parts = np.split(features, np.cumsum(counts)[:-1])
            parts = [part[dense(part, self.options.k, self.options.alpha)] for part in parts]
            features, counts = np.concatenate(parts), np.array([len(part) for part in parts])
        self.features = torch.from_numpy(features).to(self.features.device)
        self.counts.copy_(torch.from_numpy(counts))
        self.searches = []

    def distances(self, z: Tensor) -> np.ndarray:
        """(N, K): from each feature to the nearest one of each class, infinite for a class without any."""
        z = z.cpu() if z.device.type == "mps" else z  # which has no float64
        if not self.searches or self.searches[0].device != z.device:
            make = Tree if self.width <= TREES else Comparison
            self.searches = [make(part) for part in self.features.to(z).split(self.counts.tolist())]
        return torch.stack([search(z) for search in self.searches], 1).double().cpu().numpy()

    def judge(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The network's logits, and the logarithms of its label's trust scores in float64, on the CPU."""
        model = self.model.recut(self.options.layer)
        z = model.encoder(x)
        logits = model.tail(z).float()
        distances = self.distances(z.flatten(1).float())
        return logits, torch.from_numpy(log_trust(distances, logits.argmax(1).cpu().numpy()))

    def answer(self, x: Tensor) -> Prediction:
        require_fitted(self, self.link)
        logits, scores = self.judge(x)
        label = logits.argmax(1, keepdim=True)
        slope, offset, low, high = self.link
        confidence = torch.sigmoid(slope * scores.to(x.device).clamp(low, high) + offset).float()
        others = logits.scatter(1, label, -torch.inf).softmax(1)
        probs = ((1 - confidence[:, None]) * others).scatter(1, label, confidence[:, None])
        # No logits: the network's would not say what probs says.
        return Prediction(label[:, 0], confidence, probs, torch.zeros_like(confidence), None)


class Tree:
    """The distance to the nearest of some features, by scikit-learn: for few dimensions, on the CPU."""

    def __init__(self, features: Tensor) -> None:
        self.device = features.device
        self.search = neighbours(features.cpu().numpy(), 1) if len(features) else None

    def __call__(self, z: Tensor) -> Tensor:
        if self.search is None:
            return z.new_full((len(z),), torch.inf)
        found, sound = z.new_full((len(z),), torch.nan), z.isfinite().all(1)
        if sound.any():
            found[sound] = torch.from_numpy(self.search.kneighbors(z[sound].cpu().numpy())[0][:, 0]).to(z)
        return found


class Comparison:
    """The same for many dimensions, by comparing with all of them where they are.

    With the features' mean m, |z - f|² = |f - m|² - 2 (z - m)·f and what is the same for every f: one matrix product,
    but it loses a small distance to rounding. So, in float64, it only chooses CANDIDATES of each block of features, and
    their distances are taken by differences.
    """

    def __init__(self, features: Tensor) -> None:
        self.device, self.features = features.device, features
        self.blocks = features.split(max(1, ENTRIES // features.shape[1]))
        self.mean = torch.stack([block.double().sum(0) for block in self.blocks]).sum(0) / max(1, len(features))
        self.squares = [(block.double() - self.mean).square().sum(1) for block in self.blocks]

    def __call__(self, z: Tensor) -> Tensor:
        if not len(self.features):
            return z.new_full((len(z),), torch.inf)
        rows = max(1, DISTANCES // len(self.blocks[0]))
        return torch.cat([self.nearest(part) for part in z.split(rows)])

    def nearest(self, z: Tensor) -> Tensor:
        doubled = 2 * (z.double() - self.mean)
        found = z.new_full((len(z),), torch.inf)
        for block, squares in zip(self.blocks, self.squares):
            order = torch.addmm(squares, doubled, block.double().T, alpha=-1)
            chosen = order.topk(min(CANDIDATES, len(block)), largest=False).indices
            for each in chosen.T:
                found = torch.minimum(found, (z - block[each]).norm(dim=1))
        return found


def neighbours(features: np.ndarray, k: int) -> Any:
    """scikit-learn's search: a kd-tree up to 15 dimensions; beyond them all are compared, block by block."""
    from sklearn.neighbors import NearestNeighbors  # takes a second to import

    return NearestNeighbors(n_neighbors=k).fit(features)


def dense(features: np.ndarray, k: int, alpha: float) -> np.ndarray:
    """Sorted indices of one class's samples without the share `alpha` that has the largest k-th neighbour's radius."""
    if not len(features):
        return np.arange(0)
    radius = neighbours(features, min(k, len(features))).kneighbors(features)[0][:, -1]
    return np.sort(np.argsort(radius, kind="stable")[: len(features) - int(alpha * len(features))])


def log_trust(distances: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """log of: distance to the nearest other class over distance to the predicted one, from (N, K) distances."""
    rows = np.arange(len(distances))
    others = distances.copy()
    others[rows, predicted] = np.inf
    nearest, own = others.min(1), distances[rows, predicted]
    beyond = np.isinf(nearest) & np.isinf(own)  # as far as can be from every class
    score = np.divide(nearest, own + SMALLEST, out=np.ones_like(own), where=~beyond)
    return np.log(np.clip(score, SMALLEST, 1 / SMALLEST))


def fences(scores: np.ndarray) -> tuple[float, float]:
    """Tukey's outer fences: what lies beyond is not part of the bulk."""
    low, high = np.quantile(scores, (0.25, 0.75))
    reach = 3 * (high - low) or np.inf  # where the middle half is one value nothing can be said
    return float(low - reach), float(high + reach)


def fit_link(scores: np.ndarray, correct: np.ndarray) -> tuple[float, float]:
    """(a, b) of P(correct) = sigmoid(a·score + b), bounded on any split."""
    from scipy.optimize import brentq, minimize  # takes half a second to import, and only fitting needs it

    total, right = len(correct), int(correct.sum())
    if right in (0, total):
        kind = "an error" if right else "right"
        warnings.warn(
            f"not one of the {total} held-out labels is {kind}: the trust score's slope stays 1 and its offset sets "
            "the mean confidence to (right + 1)/(N + 2); hold more out for a better link",
            stacklevel=2,
        )
        goal = (right + 1) / (total + 2)
        reach = np.abs(scores).max() + abs(np.log(goal / (1 - goal))) + 1
        return 1.0, float(brentq(lambda offset: expit(scores + offset).mean() - goal, -reach, reach, xtol=1e-12))
    targets = np.where(correct, (right + 1) / (right + 2), 1 / (total - right + 2))
    inputs = np.stack([scores, np.ones(total)], 1)

    def loss(link: np.ndarray) -> float:
        odds = inputs @ link
        return float((np.logaddexp(0, odds) - targets * odds).mean())

    def gradient(link: np.ndarray) -> np.ndarray:
        return inputs.T @ (expit(inputs @ link) - targets) / total

    def curvature(link: np.ndarray) -> np.ndarray:
        p = expit(inputs @ link)
        return (inputs.T * (p * (1 - p))) @ inputs / total

    start = np.array([0.0, np.log(right / (total - right))])
    found = minimize(loss, start, jac=gradient, hess=curvature, method="trust-exact", options={"gtol": 1e-10}).x
    return float(found[0]), float(found[1])
