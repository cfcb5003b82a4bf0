"""MC-Dropout against an explicit loop over passes and against the exact expectation over all masks."""

from itertools import product
from pathlib import Path

import pytest
import torch
from problems import blobs
from torch import Tensor, nn

from eow.config import resolve
from eow.errors import EowError
from eow.methods import mc_dropout
from eow.methods.mc_dropout import MCDropout
from eow.models import SplitModel, build
from eow.runs import train
from eow.seeds import derive


def make(model: SplitModel | None = None, *, dropout: float = 0.3, seed: int = 0, **options: float) -> MCDropout:
    torch.manual_seed(0)
    model = model or build("mlp", 3, (4,), hidden=(16, 16), dropout=dropout)
    return MCDropout(model, MCDropout.Options(**options), 3, (4,), seed)  # type: ignore[arg-type]


def inputs(count: int = 20) -> Tensor:
    return torch.from_numpy(blobs(count)[0])


def loop(method: MCDropout, x: Tensor) -> Tensor:
    """One pass of the whole network after the other, the masks from the method's seed."""
    total = torch.zeros(len(x), 3, dtype=torch.float64)
    method.model.eval()
    for module in method.model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    torch.manual_seed(derive("masks", method.seed))
    with torch.no_grad():
        for _ in range(method.options.passes):
            total += method.model(x).double().softmax(1)
    method.model.eval()
    return total / method.options.passes


def test_prediction_is_the_mean_over_a_loop_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    method, x = make(passes=7), inputs()
    monkeypatch.setattr(mc_dropout, "ROWS", 20)  # one pass at a time, so that the loop draws the same masks
    said = method.predict(x)
    torch.testing.assert_close(said.probs.double(), loop(method, x), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(said.logits.exp(), said.probs)
    assert torch.equal(said.label, said.probs.argmax(1))


def test_passes_run_together_have_masks_of_their_own() -> None:
    method, x = make(passes=9), inputs()
    logits = method.passes(x)
    assert logits.shape == (9, 20, 3)
    assert len({tuple(each.flatten().tolist()) for each in logits}) == 9
    same = method.passes(inputs(1).expand(20, 4))
    assert len({tuple(row.tolist()) for row in same[0]}) > 10  # nor do the samples of a pass share one


def test_mean_approaches_the_expectation_over_all_masks() -> None:
    """Four features before the head, 16 masks: the exact mean, and the deviation that 20,000 draws of it have."""
    torch.manual_seed(0)
    head = nn.Linear(4, 3)
    head.weight.data *= 3
    rate, passes, x = 0.3, 20_000, inputs(2)
    method = make(SplitModel(nn.Identity(), head), rate=rate, passes=passes)
    mean, square = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for mask in product((0.0, 1.0), repeat=4):
        weight = rate ** mask.count(0.0) * (1 - rate) ** mask.count(1.0)
        probs = (x * torch.tensor(mask) / (1 - rate) @ head.weight.T + head.bias).double().softmax(1).detach()
        mean, square = mean + weight * probs, square + weight * probs**2
    deviation = ((square - mean**2) / passes).sqrt()
    assert ((method.predict(x).probs - mean).abs() < 4 * deviation + 1e-6).all()
    assert (deviation > 1e-4).any()  # the masks matter here


def test_the_same_batch_is_always_answered_alike_and_global_randomness_stays() -> None:
    method, x = make(), inputs()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    said = method.predict(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(method.predict(x).probs, said.probs)
    assert torch.equal(make().predict(x).probs, said.probs)
    assert not torch.equal(make(seed=1).predict(x).probs, said.probs)


def test_what_comes_before_the_first_dropout_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method, x = make(passes=30), inputs()
    rows: dict[str, list[int]] = {"first": [], "second": [], "head": []}
    layers = [module for module in method.model.modules() if isinstance(module, nn.Linear)]
    for name, layer in zip(rows, layers):
        layer.register_forward_hook(lambda _, given, out, name=name: rows[name].append(len(out)))
    monkeypatch.setattr(mc_dropout, "ROWS", 250)
    method.predict(x)
    assert rows == {"first": [20], "second": [240, 240, 120], "head": [240, 240, 120]}
    for cut in ("input", "stage1"):  # where the sampler would cut the model plays no part
        torch.testing.assert_close(make(method.model.recut(cut)).predict(x).probs, method.predict(x).probs)


def test_two_modules_put_together_by_hand() -> None:
    """With dropout in the encoder both run every time."""
    parts = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)), nn.Linear(8, 3)
    method = make(SplitModel(*parts), passes=5)
    assert len({tuple(each.flatten().tolist()) for each in method.passes(inputs())}) == 5


def test_batch_norm_stays_in_evaluation() -> None:
    model = build("mlp", 3, (4,), hidden=(16, 16), norm="batch", dropout=1e-9)
    method, x = make(model).train(), inputs()
    model(x)  # running statistics that are not the initial ones
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    said = method.predict(x)  # at this rate nothing falls, so all passes are the plain network's in evaluation
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in method.modules())
    torch.testing.assert_close(said.probs, model.eval()(x).softmax(1))


def test_a_model_without_dropout_is_given_one_before_its_head() -> None:
    bare = build("mlp", 3, (4,), hidden=(16, 16))
    given = make(bare)
    assert list(given.model.state_dict()) == list(build("mlp", 3, (4,), hidden=(16, 16), dropout=0.2).state_dict())
    assert [module.p for module in given.modules() if isinstance(module, nn.Dropout)] == [0.1]
    assert given.model.head.out_features == 3
    assert len({tuple(each.flatten().tolist()) for each in given.passes(inputs())}) == 30
    (own,) = {module.p for module in make(dropout=0.4).modules() if isinstance(module, nn.Dropout)}
    assert own == 0.4


def test_the_rate_and_the_passes_do_what_they_say() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(30))
    for dropout in (0.0, 0.2):
        rates = [m.p for m in make(dropout=dropout, rate=0.5).modules() if isinstance(m, nn.Dropout)]
        assert set(rates) == {0.5}
    losses, answers = [], []
    for options in ({"rate": 0.1}, {"rate": 0.5}, {"rate": 0.5, "passes": 3}):
        method = make(**options).train()
        torch.manual_seed(0)
        losses.append(float(method(x, y)["ce"].detach()))
        answers.append(method.predict(x).probs)
    assert losses[0] != losses[1]  # dropout falls in training
    assert not torch.allclose(answers[0], answers[1], atol=1e-3)
    assert not torch.allclose(answers[1], answers[2], atol=1e-3)
    assert torch.isclose(make().eval()(x, y)["ce"], nn.functional.cross_entropy(make().eval().model(x), y))


def test_digits(tmp_path: Path) -> None:
    config = resolve({"method": {"name": "mc_dropout"}, "data": {"unknown_classes": [8, 9]}})
    assert config.model.dropout == 0.1
    assert train(config, tmp_path / "run", progress=False)["metrics"]["test"]["accuracy"] >= 0.95


@pytest.mark.parametrize("wrong", [{"passes": 0}, {"rate": 1.0}, {"rate": -0.1}])
def test_wrong_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(EowError, match=rf"method\.{next(iter(wrong))}"):
        make(**wrong)
