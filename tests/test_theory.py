"""Section 3 of the paper on finite grids: every formula against autograd, every fixed point against a descent."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import check_grad, minimize
from scipy.stats import entropy
from torch import Tensor

from eow import theory
from eow.errors import EowError

LAMBDAS = (0.05, 0.3, 1.0, 4.0)
SEEDS = range(4)


def problem(seed: int, points: int = 9, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Random logits (n, K+1) and a random p(x, y)."""
    draw = np.random.default_rng(seed)
    joint = draw.dirichlet(np.ones(points * classes)).reshape(points, classes)
    return draw.normal(0, 1.5, (points, classes + 1)), joint


def log_density(logits: Tensor, energy: str) -> Tensor:
    """The model's unnormalised log density -E, written from the paper and not from theory.py."""
    h = logits.softmax(1)
    known, unknown = h[:, :-1].sum(1), h[:, -1]
    return {"paper": -unknown.log(), "proof": unknown.log(), "complement": known.log()}[energy]


def frozen_objective(logits: Tensor, joint: Tensor, energy: str, lam: float) -> Tensor:
    """Eq. 4, with the negatives' density detached."""
    h = logits.softmax(1)
    drawn = log_density(logits, energy).softmax(0).detach()
    loss = h[:, :-1].sum(1).log() if energy == "complement" else -h[:, -1].log()
    return -(joint * h[:, :-1].log()).sum() + lam * (drawn * loss).sum()


def derivative(function, logits: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    parameters = torch.tensor(logits, requires_grad=True)
    (result,) = torch.autograd.grad(function(parameters), parameters)
    return result.numpy()


@pytest.mark.parametrize("seed", SEEDS)
def test_lemma_one(seed: int) -> None:
    """For an energy that is a small network over the points, autograd through log Z gives the same gradient."""
    draw = np.random.default_rng(seed)
    x, r = torch.tensor(draw.normal(size=(12, 2))), torch.tensor(draw.dirichlet(np.ones(12)))

    def energy(phi: Tensor) -> Tensor:
        return torch.tanh(x @ phi[:6].view(2, 3)) @ phi[6:]

    phi = torch.tensor(draw.normal(size=9))
    expected = derivative(lambda phi: (r * (r.log() - (-energy(phi)).log_softmax(0))).sum(), phi.numpy())
    jacobian = torch.autograd.functional.jacobian(energy, phi)
    ours = theory.kl_gradient(r.numpy(), energy(phi).numpy(), jacobian.numpy())
    np.testing.assert_allclose(ours, expected, atol=1e-12)


@pytest.mark.parametrize("energy", theory.ENERGIES)
@pytest.mark.parametrize("lam", LAMBDAS)
def test_gradient_of_the_objective(energy: str, lam: float) -> None:
    for seed in SEEDS:
        logits, joint = problem(seed)
        data = torch.tensor(joint)
        expected = derivative(lambda f, data=data: frozen_objective(f, data, energy, lam), logits)
        np.testing.assert_allclose(theory.gradient(logits, joint, energy, lam), expected, atol=1e-12)


@pytest.mark.parametrize("energy", theory.ENERGIES)
def test_frozen_negatives_descend_a_true_potential(energy: str) -> None:
    """Nothing is frozen in the potential, and finite differences of it give the gradient with frozen negatives."""
    logits, joint = problem(1)

    def value(flat: np.ndarray) -> float:
        return theory.potential(flat.reshape(logits.shape), joint, energy, 0.7)

    def slope(flat: np.ndarray) -> np.ndarray:
        return theory.gradient(flat.reshape(logits.shape), joint, energy, 0.7).ravel()

    assert check_grad(value, slope, logits.ravel(), epsilon=1e-7) < 1e-6
    assert check_grad(value, lambda flat: 1.01 * slope(flat), logits.ravel(), epsilon=1e-7) > 1e-4


@pytest.mark.parametrize("energy", ["paper", "proof"])
def test_the_potential_is_convex(energy: str) -> None:
    """In log u for `paper` and in u for `proof`: no midpoint lies above the mean of its ends, so it rests at one."""
    draw = np.random.default_rng(4)
    p = draw.dirichlet(np.ones(6))

    def value(u: np.ndarray) -> float:
        return theory.potential(np.log(np.column_stack([1 - u, u])), p, energy, 0.4)

    for one, other in draw.uniform(0.001, 0.999, (200, 2, 6)):
        middle = np.sqrt(one * other) if energy == "paper" else (one + other) / 2
        assert value(middle) < (value(one) + value(other)) / 2


@pytest.mark.parametrize("energy", theory.ENERGIES)
def test_density_is_the_energy_model(energy: str) -> None:
    logits, _ = problem(2)
    weights = log_density(torch.tensor(logits), energy)
    drawn, log_z = theory.density(logits, energy)
    np.testing.assert_allclose(drawn, weights.softmax(0).numpy(), rtol=1e-12)
    assert log_z == pytest.approx(float(weights.logsumexp(0)), rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_proposition_one_sides_are_the_gradients_they_claim_to_be(seed: int) -> None:
    logits, _ = problem(seed)
    fixed = torch.tensor(logits)
    known, unknown = fixed.softmax(1)[:, :-1].sum(1), fixed.softmax(1)[:, -1]
    partition = {"paper": (1 / unknown).sum(), "proof": unknown.sum(), "complement": known.sum()}
    left = derivative(lambda f: ((known / known.sum()) * f.softmax(1)[:, :-1].sum(1).log()).sum(), logits)
    for energy in ("paper", "proof"):
        drawn = log_density(fixed, energy).softmax(0)
        right = derivative(lambda f, drawn=drawn: -(drawn * f.softmax(1)[:, -1].log()).sum(), logits)
        sides = theory.proposition_one(logits, energy)
        assert sides.mu == pytest.approx(float(partition[energy] / known.sum()), rel=1e-12)
        np.testing.assert_allclose(sides.left, left, atol=1e-13)
        np.testing.assert_allclose(sides.right, sides.mu * right, atol=1e-13)


@pytest.mark.parametrize("seed", SEEDS)
def test_proposition_one_holds_for_proof_and_for_no_mu_with_paper(seed: int) -> None:
    logits, _ = problem(seed)

    def mismatch(energy: str) -> float:
        """The relative residual left by the best of all constants μ."""
        left, right, _ = theory.proposition_one(logits, energy)
        best = (left * right).sum() / (right * right).sum()
        return float(np.linalg.norm(left - best * right) / np.linalg.norm(left))

    sides = theory.proposition_one(logits, "proof")
    np.testing.assert_allclose(sides.left, sides.right, atol=1e-14)
    assert theory.proposition_one(logits, "complement").mu == 1
    assert mismatch("proof") < 1e-12
    assert mismatch("paper") > 0.3


def test_paper_raises_the_unknown_at_every_point_with_other_weights() -> None:
    """The unknown logit's gradient is -us/Z' on the left and -s/(uZ') on the right: same sign, a factor 1/u² apart."""
    logits, _ = problem(0)
    left, right, _ = theory.proposition_one(logits, "paper")
    unknown = torch.tensor(logits).softmax(1)[:, -1].numpy()
    assert (left[:, -1] < 0).all()
    np.testing.assert_allclose(right[:, -1] / left[:, -1], unknown**-2.0, rtol=1e-9)
    constant = np.tile(logits[:1], (5, 1))  # the same u everywhere: the one case in which some μ exists
    ratio = theory.proposition_one(constant, "paper")
    np.testing.assert_allclose(ratio.right / ratio.left, unknown[0] ** -2.0, rtol=1e-9)


def test_proof_is_complement_with_a_weight_that_settles_at_one() -> None:
    """At an unsaturated fixed point λ/μ = λZ'/Z = 1, whatever λ: the only one at which `complement` rests inside."""
    p = np.random.default_rng(0).dirichlet(np.full(10, 30.0))
    for lam in (0.9, 3.0, 10.0):
        s = theory.fixed_point(p, "proof", lam)
        assert s.max() < 1
        logits = np.log(np.column_stack([s, 1 - s]))
        assert lam / theory.proposition_one(logits, "proof").mu == pytest.approx(1, rel=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_theorem_one(seed: int) -> None:
    logits, joint = problem(seed)
    result = theory.theorem_one(logits, joint)
    p, h = joint.sum(1), torch.tensor(logits).softmax(1).numpy()
    s = h[:, :-1].sum(1)
    q = s / s.sum()
    assert result.surrogate == pytest.approx(-p @ np.log(s) + q @ np.log(s), abs=1e-12)
    assert result.bound == pytest.approx(-(joint * np.log(h[:, :-1])).sum() + q @ np.log(s), abs=1e-12)
    assert result.surrogate <= result.bound
    assert result.entropy_p == pytest.approx(entropy(p), rel=1e-12)
    assert result.entropy_q == pytest.approx(entropy(q), rel=1e-12)
    assert result.kl == pytest.approx(entropy(p, q), rel=1e-10)
    assert result.kl == pytest.approx(result.surrogate + result.entropy_q - result.entropy_p, abs=1e-12)


def test_the_surrogate_has_the_gradient_of_kl() -> None:
    """q frozen in the surrogate, nothing frozen in KL(p || q)."""
    logits, joint = problem(3)
    p = torch.tensor(joint.sum(1))
    frozen = log_density(torch.tensor(logits), "complement").softmax(0)
    surrogate = derivative(lambda f: -((p - frozen) * log_density(f, "complement")).sum(), logits)
    divergence = derivative(lambda f: -(p * log_density(f, "complement").log_softmax(0)).sum(), logits)
    np.testing.assert_allclose(surrogate, divergence, atol=1e-14)


def test_the_bound_does_not_bound_kl() -> None:
    """s the same everywhere, labels certain and nearly right: the bound is nearly 0 and KL is log n - H(p)."""
    p = np.array([0.9, 0.05, 0.03, 0.02])
    joint = np.column_stack([p, np.zeros(4)])
    logits = np.tile([20.0, 0.0, 19.0], (4, 1))
    result = theory.theorem_one(logits, joint)
    assert result.kl == pytest.approx(np.log(4) - entropy(p), rel=1e-9)
    assert abs(result.surrogate) < 1e-12
    assert 0 < result.bound < 1e-8
    assert result.kl > 0.9


def test_frozen_complement_loss_is_unbounded_below() -> None:
    """With negatives frozen at q ≠ p, sending s to 0 where q > p lowers eq. 7 without end."""
    p, q = np.array([0.7, 0.3]), np.array([0.4, 0.6])
    values = [float(-(p - q) @ np.log([0.5, s])) for s in (1e-3, 1e-30, 1e-300)]
    assert values[0] > values[1] > values[2]
    assert values[2] < -200


@pytest.mark.parametrize("lam", LAMBDAS)
def test_population_optimum_minimises_the_objective(lam: float) -> None:
    """Against scipy's minimiser of the objective itself, over free logits, the negatives' density being fixed."""
    _, joint = problem(5, points=4, classes=2)
    negatives = np.random.default_rng(9).dirichlet(np.ones(4))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        f = torch.tensor(flat.reshape(4, 3), requires_grad=True)
        log_h = f.log_softmax(1)
        loss = -(torch.tensor(joint) * log_h[:, :2]).sum() - lam * (torch.tensor(negatives) * log_h[:, 2]).sum()
        loss.backward()
        assert f.grad is not None
        return float(loss.detach()), f.grad.numpy().ravel()

    found = minimize(objective, np.zeros(12), jac=True, method="BFGS", options={"gtol": 1e-10})
    h = torch.tensor(found.x.reshape(4, 3)).softmax(1).numpy()
    np.testing.assert_allclose(theory.population_optimum(joint, negatives, lam), h, atol=1e-6)


def test_a_perfect_sampler_only_scales_confidence() -> None:
    _, joint = problem(6)
    p = joint.sum(1, keepdims=True)
    h = theory.population_optimum(joint, p[:, 0], 0.1)
    np.testing.assert_allclose(h[:, :-1], joint / p / 1.1, rtol=1e-12)
    np.testing.assert_allclose(h[:, -1], 0.1 / 1.1, rtol=1e-12)


@pytest.mark.parametrize(
    ("energy", "lam"),
    [(energy, lam) for energy in ("paper", "proof") for lam in (0.02, 0.3, 0.95, 1.0, 4.0, 50.0)]
    + [("complement", lam) for lam in (0.02, 0.3, 0.95, 1.0)],
)
def test_fixed_points_are_stationary_and_satisfy_their_laws(energy: str, lam: float) -> None:
    for seed in SEEDS:
        p = problem(seed, points=15)[1].sum(1)
        s = theory.fixed_point(p, energy, lam)
        inside = s < 1
        assert ((s > 0) & (s <= 1)).all()
        law = s / (1 - s) ** 2 if energy == "paper" else s
        if energy == "paper":
            assert inside.all()
            np.testing.assert_allclose(law / p, (1 / (1 - s)).sum() / lam, rtol=1e-9)
        else:
            partition = (1 - s if energy == "proof" else s).sum()
            np.testing.assert_allclose(law, np.minimum(1, p * partition / lam), rtol=1e-12)
        assert (np.diff(s[np.argsort(p)]) >= 0).all()
        unknown = np.maximum(1 - s, 1e-13)  # stands in for the infinite logits of a saturated point
        logits = np.log(np.column_stack([s, unknown]))
        gradient = derivative(lambda f, p=p: frozen_objective(f, torch.tensor(p)[:, None], energy, lam), logits)
        np.testing.assert_allclose(gradient, 0, atol=1e-11)


def test_proof_is_proportional_exactly_up_to_the_stated_density() -> None:
    n, lam = 8, 0.5
    for peak, proportional in (((1 + lam) / n - 1e-9, True), ((1 + lam) / n + 1e-3, False)):
        p = np.r_[peak, np.full(n - 1, (1 - peak) / (n - 1))]
        s = theory.fixed_point(p, "proof", lam)
        assert bool(np.allclose(s, p * n / (1 + lam), rtol=1e-10)) == proportional
        assert (s.max() < 1) == proportional


@pytest.mark.parametrize("energy", ["paper", "proof"])
@pytest.mark.parametrize("lam", [0.3, 1.0, 4.0])
def test_descent_reaches_the_fixed_point(energy: str, lam: float) -> None:
    p = problem(0, points=8)[1].sum(1)
    s = theory.fixed_point(p, energy, lam)
    for start in (-2.0, 0.0, 2.0):
        known = theory.descend(p, energy, lam, steps=2000, start=start)[:, 0]
        if s.max() < 1:
            np.testing.assert_allclose(known, s, atol=1e-9)
        else:  # a saturated point is approached as 1/steps, and the sum Z ties the others to it
            np.testing.assert_allclose(known, s, atol=5e-3)


def test_descent_finds_the_classes_as_well() -> None:
    shares = np.array([[0.8, 0.2], [0.5, 0.5], [0.3, 0.7]])
    p = np.array([0.5, 0.3, 0.2])
    h = theory.descend(p[:, None] * shares, "paper", 0.5, steps=1000)
    s = theory.fixed_point(p, "paper", 0.5)
    np.testing.assert_allclose(h[:, :-1], s[:, None] * shares, atol=1e-9)


def test_plain_gradient_descent_reaches_it_too() -> None:
    """Without the division by the mass, and with autograd in place of the formulas."""
    p = torch.tensor([[0.4], [0.3], [0.2], [0.1]], dtype=torch.float64)
    for energy in ("paper", "proof"):
        f = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
        for _ in range(1500):
            (slope,) = torch.autograd.grad(frozen_objective(f, p, energy, 2.0), f)
            f = (f - 2 * slope).detach().requires_grad_()
        known = f.detach().softmax(1)[:, 0].numpy()
        np.testing.assert_allclose(known, theory.fixed_point(p[:, 0].numpy(), energy, 2.0), atol=1e-8)


def test_complement_below_one_saturates() -> None:
    """By hand: Z' = 2 + 0.1 Z'/0.5 = 2.5, so s = min(1, 5p). The descent closes the gap as 1/steps."""
    p, s = np.array([0.6, 0.3, 0.1]), np.array([1.0, 1.0, 0.5])
    np.testing.assert_allclose(theory.fixed_point(p, "complement", 0.5), s, rtol=1e-12)
    early, late = (np.abs(theory.descend(p, "complement", 0.5, steps)[:, 0] - s).max() for steps in (400, 4000))
    assert late < 2e-3
    assert early / late == pytest.approx(10, rel=0.1)


def test_proof_saturates_by_hand() -> None:
    """Z = 2 - 0.2 Z/0.25 with the first point at s = 1 and two of 0.1: Z = 10/9, so s = min(1, 40p/9)."""
    s = theory.fixed_point(np.array([0.8, 0.1, 0.1]), "proof", 0.25)
    np.testing.assert_allclose(s, [1, 4 / 9, 4 / 9], rtol=1e-12)


def test_paper_by_hand() -> None:
    """Uniform p: Z = n/u and s/u² = 1/(λu), so s = 1/(1+λ), as for a perfect sampler."""
    np.testing.assert_allclose(theory.fixed_point(np.full(7, 1 / 7), "paper", 0.25), 0.8, rtol=1e-12)


def test_complement_at_one_is_proportional_and_the_start_chooses_the_scale() -> None:
    p = problem(0, points=8)[1].sum(1)
    scales = []
    for start in (2.0, 4.0):
        ratio = (1 - theory.descend(p, "complement", 1.0, steps=4000, start=start)[:, -1]) / p
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-8)
        scales.append(ratio.mean())
    assert scales[0] > 1.5 * scales[1]
    largest = theory.fixed_point(p, "complement", 1.0)
    np.testing.assert_allclose(largest, p / p.max())
    np.testing.assert_allclose(largest, theory.fixed_point(p, "complement", 1 - 1e-9), rtol=1e-6)


def test_complement_above_one_falls_without_end() -> None:
    p = problem(0, points=8)[1].sum(1)
    with pytest.raises(EowError, match="no fixed point"):
        theory.fixed_point(p, "complement", 1.5)
    early, late = (theory.descend(p, "complement", 1.5, steps)[:, :-1].max() for steps in (50, 200))
    assert late < 1e-3 * early
    values = [theory.potential(np.log([[s, 1 - s]] * 8), p, "complement", 1.5) for s in (1e-2, 1e-8, 1e-14)]
    assert values[0] > values[1] + 5 > values[2] + 10


def test_zero_density_is_known_nowhere() -> None:
    p = np.array([0.5, 0.3, 0.2, 0.0])
    for energy in theory.ENERGIES:
        assert theory.fixed_point(p, energy, 0.4)[3] == 0


def test_summary_rows_tell_the_energies_apart() -> None:
    paper, proof, complement = theory.summary_rows(lam=0.1)
    assert paper.rank_correlation == pytest.approx(1)
    assert paper.deviation > 0.9
    assert paper.saturated == 0
    assert 0.5 < proof.rank_correlation < 1
    assert proof.saturated > 0.3
    assert complement.saturated > proof.saturated
    _, proof, complement = theory.summary_rows(lam=5)
    assert proof.deviation < 1e-12
    assert np.isnan(complement.deviation)
    assert theory.summary_rows(lam=1)[2].deviation < 1e-12
    uniform = theory.summary_rows(np.full(5, 0.2), 2.0)
    assert uniform[0].deviation < 1e-12
    assert np.isnan(uniform[0].rank_correlation)


@pytest.mark.parametrize("lam", [0.1, 1.0, 2.0])
def test_draw_makes_a_picture(tmp_path: Path, lam: float) -> None:
    path = tmp_path / "theory.png"
    rows = theory.draw(path, lam=lam, points=60, steps=30)
    assert [row.energy for row in rows] == list(theory.ENERGIES)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert min(image.size) > 500
        pixels = np.asarray(image.convert("RGB"))
    for colour in ((0, 0x72, 0xB2), (0xD5, 0x5E, 0)):  # both curves are there
        assert (np.abs(pixels.astype(int) - colour).max(2) < 8).sum() > 500
    assert [file.name for file in tmp_path.iterdir()] == ["theory.png"]


def test_draw_says_why_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder.png", tmp_path / "file" / "a.png"):
        with pytest.raises(EowError, match="cannot be written"):
            theory.draw(path, points=20, steps=1)
    with pytest.raises(EowError, match="does not end in"):
        theory.draw(tmp_path / "a.pdf", points=20, steps=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder.png"]


@pytest.mark.parametrize(
    ("p", "energy", "lam", "message"),
    [
        ([0.5, 0.5], "eq3", 0.1, "no energy 'eq3'"),
        ([0.5, 0.5], "paper", 0.0, "positive"),
        ([0.5, 0.5], "proof", float("nan"), "positive"),
        ([0.5, 0.6], "paper", 0.1, "sum to 1"),
        ([1.5, -0.5], "paper", 0.1, "none negative"),
        ([float("nan"), 1.0], "paper", 0.1, "none negative"),
        ([1.0], "paper", 0.1, "n ≥ 2"),
    ],
)
def test_bad_input_is_named(p: list[float], energy: str, lam: float, message: str) -> None:
    for function in (theory.fixed_point, theory.descend):
        with pytest.raises(EowError, match=message):
            function(np.array(p), energy, lam)
