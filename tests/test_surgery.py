"""`eow.upgrade`: models of many builds keep their logits bit for bit, and what cannot be upgraded is told why."""

import copy
import io
import math
import operator
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MethodType

import numpy as np
import pytest
import torch
from networks import CLASSES, NETWORKS, LeNet, ResNet, network
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from eow.errors import EowError
from eow.models import SplitModel, build, tracing
from eow.models.surgery import UpgradedModel, upgrade
from eow.models.widening import WidenedLinear, WidenedOpenLinear
from eow.sampling import run_chain

CUTS = {
    "resnet": ("input", "conv1", "maxpool", "layer1.0", "layer1", "layer2", "layer3", "layer4", "avgpool"),
    "vgg": ("input", "features", "features.3", "avgpool", "flatten", "classifier.0", "classifier.4"),
    "densenet": ("input", "stem", "norm"),
    "mobilenet": ("input", "features.0", "features.1", "features", "mean"),
    "convnext": ("input", "stem", "stages.0", "stages", "norm"),
    "vit": ("input", "patches", "blocks.0", "blocks", "norm"),
    "lenet": ("input", "conv1", "conv2", "view", "fc1", "relu_2"),
    "mlp": ("input", "fc1", "relu", "fc2", "relu_1"),
    "sequential": ("input", "0", "1", "2", "3"),
    "linear": ("input",),
}


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_old_logits_stay_and_the_unknown_stays_out(name: str) -> None:
    """At every cut, in evaluation and in training, where dropout has to fall in the same places."""
    model, shape = network(name)
    x = torch.randn(5, *shape)
    expected = model(x)
    torch.manual_seed(1)
    in_training = copy.deepcopy(model).train()(x)
    upgraded = upgrade(model)
    assert upgraded.cut == "penultimate"
    assert not set(CUTS[name]).difference(upgraded.cuts)
    for cut in upgraded.cuts:
        upgraded = upgrade(model, cut, classes=CLASSES)
        logits = upgraded(x)
        assert torch.equal(logits[:, :-1], expected), cut
        assert torch.equal(upgraded.tail(upgraded.encoder(x)), logits)
        assert logits.softmax(1)[:, -1].max() < 1e-6
        assert upgraded.encoder(x).shape[1:] == upgraded.feature_shape(shape)
        torch.manual_seed(1)
        assert torch.equal(upgraded.train()(x)[:, :-1], in_training), cut


@pytest.mark.parametrize("name", NETWORKS)
def test_the_model_given_is_not_touched(name: str) -> None:
    model, _ = network(name)
    model.train()
    (frozen := next(iter(reversed(list(model.modules()))))).eval()  # one that somebody put in evaluation on purpose
    before, modes = state(model), [module.training for module in model.modules()]
    generator = torch.get_rng_state()
    upgraded = upgrade(model)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert upgraded.training == model.training
    assert frozen.training is False
    for parameter in upgraded.parameters():
        parameter.data.zero_()
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_modes_are_taken_over_one_by_one() -> None:
    model = ResNet().train()
    model.bn1.eval()
    model.layer2[0].bn2.eval()
    upgraded = upgrade(model, "layer3")
    assert upgraded.training
    assert not upgraded.encoder.bn1.training  # type: ignore[union-attr]
    assert not upgraded.encoder.get_submodule("layer2.0.bn2").training
    assert upgraded.encoder.get_submodule("layer2.0.bn1").training


def test_names_of_weights_are_the_users() -> None:
    names = set(upgrade(ResNet(), "layer3").state_dict())
    expected = {
        ("tail." if key.startswith(("layer4", "fc")) else "encoder.") + key for key in ResNet().state_dict()
    } | {"tail.fc.bias", "tail.fc.square", "tail.fc.unit", "odds"}
    assert names == expected


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("offset", [-300.0, 0.0, 300.0])
def test_no_scale_or_offset_of_the_logits_moves_a_prediction(scale: float, offset: float) -> None:
    """The bound is e^-16 / K for any logits at all, by Jensen; single precision rounds the offset of 300."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    with torch.no_grad():
        model.weight.mul_(scale)
        model.bias.mul_(scale).add_(offset)
    logits = upgrade(model)(torch.randn(200, 6))
    assert logits.softmax(1)[:, -1].max() <= 1.01 * math.exp(-16) / 4
    assert (logits.argmax(1) < 4).all()


def test_the_unknown_logit_is_the_mean_of_the_others_less_16() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    assert torch.allclose(upgrade(model)(x)[:, -1], model(x).mean(1) - 16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["resnet", "vgg", "mlp"])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    model, shape = network(name)
    model = model.to(dtype)
    x = torch.randn(5, *shape).to(dtype)
    logits = upgrade(model)(x)
    assert logits.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    assert torch.equal(logits[:, :-1], model(x).to(logits.dtype))
    assert logits.float().softmax(1)[:, -1].max() < 1e-6


def test_tails_that_can_be_written_out_are_plain_sequentials() -> None:
    assert [type(module) for module in upgrade(ResNet(), "layer4").tail] == [  # type: ignore[union-attr]
        nn.AdaptiveAvgPool2d, nn.Flatten, WidenedOpenLinear,
    ]  # fmt: skip
    tail = upgrade(LeNet(), "relu_1", unknown="linear").tail
    assert [type(each) for each in tail.children()] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout, WidenedLinear]


@pytest.mark.parametrize(("name", "cut"), [("resnet", "layer3"), ("vit", "blocks.0"), ("lenet", "conv2")])
def test_chains_run_through_any_tail(name: str, cut: str) -> None:
    """The tail takes another batch size than the one it was traced with, and gradients flow."""
    model, shape = network(name)
    upgraded = upgrade(model, cut)
    z = torch.randn(7, *upgraded.feature_shape(shape))
    chain = run_chain(upgraded.tail, z, "paper", steps=5, generator=torch.Generator().manual_seed(0))
    assert chain.energy[-1].mean() < chain.energy[0].mean()


def test_a_copy_of_the_upgraded_model_and_its_weights_say_the_same() -> None:
    model, shape = network("resnet")
    x = torch.randn(4, *shape)
    upgraded = upgrade(model, "layer2").eval()
    with torch.no_grad():
        upgraded.head.weight.add_(1)
    assert torch.equal(copy.deepcopy(upgraded)(x), upgraded(x))
    other = upgrade(ResNet().eval(), "layer2")
    other.load_state_dict(upgraded.state_dict())
    assert torch.equal(other(x), upgraded(x))


def test_without_a_copy_the_weights_are_shared_and_the_model_is_whole() -> None:
    model, shape = network("resnet")
    x = torch.randn(4, *shape)
    expected = model(x)
    upgraded = upgrade(model, "layer2", copy=False)
    assert upgraded.encoder.conv1 is model.conv1
    assert torch.equal(model(x), expected)
    with torch.no_grad():
        model.conv1.weight.add_(1)
    assert torch.equal(upgraded(x)[:, :-1], model(x))


def test_a_wrong_cut_names_the_possible_ones() -> None:
    with pytest.raises(
        EowError, match=r"no cut 'layer9': choose one of input, conv1, .*layer4, avgpool, .*penultimate"
    ):
        upgrade(ResNet(), "layer9")
    with pytest.raises(EowError, match=r"'layer1\.0\.conv1' is no place where one tensor carries everything: choose"):
        upgrade(ResNet(), "layer1.0.conv1")
    with pytest.raises(EowError, match="'fc' is no place"):
        upgrade(ResNet(), "fc")


def test_a_cut_inside_a_dense_block_is_none() -> None:
    model, _ = network("densenet")
    assert not {"layers.0", "layers.1", "layers.2"} & set(upgrade(model).cuts)


def test_what_needs_the_input_again_later_has_no_cut_in_between() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.b(self.a(x)) + x)

    assert upgrade(Skip()).cuts == ("input", "add", "penultimate")


class Ends(nn.Module):
    """A network whose end is given."""

    def __init__(self, end: nn.Module | None = None, then: object = None) -> None:
        super().__init__()
        self.body, self.head, self.end, self.then = nn.Linear(6, 8), nn.Linear(8, 3), end or nn.Identity(), then

    def forward(self, x: Tensor) -> object:
        logits = self.end(self.head(F.relu(self.body(x))))
        return self.then(logits) if self.then else logits  # type: ignore[operator]


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x if x.sum() > 0 else -x)


class Cosine(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(F.normalize(input), F.normalize(self.weight))


class ByMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(2 * x if self.training else x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.head(x))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight  # type: ignore[union-attr]
    return model


def hooked() -> nn.Module:
    model = ResNet()
    model.layer2.register_forward_hook(lambda module, args, output: None)
    return model


def hooked_head() -> nn.Module:
    model = ResNet()
    model.fc.register_forward_hook(lambda module, args, output: None)
    return model


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: Ends(nn.LogSoftmax(1)), r"ends in end \(LogSoftmax\).*set_submodule\('end', torch.nn.Identity\(\)\)"),
        (lambda: Ends(then=lambda f: F.softmax(f, dim=1)), "ends in softmax, so it gives no logits: remove it"),
        (lambda: Ends(then=lambda f: f.log_softmax(1)), "ends in log_softmax"),
        (lambda: Ends(then=torch.sigmoid), "ends in sigmoid"),
        (lambda: Ends(then=lambda f: (f, f)), r"returns a tuple: .* return the logits alone, or pass the two parts"),
        (lambda: Ends(then=lambda f: {"logits": f}), r"returns a dict: .* return the logits alone"),
        (lambda: Ends(then=lambda f: 3 * f), "does not end in its last linear layer but in mul"),
        (lambda: Ends(nn.ReLU()), r"does not end in its last linear layer but in end \(ReLU\)"),
        (Decides, r"torch.fx cannot trace Decides.forward \(.*eow.upgrade\(\(encoder, tail\)\)"),
        (ByMode, "computes something else in training"),
        (convolutional, "no nn.Linear that makes its logits.*replace its convolution head"),
        (lambda: nn.Sequential(nn.Flatten(), nn.ReLU()), "no nn.Linear that makes its logits"),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Cosine(8, 3)), "Cosine with a forward of its own"),
        (lambda: nn.Linear(6, 1), "one output, a yes or no"),
        (lambda: nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), "0 has one output, a yes or no"),
        (lambda: Ends(then=lambda f: F.linear(f, torch.eye(3))), "functional.linear.* let an nn.Linear make them"),
        (Twice, "used twice"),
        (tied, "shares its weight with 0"),
        (hooked, "layer2 has a hook.* or upgrade it with trace=False"),
        (hooked_head, "fc has a hook"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), "has a parametrization"),
        (lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(3)), r"lazy layers.*call model\(x\) once"),
        (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), "cannot be guessed.*pass example="),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(9, 3)), r"cannot take a batch of shape \(3, 6\)"),
        (lambda: "resnet", "the model is a str"),
        (lambda: (nn.Linear(6, 3),), "pair"),
        (lambda: (nn.Linear(6, 3), nn.ReLU()), "the tail has no nn.Linear"),
        (lambda: (nn.Linear(6, 4), nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))), "tail changes what its last"),
        (lambda: (nn.LSTM(6, 4), nn.Linear(4, 3)), "pass example="),
        (lambda: upgrade(nn.Linear(6, 3)), "already"),
        (lambda: copy.deepcopy(upgrade(nn.Linear(6, 3)).tail), "already"),
    ],
)
def test_what_cannot_be_upgraded_is_told_why(model, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        upgrade(model())


def test_a_model_that_fails_without_a_word_is_refused_in_a_sentence() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] != 28:
                raise NotImplementedError
            return x.mean((2, 3))

    class Whole(nn.Module):
        def __deepcopy__(self, memo: dict) -> nn.Module:
            raise TypeError

    picky = (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Picky()), nn.Linear(4, 3))
    assert upgrade(picky).classes == 3  # which takes one of the later shapes that are tried
    with pytest.raises(EowError, match=r"batch of shape \(3, 1, 32, 32\) \(NotImplementedError\): pass example="):
        upgrade(picky, example=torch.zeros(2, 1, 32, 32))
    with pytest.raises(EowError, match=r"cannot be copied \(TypeError\)"):
        upgrade(nn.Sequential(Whole(), nn.Linear(4, 3)))
    nowhere = (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(5, 4)), nn.Linear(4, 3))
    with pytest.raises(EowError, match="pass example=") as refused:
        upgrade(nowhere)
    assert str(refused.value).count("pass example=") == 1


def test_classes_and_example_are_checked() -> None:
    with pytest.raises(EowError, match="classes is 10, but the model's last linear layer, fc, has 3 outputs"):
        upgrade(ResNet(), classes=10)
    with pytest.raises(EowError, match="the example is a list"):
        upgrade(ResNet(), example=[1, 2])
    with pytest.raises(EowError, match="the example is a dict, and a model is called with one tensor"):
        upgrade(ResNet(), example={"pixel_values": torch.zeros(2, 3, 64, 64)})
    with pytest.raises(EowError, match=r"cannot take a batch of shape \(3, 4, 64, 64\)"):
        upgrade(ResNet(), example=torch.zeros(1, 4, 64, 64))
    with pytest.raises(EowError, match="one row of logits for each input"):
        upgrade(nn.Linear(6, 3), example=torch.zeros(2, 5, 6))


@pytest.mark.parametrize(
    "then",
    [
        lambda logits: logits.float(),
        lambda logits: logits.contiguous(),
        lambda logits: logits.squeeze(-1),
        lambda logits: torch.squeeze(logits, 1).float(),
    ],
)
def test_logits_may_be_cast_and_squeezed(then) -> None:
    model, x = Ends(then=then).double(), torch.randn(5, 6, dtype=torch.float64)
    upgraded = upgrade(model)
    for rows in (x, x[:1]):
        logits = upgraded(rows)
        assert torch.equal(logits[:, :-1], model(rows))
        assert logits.shape == (len(rows), 4)


def test_a_squeeze_of_no_axis_in_particular_is_refused() -> None:
    with pytest.raises(EowError, match="not end in its last linear layer but in squeeze"):
        upgrade(Ends(then=lambda logits: logits.squeeze()))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_wrappers_are_taken_off() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(5, 6)
    for wrapped in (torch.compile(model), nn.DataParallel(model), torch.compile(nn.DataParallel(model))):
        assert torch.equal(upgrade(wrapped)(x)[:, :-1], model(x))  # type: ignore[arg-type]
    with pytest.raises(EowError, match=r"one of torch\.jit.*pass the one it was made of"):
        upgrade(torch.jit.trace(model, x))
    with pytest.raises(EowError, match="lies on the device meta"):
        upgrade(copy.deepcopy(model).to("meta"))


def test_an_example_gives_a_shape_that_cannot_be_guessed() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    tokens = torch.tensor([[1, 2, 3]])
    upgraded = upgrade(model, example=tokens)
    assert torch.equal(upgraded(tokens)[:, :-1], model(tokens))
    assert upgraded.integers
    assert upgraded.feature_shape((3,)) == (12,)
    assert upgraded.cuts == ("0", "1", "penultimate")  # whole numbers are no place for chains
    odd = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 5 * 9, 3))
    with pytest.raises(EowError, match="pass example="):
        upgrade(odd)
    assert upgrade(odd, example=torch.zeros(1, 2, 7, 11)).classes == 3


def test_a_module_that_cannot_be_traced_is_taken_whole() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if x.mean() > 0 else -self.linear(x)

    model = nn.Sequential(nn.Linear(6, 6), Inner(), nn.Linear(6, 3))
    x = torch.randn(9, 6)
    upgraded = upgrade(model)
    assert upgraded.cuts == ("input", "0", "1", "penultimate")
    assert torch.equal(upgraded(x)[:, :-1], model(x))


def test_leaves_keep_their_hooks_and_parametrizations() -> None:
    """Weight norm on an inner layer still computes its weight from its parts, in the copy too."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))
    calls = []
    model[1].register_forward_hook(lambda module, args, output: calls.append(output.shape))
    upgraded = upgrade(model)
    x = torch.randn(5, 6)
    calls.clear()
    upgraded(x).sum().backward()
    assert calls == [(5, 8)]
    inner = dict(upgraded.encoder.named_parameters())
    assert inner["0.parametrizations.weight.original0"].grad is not None


def test_torchs_own_attention_is_a_leaf_that_returns_two() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            y, _ = self.attention(y, y, y, need_weights=False)
            return self.head((x + y).mean(1))

    model = Model().eval()
    x = torch.randn(5, 4, 8)
    upgraded = upgrade(model, "add", example=x)
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    assert upgraded.cuts == ("input", "add", "mean", "penultimate")


def test_noise_at_evaluation_is_compared_under_the_same_numbers() -> None:
    model = build("mlp", 3, (4,), hidden=(8,), input_noise=0.5)
    assert upgrade(nn.Sequential(model.encoder, model.tail)).classes == 3


def test_an_eow_network_keeps_its_named_cuts() -> None:
    model = build("resnet18", 3, (3, 16, 16), cut="stage4").eval()
    x = torch.randn(2, 3, 16, 16)
    upgraded = upgrade(model, "stage2")
    assert (upgraded.cut, upgraded.cuts) == ("stage2", model.cuts)
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    with pytest.raises(EowError, match="no cut 'stage9'"):
        upgrade(model, "stage9")


def test_a_pair_is_taken_as_it_is() -> None:
    class Decider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x if x.sum() > 0 else -x)

    encoder, tail = Decider().eval(), nn.Sequential(nn.Dropout(), nn.Linear(4, 3)).eval()
    x = torch.randn(5, 6)
    upgraded = upgrade((encoder, tail), classes=3)
    assert isinstance(upgraded, UpgradedModel)
    assert torch.equal(upgraded(x)[:, :-1], tail(encoder(x)))
    assert isinstance(tail[1], nn.Linear)
    assert tail[1].out_features == 3
    assert upgraded.head is not tail[1]
    assert upgraded.cut is None
    with pytest.raises(EowError, match="cut already"):
        upgrade((encoder, tail), "linear")
    with pytest.raises(EowError, match="upgrade the original again"):
        upgraded.recut("linear")


@pytest.mark.parametrize("kind", ["vit", "bert"])
def test_transformers_come_as_a_pair(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

    class Encoder(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).last_hidden_state[:, 0]

    if kind == "vit":
        config = transformers.ViTConfig(**small, image_size=8, patch_size=4, num_channels=1, num_labels=3)
        model = transformers.ViTForImageClassification(config).eval()
        x = torch.randn(5, 1, 8, 8)
        pair = (Encoder(model.vit), model.classifier)
        expected = model(x).logits
    else:
        config = transformers.BertConfig(**small, vocab_size=20, max_position_embeddings=16, num_labels=3)
        model = transformers.BertForSequenceClassification(config).eval()
        x = torch.randint(20, (5, 7))

        class Pooled(Encoder):
            def forward(self, x: Tensor) -> Tensor:
                return self.body(x).pooler_output

        pair = (Pooled(model.bert), nn.Sequential(model.dropout, model.classifier))
        expected = model(x).logits
    with pytest.raises(EowError, match=r"pass the two parts yourself"):
        upgrade(model, example=x)
    upgraded = upgrade(pair, example=x)
    assert torch.equal(upgraded(x)[:, :-1], expected)
    assert upgraded.feature_shape(x.shape[1:]) == (16,)


def test_a_frozen_model_gets_a_head_that_can_learn() -> None:
    upgraded = upgrade(ResNet().requires_grad_(False))
    assert {name for name, each in upgraded.named_parameters() if each.requires_grad} == {
        "tail.fc.weight",
        "tail.fc.bias",
        "tail.fc.square",
    }


def test_a_split_model_by_hand_is_a_pair() -> None:
    parts = SplitModel(nn.Linear(6, 4), nn.Linear(4, 3))
    x = torch.randn(5, 6)
    assert torch.equal(upgrade(parts)(x)[:, :-1], parts(x))


# --- what a graph does not keep by itself ----------------------------------------------------------------------------


class Backed(nn.Module):
    """A network with a part of it inside torch.no_grad()."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.mid, self.fc = nn.Linear(8, 8), nn.Linear(8, 3)

    def end(self, h: Tensor) -> Tensor:
        return self.fc(F.relu(self.mid(h)))


class InBlock(Backed):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.back(x)
        return self.end(h)


class InInference(Backed):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            h = self.back(x)
        return self.end(h)


class WithSizes(Backed):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            rows, width = x.shape
            h = self.back(x)
            rest = [h + 1, (h - 1, 2)]
        return self.end(h.view(rows, -1) * width + rest[0] + rest[1][0])


class InPart(Backed):
    """Only what lies between is frozen, and some of it is used inside and outside."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.back[0](x)
        with torch.no_grad():
            a = F.relu(h)
            b = self.back[2](a)
            with torch.enable_grad():
                c = self.mid(b)
        return self.fc(F.relu(h + a + b + c))


class FrozenBack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).relu()


class Decorated(Backed):
    def __init__(self) -> None:
        super().__init__()
        self.back = FrozenBack()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.back(x))


class Recurrent(Backed):
    def __init__(self) -> None:
        super().__init__()
        self.back = nn.LSTM(6, 8, batch_first=True)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            said = self.back(x.unsqueeze(1))
        outputs, (last, _) = said
        return self.end(outputs[:, 0] + last[0])


class TrainsOnly(Backed):
    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.training):
            h = self.back(x)
        return self.end(h)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    """Of the K logits, under the names of the model that was upgraded."""
    model.zero_grad()
    model.train()(x)[:, :3].square().sum().backward()
    by_name = {
        name.removeprefix("encoder.").removeprefix("tail."): parameter.grad
        for name, parameter in model.named_parameters()
    }
    return {name: None if grad is None else grad.clone() for name, grad in by_name.items()}


def again(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def assert_same_gradients(model: nn.Module, x: Tensor, reference: nn.Module | None = None) -> None:
    """At every cut, and in copies: what had none has none."""
    expected = gradients(reference or model, x)
    for cut in upgrade(model, example=x).cuts:
        upgraded = upgrade(model, cut, example=x, unknown="linear")
        for each in (upgraded, copy.deepcopy(upgraded), again(upgraded)):
            found = gradients(each, x)
            for name, grad in expected.items():
                if grad is None:
                    assert found[name] is None, (cut, name)
                else:
                    torch.testing.assert_close(found[name][: len(grad)], grad)  # type: ignore[index]


@pytest.mark.parametrize("kind", [InBlock, WithSizes, InPart, Decorated, Recurrent, TrainsOnly])
def test_what_had_no_gradient_gets_none(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    assert_same_gradients(kind(), torch.randn(5, 6))


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class ChangedByALayer(nn.Module):
    def __init__(self, clone: bool) -> None:
        super().__init__()
        self.first, self.twice, self.last, self.clone = nn.Linear(4, 8), Doubled(), nn.Linear(8, 3), clone

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            self.twice(h.clone() if self.clone else h)
        return self.last(h.tanh())


def test_a_layer_that_changes_its_input_without_gradients_is_told_of() -> None:
    with pytest.raises(EowError) as told:
        upgrade(ChangedByALayer(clone=False), example=torch.randn(5, 4))
    assert str(told.value).startswith("the layer twice changes a tensor in place inside torch.no_grad()")
    assert "\n" not in str(told.value)
    upgrade(ChangedByALayer(clone=True), example=torch.randn(5, 4))


class Averaged(nn.Module):
    """A layer by hand that moves a buffer in training, as batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1)
            self.count = self.count + 1
        return h - self.mean


class Outermost(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(4, 8), nn.Linear(8, 3), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for parameter in self.first.parameters():
                parameter.mul_(0.5)
        return self.last(self.first(x).relu() * self.scale)


def test_a_layer_that_moves_its_buffers_stays_whole_and_is_not_moved_by_being_read() -> None:
    x = torch.randn(6, 4)
    model = nn.Sequential(Averaged(), nn.ReLU(), nn.Linear(8, 3))
    before = copy.deepcopy(model.state_dict())
    for copied in (True, False):
        upgraded = upgrade(model, example=x, copy=copied)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        torch.testing.assert_close(upgraded.eval()(x)[:, :3], model.eval()(x))
    upgraded.train()(x)
    layer = next(module for module in upgraded.modules() if isinstance(module, Averaged))
    assert float(layer.count) == 1
    torch.testing.assert_close(layer.mean, torch.full((8,), 0.1))


def test_a_model_that_changes_its_own_weights_is_told_of_and_left_alone() -> None:
    model = Outermost()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        EowError, match=r"Outermost\.forward changes a parameter or a buffer, and a graph does not keep"
    ):
        upgrade(model, example=torch.randn(5, 4), copy=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_layers_of_torch_jit_are_told_of() -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.ReLU())), nn.Linear(8, 3))
    with pytest.raises(EowError, match=r"the layer 0 is one of torch\.jit.*put in what it was made of"):
        upgrade(model, example=torch.randn(5, 4))


class Counting(nn.BatchNorm1d):
    """Counts its own batches, and has an activation inside: a norm as timm has them."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        return self.act(F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training))


def test_a_deep_network_of_norms_is_not_read_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 121 of them, a DenseNet of timm's, that took 45 s."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(4, 4), Counting(4))]
    model, x, readings = nn.Sequential(*layers, nn.Linear(4, 3)).eval(), torch.randn(5, 4), []
    read = tracing.ModuleTracer.trace
    monkeypatch.setattr(tracing.ModuleTracer, "trace", lambda *args: readings.append(1) or read(*args))
    upgraded = upgrade(model)
    assert len(readings) == 4
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    assert {"0", "1", "38", "39"} <= {*upgraded.cuts}
    upgraded.train()(x)
    assert upgraded.state_dict()["encoder.39.num_batches_tracked"] == 1


class Normalised(nn.Module):
    """Changes the network's own input in place, which carries no gradient, and a tensor that nobody reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.first = Doubled(), nn.Linear(4, 8)
        self.frozen, self.last = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.twice(x)
        h = self.first(x)
        with torch.no_grad():
            h = self.frozen(h)
        return self.last(h)


def test_what_is_changed_without_harm_is_not_refused() -> None:
    x = torch.randn(5, 4)
    model = Normalised()
    torch.testing.assert_close(upgrade(model, example=x).eval()(x.clone())[:, :3], model.eval()(x.clone()))


class Stopped(nn.Module):
    def __init__(self, stop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last, self.stop = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3), stop

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.stop(self.first(x))).relu())


@pytest.mark.parametrize("stop", [lambda h: h.data, torch.detach, lambda h: (h > 0).float()])
def test_a_cut_that_no_gradient_reaches_is_refused(stop: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(5, 4)
    upgrade(Stopped(stop), example=x)
    for cut in ("input", "first"):
        with pytest.raises(
            EowError, match=rf"(no gradient arrives at|there is no) (the )?cut '{cut}'.*: choose one of"
        ):
            upgrade(Stopped(stop), cut=cut, example=x)


class NowhereToCut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.first(x)
            h.relu_()
        return self.last(h)


def test_where_there_is_no_cut_the_sentence_names_none() -> None:
    with pytest.raises(EowError, match=r"has no place where .* make one, or pass the two parts yourself"):
        upgrade(NowhereToCut(), example=torch.randn(5, 4))


def test_inference_mode_inside_a_model_is_no_grad() -> None:
    model, reference, x = InInference(), InBlock(), torch.randn(5, 6)
    reference.load_state_dict(model.state_dict())
    assert_same_gradients(model, x, reference)


def test_the_mode_in_which_upgrade_is_called_changes_nothing() -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), torch.randn(5, 6)
    expected = gradients(model, x)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            upgraded = upgrade(model, unknown="linear")
            pair = upgrade((model[:2], model[2]), unknown="linear")
        torch.testing.assert_close(gradients(upgraded, x)["0.weight"], expected["0.weight"])
        assert gradients(pair, x)["0.weight"] is not None


def test_chains_start_where_their_gradient_ends() -> None:
    upgraded = upgrade(InBlock(), "back")
    assert upgraded.cuts == ("back", "mid", "relu", "penultimate")
    z = torch.randn(7, *upgraded.feature_shape((6,)))
    chain = run_chain(upgraded.tail, z, "paper", steps=5, generator=torch.Generator().manual_seed(0))
    assert chain.energy[-1].mean() < chain.energy[0].mean()
    with pytest.raises(EowError, match="there is no cut 'input': choose one of back, mid"):
        upgrade(InBlock(), "input")


class Boxed(Backed):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            box = self.back(x)
        return self.end(box.tensor)


def boxed() -> nn.Module:
    class Box:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    class Boxing(nn.Module):
        def forward(self, x: Tensor) -> Box:
            return Box(x)

    model = Boxed()
    model.back.append(Boxing())
    return model


class AllFrozen(Backed):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.back(x))


class Clamps(nn.Module):
    """A clamp that no gradient sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        with torch.no_grad():
            h.clamp_(min=0)
        return h


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * grad


sign = Sign.apply


class Signs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return sign(Sign.apply(self.inner(x)))


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = self.inner(x)
        return h.float()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x.relu(), use_reentrant=True)


class Skips(nn.Module):
    """LayerDrop, by the generator given."""

    def __init__(self, draw: Callable[[], float] = lambda: torch.rand(()).item()) -> None:
        super().__init__()
        self.layers, self.draw = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), draw

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or self.draw() < 0.5:
                x = x + layer(x)
        return x


class Ended(nn.Module):
    """`forward` of the module given and a head, all in the outermost forward."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.__dict__["first"] = first  # hidden from torch.nn
        for name, child in first.named_children():
            self.add_module(name, child)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.first.forward(x))


@pytest.mark.parametrize("kind", [Clamps, Signs, Cast])
def test_a_module_that_does_what_a_graph_does_not_keep_is_taken_whole(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), kind(), nn.Linear(6, 3)), torch.randn(5, 6)
    assert gradients(model, x)["0.weight"].any()  # type: ignore[union-attr]
    assert upgrade(model).cuts == ("input", "0", "1", "penultimate")
    assert_same_gradients(model, x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_checkpoints_are_calls() -> None:
    model, x = nn.Sequential(nn.Linear(6, 6), Checkpointed(), nn.Linear(6, 3)), torch.randn(5, 6)
    x.requires_grad_()
    expected = gradients(model, x)
    upgraded = upgrade(model, "1.inner", unknown="linear")
    torch.testing.assert_close(gradients(upgraded, x)["1.inner.weight"], expected["1.inner.weight"])
    torch.testing.assert_close(gradients(model, x), expected)  # and theirs are as they were


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            lambda: Ended(Signs()),
            r"Ended.forward calls Sign, a torch.autograd.Function.*put that into a module of its own",
        ),
        (lambda: Ended(Clamps()), r"changes a tensor in place inside torch.no_grad\(\).*module of its own"),
        (lambda: Ended(Cast()), "Ended.forward enters torch.autocast.*module of its own"),
        (lambda: Ended(Skips()), "Ended.forward draws random numbers in Python.*module of its own"),
        (AllFrozen, r"AllFrozen computes its logits inside torch.no_grad\(\), where nothing is trained: take that off"),
        (boxed, r"computes a Box inside torch.no_grad\(\).*take its tensors out"),
    ],
)
def test_in_the_outermost_forward_it_is_refused(model, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        upgrade(model())


class ChangesInPlace(nn.Module):
    """What it computes it also changes, where autograd does not look."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(6, 6), change

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x).sigmoid() * 2 - 1
        with torch.no_grad():
            if self.change == "+=":
                h += 1.0
            else:
                CHANGES[self.change](h)
        return h


CHANGES = {
    "function": lambda h: torch.clamp_(h, min=0),
    "inplace": lambda h: F.relu(h, inplace=True),
    "view": lambda h: h.view(-1).mul_(0.5),
    "view of a view": lambda h: h.unsqueeze(0)[0].mul_(0.5),
    "out": lambda h: torch.relu(h) + torch.sin(h, out=h),
    "list": lambda h: torch._foreach_mul_([h], 2.0),
    "attribute": lambda h: operator.iadd(h.T, 1.0),
}


@pytest.mark.parametrize("change", ["+=", *CHANGES])
def test_what_is_changed_without_gradients_keeps_its_own(change: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), ChangesInPlace(change), nn.Linear(6, 3)), torch.randn(5, 6)
    assert_same_gradients(model, x)
    with pytest.raises(EowError, match=r"changes a tensor in place inside torch.no_grad\(\).*module of its own"):
        upgrade(Ended(ChangesInPlace(change)))


def passed_on(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    return args[0]


def hooked_relu() -> nn.Module:
    layer = nn.ReLU()
    layer.register_forward_hook(passed_on)
    return layer


# What shares memory with h, or is h itself.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "+": lambda h: +h,
    "H": lambda h: h.H,
    "T": lambda h: h.T,
    "adjoint": lambda h: h.adjoint(),
    "as_strided": lambda h: h.as_strided((2, 6), (6, 1)),
    "atleast_2d": lambda h: torch.atleast_2d(h),
    "atleast_3d": lambda h: torch.atleast_3d(h),
    "broadcast_tensors": lambda h: torch.broadcast_tensors(h, h)[0],
    "broadcast_to": lambda h: h.broadcast_to(h.shape),
    "chunk": lambda h: h.chunk(2, 1)[1],
    "conj": lambda h: h.conj(),
    "contiguous": lambda h: h.contiguous(),
    "cpu": lambda h: h.cpu(),
    "data": lambda h: h.data,
    "detach": lambda h: h.detach(),
    "diagonal": lambda h: h.diagonal(),
    "dropout": lambda h: F.dropout(h, 0.5, training=False),
    "dsplit": lambda h: torch.dsplit(h.unflatten(1, (2, 3)), 3)[0],
    "einsum": lambda h: torch.einsum("ij->ji", h),
    "expand": lambda h: h.expand(-1, 6),
    "flatten": lambda h: torch.flatten(h),
    "float": lambda h: h.float(),
    "getitem": lambda h: h[:, 1:],
    "hsplit": lambda h: h.hsplit(2)[0],
    "imag": lambda h: torch.view_as_complex(h.unflatten(1, (3, 2))).imag,
    "mT": lambda h: h.mT,
    "moveaxis": lambda h: h.moveaxis(0, 1),
    "movedim": lambda h: torch.movedim(h, 0, 1),
    "narrow": lambda h: h.narrow(1, 1, 3),
    "permute": lambda h: h.permute(1, 0),
    "positive": lambda h: torch.positive(h),
    "ravel": lambda h: h.ravel(),
    "real": lambda h: torch.real(h),
    "reshape": lambda h: h.reshape(-1, 3),
    "resolve_conj": lambda h: h.resolve_conj(),
    "resolve_neg": lambda h: torch.resolve_neg(h),
    "select": lambda h: h.select(1, 2),
    "split": lambda h: h.split(3, 1)[0],
    "squeeze": lambda h: h.squeeze(),
    "sum_to_size": lambda h: h.sum_to_size(h.shape),
    "swapaxes": lambda h: torch.swapaxes(h, 0, 1),
    "swapdims": lambda h: h.swapdims(0, 1),
    "tensor_split": lambda h: h.tensor_split(2, 1)[0],
    "to": lambda h: h.to(h.dtype),
    "type": lambda h: h.type(torch.float32),
    "type_as": lambda h: h.type_as(h),
    "unbind": lambda h: h.unbind(1)[3],
    "unfold": lambda h: h.unfold(1, 2, 2),
    "unsqueeze": lambda h: h.unsqueeze(1),
    "view_as_complex": lambda h: torch.view_as_complex(h.unflatten(1, (3, 2))),
    "view_as_real": lambda h: torch.view_as_real(torch.view_as_complex(h.unflatten(1, (3, 2)))),
    "vsplit": lambda h: torch.vsplit(h, 1)[0],
    "view of a view": lambda h: h.swapdims(0, 1).moveaxis(0, 1),
}
SAME_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "nn.Dropout": lambda: nn.Dropout(0.0),
    "nn.Flatten": nn.Flatten,
    "nn.Identity": nn.Identity,
    "nn.PixelShuffle": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.PixelShuffle(1)),
    "a hook": hooked_relu,
}
# What is a tensor of its own.
NEW: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda h: 1 - h,
    "product": lambda h: h.T @ h,
    "relu": lambda h: F.relu(h),
    "softmax": lambda h: h.softmax(1),
    "cat": lambda h: torch.cat([h]),
    "clone": lambda h: h.clone().view(-1),
    "values": lambda h: h.max(1).values,
    "chain": lambda h: torch.zeros_like(h).add_(h).mul_(h),
    "mask": lambda h: (h.bool() & (h < 1)).float(),
    "size": lambda h: torch.full((h.shape[0],), 2.0),
}
NEW_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "nn.BatchNorm1d": lambda: nn.BatchNorm1d(6),
    "nn.Linear": lambda: nn.Linear(6, 6),
    "nn.ReLU": nn.ReLU,
    "nn.Sequential": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.ReLU(inplace=True), nn.Flatten()),
}


class ChangesAView(nn.Module):
    """What it computes it doubles, where autograd does not look, by another name that it may have."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner, self.name = nn.Linear(6, 6), name
        self.layer = {**SAME_LAYERS, **NEW_LAYERS}.get(name, nn.Identity)()

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        with torch.no_grad():
            other = {**VIEWS, **NEW}.get(self.name, self.layer)(h)
            scale = other.mul_(2).abs().mean()
        return h * (1 + scale)


@pytest.mark.parametrize("name", [*VIEWS, *SAME_LAYERS])
def test_what_may_be_a_view_is_taken_for_one(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), ChangesAView(name), nn.Linear(6, 3)), torch.randn(5, 6)
    assert_same_gradients(model, x)
    with pytest.raises(EowError, match=r"changes a tensor in place inside torch.no_grad\(\).*module of its own"):
        upgrade(Ended(ChangesAView(name)), example=x)


@pytest.mark.parametrize("name", [*NEW, *NEW_LAYERS])
def test_what_is_known_to_be_new_may_be_changed(name: str) -> None:
    torch.manual_seed(0)
    assert_same_gradients(Ended(ChangesAView(name)), torch.randn(5, 6))


def test_an_attribute_read_without_gradients_has_none() -> None:
    class Reads(Backed):
        def forward(self, x: Tensor) -> Tensor:
            h = self.back(x)
            with torch.no_grad():
                turned = h.T
            return self.end(h @ (turned @ h))

    torch.manual_seed(0)
    assert_same_gradients(Reads(), torch.randn(5, 6))


def test_what_was_made_without_gradients_may_be_changed() -> None:
    class Own(Backed):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.back(x)
                h += 1
                h.view(-1).mul_(0.5)
            return self.end(h)

    torch.manual_seed(0)
    assert_same_gradients(Own(), torch.randn(5, 6))


def test_float32_inside_autocast_stays_so() -> None:
    class Precise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return self.inner(x.float())

    model, x = nn.Sequential(Precise(), nn.Linear(6, 3)), torch.randn(5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = upgrade(model, "0").encoder(x), model[0](x)
    assert found.dtype == wanted.dtype == torch.float32
    assert torch.equal(found, wanted)
    assert torch.autocast.__enter__.__module__ == "torch.amp.autocast_mode"  # as it was


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), lambda: random.random(), lambda: np.random.rand()])
def test_layers_are_still_dropped_at_random(draw: Callable[[], float]) -> None:
    """In every upgrade, whatever was drawn when it was traced, and nobody's generator moves."""
    model, x = nn.Sequential(Skips(draw), nn.Linear(6, 3)).train(), torch.randn(2, 6)
    torch.manual_seed(0)
    for _ in range(5):
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        upgraded = upgrade(model)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # type: ignore[index]
        assert len({upgraded(x).sum().item() for _ in range(30)}) > 3
        draw()


class NoisyEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return h + torch.randn_like(h) if self.training else h


@pytest.mark.parametrize("after", [0, 1])
def test_the_block_that_differs_in_training_is_closed_and_no_other(after: int) -> None:
    """It is the last thing that the block does; what follows lies deeper, or not."""
    block = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 6)))
    model = nn.Sequential(nn.Sequential(nn.Tanh(), NoisyEnd()), nn.Sequential(*[block] * after), nn.Linear(6, 3))
    upgraded, x = upgrade(model), torch.randn(5, 6)
    assert upgraded.cuts == (*("input", "0.0", "0"), *(("1.0.0", "1.0.1.0") if after else ()), "1", "penultimate")
    torch.manual_seed(0)
    expected = model.train()(x)
    torch.manual_seed(0)
    assert torch.equal(upgraded.train()(x)[:, :3], expected)


class Patches(nn.Module):
    """Takes images of 64x64 only, which is not the first guess, in its encoder and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.place = nn.Conv2d(3, 4, 16, 16), nn.Parameter(torch.zeros(1, 16, 4))
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).flatten(2).transpose(1, 2) + self.place
        return self.head((self.mix(h) + self.place).mean(1))


def test_nothing_is_printed_when_a_call_fails(capfd: pytest.CaptureFixture[str]) -> None:
    upgraded = upgrade(Patches(), "conv").eval()
    x = torch.randn(2, 3, 64, 64)
    for model in (upgraded, copy.deepcopy(upgraded), again(upgraded), again(again(copy.deepcopy(upgraded)))):
        assert torch.equal(model(x), upgraded(x))
        for part, wrong in ((model, x[..., :32, :32]), (model.encoder, x[:, :1]), (model.tail, x[:, :, :3])):
            with pytest.raises(RuntimeError):
                part(wrong)
    assert capfd.readouterr().err == ""


def test_parts_can_be_compiled_and_exported() -> None:
    upgraded, x = upgrade(InBlock(), "mid"), torch.randn(2, 6)
    expected = upgraded(x)
    torch.testing.assert_close(torch.compile(upgraded, backend="eager", fullgraph=True)(x), expected)
    program = torch.export.export(upgraded, (x,))
    torch.testing.assert_close(program.module()(x), expected)


@pytest.mark.parametrize("name", ["graph", "code", "meta", "_graph", "_code", "_tracer_cls", "recompile", "shape_env"])
def test_names_that_torch_fx_needs_are_told(name: str) -> None:
    class Named(nn.Module):
        def __init__(self, thing: nn.Module | nn.Parameter) -> None:
            super().__init__()
            setattr(self, name, thing)
            self.fc = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            thing = getattr(self, name)
            return self.fc(thing(x) if isinstance(thing, nn.Module) else x * thing)

    for thing in (nn.Linear(6, 6), nn.Parameter(torch.ones(6))):
        with pytest.raises(EowError, match=f"called '{name}', a name that torch.fx needs: rename it"):
            upgrade(Named(thing))
    inside = nn.ModuleDict({name: nn.Linear(6, 6)})  # deeper down it is nobody's
    assert upgrade(nn.Sequential(Calls(inside, name), nn.Linear(6, 3)), "0").classes == 3


class Calls(nn.Module):
    def __init__(self, layers: nn.ModuleDict, *names: str) -> None:
        super().__init__()
        self.layers, self.names = layers, names

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = self.layers[name](x)
        return x


def test_names_of_sequentials_methods_are_layers_like_others() -> None:
    layers = nn.ModuleDict({"insert": nn.Linear(6, 6), "append": nn.Tanh(), "fc": nn.Linear(6, 3)})
    model, x = Calls(layers, "insert", "append", "fc"), torch.randn(5, 6)
    for cut in ("input", "layers.insert"):
        assert torch.equal(upgrade(model, cut)(x)[:, :-1], model(x))


def test_penultimate_is_the_heads_input_whatever_is_called_so() -> None:
    class Misnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.penultimate, self.fc = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.relu(self.penultimate(x)))

    upgraded = upgrade(Misnamed())
    assert (upgraded.encoder(torch.randn(9, 6)) >= 0).all()
    assert upgraded.cuts == ("input", "relu", "penultimate")


def test_a_dropout_function_and_a_layer_of_its_name_are_two() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.fc = nn.Dropout(0.0), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.dropout(self.dropout(x), 0.5, self.training))

    rates = [each.p for each in upgrade(Two(), "input").modules() if isinstance(each, nn.Dropout)]
    assert rates == [0.0, 0.5]


class NeedsMore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.fc(x)


class NeedsNamed(NeedsMore):
    def forward(self, x: Tensor, *, edges: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(x)


@pytest.mark.parametrize("kind", [NeedsMore, NeedsNamed])
def test_a_model_of_more_than_one_tensor_is_told(kind: type[nn.Module]) -> None:
    with pytest.raises(
        EowError, match=r"cannot be called with one tensor alone \(.*'edges'\): wrap the model.*or pass"
    ):
        upgrade(kind())


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    ("change", "remover"),
    [
        (nn.utils.weight_norm, "remove_weight_norm"),
        (nn.utils.spectral_norm, "remove_spectral_norm"),
        (lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5), "prune.remove"),
    ],
)
def test_hooks_that_compute_the_heads_weight_are_told_how_to_go(change, remover: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), change(nn.Linear(6, 3)))
    with torch.no_grad():
        model(torch.randn(2, 6))
    with pytest.raises(EowError, match=f"1 has a hook.*remove it first with torch.nn.utils.{remover}$"):
        upgrade(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_model_that_keeps_tensors_can_be_copied_after_a_call_without_gradients() -> None:
    model, x = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3)), torch.randn(5, 6)
    model(x)
    with pytest.raises(EowError, match=r"cannot be copied .*call it once inside torch.no_grad\(\)"):
        upgrade(model)
    with torch.no_grad():
        model(x)
    assert torch.equal(upgrade(model)(x)[:, :-1], model(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    model, shape = network("resnet")
    model = model.cuda()
    x = torch.randn(5, *shape, device="cuda")
    upgraded = upgrade(model, "layer3")
    assert all(tensor.is_cuda for tensor in upgraded.state_dict().values())
    assert torch.equal(upgraded(x)[:, :-1], model(x))


class Plain(nn.Module):
    """Something to build on that ends as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.a(x)))


class Whitened(nn.Module):
    """Computes with statistics that change in training: a constant of a graph would be those of the day."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stats = nn.BatchNorm1d(width, affine=False)

    def forward(self, h: Tensor) -> Tensor:
        self.stats(h)
        return (h - self.stats.running_mean) / (self.stats.running_var + 1e-5).sqrt()


def test_what_is_computed_of_changing_buffers_follows_them() -> None:
    """The module that does it is closed; a forward that does it itself is refused, and neither leaves a trace."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Whitened(16), nn.Linear(16, CLASSES))
    before = state(model)
    upgraded, x = upgrade(model), 3 * torch.randn(64, 8)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    for each in (model.train(), upgraded.train()):
        for _ in range(10):
            each(x)
    model.eval(), upgraded.eval()
    assert not torch.equal(model[2].stats.running_var, before["2.stats.running_var"])
    assert torch.equal(upgraded(x)[:, :-1], model(x))

    class Outermost(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.stats = nn.BatchNorm1d(16, affine=False)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            self.stats(h)
            return self.fc(h / (self.stats.running_var + 1e-5).sqrt())

    with pytest.raises(EowError, match=r"computes with the buffer stats\.running_var, which changes in training"):
        upgrade(Outermost())


def test_constants_made_of_a_buffer_that_never_changes_are_kept() -> None:
    class Masked(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.arange(20.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.a(x)) + (self.mask[:16] > 3))

    model, x = Masked().eval(), torch.randn(5, 8)
    assert torch.equal(upgrade(model)(x)[:, :-1], model(x))


def test_tensors_that_depend_on_the_mode_are_noticed() -> None:
    class Scaled(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.a(x)) * torch.tensor(0.5 if self.training else 1.0))

    with pytest.raises(EowError, match="something else in training than in evaluation"):
        upgrade(Scaled())


def test_parameters_that_are_not_read_by_their_names_are_refused() -> None:
    class Shifted(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.shifts = nn.ParameterList([torch.ones(16), torch.zeros(16)])

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.a(x)) + sum(self.shifts.parameters()))

    with pytest.raises(EowError, match="parameters that it does not read by their names"):
        upgrade(Shifted())


def test_the_examples_own_rows_are_what_is_compared() -> None:
    """Of columns that are categories random numbers are none, and where all logits are NaN nothing can be compared."""

    class Categories(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.fc = nn.Embedding(5, 4), nn.Linear(7, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.cat([self.embedding(x[:, 0].long()), x[:, 1:]], 1))

    class Aliased(Plain):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.log(self.a.weight.abs().sum() * x)
            kept = h
            h += h.square()  # changes `kept` as well, of which a graph knows nothing
            return self.fc(torch.cat([h, kept], 1))

    x = torch.cat([torch.arange(4.0)[:, None], torch.randn(4, 3)], 1)
    model = Categories().eval()
    assert torch.equal(upgrade(model, example=x)(x)[:, :-1], model(x))
    with pytest.raises(EowError, match="says something else than before"):
        upgrade(Aliased(), example=torch.rand(4, 8) + 0.1)
    with pytest.raises(EowError, match=r"logits for a batch of shape .* are not numbers\)?: pass example="):
        upgrade(nn.Sequential(nn.Linear(8, 16), Negative(), nn.Linear(16, CLASSES)))


class Negative(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.log(-h.square() - 1)


def test_a_train_of_ones_own_is_kept_or_refused() -> None:
    class Still(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())

        def train(self, mode: bool = True) -> "Still":
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    upgraded = upgrade(nn.Sequential(Still(), nn.Linear(16, CLASSES)))
    upgraded.train()(torch.randn(64, 8))
    assert upgraded.get_buffer("encoder.0.body.1.running_mean").eq(0).all()

    class Outermost(Plain):
        def train(self, mode: bool = True) -> "Outermost":
            super().train(mode)
            self.a.eval()
            return self

    with pytest.raises(EowError, match=r"Outermost\.train does more than torch's"):
        upgrade(Outermost())


def test_a_head_whose_weight_is_read_elsewhere_is_refused() -> None:
    class Reading(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.a(x)) + self.fc.weight.mean(0))

    with pytest.raises(EowError, match="reads the weights of its last linear layer, fc"):
        upgrade(Reading())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState, random.Random])
def test_decisions_drawn_from_a_generator_of_the_models_own_are_refused(
    kind: Callable[[int], object], seed: int
) -> None:
    class Dropped(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.draws = kind(seed)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            return self.fc(h if self.training and self.draws.random() < 0.5 else 2 * h)

    model = Dropped()
    expected = kind(seed).random()  # type: ignore[attr-defined]
    with pytest.raises(EowError, match="draws random numbers in Python"):
        upgrade(model, copy=False)
    assert model.draws.random() == expected


def test_the_head_of_a_pair_is_what_speaks_last_wherever_it_is_registered() -> None:
    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.pre = nn.Linear(8, CLASSES), nn.Linear(8, 8)

        def forward(self, h: Tensor) -> Tensor:
            return self.fc(torch.relu(self.pre(h)))

    tail, x = Tail(), torch.randn(5, 8)
    expected = tail(x)
    upgraded = upgrade((nn.Linear(8, 8), tail), copy=False)
    assert upgraded.head is tail.fc
    assert torch.equal(tail(x)[:, :-1], expected)


def test_names_that_are_words_of_python_and_lazy_buffers_are_told() -> None:
    class Branches(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.ModuleDict({"global": nn.Linear(8, 16)})

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.relu(self.branch["global"](x)))

    with pytest.raises(EowError, match=r"called 'branch\.global', and global is a word of Python"):
        upgrade(Branches())
    lazy = nn.Sequential(nn.Linear(8, 16), nn.LazyBatchNorm1d(affine=False), nn.Linear(16, CLASSES))
    with pytest.raises(EowError, match="lazy layers"):
        upgrade(lazy)


def test_a_compiled_part_can_be_saved() -> None:
    upgraded = upgrade(network("lenet")[0])
    upgraded.encoder.compile(backend="eager")
    file = io.BytesIO()
    torch.save(upgraded, file)
    file.seek(0)
    again, x = torch.load(file, weights_only=False), torch.randn(2, *network("lenet")[1])
    assert torch.equal(again.eval()(x), upgraded.eval()(x))


def test_a_train_that_does_what_torchs_does_is_none_of_ones_own() -> None:
    """As Hugging Face's have it."""

    class Inner(Plain):
        def train(self, mode: bool = True) -> "Inner":
            return super().train(mode)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def train(self, mode: bool = True) -> "Outer":
            super().train(mode)
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model = Outer().eval()
    model.inner.fc.train()
    upgraded, x = upgrade(model), torch.randn(5, 8)
    assert "inner.a" in upgraded.cuts
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    assert [each.training for each in model.modules()] == [False, False, False, True]


@pytest.mark.parametrize("cut", ["penultimate", "a"])
def test_a_head_may_be_asked_for_its_type_device_and_shape(cut: str) -> None:
    class Asking(Plain):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x.to(self.fc.weight.device))).to(self.fc.weight.dtype)
            return self.fc(h.reshape(-1, self.fc.weight.shape[1]))

    model, x = Asking().eval(), torch.randn(5, 8)
    upgraded = upgrade(model, cut)
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    assert len([name for name, _ in upgraded.named_parameters() if name.endswith("fc.weight")]) == 1


def test_what_a_module_remembers_outside_its_buffers_is_not_touched() -> None:
    """Whether a buffer changes in training is looked up on a copy."""

    class Centred(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Remembering()
            self.register_buffer("mask", torch.ones(20))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.inner(torch.relu(self.a(x)) * self.mask[:16]))

    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(16)

        def forward(self, h: Tensor) -> Tensor:
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            return h - self.mean

    model, x = Centred().eval(), torch.randn(5, 8)
    expected = model(x)
    for copied in (True, False):
        assert torch.equal(upgrade(model, copy=copied)(x)[:, :-1], expected)
        assert torch.equal(model(x), expected)


def test_buffers_that_are_expanded_or_sparse_are_no_trouble() -> None:
    class Odd(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("wide", torch.ones(1).expand(20))
            self.register_buffer("adjacent", torch.eye(16).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x)) * self.wide[:16]
            return self.fc(torch.sparse.mm(self.adjacent.t(), h.T).T)

    model, x = Odd().eval(), torch.randn(5, 8)
    assert torch.allclose(upgrade(model)(x)[:, :-1], model(x), atol=1e-6)


def test_of_two_layers_that_say_the_same_the_one_that_is_returned_is_the_head() -> None:
    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Linear(8, CLASSES)
            self.fc = copy.deepcopy(self.start)

        def forward(self, h: Tensor) -> Tensor:
            self.start(h)
            return self.fc(h)

    pair = nn.Linear(8, 8), Tail()
    assert upgrade(pair, copy=False).head is pair[1].fc


@pytest.mark.parametrize("strange", [math.nan, math.inf])
def test_an_example_that_is_not_finite_tells_its_shape_alone(strange: float) -> None:
    model = Plain()
    example = torch.randn(4, 8)
    example[1, 2] = strange
    assert upgrade(model, example=example).classes == CLASSES


class Scaled(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.body, self.head = change, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self.body(x)))


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h / np.sqrt(8),
        lambda h: np.sqrt(8) * h,
        lambda h: np.int64(3) - h,
        lambda h: torch.clamp(h, max=np.float32(0.1)),
        lambda h: h.view(-1, np.prod((2, 4))),
        lambda h: h[:, : np.int64(8)],
    ],
)
def test_numbers_of_numpys_are_numbers(change: Callable[[Tensor], Tensor]) -> None:
    model, x = Scaled(change), torch.randn(5, 6)
    upgraded = upgrade(model)
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    torch.save(upgraded, buffer := io.BytesIO())  # a graph is saved as code
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), upgraded(x))


def test_threads_upgrade_one_after_another_and_leave_torch_as_it_was() -> None:
    apply, enter, call = CheckpointFunction.apply, torch.autocast.__enter__, nn.Module.__call__
    x = torch.randn(5, 6)

    def one(number: int) -> bool:
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))  # draws, while another is read
        return torch.equal(upgrade(model)(x)[:, :-1], model(x))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(40)))
    assert (CheckpointFunction.apply, torch.autocast.__enter__, nn.Module.__call__) == (apply, enter, call)


class Waits(nn.Module):
    """While its forward is read, another thread does something."""

    def __init__(self, something: Callable[[], None]) -> None:
        super().__init__()
        self.something, self.body, self.head = [something], nn.Linear(6, 8), nn.Linear(8, 3)

    def __deepcopy__(self, memo: dict) -> "Waits":
        return self

    def forward(self, x: Tensor) -> Tensor:
        other = threading.Thread(target=self.something[0])
        other.start()
        other.join()
        return self.head(self.body(x))


def test_other_threads_may_predict_while_a_model_is_read() -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6, requires_grad=True)
    expected, found = model(x), []

    def predict() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            low = model(x)
        again = checkpoint(model, x, use_reentrant=True)
        found.append((low.dtype, model(x), again, type(again.grad_fn).__name__))

    upgrade(Waits(predict), example=x.detach())
    assert len(found) >= 2
    for dtype, said, again, made in found:
        assert dtype == torch.bfloat16
        assert torch.equal(said, expected)
        assert torch.equal(again, expected)
        assert made == "CheckpointFunctionBackward"  # a checkpoint still, and no plain call


class Asks(nn.Module):
    """It drops only what is a tensor, by any of the ways to ask."""

    def __init__(self, ask: Callable[["Asks", Tensor], bool]) -> None:
        super().__init__()
        self.ask, self.body, self.drop, self.end = ask, nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.end(self.drop(h) if self.ask(self, h) else h)


class AsksIsinstance(Asks):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.end(self.drop(h) if isinstance(h, Tensor) else h)


class AsksType(Asks):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.end(self.drop(h) if type(h) is torch.Tensor else h)


class AsksTorch(Asks):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        return self.end(self.drop(h) if torch.is_tensor(h) else h)


@pytest.mark.parametrize("kind", [AsksIsinstance, AsksType, AsksTorch])
def test_a_module_that_asks_whether_it_has_a_tensor_still_has_one(kind: type[Asks]) -> None:
    model, x = nn.Sequential(kind(lambda self, h: True), nn.ReLU(), nn.Linear(8, 3)).train(), torch.randn(64, 6)
    upgraded = upgrade(model)
    torch.manual_seed(0)
    expected = model(x)
    torch.manual_seed(0)
    assert torch.equal(upgraded(x)[:, :-1], expected)
    assert not torch.equal(upgraded(x), upgraded(x))


@pytest.mark.parametrize("ask", [lambda self, h: isinstance(h, Tensor), lambda self, h: type(h) is Tensor])
def test_what_is_lost_in_training_alone_is_refused(ask: Callable[[Asks, Tensor], bool]) -> None:
    with pytest.raises(EowError, match=r"in training, .*logits differ by up to .*isinstance\(x, Tensor\)"):
        upgrade(Asks(ask))


def test_torch_is_tensor_is_answered_in_the_outermost_forward() -> None:
    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x if torch.is_tensor(x) else torch.stack(x)))

    model, x, usual = Ragged(), torch.randn(5, 6), torch.is_tensor
    assert torch.equal(upgrade(model, example=x)(x)[:, :-1], model(x))
    assert torch.is_tensor is usual


def test_a_parameter_that_would_not_learn_is_named() -> None:
    """An adapter begins as nothing: no logit differs without it."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.down, self.up, self.head = (nn.Linear(*each) for each in ((6, 8), (8, 2), (2, 8), (8, 3)))
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            return self.head(h + self.up(self.down(h)) if isinstance(h, Tensor) else h)

    with pytest.raises(EowError, match=r"in training, .*no gradient for down\.bias, down\.weight, up\.bias, \.\.\."):
        upgrade(Adapted())


ELSEWHERE = random.Random(0)


class DrawsElsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * ELSEWHERE.random() if self.training else x


class DrawsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=self.generator) if self.training else x


class TakesMany(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) < 8:
            raise ValueError("at least 8")
        return x


@pytest.mark.parametrize(
    "middle", [DrawsElsewhere, DrawsItself, TakesMany, lambda: nn.BatchNorm1d(8), lambda: nn.RReLU(0.1, 0.9)]
)
def test_the_comparison_in_training_leaves_no_trace(middle: Callable[[], nn.Module]) -> None:
    """And refuses nothing for what it cannot know: numbers from elsewhere, rows that are too few, one row repeated."""
    model, x = nn.Sequential(nn.Linear(6, 8), middle(), nn.Linear(8, 3)).train(), torch.randn(16, 6)
    before, generator = state(model), torch.get_rng_state()
    own = model[1].generator.get_state() if isinstance(model[1], DrawsItself) else None
    upgraded = upgrade(model, copy=False, example=x[:1])
    assert torch.equal(torch.get_rng_state(), generator)
    assert own is None or torch.equal(model[1].generator.get_state(), own)  # type: ignore[union-attr, operator]
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert upgraded.training
    assert torch.equal(upgraded.eval()(x)[:, :-1], model.eval()(x))


def wrapped(layer: nn.Module, how: str) -> None:
    """A wrapper as debuggers, profilers and adapters put one on."""
    plain = layer.forward
    if how == "default":
        layer.forward = lambda x, plain=plain: plain(x)
    elif how == "closure":
        layer.forward = lambda x: plain(x)
    elif how == "weight":
        weight, bias = layer.weight, layer.bias
        layer.forward = lambda x: F.linear(x, weight, bias)  # type: ignore[arg-type]
    elif how == "method":
        layer.forward = MethodType(lambda self, x: F.linear(x, self.weight, self.bias), layer)
    elif how == "partial":
        layer.forward = partial(lambda self, plain, x: plain(x), layer, plain)
    elif how == "nothing":
        layer.forward = lambda x: torch.cat([x, x[:, :2]], 1)


@pytest.mark.parametrize("how", ["default", "closure", "weight"])
def test_a_forward_that_holds_the_original_is_refused(how: str) -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    expected = model(x)
    wrapped(model[0], how)
    with pytest.raises(
        EowError, match=r"^the layer '0' has a function in the place of its forward.*submodule\('0'\)\.forward"
    ):
        upgrade(model)
    shared = upgrade(model, copy=False)
    assert torch.equal(shared(x)[:, :-1], expected)
    shared(x).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("how", ["method", "partial", "nothing"])
def test_a_forward_that_is_copied_with_its_layer_is_none_of_those(how: str) -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    wrapped(model[0], how)
    upgraded = upgrade(model, example=x)
    assert torch.equal(upgraded(x)[:, :-1], model(x))
    upgraded(x).sum().backward()
    assert model[0].weight.grad is None
    assert how == "nothing" or upgraded.encoder.get_submodule("0").weight.grad is not None


def test_a_copy_that_computes_with_the_original_by_another_function_is_refused() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.call = lambda x: F.linear(x, self.layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.call(x) if x.sum() > -1e9 else x  # which torch.fx cannot trace

    with pytest.raises(EowError, match=r"a copy of the model computes with 0\.layer\.weight of the model"):
        upgrade(nn.Sequential(Inner(), nn.Linear(6, 3)))


class Variational(nn.Module):
    """A weight that a layer changes, used on both sides of what would be a cut."""

    def __init__(self, change: nn.Module) -> None:
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.randn(8, 8)), change
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.change(self.weight)
        return self.head(torch.relu(self.body(x) @ weight) @ weight)


class Noisy(nn.Module):
    """Traced into, so that its function is what draws."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Identity()

    def forward(self, weight: Tensor) -> Tensor:
        return self.scale(weight) + torch.randn_like(weight)


@pytest.mark.parametrize(
    ("change", "apart"),
    [
        (lambda: nn.Dropout(0.5), True),
        (lambda: nn.BatchNorm1d(8), True),
        (Noisy, True),
        (lambda: nn.LayerNorm(8), False),
    ],
)
def test_what_is_drawn_once_is_not_drawn_in_both_parts(change: Callable[[], nn.Module], apart: bool) -> None:
    """Nor do statistics move twice. What is the same each time either part computes for itself."""
    torch.manual_seed(0)
    model, x = Variational(change()).train(), torch.randn(5, 6)
    cuts = upgrade(model, example=x).cuts
    assert ("body" in cuts, "relu" in cuts, "penultimate" in cuts) == (not apart, not apart, True)
    for cut in cuts:
        upgraded = upgrade(model, cut, example=x)
        torch.manual_seed(1)
        expected = copy.deepcopy(model)(x)
        torch.manual_seed(1)
        assert torch.equal(upgraded(x)[:, :-1], expected), cut
        moved = [int(each) for name, each in upgraded.named_buffers() if name.endswith("num_batches_tracked")]
        assert moved in ([], [1])
    if apart:
        with pytest.raises(EowError, match="'body' is no place where one tensor carries everything"):
            upgrade(model, "body", example=x)


class Assigns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        h[h < 0] = 0
        return self.head(h)


def test_item_assignment_is_named_or_kept_in_its_module() -> None:
    with pytest.raises(EowError, match=r"Assigns\.forward assigns to items of a tensor.*masked_fill"):
        upgrade(Assigns())
    model, x = nn.Sequential(Assigns(), nn.ReLU(), nn.Linear(3, 2)), torch.randn(5, 6)
    assert torch.equal(upgrade(model)(x)[:, :-1], model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantized_head_is_told_that_it_cannot_be_trained() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    for given in (quantized, (nn.Identity(), quantized)):
        with pytest.raises(EowError, match=r"is a quantized layer, and these cannot be trained"):
            upgrade(given, example=torch.randn(5, 6))


def test_an_example_without_values_is_refused() -> None:
    with pytest.raises(EowError, match="the example lies on the device meta"):
        upgrade(nn.Linear(6, 3), example=torch.randn(5, 6, device="meta"))


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_gradients_are_told_since_no_copy_has_them(kind: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    for where, path, copied in ((0, "0.weight", True), (1, "1.weight", True), (1, "1.weight", False)):
        handle = getattr(model[where].weight, kind)(lambda each: None)
        with pytest.raises(EowError, match=f"{path} has a hook on its gradient, which would be lost: remove it"):
            upgrade(model, copy=copied)
        handle.remove()
    masked = []
    model[0].weight.register_hook(masked.append)
    x = torch.randn(5, 6)
    upgrade(model, copy=False)(x).sum().backward()  # there it is the parameter itself
    assert len(masked) == 1


class Auxiliary(nn.Module):
    """A second head in training, as Inception has."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux, self.fc = nn.Linear(6, 4), nn.Linear(4, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = self.body(x)
        return (self.fc(h), self.aux(h)) if self.training else self.fc(h)


def test_an_encoder_that_returns_more_in_training_is_told() -> None:
    with pytest.raises(EowError, match="encoder returns a tuple for 3 inputs in training: let it return one"):
        upgrade((Auxiliary().eval(), nn.Linear(4, 3)))


def test_a_cut_that_is_no_name_is_told_the_names() -> None:
    with pytest.raises(EowError, match=r"there is no cut \['0'\]: choose one of input, 0, penultimate"):
        upgrade(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), cut=["0"])  # type: ignore[arg-type]


class OverTime(nn.Module):
    """A loop over as many steps as the input has: nothing that torch.fx could trace."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.dropout, self.fc = nn.GRUCell(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 8)
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
        return self.fc(self.dropout(h))


def test_the_remedy_that_a_refusal_names_is_one() -> None:
    x, model = torch.randn(5, 6, 4), OverTime().eval()
    with pytest.raises(EowError, match=r"or upgrade it with trace=False, .* or pass the two parts yourself"):
        upgrade(model, example=x)
    before = model(x)
    upgraded = upgrade(model, example=x, trace=False)
    assert torch.equal(upgraded(x)[:, :-1], before)
    assert upgraded.encoder.dropout.p == 0.3
    assert (upgraded.cut, upgraded.cuts, upgraded.classes) == ("penultimate", ("penultimate",), 3)
    longer = torch.randn(2, 9, 4)  # the loop is no graph: other lengths are as good
    assert torch.equal(upgraded(longer)[:, :-1], model(longer))


def test_a_deep_model_is_not_searched_at_every_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading an EfficientNet of timm's took a minute, most of it in lists of all its parameters."""
    usual, asked = nn.Module.named_parameters, []
    monkeypatch.setattr(nn.Module, "named_parameters", lambda *a, **k: asked.append(1) or usual(*a, **k))
    counts = []
    for depth in (2, 12):
        asked.clear()
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(depth)]
        upgrade(nn.Sequential(*blocks, nn.Linear(4, 3)))
        counts.append(len(asked))
    assert counts[1] - counts[0] < 4 * 10  # for ten blocks more, each read twice


class Casts(nn.Linear):
    """timm's, in which MobileNetV3 and others end."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return F.linear(input, self.weight.to(input.dtype), self.bias)
        return F.linear(input, self.weight, self.bias)


class DropsWeights(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, F.dropout(self.weight, 0.5, self.training), self.bias)


class Bounds(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input.clamp(-10, 10), self.weight, self.bias)


class LowRank(nn.Linear):
    """Says what its weight says until it is trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input @ self.down.t() @ self.up.t()


@pytest.mark.parametrize("pair", [False, True])
def test_a_head_with_a_forward_of_its_own_may_do_what_linear_does_and_no_more(pair: bool) -> None:
    def whole(head: nn.Module) -> nn.Module | tuple[nn.Module, nn.Module]:
        body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        return (body, head) if pair else nn.Sequential(*body, head)

    given, x = whole(Casts(8, 3)), torch.randn(5, 6)
    old = given[1](given[0](x)) if isinstance(given, tuple) else given(x)
    state = torch.get_rng_state()
    assert torch.equal(upgrade(given)(x)[:, :-1], old)
    assert torch.equal(torch.get_rng_state(), state)
    for kind in (Cosine, DropsWeights, LowRank, Bounds):
        with pytest.raises(EowError, match=f"{kind.__name__} with a forward of its own"):
            upgrade(whole(kind(8, 3)))


@pytest.mark.parametrize("weight", [1e-2, 1.0])
def test_features_that_are_cut_off_are_told_of(weight: float) -> None:
    torch.manual_seed(0)
    model = Scaled(lambda z: z * 1e16)
    with torch.no_grad():
        model.head.weight.mul_(weight)
    with pytest.raises(EowError, match=r"logits reach .*, and of what its last .* nothing counts for more than 1e\+15"):
        upgrade(model, example=torch.randn(4, 6))
