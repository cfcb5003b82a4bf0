"""Label smoothing against its formula."""

from pathlib import Path

import pytest
import torch
from problems import blobs, small_model
from torch.nn.functional import cross_entropy, one_hot

from eow.config import resolve
from eow.errors import EowError
from eow.methods.label_smoothing import LabelSmoothing
from eow.runs import train


def make(**options: float) -> LabelSmoothing:
    return LabelSmoothing(small_model(extra=0), LabelSmoothing.Options(**options), 3, (4,))


def loss(smoothing: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The method's loss on 30 samples, the logits and labels it is made of."""
    method, (x, y) = make(smoothing=smoothing), map(torch.from_numpy, blobs(30))
    return method(x, y)["ce"].double(), method.model(x).double(), y


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_is_the_cross_entropy_of_the_soft_targets(smoothing: float) -> None:
    found, logits, y = loss(smoothing)
    targets = torch.tensor([[(k == label) * (1 - smoothing) + smoothing / 3 for k in range(3)] for label in y])
    by_hand = -(targets.double() * logits.softmax(1).log()).sum(1).mean()
    torch.testing.assert_close(found, by_hand)
    torch.testing.assert_close(found, cross_entropy(logits, targets.double()))


def test_the_best_answer_is_the_smoothed_label() -> None:
    """Gradient of the loss by the logits: h - t, zero where the softmax is the smoothed label itself."""
    y = torch.tensor([0, 2])
    targets = 0.8 * one_hot(y, 3) + 0.2 / 3
    logits = targets.log().requires_grad_()
    method = make(smoothing=0.2)
    method.model.forward = lambda x: logits  # type: ignore[method-assign]
    method(torch.zeros(2, 4), y)["ce"].backward()
    torch.testing.assert_close(logits.grad, torch.zeros(2, 3), atol=1e-7, rtol=0)


def test_smoothing_changes_the_loss_but_not_the_prediction() -> None:
    losses = [float(loss(smoothing)[0].detach()) for smoothing in (0.0, 0.1, 0.3)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)
    assert losses[1] - losses[0] == pytest.approx((losses[2] - losses[0]) / 3, rel=1e-4)  # linear in ε
    x = torch.from_numpy(blobs(30)[0])
    method = make(smoothing=0.3)
    torch.testing.assert_close(method.predict(x).probs, method.model(x).softmax(1))


def test_digits(tmp_path: Path) -> None:
    config = resolve({"method": {"name": "label_smoothing"}, "data": {"unknown_classes": [8, 9]}})
    known = train(config, tmp_path / "run", progress=False)["metrics"]["test"]
    assert known["accuracy"] >= 0.95
    assert known["confidence"] < 0.95  # the target is 0.9125 for 8 classes; vanilla is at 0.99


@pytest.mark.parametrize("wrong", [-0.1, 1.0, 2.0])
def test_wrong_shares_are_refused(wrong: float) -> None:
    with pytest.raises(EowError, match=r"method\.smoothing"):
        make(smoothing=wrong)
