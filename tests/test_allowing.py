"""What torch.fx does not read and `eow.upgrade` does: guards, einops, sizes of new tensors, modules made on the way."""

import io
import sys
import types

import pytest
import torch
from guards import Asserts, AssertsBehind, Counts, Net, Raises
from torch import Tensor, nn

import eow
from eow.errors import EowError


def repeat(tensor: Tensor, pattern: str, *, b: int) -> Tensor:
    """As einops has it, which looks at the type of what it is given and knows no stand-ins."""
    if type(tensor) not in (Tensor, nn.Parameter):
        raise TypeError(f"Tensor type unknown to einops {type(tensor)}")
    return tensor.expand(b, -1)


class Repeats(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        return self.head(h + repeat(self.token, "1 d -> b d", b=h.shape[0]))


class RepeatsByModule(Net):
    def own(self, h: Tensor) -> Tensor:
        return h + sys.modules["einops"].repeat(self.token, "1 d -> b d", b=h.shape[0])


class Makes(Net):
    def own(self, h: Tensor) -> Tensor:
        return h + torch.ones(h.size(0), 8, dtype=h.dtype) * torch.full((h.shape[0], 1), 0.5)


class OnTheWay(Net):
    def own(self, h: Tensor) -> Tensor:
        h = nn.GELU()(self.layers[:2](h))
        return nn.LayerNorm(8, elementwise_affine=False)(h)


@pytest.mark.filterwarnings("ignore:this tail's gradient is not written out")
@pytest.mark.parametrize("kind", [Asserts, AssertsBehind, Raises, Repeats, RepeatsByModule, Makes, OnTheWay])
def test_they_are_read_and_kept(kind: type[Net], monkeypatch: pytest.MonkeyPatch) -> None:
    einops = types.ModuleType("einops")
    einops.repeat = repeat  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "einops", einops)
    torch.manual_seed(0)
    model, x = kind().eval(), torch.rand(6, 8)
    upgraded = eow.upgrade(model, cut="layers.1")
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    assert {"input", "layers.0", "penultimate"} < set(upgraded.cuts)
    for rows in (1, 5):  # nothing remains of the batch it was read with
        assert torch.equal(upgraded(x[:rows])[:, :-1], model(x[:rows]))
    eow.OpenWorldLoss(upgraded, steps=2)(x, torch.tensor([0, 1, 2] * 2)).backward()
    learning = {name.partition(".")[2] for name, each in upgraded.named_parameters() if each.grad is not None}
    assert ("token" in learning) == (kind in (Repeats, RepeatsByModule))
    file = io.BytesIO()
    torch.save(upgraded, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), upgraded(x))
    assert torch.ones is torch._C._VariableFunctions.ones  # as it was


@pytest.mark.parametrize("kind", [Asserts, AssertsBehind, Raises])
def test_what_a_forward_asks_of_its_input_is_asked_at_every_call(kind: type[Net]) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(4, 8) * 1e5
    upgraded = eow.upgrade(model)
    with pytest.raises((AssertionError, ValueError), match="too large"):
        model(x)
    with pytest.raises(AssertionError, match=rf"what {kind.__name__}\.\w+ asks of its input does not hold"):
        upgraded(x)
    with pytest.raises(EowError, match="the model cannot take inputs of shape"):
        eow.predict(upgraded, x)


class Chooses(Net):
    def own(self, h: Tensor) -> Tensor:
        return h * 2 if h.shape[1] == 8 else h


class ChoosesByStatement(Net):
    def own(self, h: Tensor) -> Tensor:
        if h.shape[1] == 8:
            return h * 2
        if self.training is None:
            raise ValueError
        return h


class Learns(Net):
    def own(self, h: Tensor) -> Tensor:
        return nn.Linear(8, 8)(h)


@pytest.mark.parametrize("kind", [Chooses, ChoosesByStatement, Learns])
def test_other_decisions_and_new_weights_are_refused(kind: type[Net]) -> None:
    with pytest.raises(EowError, match=f"torch.fx cannot trace {kind.__name__}.forward"):
        eow.upgrade(kind())


def test_a_forward_that_counts_its_logits_is_told() -> None:
    with pytest.raises(EowError, match="its forward must not count its logits"):
        eow.upgrade(Counts())
