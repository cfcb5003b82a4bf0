"""JEM against its formulas: energies, chains, starts, and what happens when it diverges."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import eow
from eow import runs, storage
from eow.config import build, resolve
from eow.errors import EowError
from eow.methods import METHODS, jem
from eow.methods.jem import JEM, PixelGaussians, energy_of
from eow.models import SplitModel, alike_in_both_modes
from eow.models import build as build_model

SMALL: dict[str, Any] = {"chains": 20, "buffer_size": 50, "steps": 3}


def make(norm: str = "none", model: SplitModel | None = None, **options: Any) -> JEM:
    kind = METHODS["jem"]
    table = build(kind.Options, {**SMALL, **options}, "method")
    method = kind(model or small_model(extra=0, norm=norm), table, 3, (4,))
    assert isinstance(method, JEM)
    method.prepare(torch.device("cpu"))
    method.stream.manual_seed(0)
    return method


def batch(count: int = 30) -> tuple[Tensor, Tensor]:
    x, y = blobs(count)
    return torch.from_numpy(x), torch.from_numpy(y)


def energies_by_hand(method: JEM, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return -np.log(np.exp(method.model(x).double().numpy()).sum(1))


def test_the_loss_is_cross_entropy_and_the_gap_of_energies() -> None:
    """The ends of the chains are what the buffer holds in the drawn slots."""
    method, (x, y) = make(weight=0.5, energy_penalty=0.2), batch()
    terms = method(x, y)
    negatives = method.buffer.slots[method.buffer.drawn]
    assert len(negatives) == 20
    data, chains = energies_by_hand(method, x), energies_by_hand(method, negatives)
    h = method.model(x).double().softmax(1)
    assert set(terms) == {"ce", "energy", "penalty"}
    torch.testing.assert_close(terms["ce"].double(), -h[range(30), y].log().mean())
    assert terms["energy"].item() == pytest.approx(0.5 * (data.mean() - chains.mean()), rel=1e-4)
    squares = np.concatenate([data, chains]) ** 2
    assert terms["penalty"].item() == pytest.approx(0.2 * squares.mean(), rel=1e-4)
    assert set(make()(x, y)) == {"ce", "energy"}


def test_without_norm_one_pass_over_the_data_gives_what_two_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same terms and gradients, from a third of the passes less."""
    (x, y), found = batch(), []
    for shared in (True, False):
        method = make(weight=0.5, energy_penalty=0.2).train()
        assert jem.alike_in_both_modes(method.model)
        with monkeypatch.context() as patch:
            if not shared:
                patch.setattr(jem, "alike_in_both_modes", lambda _: False)
            terms = method(x, y)
        sum(terms.values()).backward()
        found.append((terms, [parameter.grad for parameter in method.model.parameters()]))
    torch.testing.assert_close(found[0], found[1])


def test_a_network_that_training_changes_is_asked_twice() -> None:
    assert not alike_in_both_modes(small_model(extra=0, norm="batch"))
    assert not alike_in_both_modes(build_model("mlp", 3, (4,), dropout=0.5))
    assert not alike_in_both_modes(build_model("mlp", 3, (4,), input_noise=0.1))
    assert not alike_in_both_modes(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))))
    hooked = nn.Linear(4, 3)
    assert alike_in_both_modes(hooked)
    hooked.register_forward_hook(lambda layer, x, y: y * 2 if layer.training else y)
    assert not alike_in_both_modes(hooked)
    assert alike_in_both_modes(build_model("resnet18", 3, (3, 8, 8), norm="none"))


def test_step_two_is_jems_step_one_in_the_space_of_inputs() -> None:
    """Before a linear layer the gradient of E is -softmax(Wx) W, wherever the model is cut."""
    torch.manual_seed(0)
    method = make(model=SplitModel(nn.Flatten(), nn.Linear(4, 3)), steps=1, step=2.0, noise=0.0, restart=0.0)
    before = method.buffer.slots.clone()
    ends = method.draw_negatives(*batch())
    start, head = before[method.buffer.drawn], method.model.head
    with torch.no_grad():
        expected = start + head(start).softmax(1) @ head.weight
    torch.testing.assert_close(ends, expected)


def test_chains_work_on_inputs_whatever_the_cut() -> None:
    x, y = batch()
    cuts = [make(model=small_model(extra=0).recut(cut)) for cut in ("input", "stage1", "penultimate")]
    losses = [method(x, y)["energy"] for method in cuts]
    assert losses[0] == losses[1] == losses[2]
    assert all(method.buffer.slots.shape == (50, 4) for method in cuts)


def test_chains_leave_batch_statistics_alone_and_energies_are_those_of_prediction() -> None:
    x, y = batch()
    jem, vanilla = make(norm="batch").train(), small_model(extra=0, norm="batch").train()
    terms = jem(x, y)
    vanilla(x)
    for (name, buffer), (_, other) in zip(jem.model.named_buffers(), vanilla.named_buffers()):
        assert torch.equal(buffer, other), name
    negatives = jem.buffer.slots[jem.buffer.drawn]
    jem.eval()
    gap = energies_by_hand(jem, x).mean() - energies_by_hand(jem, negatives).mean()
    assert terms["energy"].item() == pytest.approx(gap, rel=1e-4)


@pytest.mark.parametrize(
    "change",
    [{"weight": 0.5}, {"energy_penalty": 0.1}, {"chains": 10}, {"start": "informative"}, {"start_width": 4.0},
     {"restart": 0.9}, {"steps": 4}, {"step": 4.0}, {"noise": 0.5}, {"noise": "langevin"}, {"trust": 0.001},
     {"buffer_size": 60}],
)  # fmt: skip
def test_every_setting_changes_the_loss(change: dict[str, Any]) -> None:
    x, y = batch()
    usual, changed = make(), make(**change)
    totals = [sum(method(x, y).values()) for method in (usual, changed)]
    assert totals[0] != totals[1]
    assert torch.equal(make()(x, y)["energy"], make()(x, y)["energy"])  # and nothing else does


def test_trust_is_counted_in_mean_input_norms() -> None:
    method, (x, y) = make(step=500.0, trust=0.01, restart=0.0), batch()
    before = method.buffer.slots.clone()
    ends = method.draw_negatives(x, y)
    assert (ends - before[method.buffer.drawn]).norm(dim=1).max() <= 0.01 * x.norm(dim=1).mean() * 1.001
    assert method.counters()["capped"] == 20


def test_gaussians_hold_every_class_of_all_batches() -> None:
    gaussians, random = PixelGaussians(3, (2, 1, 2)), np.random.default_rng(0)
    scale = np.array([0.5, 1.0, 2.0])
    y = random.choice(3, 6000, p=[0.2, 0.3, 0.5])
    x = (100 + 10 * y[:, None] + scale[y, None] * random.normal(size=(6000, 4))).astype(np.float32)
    for part in np.split(np.arange(6000), 6):
        gaussians.count(torch.from_numpy(x[part]).view(-1, 2, 1, 2), torch.from_numpy(y[part]))
    drawn = gaussians.draw(20_000, torch.Generator().manual_seed(0))
    assert drawn.shape == (20_000, 2, 1, 2)
    flat = drawn.flatten(1).double().numpy()
    nearest = np.abs(flat.mean(1, keepdims=True) - 100 - 10 * np.arange(3)).argmin(1)
    for label in range(3):
        mine, seen = flat[nearest == label], x[y == label].astype(np.float64)
        assert len(mine) / 20_000 == pytest.approx(len(seen) / 6000, abs=0.015)
        np.testing.assert_allclose(mine.mean(0), seen.mean(0), atol=5 * scale[label] / np.sqrt(len(mine)))
        np.testing.assert_allclose(mine.std(0), seen.std(0), rtol=0.05)


def test_informative_chains_start_at_the_data_once_and_then_go_on() -> None:
    x, y = batch()
    method = make(start="informative", chains=50, steps=0, restart=0.0)
    first = method.draw_negatives(x + 100, y)
    assert (first - 100).abs().max() < 20  # noise would lie within 2 of 0
    slots = method.buffer.slots.clone()
    method.draw_negatives(x, y)
    assert torch.equal(method.buffer.slots, slots)
    method.options = build(METHODS["jem"].Options, {**SMALL, "start": "informative", "restart": 1.0}, "method")
    again = method.draw_negatives(x, y)
    assert (torch.cdist(again, slots) > 0).all()


def test_predictions_are_the_softmax_of_the_logits() -> None:
    method, (x, _) = make(), batch()
    logits = method.model(x).detach().double().numpy()
    h = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    said = method.predict(x)
    np.testing.assert_allclose(said.probs, h, rtol=1e-5)
    np.testing.assert_allclose(said.confidence, h.max(1), rtol=1e-5)
    assert (said.unknown == 0).all()


def test_the_log_counts_chains_and_their_descent() -> None:
    method, (x, y) = make(noise=0.0), batch()
    for _ in range(2):
        method(x, y)
    counted = method.counters()
    assert counted["chains"] == 40
    assert counted["energy_end"] < counted["energy_start"]
    assert method.counters() == {}


def test_the_energy_learns_where_the_data_is() -> None:
    """Cross-entropy alone makes the energy fall away from the data (a ReLU network is linear there); JEM lifts it."""
    x, y = blobs(300)
    around = np.random.default_rng(1).uniform(-15, 15, (300, 4)).astype(np.float32)
    ranks = {}
    for name, options in (("vanilla", {}), ("jem", {"steps": 10, "buffer_size": 500, "start_width": 15.0})):
        method = eow.fit(
            small_model(extra=0), (x, y), method=name, epochs=40, batch=100, lr=0.01, device="cpu", **options
        )
        score = -energy_of(method.model(torch.from_numpy(np.concatenate([x, around])))).detach().numpy()
        ranks[name] = roc_auc_score(np.arange(600) < 300, score)
        assert (method.predict(torch.from_numpy(x)).label.numpy() == y).mean() > 0.95
    assert ranks["jem"] > 0.9
    assert ranks["jem"] > ranks["vanilla"] + 0.1


def test_it_trains_on_digits_and_is_restored(tmp_path: Path) -> None:
    config = resolve({"method": {"name": "jem"}, "data": {"unknown_classes": [8, 9]}})
    figures = runs.train(config, tmp_path / "run", progress=False)["metrics"]
    assert figures["test"]["accuracy"] >= 0.93
    loaded = runs.load(tmp_path / "run").method
    assert not any("slots" in name or "gaussians" in name for name in loaded.state_dict())


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return list(storage.Log(folder / "log.jsonl").read())


def test_a_run_at_an_absurd_rate_is_rolled_back_and_ends_with_a_sentence(tmp_path: Path) -> None:
    config = resolve({
        "method": {"name": "jem", "steps": 2}, "model": {"hidden": [16]},
        "train": {"optimizer": "sgd", "lr": 1000.0, "epochs": 2, "schedule": "constant", "rollbacks": 2},
    })  # fmt: skip
    with pytest.raises(EowError, match=r"\(method.energy_penalty=0.1\), or lower train.lr. Given up after 2 roll"):
        runs.train(config, tmp_path / "run", progress=False)
    lines = lines_of(tmp_path / "run")
    assert [(line["event"], line["rate_factor"]) for line in lines] == [("rollback", 0.5), ("rollback", 0.25)]


def test_energies_that_part_are_rolled_back_at_half_the_rate(tmp_path: Path) -> None:
    """The first epoch's mean gap lies above the limit, the same epoch at a lower rate below it."""
    table: dict[str, Any] = {
        "method": {"name": "jem", "steps": 2, "start": "noise", "weight": 1.0, "energy_penalty": 0.0},
        "model": {"hidden": [16]},
        "train": {"optimizer": "sgd", "lr": 0.05, "epochs": 1, "schedule": "constant"},
    }  # fmt: skip
    runs.train(resolve(table), tmp_path / "free", progress=False)
    gap = abs(lines_of(tmp_path / "free")[0]["energy"])
    table["method"]["largest_gap"] = 0.9 * gap
    runs.train(resolve(table), tmp_path / "held", progress=False)
    first, *rest = lines_of(tmp_path / "held")
    assert (first["event"], first["rate_factor"]) == ("rollback", 0.5)
    assert "energies of data and chains" in first["reason"]
    assert [line["epoch"] for line in rest if "event" not in line] == [0]


@pytest.mark.parametrize(
    "wrong",
    [{"weight": 0.0}, {"energy_penalty": -0.1}, {"chains": 0}, {"chains": 51}, {"start": "moon"}, {"start_width": 0.0},
     {"buffer_size": 0}, {"restart": 2.0}, {"steps": -1}, {"step": 0.0}, {"noise": "x"}, {"trust": -1.0},
     {"largest_gap": 0.0}],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EowError):
        make(**wrong)
