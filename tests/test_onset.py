"""A head that fits the energy term before its first step: the two numbers against a minimiser that knows nothing of
them, and what they do to a training."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy, softplus

import eow
from eow import runs
from eow.config import resolve
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.methods.eow import EOW, EOWOptions
from eow.methods.onset import HIGH, LOW, one_round, scale_and_shift, settle
from eow.models import SplitModel
from eow.sampling import LARGEST_ENERGY
from eow.training.distributed import Place
from eow.training.loop import Training

LAM = 0.02


def logits(count: int, scale: float, seed: int) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=(count, 6))


def objective(data: np.ndarray, labels: np.ndarray, chains: np.ndarray, s: float, b: float) -> float:
    """Eq. 4 as it is written."""
    shift = torch.zeros(6, dtype=torch.float64)
    shift[-1] = b
    known = cross_entropy(s * torch.from_numpy(data) + shift, torch.from_numpy(labels))
    unknown = -(s * torch.from_numpy(chains) + shift).log_softmax(1)[:, -1]
    return float(known + LAM * unknown.mean())


@pytest.mark.parametrize("scale", [0.7, 1.5, 40.0])
def test_the_two_numbers_are_the_minimum_of_the_objective(scale: float) -> None:
    data, chains = logits(200, scale, 1), logits(64, scale, 2)
    labels = data[:, :5].argmax(1)
    labels[:40] = np.random.default_rng(3).integers(0, 5, 40)
    log, b = scale_and_shift(data, labels, chains, LAM)
    found = objective(data, labels, chains, math.exp(log), b)
    bounds = [(LOW, HIGH), (-400.0, 400.0)]
    others = [
        minimize(lambda p: objective(data, labels, chains, math.exp(p[0]), p[1]), start, bounds=bounds).fun
        for start in ([0.0, 0.0], [-0.5, 2 * scale], [0.4, -scale])
    ]
    assert found == pytest.approx(min(others), rel=1e-4)
    assert LOW <= log <= HIGH


@pytest.mark.parametrize("lam", [0.02, 0.5])
def test_there_the_objective_has_no_slope(lam: float) -> None:
    """In log s and in b, by autograd: values alone hardly see the part of λ's that is small."""
    data, chains = logits(200, 1.5, 1), logits(64, 1.5, 2)
    labels = data[:, :5].argmax(1)
    labels[:80] = np.random.default_rng(3).integers(0, 5, 80)
    log, b = (torch.tensor(each, requires_grad=True) for each in scale_and_shift(data, labels, chains, lam))
    assert LOW + 0.01 < log < HIGH - 0.01
    shift = torch.nn.functional.pad(b[None], (5, 0))
    known = cross_entropy(log.exp() * torch.from_numpy(data) + shift, torch.from_numpy(labels))
    unknown = -(log.exp() * torch.from_numpy(chains) + shift).log_softmax(1)[:, -1]
    for slope in torch.autograd.grad(known + lam * unknown.mean(), (log, b)):
        assert abs(slope) < 1e-4


def test_where_nothing_holds_the_scale_back_only_its_bound_does() -> None:
    data = 3 * np.eye(6)[np.arange(60) % 5]
    log, _ = scale_and_shift(data, np.arange(60) % 5, np.zeros((10, 6)), 1e-6)
    assert log == pytest.approx(HIGH, rel=1e-4)


def test_below_a_bound_of_one_s_own_the_minimum_is_found_too() -> None:
    data, chains = logits(200, 0.7, 1), logits(64, 0.7, 2)
    labels = data[:, :5].argmax(1)
    log, b = scale_and_shift(data, labels, chains, LAM, high=-0.1)
    bounds = [(LOW, -0.1), (-400.0, 400.0)]
    best = minimize(lambda p: objective(data, labels, chains, math.exp(p[0]), p[1]), [-0.5, 0.0], bounds=bounds).fun
    assert log == -0.1
    assert objective(data, labels, chains, math.exp(log), b) == pytest.approx(best, rel=1e-4)


def test_above_a_bound_of_one_s_own_the_minimum_is_found_too() -> None:
    data, chains = logits(200, 40.0, 1), logits(64, 40.0, 2)
    labels = np.arange(200) % 5
    log, b = scale_and_shift(data, labels, chains, LAM, low=-0.1)
    bounds = [(-0.1, HIGH), (-400.0, 400.0)]
    best = minimize(lambda p: objective(data, labels, chains, math.exp(p[0]), p[1]), [0.0, 40.0], bounds=bounds).fun
    assert log == -0.1
    assert objective(data, labels, chains, math.exp(log), b) == pytest.approx(best, rel=1e-4)


def small_method(**options: Any) -> EOW:
    torch.manual_seed(0)
    model = SplitModel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.nn.Linear(8, 4))
    method = EOW(model, EOWOptions(onset="settled", **options), 3, (4,))
    method.prepare(torch.device("cpu"))
    return method


def test_rounds_that_go_to_and_fro_get_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is the first that turns round. One that goes on in its direction may go as far as the last."""
    logs, lows, highs = [-0.3, 0.2, -0.3, 0.2, -0.2, -0.2, 0.2, 0.05], [], []

    def found(method: Any, x: Any, y: Any, low: float, high: float) -> list[float]:
        lows.append(low)
        highs.append(high)
        return [logs[len(lows) - 1], 0.0]

    monkeypatch.setattr("eow.methods.onset.one_round", found)
    method = small_method()
    before = method.model.head.weight.detach().clone()
    settle(method, torch.randn(6, 4), torch.arange(6) % 3)
    parts = (1, 1, 2, 4, 8, 16, 16, 32)
    assert lows == [LOW / part for part in parts]
    back = [-sum(logs[:count]) for count in range(8)]  # what would bring the logits back to where they were
    assert highs == pytest.approx([min(HIGH / part, most) for part, most in zip(parts, back)])
    torch.testing.assert_close(method.model.head.weight, before * math.exp(sum(logs)))


def test_there_are_eight_rounds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these wants another one; together they divide the logits by 11."""
    monkeypatch.setattr("eow.methods.onset.one_round", lambda *_: [-0.3, 0.0])
    method = small_method()
    before = method.model.head.weight.detach().clone()
    settle(method, torch.randn(6, 4), torch.arange(6) % 3)
    torch.testing.assert_close(method.model.head.weight, before * math.exp(-2.4))
    assert math.exp(2.4) < 30


@pytest.mark.parametrize("found", [[-0.3, math.nan], [math.nan, 1.0], [-0.3, -math.inf]])
def test_what_is_not_finite_settles_nothing(monkeypatch: pytest.MonkeyPatch, found: list[float]) -> None:
    monkeypatch.setattr("eow.methods.onset.one_round", lambda *_: found)
    method = small_method()
    before = [each.detach().clone() for each in method.model.parameters()]
    settle(method, torch.randn(6, 4), torch.arange(6) % 3)
    assert all(torch.equal(one, other) for one, other in zip(before, method.model.parameters()))


@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_chains_that_have_run_away_are_no_reason_to_settle(share: float, offset: float) -> None:
    """Finite as they are: the bound is that of a training step, for log h[K+1], which has no offset."""
    method = small_method(steps=0, chains=6)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    with torch.no_grad():
        method.model.head.weight.zero_()
        method.model.head.bias.copy_(LARGEST_ENERGY * (offset + torch.tensor([0.0, 0.0, 0.0, -share])))
    log, shift = one_round(method, x, y, LOW, 0.0)
    assert math.isfinite(log) == math.isfinite(shift) == (share < 1)


def test_settling_adds_no_confidence_to_a_batch_that_is_all_right() -> None:
    """Negatives from noise are told apart by the bias alone, and then larger logits look better without end."""
    training = begun(onset="settled", start="noise", steps=0)
    model = overconfident(training)
    x, y = next(iter(training.batches.epoch(4)))
    with torch.no_grad():
        right = model(x)[:, :-1].argmax(1) == y
        before = model(x[right])
        training.method.begin_epoch(4, 6)
        training.method.first_batch(x[right], y[right])
        after = model(x[right])
    torch.testing.assert_close(after[:, :-1], before[:, :-1])
    assert not torch.allclose(after[:, -1], before[:, -1])


def test_logits_beyond_all_rounding_have_no_shift() -> None:
    labels = np.arange(20) % 5
    alike = 1e19 * np.eye(6)[labels]
    assert math.isnan(scale_and_shift(alike, labels, alike, LAM)[1])


def begun(**method: Any) -> Training:
    config = resolve({
        "data": {"name": "digits", "holdout": 0.2}, "model": {"hidden": [32, 32], "unknown": "quadratic"},
        "train": {"epochs": 6}, "method": {"start_epoch": 4, "lam": LAM, **method},
    })  # fmt: skip
    return runs.begin(config, load_sets(config.data, 0), Place(torch.device("cpu")))


def overconfident(training: Training, factor: float = 10.0) -> SplitModel:
    """Four epochs without a term, and then logits as if of many more."""
    for epoch, _ in enumerate(training.epochs()):
        if epoch == 3:
            break
    model: SplitModel = training.method.model
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(factor)
    return model.eval()


def test_settling_leaves_the_classes_in_their_order_and_the_objective_low() -> None:
    training = begun(onset="settled")
    model = overconfident(training)
    x, y = next(iter(training.batches.epoch(4)))
    method: Any = training.method
    method.begin_epoch(4, 6)
    before, counted = model(x).detach(), method.tally.sums.clone()
    method.first_batch(x, y)
    after = model(x).detach()
    ratio = (after[:, :-1] / before[:, :-1]).median()
    assert 0.01 < ratio < 0.5
    torch.testing.assert_close(after[:, :-1], ratio * before[:, :-1], rtol=1e-3, atol=1e-4)
    assert torch.equal(method.tally.sums, counted)  # the log counts the chains of training alone

    def loss(told: torch.Tensor) -> float:
        with torch.no_grad():
            ends = model.tail(method.draw_negatives(model.encoder(x), y))
        odds = ends[:, -1] - ends[:, :-1].logsumexp(1)
        return float(cross_entropy(told, y) + LAM * softplus(-odds).mean())

    settled = loss(after)
    with torch.no_grad():  # and back
        model.head.bias[-1] -= after[0, -1] - ratio * before[0, -1]
        for parameter in model.head.parameters():
            parameter.div_(ratio)
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-2)
    assert settled < 0.5 * loss(before)


def test_settling_that_would_leave_nothing_of_the_logits_is_undone() -> None:
    training = begun(onset="settled", start="noise", start_width=1000.0)
    overconfident(training, 1.0)
    x, y = next(iter(training.batches.epoch(4)))
    before = [each.clone() for each in training.method.parameters()]
    training.method.begin_epoch(4, 6)
    with pytest.warns(RuntimeWarning, match="divide the logits by more than 30 and has been undone"):
        training.method.first_batch(x, y)
    assert all(torch.equal(one, other) for one, other in zip(before, training.method.parameters()))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_ends_of_chains_pass_in_the_mode_of_the_training_s_negatives(mode: Any) -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(8)
    model = SplitModel(torch.nn.Linear(4, 8), torch.nn.Sequential(norm, torch.nn.ReLU(), torch.nn.Linear(8, 4)))
    method = EOW(model, EOWOptions(onset="settled", negatives=mode, steps=3), 3, (4,)).train()
    modes: list[bool] = []
    norm.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    with pytest.warns(UserWarning, match="run under autograd"):
        one_round(method, torch.randn(60, 4), torch.arange(60) % 3, -1.0, 0.0)
    assert modes[-2:] == [True, mode == "train"]


@pytest.mark.parametrize(("onset", "epoch"), [("as_is", 4), ("settled", 3), ("settled", 5)])
def test_only_the_term_s_first_epoch_settles_and_only_if_asked(onset: str, epoch: int) -> None:
    training = begun(onset=onset)
    x, y = next(iter(training.batches.epoch(0)))
    before = [each.clone() for each in training.method.parameters()]
    training.method.begin_epoch(epoch, 6)
    training.method.first_batch(x, y)
    assert all(torch.equal(one, other) for one, other in zip(before, training.method.parameters()))


def test_a_term_from_the_start_has_nothing_to_settle() -> None:
    training = begun(onset="settled", start_epoch=0)
    x, y = next(iter(training.batches.epoch(0)))
    before = [each.clone() for each in training.method.parameters()]
    training.method.begin_epoch(0, 6)
    training.method.first_batch(x, y)
    assert all(torch.equal(one, other) for one, other in zip(before, training.method.parameters()))


def test_a_late_term_meets_a_lower_loss() -> None:
    """The energy term's mean over its first epoch, in logits that are far too large."""
    means = {}
    for onset in ("as_is", "settled"):
        training = begun(onset=onset)
        overconfident(training)
        line = next(training.epochs(4))
        means[onset] = line["energy"] + line["ce"]
    assert means["settled"] < 0.5 * means["as_is"]


@pytest.mark.parametrize("options", [{"onset": "settled"}, {"calibrate": "holdout"}, {"unknown_rate": 0.1}])
def test_a_head_without_a_bias_is_told_of(options: dict) -> None:
    encoder, head = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.nn.Linear(8, 4, bias=False)
    with pytest.raises(EowError, match=r"shift a bias.* set method\.onset=as_is"):
        EOW(SplitModel(encoder, head), EOWOptions(**options), 3, (4,))
    assert EOW(SplitModel(encoder, head), EOWOptions(), 3, (4,)).shift == 0


def test_settling_is_in_the_mode_of_training_and_moves_no_statistics() -> None:
    """With statistics of the batch this network is right, with its running ones it is not: only the first counts."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    scales = []
    for wrong in (0.0, 30.0):
        model = eow.upgrade(net, cut="penultimate", copy=True).train()
        norm = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d))
        norm.running_mean.fill_(wrong)
        method = EOW(model, EOWOptions(onset="settled", noise=0.0), 3, (4,))
        method.prepare(torch.device("cpu"))
        before = {name: each.clone() for name, each in model.named_buffers()}
        weight = model.head.weight.detach().clone()
        settle(method, x, y)
        assert all(torch.equal(each, before[name]) for name, each in model.named_buffers())
        assert norm.training
        scales.append(float(model.head.weight.norm() / weight.norm()))
    assert scales[0] == pytest.approx(scales[1])


def test_logits_that_are_no_numbers_are_left_to_the_step() -> None:
    """The run then goes back and gives up with its own sentence, as without settling."""
    training = begun(onset="settled", trust=0.0, step=3e38)
    with pytest.raises(EowError, match="the chains' mean energy reached"):
        list(training.epochs())


def test_settling_leaves_the_callers_batch_alone() -> None:
    class Doubles(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fc = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2.0)
            return self.fc(self.a(x).relu())

    x, y = torch.randn(30, 4), torch.arange(30) % 3
    given = x.clone()
    eow.OpenWorldLoss(eow.upgrade(Doubles()), onset="settled")(given, y)
    torch.testing.assert_close(given, 2 * x)  # by the one pass that trains


def test_a_model_that_is_fitted_again_settles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = []
    monkeypatch.setattr(eow.own.loss, "settle", lambda method, x, y: settled.append(len(y)))
    model = eow.upgrade(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    for times in (1, 2):
        eow.fit(model, (torch.randn(30, 4), torch.arange(30) % 3), epochs=1, onset="settled")
        assert len(settled) == times


def test_the_other_objective_cannot_be_settled() -> None:
    with pytest.raises(EowError, match=r"fits eq\. 4, which complement does not minimise"):
        begun(onset="settled", energy="complement")


PARALLEL = """
import torch
from eow.config import resolve
from eow.data.sets import load_sets
from eow.training.distributed import process_group
from eow.runs import begin

with process_group("cpu") as place:
    config = resolve({"data": {"name": "digits"}, "model": {"hidden": [16, 16]}, "train": {"epochs": 3},
                      "method": {"start_epoch": 2, "onset": "settled"}})
    training = begin(config, load_sets(config.data, 0), place)
    for line in training.epochs():
        if line["epoch"] == 1:
            break
    method = training.method
    method.begin_epoch(2, 3)
    x, y = next(iter(training.batches.epoch(2)))
    method.first_batch(x, y)
    mine = torch.cat([each.detach().flatten() for each in method.model.head.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    torch.distributed.all_gather(both, mine)
    assert torch.equal(*both)
    sums = [torch.empty_like(x.sum()) for _ in range(2)]
    torch.distributed.all_gather(sums, x.sum())
    assert sums[0] != sums[1]
"""


def test_processes_with_batches_of_their_own_settle_alike(tmp_path: Path) -> None:
    (tmp_path / "parallel.py").write_text(PARALLEL)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "parallel.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
