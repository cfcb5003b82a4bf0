"""`eow.upgrade(model, trace=False)`: a model that is not read, but only parted from its last layer."""

import copy
import dataclasses
import io
import threading
from collections import UserDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eow
from eow.errors import EowError


class Patches(nn.Module):
    """A transformer that asks what it was given, adds a token and loops, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 16, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 17, 16) / 4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            raise ValueError(f"an odd side, {x.shape[-1]}")
        z = self.embed(x).flatten(2).transpose(1, 2)
        z = torch.cat([self.token.expand(len(z), -1, -1), z], 1) + self.place
        for block in self.blocks:
            z = block(z)
        return self.head(z[:, 0])


class Words(nn.Module):
    """Looks where each row ends, and returns what stands there."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.score = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        ends = [int(row.nonzero().max()) if row.any() else 0 for row in x]
        z, _ = self.cell(self.embed(x))
        return self.score(torch.stack([each[end] for each, end in zip(z, ends)]))


class Then(nn.Module):
    """A loop, a head, and something more."""

    def __init__(self, then: Callable[["Then", Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.last, self.then = nn.Linear(4, 4), nn.Linear(4, 4), then
        self.kept = [self.last.weight]

    def forward(self, x: Tensor) -> Any:
        z = x
        while z.norm() < 3:
            z = 2 * z
        return self.then(self, self.body(z), self.last(self.body(z)))


@pytest.mark.parametrize(
    ("model", "x"),
    [(Patches(), torch.randn(6, 1, 8, 8)), (Words(), torch.randint(20, (6, 7))), (nn.Linear(5, 4), torch.randn(6, 5)),
     (Then(lambda self, z, f: f), torch.randn(6, 4)), (Patches().double(), torch.randn(6, 1, 8, 8).double())],
)  # fmt: skip
def test_the_logits_are_what_they_were_and_the_model_is_not_touched(model: nn.Module, x: Tensor) -> None:
    model.eval()
    state, modules = copy.deepcopy(model.state_dict()), [type(each) for each in model.modules()]
    before = model(x)
    upgraded = eow.upgrade(model, example=x, trace=False)
    found = upgraded(x)
    assert torch.equal(found[:, :-1], before)
    assert found.softmax(1)[:, -1].max() < 1e-6
    assert not upgraded.training
    assert [type(each) for each in model.modules()] == modules
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    own = {each.data_ptr() for each in model.parameters()}
    assert not own & {each.data_ptr() for each in upgraded.parameters()}


def test_what_can_be_read_is_the_same_either_way() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(9, 4)
    read, unread = eow.upgrade(model), eow.upgrade(model, trace=False)
    assert torch.equal(read(x), unread(x))
    assert (unread.cut, unread.classes) == (read.cut, read.classes) == ("penultimate", 3)
    with pytest.raises(EowError, match=r"cut before its last layer alone: leave cut='0' out"):
        eow.upgrade(model, cut="0", trace=False)


def test_without_a_copy_the_weights_are_shared_but_for_the_head() -> None:
    model, x = Patches().eval(), torch.randn(3, 1, 8, 8)
    upgraded = eow.upgrade(model, example=x, trace=False, copy=False)
    theirs, ours = dict(model.named_parameters()), dict(upgraded.encoder.named_parameters())
    assert {*ours} == {name for name in theirs if not name.startswith("head")}
    assert all(ours[name] is theirs[name] for name in ours)
    assert isinstance(model.head, nn.Linear)
    assert model(x).shape == (3, 8)


def test_it_trains_learns_an_unknown_and_is_saved() -> None:
    """A transformer on 8x8 digits, 8 and 9 never seen."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
    known, model = labels < 8, Patches()
    X, y = images[known][:1000], labels[known][:1000]
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(20):
        for at in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[at]), y[at]).backward()
            optimizer.step()
    upgraded = eow.upgrade(model, example=X, trace=False)
    eow.fit(upgraded, (X, y), epochs=4, seed=0)
    test, truth = images[known][1000:], labels[known][1000:]
    before = (model.eval()(test).argmax(1) == truth).float().mean()
    said = eow.predict(upgraded, test)
    assert (said.probs.argmax(1) == truth).float().mean() > before - 0.02 > 0.8
    unseen = eow.predict(upgraded, images[~known]).unknown.mean()
    assert unseen > 1.5 * said.unknown.mean()
    again = eow.upgrade(Patches(), example=X, trace=False)
    again.load_state_dict(upgraded.state_dict())
    file = io.BytesIO()
    torch.save(upgraded, file)
    file.seek(0)
    for other in (again, torch.load(file, weights_only=False), copy.deepcopy(upgraded)):
        assert torch.equal(eow.predict(other, X[:9]).unknown, eow.predict(upgraded, X[:9]).unknown)


@pytest.mark.parametrize(
    ("then", "sentence"),
    [
        (lambda self, z, f: f / 2, r"last cannot be taken off Then \(what the two say together is"),
        (lambda self, z, f: f.softmax(1), r"Then ends in a softmax, so it gives no logits: let it return what last"),
        (lambda self, z, f: f.log_softmax(1), r"Then ends in a log_softmax, .* train with cross-entropy"),
        (lambda self, z, f: f if self.training else f.sigmoid(), r"Then ends in a sigmoid, so it gives no logits"),
        (lambda self, z, f: f + self.last.weight.sum(), r"last cannot be taken off Then \('Identity' object has no"),
        (lambda self, z, f: self.last(f), r"last cannot be taken off Then .* must call that layer once"),
        (lambda self, z, f: f + self.last(z * 2), r"last cannot be taken off Then"),
        (lambda self, z, f: (f, z), r"returns a tuple: make its forward return the logits alone"),
        (
            lambda self, z, f: f if not self.training else f * 2,
            r"in training, without its last linear layer, last, ",
        ),
        (lambda self, z, f: f.clamp(-30, 30), r"\(what that layer says does not come out as it is\)"),
        (lambda self, z, f: f + 0 * z @ self.kept[0], r"reads the weights of its last linear layer, last, beside"),
        (lambda self, z, f: f[0], r"it must give one row of logits for each input"),
    ],
)
def test_a_layer_that_has_not_the_last_word_is_refused(then: Any, sentence: str) -> None:
    torch.manual_seed(0)
    model = Then(then).eval()
    before = [*model.modules()]
    for own in (True, False):
        with pytest.raises(EowError, match=sentence):
            eow.upgrade(model, example=torch.randn(5, 4), trace=False, copy=own)
    assert [*model.modules()] == before


def test_a_last_layer_of_two_names_is_taken_off_by_both() -> None:
    model, x = Then(lambda self, z, f: self.other(z)), torch.randn(5, 4)
    model.other = model.last
    before = model(x)
    upgraded = eow.upgrade(model, example=x, trace=False)
    assert torch.equal(upgraded(x)[:, :-1], before)
    assert {name.partition(".")[0] for name, _ in upgraded.encoder.named_parameters()} == {"body"}


def test_what_cannot_be_copied_is_told_without_a_copy_too() -> None:
    """Modules are copied whatever `copy` says: one that hides in a function would be left in its own mode."""
    x, model = torch.randn(5, 4), Then(lambda self, z, f: f)
    model.lock = threading.Lock()
    with pytest.raises(EowError, match=r"the layers before last cannot be copied \(cannot pickle .* pass the two"):
        eow.upgrade(model, example=x, trace=False, copy=False)
    model, dropout = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3)).eval(), nn.Dropout()
    model[1].held, model[1].forward = dropout, lambda z: dropout(z)
    with pytest.raises(EowError, match=r"del model.get_submodule\('1'\).forward, or pass the two parts yourself"):
        eow.upgrade(model, example=x, trace=False, copy=False)


@pytest.mark.parametrize("own", [True, False])
def test_an_inner_function_that_holds_layers_is_told(own: bool) -> None:
    """The encoder would compute with layers of the model given: weights that are never trained, or another mode."""
    model = Then(lambda self, z, f: self.last(self.act(z))).eval()
    model.inner = nn.Linear(4, 4)
    model.act = lambda z: model.inner(z)
    with pytest.raises(EowError, match=r"inner.weight.* of the model it was copied from, .* method, or pass the two"):
        eow.upgrade(model, example=torch.randn(5, 4), trace=False, copy=own)


@dataclasses.dataclass
class Output:
    logits: Any
    loss: Any = None


class Named(nn.Module):
    """Returns its logits in something, in training with another loss beside them."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.drop, self.score, self.kind = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3), kind

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.score(self.drop(self.body(x).relu()))
        return self.kind(logits=logits, loss=logits.square().mean() if self.training else None)


@pytest.mark.parametrize("kind", [dict, UserDict, Output])
@pytest.mark.parametrize("own", [True, False])
def test_logits_that_are_returned_by_that_name_are_taken(kind: Callable[..., Any], own: bool) -> None:
    torch.manual_seed(0)
    model, x = Named(kind).eval(), torch.randn(40, 4)
    before, state = model(x), copy.deepcopy(model.state_dict())
    expected = before.logits if kind is Output else before["logits"]
    for upgraded in (eow.upgrade(model, trace=False, copy=own), eow.upgrade(model, example=x, trace=False, copy=own)):
        assert torch.equal(upgraded(x)[:, :-1], expected)
        assert type(model(x)) is kind
    model.train()
    torch.manual_seed(1)
    expected = model.score(model.drop(model.body(x).relu()))
    torch.manual_seed(1)
    assert torch.equal(upgraded.train()(x)[:, :-1], expected)
    trained = copy.deepcopy(upgraded)
    eow.fit(trained, (x, torch.arange(40) % 3), epochs=1, steps=2)
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    again = eow.upgrade(Named(kind), trace=False)
    again.load_state_dict(trained.state_dict())
    assert torch.equal(eow.predict(again, x).probs, eow.predict(trained, x).probs)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (namedtuple("Pair", "logits loss"), "a Pair"),
        (SimpleNamespace, "a SimpleNamespace"),
        (lambda logits, loss: {"scores": logits}, "a dict"),
        (lambda logits, loss: {"logits": [logits]}, "a dict"),
        (lambda logits, loss: Output([logits]), "a Output"),
        (lambda logits, loss: Output, "a type"),
    ],
)
def test_nothing_else_is_searched_for_logits(kind: Callable[..., Any], what: str) -> None:
    with pytest.raises(EowError, match=f"returns {what}: make its forward return the logits alone"):
        eow.upgrade(Named(kind), example=torch.randn(5, 4), trace=False)


class Keyed(nn.Linear):
    def __init__(self, key: str) -> None:
        super().__init__(4, 4)
        self.last, self.key = nn.Linear(4, 3), key

    def forward(self, x: Tensor) -> Any:
        return {self.key: self.last(super().forward(x))}


def test_who_is_refused_for_named_logits_is_told_of_trace() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(EowError, match=r"returns a dict: make its forward return the logits alone, .* trace=False"):
        eow.upgrade(Keyed("logits"), example=x)
    assert eow.upgrade(Keyed("logits"), example=x, trace=False)(x).shape == (5, 4)
    with pytest.raises(EowError, match=r"returns a dict: make its forward return the logits alone, or pass the two"):
        eow.upgrade(Keyed("scores"), example=x)


def test_what_is_wrong_with_named_logits_is_said_by_the_models_own_names() -> None:
    model = Named(lambda logits, loss: {"logits": logits / 2})
    with pytest.raises(EowError, match=r"^score cannot be taken off Named \(what the two say together"):
        eow.upgrade(model, example=torch.randn(5, 4), trace=False)
    model = Named(lambda logits, loss: {"logits": logits.softmax(1)})
    with pytest.raises(EowError, match=r"^Named ends in a softmax, so it gives no logits: let it return what score"):
        eow.upgrade(model, example=torch.randn(5, 4), trace=False)
    model = Named(lambda logits, loss: logits if loss is None else (logits, loss))
    with pytest.raises(EowError, match=r"^in training Named returns a tuple: .* alone there too, without auxiliary"):
        eow.upgrade(model, example=torch.randn(5, 4), trace=False)


def test_a_forward_that_needs_more_than_one_tensor_is_not_blamed_on_the_example() -> None:
    model = Then(lambda self, z, f: f)
    model.forward = lambda x, lengths: model.last(x)
    with pytest.raises(EowError, match=r"Then.forward cannot be called with one tensor alone .*'lengths'.*: wrap"):
        eow.upgrade(model, example=torch.randn(5, 4), trace=False, copy=False)


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "Roberta", "GPT2", "ViT", "Wav2Vec2"])
def test_models_of_hugging_face_come_as_they_are(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = {"vocab_size": 20, "pad_token_id": 1}
    images, sounds = {"image_size": 8, "patch_size": 4, "num_channels": 1}, {"conv_dim": (8,), "conv_kernel": (10,)}
    options = {
        "DistilBert": {**text, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "GPT2": {**text, "n_embd": 16, "n_layer": 1, "n_head": 2},
        "ViT": {**small, **images},
        "Wav2Vec2": {**small, **sounds, "conv_stride": (5,), "num_feat_extract_layers": 1, "classifier_proj_size": 8,
                     "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
    }.get(kind, {**small, **text})  # fmt: skip
    task = "ForImageClassification" if kind == "ViT" else "ForSequenceClassification"
    model = getattr(transformers, kind + task)(getattr(transformers, f"{kind}Config")(**options, num_labels=3)).eval()
    x = {"ViT": torch.randn(6, 1, 8, 8), "Wav2Vec2": torch.randn(6, 400)}.get(kind, torch.randint(2, 20, (6, 7)))
    upgraded = eow.upgrade(model, example=x, trace=False)
    exact = {"rtol": 0, "atol": 1e-6 if kind == "GPT2" else 0}  # which scores all words, and then takes the last
    torch.testing.assert_close(upgraded(x)[:, :-1], model(x).logits, **exact)
    eow.OpenWorldLoss(upgraded.train(), steps=1)(x, torch.arange(6) % 3).backward()
    idle = {name for name, each in upgraded.named_parameters() if each.grad is None}
    assert idle <= {"encoder.model.wav2vec2.masked_spec_embed"}
    upgraded.odds.fill_(0.02)
    if kind in ("Bert", "ViT"):
        told = eow.export_model(upgraded, tmp_path / "model.pt2", x, format="torch")
        assert told["compared_on"] == "the example"


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("trace", [True, False])
def test_a_compiled_layer_is_wrapped_anew(trace: bool, own: bool) -> None:
    """The remedy for a function in the place of a forward, to delete it, would take the layer's only one."""
    x, model = torch.randn(5, 4), nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    compiled = model[0] = torch.compile(model[0], backend="eager")
    before = model.eval()(x)
    upgraded = eow.upgrade(model, example=x, trace=trace, copy=own)
    assert torch.equal(upgraded(x)[:, :-1], before)
    weights = {name.rpartition("_orig_mod.")[2]: each for name, each in upgraded.encoder.named_parameters()}
    assert (weights["weight"] is compiled._orig_mod.weight) != own
    with torch.no_grad():
        weights["weight"].add_(1)
    assert not torch.equal(upgraded(x)[:, :-1], before)
    assert torch.equal(model(x), before) == own


class Frees(Then):
    """Asks for its last layer when its mode is set."""

    def train(self, mode: bool = True) -> "Frees":
        self.last.weight.requires_grad_(mode)
        return super().train(mode)  # type: ignore[return-value]


def test_what_fails_in_training_without_the_last_layer_says_why() -> None:
    with pytest.raises(EowError, match=r"the model cannot compute what it did \('Identity' object has no"):
        eow.upgrade(Frees(lambda self, z, f: f), example=torch.randn(5, 4), trace=False)


def test_what_is_wrong_with_the_last_layer_is_said_by_its_name() -> None:
    model = Then(lambda self, z, f: f)
    model.body.weight = model.last.weight
    with pytest.raises(EowError, match=r"last shares its weight with body"):
        eow.upgrade(model, example=torch.randn(5, 4), trace=False)
    with pytest.raises(EowError, match=r"classes is 5, but the model's last linear layer, last, has 4 outputs"):
        eow.upgrade(Then(lambda self, z, f: f), classes=5, example=torch.randn(5, 4), trace=False)
    with pytest.raises(EowError, match=r"the model has no nn.Linear: end it in one"):
        eow.upgrade(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten()), trace=False)


class Slow(nn.Module):
    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(4, 6), nn.Linear(6, 3), calls

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied = Slow(self.calls)
        copied.load_state_dict(self.state_dict())
        return copied

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        return self.last(self.first(x).relu())


def test_a_model_that_takes_long_is_run_a_dozen_times() -> None:
    calls: list[int] = []
    eow.upgrade((Slow(calls), nn.Linear(3, 3)), example=torch.randn(5, 4))
    assert len(calls) <= 4
    body = nn.Sequential(Slow(calls), nn.ReLU(), nn.Linear(3, 3))
    calls.clear()
    eow.upgrade(body, example=torch.randn(5, 4), trace=False)
    assert len(calls) <= 12
