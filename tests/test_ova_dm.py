"""The one-vs-all distance classifier against its formulas, computed again in numpy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from torch import Tensor, nn

import eow
from eow import runs
from eow.config import resolve
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.methods import METHODS
from eow.methods.ova_dm import Distances, OvADM, log_p, raw_nll
from eow.metrics import nll_renormalised
from eow.models import SplitModel
from eow.models import build as build_model
from eow.predictions import losses, read
from eow.typed import build


def make(norm: str = "none", **options: object) -> OvADM:
    kind = METHODS["ova_dm"]
    method = kind(small_model(extra=0, norm=norm), build(kind.Options, options, "method"), 3, (4,))
    assert isinstance(method, OvADM)
    method.prepare(torch.device("cpu"))
    return method


def spread(method: OvADM, scale: float = 1.0) -> OvADM:
    """Centres that are not all the same, as after some training."""
    torch.manual_seed(1)
    with torch.no_grad():
        centres_of(method).normal_(0, scale)
    return method


def centres_of(method: OvADM) -> nn.Parameter:
    (head,) = [module for module in method.modules() if isinstance(module, Distances)]
    return head.centres


def batch(count: int = 30) -> tuple[Tensor, Tensor]:
    x, y = blobs(count)
    return torch.from_numpy(x), torch.from_numpy(y)


def distances_by_hand(method: OvADM, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        features = method.model.encoder(x).double().numpy()
    centres = centres_of(method).detach().double().numpy()
    return np.linalg.norm(features[:, None, :] - centres[None], axis=2)


@pytest.mark.parametrize("loss", ["sigmoid", "two_sigmoid"])
def test_the_loss_is_k_independent_cross_entropies(loss: str) -> None:
    method, (x, y) = spread(make(loss=loss)), batch()
    q = {"sigmoid": 1, "two_sigmoid": 2}[loss] / (1 + np.exp(distances_by_hand(method, x)))
    target = np.eye(3)[y.numpy()]
    expected = -(target * np.log(q) + (1 - target) * np.log(1 - q)).sum(1).mean()
    terms = method(x, y)
    assert set(terms) == {"ova"}
    assert terms["ova"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("loss", ["sigmoid", "two_sigmoid"])
@pytest.mark.parametrize("far", [0.0, 1e-4, 1e4])
def test_gradients_are_finite_on_a_centre_and_far_away(loss: str, far: float) -> None:
    """Where every feature is 0 so is its distance to the centres, which start at zero: a plain norm has no gradient."""
    method = OvADM(
        SplitModel(nn.Flatten(), nn.Linear(5, 3)), build(METHODS["ova_dm"].Options, {"loss": loss}, ""), 3, (5,)
    )
    x = torch.full((6, 5), far, requires_grad=True)
    term = method(x, torch.arange(6) % 3)["ova"]
    term.backward()
    assert torch.isfinite(term)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(centres_of(method).grad).all()  # type: ignore[arg-type]


def test_the_logarithms_of_two_sigmoids_are_stable() -> None:
    """1 - 2 sigmoid(-d) is tanh(d/2), which numpy has in float64."""
    d = torch.tensor([1e-3, 0.1, 1.0, 10.0, 30.0, 200.0])
    yes, no = log_p(-d)
    exact = d.double().numpy()
    np.testing.assert_allclose(yes.numpy(), np.log(2) - np.logaddexp(0, exact), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(no.numpy(), np.log(np.tanh(exact / 2)), rtol=1e-4, atol=1e-6)


def test_the_linear_head_is_gone_and_every_cut_works() -> None:
    model = build_model("mlp", 3, (1, 8, 8), cut="stage1", hidden=(16, 16), dropout=0.2)
    kind = METHODS["ova_dm"]
    method = spread(kind(model, kind.Options(), 3, (1, 8, 8)))  # type: ignore[arg-type]
    assert [module.out_features for module in model.modules() if isinstance(module, nn.Linear)] == [16, 16]
    x = torch.randn(2, 1, 8, 8)
    said = method.predict(x).logits
    for cut in model.cuts:
        method.model = model.recut(cut)
        torch.testing.assert_close(method.predict(x).logits, said)
    method(x, torch.tensor([0, 2]))["ova"].backward()
    assert all(parameter.grad is not None for parameter in method.parameters())  # DDP refuses unused parameters


def test_centres_start_at_zero() -> None:
    method, (x, _) = make(), batch()
    assert (centres_of(method) == 0).all()
    norms = method.model.encoder(x).norm(dim=1)
    torch.testing.assert_close(method.model(x), -norms[:, None].expand(-1, 3), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_predictions_are_unnormalised_and_leave_the_rest_to_the_unknown(scale: float) -> None:
    method, (x, y) = spread(make(), scale), batch()
    p = 2 / (1 + np.exp(distances_by_hand(method, x)))
    said = method.predict(x)
    assert (p.sum(1) < 1).any() if scale > 1 else (p.sum(1) > 1).any()  # both sides of the rule are seen
    np.testing.assert_allclose(said.confidence.numpy(), p.max(1), rtol=1e-4)
    np.testing.assert_array_equal(said.label.numpy(), p.argmax(1))
    np.testing.assert_allclose(said.unknown.numpy(), np.maximum(0, 1 - p.sum(1)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(said.probs.sum(1) + said.unknown, 1, rtol=1e-6)
    true = p[np.arange(30), y.numpy()]
    assert said.logits is not None
    assert raw_nll(said.logits.numpy(), y.numpy()) == pytest.approx(-np.log(true).mean(), rel=1e-4)
    normalised = -np.log(true / p.sum(1)).mean()
    assert nll_renormalised(said.probs, y) == pytest.approx(normalised, rel=1e-4)


def test_far_away_the_nearest_centre_is_still_the_label() -> None:
    """All p are 0 there in float32, so their argmax says nothing."""
    method = OvADM(SplitModel(nn.Flatten(), nn.Linear(2, 2)), METHODS["ova_dm"].Options(), 2, (2,))
    with torch.no_grad():
        centres_of(method).copy_(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
    said = method.predict(torch.tensor([[500.0, 0.0], [-500.0, 0.0]]))
    assert said.label.tolist() == [1, 0]
    assert said.confidence.tolist() == [0, 0]
    assert said.unknown.tolist() == [1, 1]


def test_distances_stay_in_float32_under_autocast() -> None:
    method, (x, y) = spread(make()), batch()
    with torch.autocast("cpu", torch.bfloat16):
        assert method.model(x).dtype == torch.float32
        assert method(x, y)["ova"].dtype == torch.float32


def test_it_trains_on_digits_and_is_restored(tmp_path: Path) -> None:
    config = resolve({"method": {"name": "ova_dm"}, "data": {"unknown_classes": [8, 9]}})
    figures = runs.train(config, tmp_path / "run", progress=False)["metrics"]
    assert figures["test"]["accuracy"] >= 0.93
    assert figures["unknown"]["auroc_confidence"] >= 0.95
    stored = read(tmp_path / "run" / "predictions" / "test.safetensors")
    loaded = runs.load(tmp_path / "run").method
    assert isinstance(loaded, OvADM)
    assert centres_of(loaded).abs().max() > 0.1
    data = load_sets(config.data, config.seed)
    said = loaded.predict(data.transform(torch.from_numpy(data.test.inputs)))
    np.testing.assert_allclose(said.logits, stored.logits, atol=1e-4)
    assert stored.logits is not None
    assert raw_nll(stored.logits, stored.labels) <= figures["test"]["nll"] + 1e-6  # probs never exceed p
    # Among the K classes both are of p / Σp: the confidence itself is p, whatever the others are.
    p = 2 / (1 + np.exp(-stored.logits.astype(np.float64)))
    assert (p.sum(1) > 1.01).any()
    np.testing.assert_allclose(stored.renormalised, p.max(1) / p.sum(1), rtol=1e-4)
    known = stored.correct
    np.testing.assert_allclose(stored.renormalised[known], np.exp(-losses(stored, renormalised=True))[known], rtol=1e-5)


def test_the_loss_option_changes_what_is_learnt() -> None:
    x, y = blobs(300)
    learnt = []
    for loss in ("sigmoid", "two_sigmoid"):
        method = eow.fit(small_model(extra=0), (x, y), method="ova_dm", epochs=40, lr=0.01, device="cpu", loss=loss)
        said = method.predict(torch.from_numpy(x))
        assert (said.label.numpy() == y).mean() > 0.95
        learnt.append(said.confidence.mean().item())
    assert abs(learnt[0] - learnt[1]) > 0.01


def test_scaled_centres_start_alike_and_learn_faster() -> None:
    """One step of gradient descent moves w = scale · v by scale² as much."""
    x, y = batch()
    moves = []
    for scale in (1.0, 4.0):
        method = make(centre_scale=scale)
        assert torch.equal(method(x, y)["ova"], make()(x, y)["ova"])
        method(x, y)["ova"].backward()
        moves.append(scale * centres_of(method).grad)  # type: ignore[operator]
    torch.testing.assert_close(moves[1], 16 * moves[0])
    assert moves[0].abs().max() > 0


def test_wrong_options_are_refused() -> None:
    with pytest.raises(EowError, match="centre_scale"):
        make(centre_scale=0.0)
    with pytest.raises(EowError, match=r"method\.loss"):
        make(loss="softmax")
    with pytest.raises(EowError, match=r"nn\.Linear"):
        OvADM(SplitModel(nn.Linear(4, 3), nn.Identity()), METHODS["ova_dm"].Options(), 3, (4,))
