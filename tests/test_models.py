"""The networks: known sizes, the same function at every cut, and dry runs that leave no trace."""

import copy
from collections import OrderedDict
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eow.errors import EowError
from eow.models import MODELS, GaussianNoise, SplitModel, build, frozen_statistics
from eow.models.layers import OpenLinear
from eow.models.resnet import Block
from eow.models.wideresnet import PreactivationBlock

SMALLEST = {"mlp": 8, "vgg11": 17, "resnet18": 8, "resnet50": 8, "resnet101": 8, "wrn28_10": 8}


def small(name: str, **options: Any) -> tuple[SplitModel, Tensor]:
    """The model at its smallest size, with running statistics that are not those of a fresh model, and two inputs."""
    torch.manual_seed(0)
    shape = (3, SMALLEST[name], SMALLEST[name])
    model = build(name, 5, shape, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval(), torch.randn(2, *shape)


def parameters(name: str, *arguments: Any, **options: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, *arguments, **options).parameters())


# --- cuts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_cut_is_the_same_function(name: str) -> None:
    model, x = small(name)
    z = x
    for stage in [*model.encoder.children(), *model.tail.children()]:
        z = stage(z)
    assert z.shape == (2, 5)
    assert z[0].ne(z[1]).any()
    assert model.cut == "penultimate" == model.cuts[-1]
    assert model.cuts[0] == "input"
    for cut in model.cuts:
        split = model.recut(cut)
        assert split.cut == cut
        assert split.cuts == model.cuts
        latent = split.encoder(x)
        assert split.feature_shape(x.shape[1:]) == latent.shape[1:]
        torch.testing.assert_close(split.tail(latent), z, rtol=0, atol=0)
        torch.testing.assert_close(split(x), z, rtol=0, atol=0)
    assert split.head.out_features == 5


def test_recut_shares_parameters_and_keeps_modes() -> None:
    model, x = small("resnet18", cut="stage2")
    model.train()
    model.encoder.stem.eval()
    other = model.recut("input")
    assert {id(p) for p in other.parameters()} == {id(p) for p in model.parameters()}
    assert len(list(other.encoder.children())) == 0
    assert other.encoder(x) is x
    assert other.training
    assert [m.training for m in other.tail.stem.modules()] == [False] * 4
    assert not any(module.training for module in model.eval().recut("stage1").modules())
    with torch.no_grad():
        other.head.bias.fill_(7.0)
    assert model.head.bias.eq(7.0).all()


def test_any_two_modules_make_a_split_model() -> None:
    encoder, tail = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)),
    )
    model = SplitModel(encoder, tail)
    x = torch.randn(5, 3)
    assert torch.equal(model(x), tail(encoder(x)))
    assert model.cut is None
    assert model.cuts == ()
    assert model.head is tail[2]
    assert model.feature_shape((3,)) == (4,)
    with pytest.raises(
        EowError, match="put together from two modules and has no named cuts: build it with from_stages"
    ):
        model.recut("input")


def test_stages_have_the_agreed_names() -> None:
    expected = {
        "vgg11": ("stage1", "stage2", "stage3", "stage4", "stage5"),
        "resnet50": ("stem", "stage1", "stage2", "stage3", "stage4"),
        "wrn28_10": ("stem", "stage1", "stage2", "stage3"),
        "mlp": ("stage1",),
    }
    with torch.device("meta"):
        for name, stages in expected.items():
            assert build(name, 10).cuts == ("input", *stages, "penultimate")
        assert build("mlp", 10, hidden=(7, 6, 5)).cuts == ("input", "stage1", "stage2", "penultimate")
        assert build("mlp", 10, hidden=(7,)).cuts == ("input", "penultimate")


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # The numbers commonly published for the 32x32 versions of these networks with ten outputs.
        ("vgg11", 9_231_114),
        ("resnet18", 11_173_962),
        ("resnet50", 23_520_842),
        ("resnet101", 42_512_970),
        ("wrn28_10", 36_479_194),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, expected: int) -> None:
    assert parameters(name, 10) == expected


def test_parameter_counts_without_norm_trade_scale_and_shift_for_a_bias() -> None:
    # VGG: 2752 channels lose scale and shift, their biases were there already.
    assert parameters("vgg11", 10, norm="none") == 9_231_114 - 2 * 2752
    # ResNet-18: every convolution has its own norm: (scale, shift) becomes (bias).
    channels = 64 + 4 * 64 + 5 * 128 + 5 * 256 + 5 * 512
    assert parameters("resnet18", 10, norm="none") == 11_173_962 - channels
    # WRN: a norm on what enters each convolution of a branch, and one at the end; a bias on what leaves each, on the
    # three projections and on the stem.
    norms = (16 + 160) + 3 * 320 + (160 + 320) + 3 * 640 + (320 + 640) + 3 * 1280 + 640
    biases = 16 + 9 * 160 + 9 * 320 + 9 * 640
    assert parameters("wrn28_10", 10, norm="none") == 36_479_194 - 2 * norms + biases


def test_mlp_parameter_counts() -> None:
    assert parameters("mlp", 10, (1, 28, 28)) == 784 * 512 + 512 + 512 * 512 + 512 + 5130
    assert parameters("mlp", 3, (4,), hidden=(7,), norm="batch") == 5 * 7 + 14 + 8 * 3
    assert parameters("mlp", 3, (4,), hidden=()) == 5 * 3


CUT_SHAPES = {
    ("resnet50", (3, 32, 32)): {
        "stem": (64, 32, 32),
        "stage1": (256, 32, 32),
        "stage2": (512, 16, 16),
        "stage3": (1024, 8, 8),
        "stage4": (2048, 4, 4),
        "penultimate": (2048,),
    },
    # The release cuts after stage 2 and finds 320x16x16.
    ("wrn28_10", (3, 32, 32)): {
        "stem": (16, 32, 32),
        "stage1": (160, 32, 32),
        "stage2": (320, 16, 16),
        "stage3": (640, 8, 8),
        "penultimate": (640,),
    },
    ("vgg11", (3, 32, 32)): {
        "stage1": (64, 16, 16),
        "stage4": (512, 2, 2),
        "stage5": (512, 1, 1),
        "penultimate": (512,),
    },
    ("vgg11", (3, 64, 64)): {"stage5": (512, 2, 2), "penultimate": (512,)},
    ("vgg11", (1, 28, 28)): {
        "stage2": (128, 7, 7),
        "stage3": (256, 4, 4),
        "stage5": (512, 1, 1),
        "penultimate": (512,),
    },
    ("resnet18", (3, 64, 64)): {
        "stem": (64, 32, 32),
        "stage1": (64, 32, 32),
        "stage4": (512, 4, 4),
        "penultimate": (512,),
    },
    ("resnet18", (3, 48, 96)): {"stem": (64, 48, 96), "stage4": (512, 6, 12), "penultimate": (512,)},
    ("resnet18", (1, 28, 28)): {
        "stage1": (64, 28, 28),
        "stage3": (256, 7, 7),
        "stage4": (512, 4, 4),
        "penultimate": (512,),
    },
    ("wrn28_10", (3, 64, 64)): {"stem": (16, 32, 32), "stage3": (640, 8, 8)},
    ("mlp", (1, 28, 28)): {"input": (1, 28, 28), "stage1": (512,), "penultimate": (512,)},
    ("mlp", (64,)): {"input": (64,), "stage1": (512,), "penultimate": (512,)},
}


@pytest.mark.parametrize(("name", "in_shape"), CUT_SHAPES)
def test_feature_shapes_at_the_cuts(name: str, in_shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        model = build(name, 10, in_shape)
    for cut, expected in CUT_SHAPES[name, in_shape].items():
        assert model.recut(cut).feature_shape(in_shape) == expected
    assert model(torch.zeros(2, *in_shape, device="meta")).shape == (2, 10)


def test_the_stem_can_be_chosen() -> None:
    with torch.device("meta"):
        assert build("resnet18", 10, (3, 64, 64), cut="stem", stem="32").feature_shape((3, 64, 64)) == (64, 64, 64)
        assert build("wrn28_10", 10, (3, 32, 32), cut="stem", stem="64").feature_shape((3, 32, 32)) == (16, 16, 16)


@torch.no_grad()
def test_vgg_on_28_pixels_loses_no_border() -> None:
    """The pools round up: the last pixel still shows in the last corner of every stage. Rounding down drops it."""
    torch.manual_seed(0)
    model = build("vgg11", 5, (1, 28, 28), norm="none").eval()
    x = torch.randn(1, 1, 28, 28)
    changed = x.clone()
    changed[..., -1, -1] += 10.0
    assert model(x).shape == (1, 5)
    corner = [model.recut(f"stage{n}").encoder(changed).ne(model.recut(f"stage{n}").encoder(x)) for n in range(1, 6)]
    assert all(difference[..., -1, -1].any() for difference in corner)


# --- what the blocks compute -----------------------------------------------------------------------------------------


def batch_norm(x: Tensor, norm: nn.Module) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    scale, shift = norm.weight.view(1, -1, 1, 1), norm.bias.view(1, -1, 1, 1)
    return scale * (x - mean) / (variance + 1e-5).sqrt() + shift


def randomise_norms(module: nn.Module) -> None:
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)


@torch.no_grad()
def test_bottleneck_block_by_hand() -> None:
    torch.manual_seed(0)
    block = Block(6, 4, 2, True, "batch", "relu")
    randomise_norms(block)
    x = torch.randn(3, 6, 8, 8)
    conv1, norm1, _, conv2, norm2, _, conv3, norm3 = block.branch
    h = batch_norm(F.conv2d(x, conv1.weight), norm1).clamp(min=0)
    h = batch_norm(F.conv2d(h, conv2.weight, stride=2, padding=1), norm2).clamp(min=0)
    h = batch_norm(F.conv2d(h, conv3.weight), norm3)
    shortcut = batch_norm(F.conv2d(x[:, :, ::2, ::2], block.shortcut[0].weight), block.shortcut[1])
    torch.testing.assert_close(block(x), (h + shortcut).clamp(min=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_preactivation_block_by_hand(stride: int) -> None:
    torch.manual_seed(0)
    block = PreactivationBlock(6, 6, stride, "batch", "leaky_relu", 0.0)
    randomise_norms(block)
    x = torch.randn(3, 6, 8, 8)
    entered = F.leaky_relu(batch_norm(x, block.entry[0]), 0.2)
    h = F.leaky_relu(batch_norm(F.conv2d(entered, block.conv1.weight, stride=stride, padding=1), block.middle[0]), 0.2)
    h = F.conv2d(h, block.conv2.weight, padding=1)
    shortcut = x if stride == 1 else F.conv2d(entered[:, :, ::2, ::2], block.projection.weight)
    torch.testing.assert_close(block(x), shortcut + h, rtol=1e-4, atol=1e-5)


# --- initialisation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
@torch.no_grad()
def test_wrn_without_norm_starts_sane(activation: str) -> None:
    torch.manual_seed(0)
    model = build("wrn28_10", 50, (3, 16, 16), norm="none", activation=activation, cut="stage3").eval()
    features = model.encoder(torch.randn(8, 3, 16, 16))
    # The stem gives 2 (less with a slope), twelve blocks multiply by at most (13/12)^12 = 2.6; padding takes some away.
    # Unscaled branches would give 2 x 2^12 = 8192.
    assert 0.5 < features.square().mean() < 2 * (13 / 12) ** 12
    assert 1e-3 < model.tail(features).var() < 1e3


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50", "wrn28_10"])
def test_without_norm_nothing_explodes_and_every_parameter_learns_from_the_first_step(name: str) -> None:
    model, x = small(name, norm="none")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    logits = model.train()(x)
    assert 1e-3 < logits.var() < 1e2
    F.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_convolutions_are_initialised_after_he() -> None:
    model = build("resnet18", 10)
    weight = model.recut("input").tail.stage4[0].branch[0].weight
    assert weight.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)
    leaky = build("vgg11", 10, norm="none", activation="leaky_relu").recut("input").tail.stage4[0]
    assert leaky.weight.std().item() == pytest.approx((2 / 1.04 / (9 * 256)) ** 0.5, rel=0.01)
    assert leaky.bias.eq(0).all()


# --- dropout and noise -----------------------------------------------------------------------------------------------


def test_dropout_belongs_to_the_head() -> None:
    torch.manual_seed(0)
    model = build("mlp", 1000, (4,), hidden=(1000,), dropout=0.3).train()
    assert isinstance(model.head, nn.Linear)
    nn.init.eye_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    x = torch.randn(20, 4)
    features = model.encoder(x)
    assert torch.equal(features, model.encoder(x))
    alive = features > 0
    kept = model.tail(features)[alive]
    rate = kept.eq(0).float().mean().item()
    assert abs(rate - 0.3) < 4 * (0.21 / kept.numel()) ** 0.5
    survivors = kept.ne(0)
    torch.testing.assert_close(kept[survivors], features[alive][survivors] / 0.7)
    torch.testing.assert_close(model.eval().tail(features), features)


def test_dropout_stands_where_it_should() -> None:
    def places(name: str, **options: Any) -> list[str]:
        with torch.device("meta"):
            model = build(name, 10, cut="input", **options)
        return [path for path, module in model.tail.named_modules() if isinstance(module, nn.Dropout)]

    assert places("resnet50", dropout=0.1) == ["head.dropout"]
    assert places("vgg11", dropout=0.1) == ["head.dropout"]
    assert places("mlp", dropout=0.1, hidden=(5, 5, 5)) == ["stage2.dropout", "penultimate.dropout", "head.dropout"]
    in_blocks = [f"stage{stage}.{block}.dropout" for stage in (1, 2, 3) for block in range(4)]
    assert places("wrn28_10", dropout=0.1) == [*in_blocks, "head.dropout"]
    assert all(places(name) == [] for name in MODELS)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_quadratic_unknown_is_its_formula_and_begins_as_the_linear_one(dropout: float) -> None:
    models = []
    for unknown in ("linear", "quadratic"):
        torch.manual_seed(0)
        models.append(build("mlp", 4, (6,), dropout=dropout, unknown=unknown).double().eval())
    x = torch.randn(10, 6, dtype=torch.float64)
    assert torch.equal(models[0](x), models[1](x))
    head, z = models[1].head, models[1].recut("penultimate").encoder(x)
    nn.init.normal_(head.square)
    expected = z @ head.weight.T + head.bias
    expected[:, 3] += (z**2 * head.square).sum(1)
    torch.testing.assert_close(models[1](x), expected)


def test_a_quadratic_unknown_is_a_number_wherever_the_features_are() -> None:
    head = OpenLinear(nn.Linear(3, 4))
    nn.init.ones_(head.square)
    far = torch.tensor([[1.0, -1.0, 1.0]]) * torch.tensor([1e3, 1e12, 1e20, 1e30]).unsqueeze(1)
    said = head(far)
    assert said.isfinite().all()
    assert (said.argmax(1) == 3).all()


def test_a_convex_unknown_rises_far_out_whatever_its_parameter_was_stepped_to() -> None:
    model = build("mlp", 3, (5,), unknown="convex")
    head = model.head
    assert isinstance(head, OpenLinear)
    nn.init.normal_(head.square)
    bent = head.square.detach().clone()
    free = OpenLinear(nn.Linear(head.in_features, 3))
    free.load_state_dict(head.state_dict())
    z = torch.randn(20, head.in_features)
    with torch.no_grad():
        free.square.clamp_(min=0)
    torch.testing.assert_close(head(z), free(z))
    torch.testing.assert_close(head.curvature(), bent.clamp(min=0))
    assert (head(1e6 * torch.sign(z)).argmax(1) == 2).all()
    head(z).sum().backward()
    assert head.square.grad is not None
    assert (head.square.grad[bent < 0] == 0).all()
    head.project()
    assert torch.equal(head.square, bent.clamp(min=0))
    free.square.data.copy_(bent)
    free.project()  # not convex: nothing to bring back
    assert torch.equal(free.square, bent)


def test_an_unknown_that_is_not_bent_now_keeps_the_bend_it_has() -> None:
    """`curved` is about what is trained, not about what is said."""
    torch.manual_seed(0)
    head, x = OpenLinear(nn.Linear(5, 4)).double(), torch.randn(7, 5, dtype=torch.float64)
    nn.init.normal_(head.square)
    expected = x @ head.weight.T + head.bias
    expected[:, 3] += (x**2 * head.square).sum(1)
    weights = torch.randn(7, 4, dtype=torch.float64)
    for curved in (True, False):
        head.curved = curved
        head.zero_grad()
        said = head(x)
        torch.testing.assert_close(said, expected)
        (weights * said).sum().backward()
        torch.testing.assert_close(head.weight.grad, weights.T @ x)
        torch.testing.assert_close(head.bias.grad, weights.sum(0))
        if curved:
            torch.testing.assert_close(head.square.grad, weights[:, 3] @ x**2)
        else:
            assert head.square.grad is None


@pytest.mark.parametrize("training", [True, False])
def test_gaussian_noise_has_its_statistics_in_both_modes(training: bool) -> None:
    noise = GaussianNoise(0.5).train(training)
    x = torch.full((200_000,), 3.0)
    torch.manual_seed(0)
    first, second = noise(x) - 3.0, noise(x) - 3.0
    n = x.numel()
    for sample in (first, second):
        assert abs(sample.mean()) < 4 * 0.5 / n**0.5
        assert abs(sample.std() - 0.5) < 4 * 0.5 / (2 * n) ** 0.5
        assert abs(sample.pow(4).mean() / 0.5**4 - 3.0) < 4 * (96 / n) ** 0.5
    assert abs((first * second).mean()) < 4 * 0.25 / n**0.5
    torch.manual_seed(0)
    assert torch.equal(noise(x) - 3.0, first)


@pytest.mark.parametrize(
    ("name", "first"), [("mlp", "stage1"), ("vgg11", "stage1"), ("resnet18", "stem"), ("wrn28_10", "stem")]
)
@torch.no_grad()
def test_noise_is_added_before_the_first_stage_and_after_stage1(name: str, first: str) -> None:
    plain, x = small(name, cut="stage1")
    noisy, _ = small(name, cut="stage1", input_noise=0.01, stage_noise=0.02)
    assert noisy.cuts == plain.cuts
    noisy.load_state_dict(plain.state_dict())
    torch.manual_seed(1)
    observed = noisy.encoder(x)
    torch.manual_seed(1)
    entered = x + 0.01 * torch.randn_like(x)
    clean = plain.encoder(entered)
    torch.testing.assert_close(observed, clean + 0.02 * torch.randn_like(clean), rtol=0, atol=0)
    # Beyond stage 1 nothing is random, and the cut "input" hands over the input as it is.
    assert torch.equal(noisy.tail(clean), plain.tail(clean))
    assert noisy.recut("input").encoder(x) is x
    assert isinstance(next(noisy.recut("input").tail.get_submodule(first).children()), GaussianNoise)


# --- dry runs and frozen statistics ----------------------------------------------------------------------------------


def test_frozen_statistics_freezes_and_restores_each_mode() -> None:
    model, x = small("resnet18", dropout=0.5)
    model.train()
    model.encoder.stage2.eval()
    modes = [module.training for module in model.modules()]
    assert True in modes
    assert False in modes
    buffers = copy.deepcopy(dict(model.named_buffers()))
    with frozen_statistics(model):
        assert not any(module.training for module in model.modules())
        assert torch.equal(model(x), model(x))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())

    with pytest.raises(KeyError), frozen_statistics(model):
        raise KeyError
    assert [module.training for module in model.modules()] == modes

    model(x)
    assert not torch.equal(model.encoder.stem[1].running_mean, buffers["encoder.stem.1.running_mean"])


def test_feature_shape_leaves_statistics_modes_and_generator_alone() -> None:
    model, x = small("resnet18", cut="stage4", input_noise=0.1, stage_noise=0.1)
    model.train()
    model.encoder.stage1.eval()
    modes = [module.training for module in model.modules()]
    buffers = copy.deepcopy(dict(model.named_buffers()))
    state = torch.get_rng_state()
    assert model.feature_shape(x.shape[1:]) == (512, 1, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_feature_shape_uses_the_precision_of_the_model() -> None:
    assert build("mlp", 2, (6,), hidden=(5,)).double().feature_shape((6,)) == (5,)


# --- what the rest of the package does with a model ------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models_can_be_traced(name: str) -> None:
    model, x = small(name, input_noise=0.1, dropout=0.1)
    traced = torch.fx.symbolic_trace(model)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(traced(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mlp", "vgg11", "resnet18"])
@torch.no_grad()
def test_bf16_autocast_stays_close(name: str) -> None:
    model, x = small(name)
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    assert logits.dtype == torch.bfloat16
    # bfloat16 has 8 bits: a few per cent of the logits' size after twenty layers.
    assert (logits.float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50"])
@torch.no_grad()
def test_channels_last_is_kept_and_changes_nothing(name: str) -> None:
    model, x = small(name, cut="stage2")
    expected = model(x)
    last = model.to(memory_format=torch.channels_last)
    latent = last.encoder(x.to(memory_format=torch.channels_last))
    assert latent.is_contiguous(memory_format=torch.channels_last)
    assert not latent.is_contiguous()
    torch.testing.assert_close(last.tail(latent), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_tail_leaves_its_latent_as_it_was(name: str) -> None:
    """The sampler differentiates the tail at z and then moves z: an activation in place would spoil it."""
    model, x = small(name, norm="none")
    for cut in model.cuts:
        split = model.recut(cut)
        z = split.encoder(x).detach().requires_grad_()
        before = z.detach().clone()
        (gradient,) = torch.autograd.grad(split.tail(z).square().sum(), z)
        assert torch.equal(z, before)
        assert gradient.any()


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (
            ("resnet34", 10),
            {},
            "there is no model 'resnet34': choose one of mlp, vgg11, resnet18, resnet50, resnet101, wrn28_10",
        ),
        (
            ("resnet18", 10),
            {"cut": "layer4"},
            "the model has no cut 'layer4': choose one of input, stem, stage1, stage2, stage3, stage4, penultimate",
        ),
        (("resnet18", 10), {"cut": "head"}, "the model has no cut 'head': choose one of input"),
        (("resnet18", 10), {"hidden": (512, 512)}, "resnet18 has no use for 'hidden': leave it out"),
        (("mlp", 10), {"stem": "32"}, "mlp has no use for 'stem': leave it out"),
        (("vgg11", 10), {"stem": "64"}, "vgg11 has no use for 'stem': leave it out"),
        (
            ("mlp", 10),
            {"hidden": (), "norm": "batch"},
            "an mlp without hidden layers has no use for 'norm' or 'activation': leave them out",
        ),
        (("mlp", 10), {"hidden": (5, 0)}, "every hidden layer of an mlp needs at least one unit: hidden is (5, 0)"),
        (("mlp", 10, (3, 4)), {}, "mlp cannot take inputs of shape (3, 4): give (D,) or (C, H, W), all at least 1"),
        (("mlp", 10), {"hidden": (5,), "stage_noise": 0.1}, "this mlp has no stage1 for 'stage_noise' to follow"),
        (
            ("resnet50", 10, (64,)),
            {},
            "resnet50 needs images of shape (C, H, W), not (64,): use mlp for feature vectors",
        ),
        (("vgg11", 10, (64,)), {}, "vgg11 needs images of shape (C, H, W), not (64,): use mlp for feature vectors"),
        (("vgg11", 10, (0, 32, 32)), {}, "vgg11 needs images with at least one channel, not 0: in_shape is (C, H, W)"),
        (("vgg11", 10, (3, 16, 32)), {}, "images of 16x32 are too small for vgg11: use mlp, or 17x17 and more"),
        (("wrn28_10", 10, (3, 8, 7)), {}, "images of 8x7 are too small for wrn28_10: use mlp, or 8x8 and more"),
        (
            ("resnet18", 10, (3, 15, 15)),
            {"stem": "64"},
            "images of 15x15 are too small for resnet18: use mlp, or 16x16 and more",
        ),
        (("resnet18", 10), {"stem": "224"}, "stem '224' is unknown: choose one of auto, 32, 64"),
        (("resnet18", 10), {"norm": "layer"}, "norm 'layer' is unknown: choose one of batch, none"),
        (("vgg11", 10), {"activation": "tanh"}, "activation 'tanh' is unknown: choose one of relu, leaky_relu"),
        (("mlp", 0), {}, "a model needs at least one output, not 0: give the number of classes"),
        (("mlp", 2), {"dropout": 1.0}, "dropout is 1.0: give a rate from 0 up to, but not including, 1"),
        (("mlp", 2), {"dropout": -0.1}, "dropout is -0.1: give a rate from 0"),
        (
            ("mlp", 2),
            {"input_noise": -1.0},
            "input_noise is -1.0: a standard deviation cannot be negative, give 0 for no noise",
        ),
        (("mlp", 2), {"unknown": "cubic"}, "unknown logit 'cubic' is unknown: choose one of linear, quadratic"),
        (("mlp", 2), {"stage_noise": -1.0}, "stage_noise is -1.0: a standard deviation cannot be negative"),
    ],
)
def test_what_cannot_be_built_is_said(arguments: tuple[Any, ...], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EowError) as caught, torch.device("meta"):
        build(*arguments, **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_split_model_refuses() -> None:
    with pytest.raises(EowError, match="at least one stage and none called 'input': these are \\[\\]"):
        SplitModel.from_stages({}, "input")
    with pytest.raises(EowError, match="none called 'input': these are \\['input', 'head'\\]"):
        SplitModel.from_stages({"input": nn.Identity(), "head": nn.Linear(2, 2)}, "input")
    with pytest.raises(
        EowError, match=r"the tail has no nn\.Linear to serve as head: cut the model before its last linear"
    ):
        _ = SplitModel(nn.Linear(2, 2), nn.ReLU()).head
    with pytest.raises(
        EowError, match=r"cannot take an input of shape \(5,\): give that of one input, without the batch \("
    ):
        SplitModel(nn.Linear(4, 2), nn.Linear(2, 2)).feature_shape((5,))
    recurrent = SplitModel(nn.GRU(4, 2), nn.Linear(2, 2))
    with pytest.raises(EowError, match="the encoder returns a tuple: cut the model where a single tensor passes"):
        recurrent.feature_shape((3, 4))
    assert SplitModel.from_stages(OrderedDict(head=nn.Linear(2, 2)), "input").cuts == ("input",)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
@torch.no_grad()
def test_the_smallest_allowed_image_still_reaches_every_feature(name: str) -> None:
    model, x = small(name, norm="none")
    features = model.encoder(x)
    assert features.shape[0] == 2
    assert prod(features.shape[1:]) == model.head.in_features
    # Every pixel matters: none is cut off by a stride or a pool.
    x = x[:1].clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
    assert gradient.abs().sum(1).gt(0).all()
