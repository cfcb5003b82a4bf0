"""The paper's section 3, verified: every expectation an exact float64 sum over a finite set of n points.

The data are a table `joint` (n, K) of p(x, y); a vector p(x) stands for one class. The model is a table of logits f
(n, K+1), which are the parameters; h = softmax(f), s = sum_k h[k] and u = h[K+1] = 1 - s. What a gradient here says of
the logits, the chain rule says of any network's weights. The three energies, and what the negatives drawn from
exp(-E)/Z then minimise:

    paper       E = log u       eq. 3 as printed       loss -log u
    proof       E = -log u      what its proof uses    loss -log u
    complement  E' = -log s     eq. 6                  loss  log s

What holds, and is tested:
- Lemma 1 (`kl_gradient`) holds.
- Proposition 1 (`proposition_one`) holds for `proof`; `complement` is its left side itself; for `paper` no μ exists.
- Theorem 1 (`theorem_one`) bounds a surrogate whose gradient is that of KL(p || q) and whose value is not: neither the
  surrogate nor the bound on it need lie above KL.
- Negatives drawn anew and frozen at each step make the objective the descent of a true potential (`potential`), convex
  in log u for `paper` and in u for `proof`. It ends where `fixed_point` says, and that is not s ∝ p in general.

A grid has a finite Z. On an unbounded latent space Z may diverge, and the paper's chains live there, not among the x.
"""

from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError

ENERGIES = ("paper", "proof", "complement")


class Sides(NamedTuple):
    """Both sides of proposition 1 as gradients with respect to the logits, and the μ = Z/Z' between them."""

    left: np.ndarray
    right: np.ndarray
    mu: float


class Bound(NamedTuple):
    """The quantities of theorem 1: KL = surrogate + entropy_q - entropy_p, and surrogate ≤ bound."""

    surrogate: float
    bound: float
    kl: float
    entropy_p: float
    entropy_q: float


class Row(NamedTuple):
    """How the known probability s = sum_k h[k] follows the data density p at a fixed point; nan where there is none."""

    energy: str
    rank_correlation: float  # Spearman's, of s and p
    deviation: float  # 1 - min(s/p) / max(s/p): 0 if s is proportional to p, near 1 if s/p varies by orders
    saturated: float  # the fraction of points at s = 1


def log_parts(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log s and log u, each (n,)."""
    total = np.logaddexp.reduce(logits, 1)
    return np.logaddexp.reduce(logits[:, :-1], 1) - total, logits[:, -1] - total


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits - np.logaddexp.reduce(logits, 1)[:, None])


def energies(logits: np.ndarray, energy: str) -> np.ndarray:
    """E(x) at every point, (n,)."""
    log_known, log_unknown = log_parts(logits)
    return {"paper": log_unknown, "proof": -log_unknown, "complement": -log_known}[named(energy)]


def density(logits: np.ndarray, energy: str) -> tuple[np.ndarray, float]:
    """The model's density exp(-E)/Z over the points, and log Z."""
    minus = -energies(logits, energy)
    log_z = float(np.logaddexp.reduce(minus))
    return np.exp(minus - log_z), log_z


def kl_gradient(r: np.ndarray, energy: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """Lemma 1: d KL(r || r_φ)/dφ = E_r[dE/dφ] - E_{r_φ}[dE/dφ], with E (n,) and dE/dφ (n, parameters)."""
    model = np.exp(-energy - np.logaddexp.reduce(-energy))
    return (r - model) @ jacobian


def negative_gradient(logits: np.ndarray, energy: str) -> np.ndarray:
    """The gradient of the second term, E_m[loss], with the model's own density m frozen; (n, K+1)."""
    drawn, _ = density(logits, energy)
    h = softmax(logits)
    if energy == "complement":
        shares = np.exp(logits[:, :-1] - np.logaddexp.reduce(logits[:, :-1], 1)[:, None])
        return drawn[:, None] * (np.pad(shares, ((0, 0), (0, 1))) - h)
    return drawn[:, None] * (h - np.eye(h.shape[1])[-1])


def gradient(logits: np.ndarray, joint: np.ndarray, energy: str, lam: float) -> np.ndarray:
    """The gradient of eq. 4, E_p[-log h[y]] + λ E_m[loss], with m frozen; (n, K+1)."""
    joint = table(joint)
    data = joint.sum(1, keepdims=True) * softmax(logits) - np.pad(joint, ((0, 0), (0, 1)))
    return data + positive(lam) * negative_gradient(logits, energy)


def potential(logits: np.ndarray, joint: np.ndarray, energy: str, lam: float) -> float:
    """The function that `gradient`, with its frozen negatives, is the true gradient of.

    As in lemma 1, E_m[dE] = -d log Z. So the descent is that of E_p[-log h[y]] + λ log Z for `paper` and `complement`,
    whose loss is -E, and of E_p[-log h[y]] - λ log Z for `proof`, whose loss is E. For `complement` this is bounded
    below when λ ≤ 1 (at λ = 1 it is KL(p || q) + H(p) + the cross-entropy of the K-way labels) and falls without end as
    s -> 0 when λ > 1; its loss with the negatives frozen for good is unbounded below at any point with λm > p.
    """
    joint = table(joint)
    _, log_z = density(logits, energy)
    log_h = logits[:, :-1] - np.logaddexp.reduce(logits, 1)[:, None]
    return float(-(joint * log_h).sum() + positive(lam) * (-log_z if energy == "proof" else log_z))


def proposition_one(logits: np.ndarray, energy: str) -> Sides:
    """Both sides of d E_q[log s] = μ d E_m[loss], with q = s/Z' and m = exp(-E)/Z frozen and μ = Z/Z'.

    They are equal for `proof`, where m = u/Z, and trivially for `complement`, where m = q and μ = 1. For `paper` both
    raise u at every point, but with weights us and s/u: they differ by a factor 1/u² that no constant μ makes up for,
    unless u is the same everywhere. As λ d E_m[loss] = (λ/μ) d E_q[log s], `proof` is `complement` with a λ/μ that
    adjusts itself, to 1 at an unsaturated fixed point.
    """
    left = negative_gradient(logits, "complement")
    mu = float(np.exp(density(logits, energy)[1] - density(logits, "complement")[1]))
    return Sides(left, mu * negative_gradient(logits, energy), mu)


def theorem_one(logits: np.ndarray, joint: np.ndarray) -> Bound:
    """The end of its proof, E_p[E'] - E_q[E'] ≤ E_p[-log h[y]] + E_q[log s] (eq. 7), beside KL(p || q) itself.

    KL = E_p[E'] - E_q[E'] + H(q) - H(p): where H(q) > H(p), a small bound says nothing about KL. With s the same
    everywhere and the labels certain and right, surrogate and bound are 0 while KL = log n - H(p).
    """
    joint = table(joint)
    p = joint.sum(1)
    energy = energies(logits, "complement")
    q, log_z = density(logits, "complement")
    log_h = logits[:, :-1] - np.logaddexp.reduce(logits, 1)[:, None]
    entropy_p = float(-(p * np.log(np.where(p > 0, p, 1.0))).sum())
    return Bound(
        surrogate=float(p @ energy - q @ energy),
        bound=float(-(joint * log_h).sum() - q @ energy),
        kl=float(-entropy_p + p @ energy + log_z),
        entropy_p=entropy_p,
        entropy_q=float(-(q * np.log(np.where(q > 0, q, 1.0))).sum()),
    )


def population_optimum(joint: np.ndarray, negatives: np.ndarray, lam: float) -> np.ndarray:
    """The best h (n, K+1) for negatives of a fixed density n: h[k] = p(x, k)/(p + λn), h[K+1] = λn/(p + λn).

    Negatives that have the density of the data multiply every confidence by 1/(1+λ), and tell nothing apart.
    """
    masses = np.column_stack([table(joint), positive(lam) * table(negatives)])
    return masses / masses.sum(1, keepdims=True)


def fixed_point(p: np.ndarray, energy: str, lam: float) -> np.ndarray:
    """The s (n,) where exact sampling rests: p u = λ m s for `paper` and `proof`, p u = λ m u for `complement`.

    paper       s/u² = pZ/λ, Z = Σ 1/u. One solution, s < 1 everywhere; strictly monotone in p, and proportional for
                uniform p alone (nearly so where s is small).
    proof       s = min(1, pZ/λ), Z = Σ u. One stable solution, proportional to p if and only if max p ≤ (1+λ)/n, and
                then s = pn/(1+λ).
    complement  s = min(1, pZ'/λ), Z' = Σ s. λ < 1: one solution but s = 0, with at least the densest point at s = 1.
                λ = 1: s = cp for every c ≤ 1/max p, of which the start chooses; given here is the largest, the limit of
                λ -> 1 from below. λ > 1: none but s = 0.

    A point at s = 1 has its logits at infinity: a descent approaches it as 1/steps.
    """
    from scipy.optimize import brentq

    p, lam, n = table(p).sum(1), positive(lam), len(p)
    tight = {"xtol": 1e-300, "rtol": 4 * np.finfo(float).eps}
    if named(energy) == "paper":
        # c u² + u = 1 with c = pZ/λ gives 1/u = (1 + √(1+4c))/2; Z ≤ n + √(nZ/λ), by Cauchy-Schwarz, is the upper end
        most = ((np.sqrt(n / lam) + np.sqrt(n / lam + 4 * n)) / 2) ** 2
        z = brentq(lambda z: n / 2 + np.sqrt(1 + 4 * p * z / lam).sum() / 2 - z, n / 2, 2 * most, **tight)
        c = p * z / lam
        return c * (2 / (1 + np.sqrt(1 + 4 * c))) ** 2
    if energy == "proof":
        z = brentq(lambda z: np.maximum(0.0, 1 - p * z / lam).sum() - z, 0.0, n, **tight)
        return np.minimum(1.0, p * z / lam)
    if lam > 1:
        raise EowError(f"the complement energy has no fixed point at λ = {lam:g}: s falls to 0; take λ ≤ 1.")
    if lam == 1:
        return p / p.max()
    z = brentq(lambda z: np.minimum(1.0, p * z / lam).sum() - z, lam / p.max(), n, **tight)
    return np.minimum(1.0, p * z / lam)


def descend(
    joint: np.ndarray, energy: str, lam: float, steps: int = 4000, rate: float = 1.0, start: float = 0.0
) -> np.ndarray:
    """Gradient descent with exact expectations, the negatives' density recomputed and frozen at each step.

    Logits start at 0, the unknown's at `start`. Returns h (n, K+1). A point's gradient is divided by the mass p + λm it
    was weighted with: the points of rest stay where they are, and the tails get there too.
    """
    joint = table(joint)
    logits = np.zeros((len(joint), joint.shape[1] + 1))
    logits[:, -1] = start
    for _ in range(steps):
        mass = joint.sum(1) + lam * density(logits, energy)[0]
        logits = logits - rate * gradient(logits, joint, energy, lam) / mass[:, None]
    return softmax(logits)


def mixture(points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """A grid x over [-6, 6] and p(x, y) on it for three Gaussian classes, the last one narrow and rare."""
    x = np.linspace(-6.0, 6.0, points)
    weight, mean, deviation = np.array([0.45, 0.4, 0.15]), np.array([-2.6, 0.4, 3.6]), np.array([0.7, 0.9, 0.4])
    joint = weight / deviation * np.exp(-0.5 * ((x[:, None] - mean) / deviation) ** 2)
    return x, joint / joint.sum()


def summary_rows(p: np.ndarray | None = None, lam: float = 0.1) -> list[Row]:
    """One `Row` per energy, for the density p(x) (`mixture` unless given)."""
    from scipy.stats import spearmanr

    p = table(mixture()[1] if p is None else p).sum(1)
    rows = []
    for energy in ENERGIES:
        if energy == "complement" and lam > 1:
            rows.append(Row(energy, np.nan, np.nan, np.nan))
            continue
        s = fixed_point(p, energy, lam)
        ratio = s[p > 0] / p[p > 0]
        constant = np.ptp(s) == 0 or np.ptp(p) == 0  # a rank correlation with a constant is not defined
        correlation = np.nan if constant else float(spearmanr(s, p).statistic)
        rows.append(Row(energy, correlation, float(1 - ratio.min() / ratio.max()), float(np.mean(s >= 1))))
    return rows


def named(energy: str) -> str:
    if energy not in ENERGIES:
        raise EowError(f"there is no energy {energy!r}: take one of {', '.join(ENERGIES)}.")
    return energy


def positive(lam: float) -> float:
    if not 0 < lam < np.inf:
        raise EowError(f"λ is {lam}: it weighs the negatives and must be a positive number.")
    return float(lam)


def table(joint: np.ndarray) -> np.ndarray:
    """`joint` as (n, K); a vector is one class."""
    joint = np.asarray(joint, dtype=np.float64)
    joint = joint[:, None] if joint.ndim == 1 else joint
    if joint.ndim != 2 or len(joint) < 2 or not np.all(joint >= 0) or abs(joint.sum() - 1) > 1e-9:
        raise EowError(f"a density of shape {joint.shape} is not one: give n ≥ 2 points, none negative, that sum to 1.")
    return joint


def __getattr__(name: str) -> Any:
    """`draw` has been in this file, which is public."""
    if name != "draw":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eow.theorydrawing import draw

    return draw
