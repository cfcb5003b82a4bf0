"""The pieces more than one network is made of: layers by name, the head, noise, initialisation, checks of the input."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.models import fused

Stages: TypeAlias = OrderedDict[str, nn.Module]

# The slope below zero, which He initialisation needs as well. 0.2 is what the EOW release uses.
SLOPES = {"relu": 0.0, "leaky_relu": 0.2}
NORMS = ("batch", "none")
UNKNOWNS = ("linear", "quadratic", "convex")  # the unknown logit as a function of the last features
STEM_STRIDES = {"32": 1, "64": 2}
FARTHEST = 1e15  # a feature farther out counts as that far: its square is still a number in float32


class GaussianNoise(nn.Module):
    """Adds N(0, std²), in training and in evaluation alike, drawn from torch's global generator.

    The EOW release smooths the network this way at test time too, so this does not follow the training flag.
    """

    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def forward(self, x: Tensor) -> Tensor:
        return x + self.std * torch.randn_like(x)

    def extra_repr(self) -> str:
        return f"std={self.std}"


class Layers(nn.Sequential):
    """nn.Sequential; what is more, a batch norm and the activation after it are one step where there is one for it."""

    def forward(self, x: Tensor) -> Tensor:
        return in_turn(self, x)


def in_turn(layers: Iterable[nn.Module], x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The layers one after another, with the residual added before the last, an activation."""
    queue = list(layers)
    while queue:
        layer, *queue = queue
        activates = bool(queue) and type(queue[0]) in (nn.ReLU, nn.LeakyReLU)
        plus = residual if len(queue) == 1 else None
        if type(layer) is nn.BatchNorm2d and fused.fits(layer, x, plus):
            x = fused.norm_activate(layer, x, slope_of(queue.pop(0)) if activates else 1.0, plus)
        else:
            x = layer(x)
            x = x if plus is None else x + plus
    return x


def slope_of(activation: nn.Module) -> float:
    """The slope below zero."""
    return activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 0.0


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise EowError(f"{what} {value!r} is unknown: choose one of {', '.join(choices)}")


def activation_layer(activation: str) -> nn.Module:
    """Never in place: the input of a tail is a latent that the sampler still needs."""
    check_choice("activation", activation, SLOPES)
    return nn.ReLU() if activation == "relu" else nn.LeakyReLU(SLOPES[activation])


def norm_layer(norm: str, channels: int, images: bool = True) -> nn.Module:
    check_choice("norm", norm, NORMS)
    if norm == "none":
        return nn.Identity()
    return nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)


def conv(inputs: int, outputs: int, kernel: int, stride: int, bias: bool) -> nn.Conv2d:
    """A convolution that keeps the side (divided by the stride, rounded up)."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)


def pool() -> Layers:
    return Layers(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def head_layer(features: int, outputs: int, dropout: float) -> nn.Module:
    """The last linear layer. Its dropout is part of the head, so that `penultimate` is the feature without dropout."""
    if outputs < 1:
        raise EowError(f"a model needs at least one output, not {outputs}: give the number of classes")
    if not 0.0 <= dropout < 1.0:
        raise EowError(f"dropout is {dropout}: give a rate from 0 up to, but not including, 1")
    linear = nn.Linear(features, outputs)
    if dropout == 0.0:
        return linear
    return nn.Sequential(OrderedDict(dropout=nn.Dropout(dropout), linear=linear))


class OpenLinear(nn.Linear):
    """K+1 logits of which the last, "unknown", is quadratic in the features: f[K+1] = w·z + v·z² + b.

    Where known samples lie inside and unknown ones around them, the log-odds of the two are not a linear function: with
    one, there are always directions in which the unknown falls without end, and a chain has no lowest energy to go to.
    It begins with v = 0, as the linear layer it is made from, and v is not trained while `curved` is False: without
    negatives cross-entropy alone would bend the unknown away from the data for ever.

    A `convex` one has no v below 0: training may step there, and `project` brings it back before the next step. Unknown
    samples that spread wider than the known ones ask for no other v, and what is far enough out then stays unknown.

    float16 holds no squares: in it, and under its autocast, the K logits are computed as ever, the unknown and what is
    returned are float32; bfloat16 reaches as far as float32. All logits read the features cut off at `FARTHEST`: if the
    square alone stopped there, the K would overtake it.
    """

    curved = True
    convex = False

    def __init__(self, linear: nn.Linear, *, convex: bool = False) -> None:
        nn.Module.__init__(self)
        self.convex = convex
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.square = nn.Parameter(linear.weight.new_zeros(linear.in_features))

    def forward(self, input: Tensor) -> Tensor:
        if torch.float16 not in (input.dtype, computed_in(input)):
            within = self.within(input)
            known, unknown = self.lines(within)
            return torch.cat([known, unknown + self.rise(within)], -1)
        most, within = torch.finfo(torch.float16).max, self.within(input.float())
        known = self.lines(within.clamp(-most, most).to(input.dtype))[0].float().clamp(-most, most)
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias[-1:].float()
            unknown = nn.functional.linear(within, self.weight[-1:].float(), bias) + self.rise(within)
        return torch.cat([known, unknown], -1)

    def lines(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """The K logits, and what of the unknown is linear."""
        logits = nn.functional.linear(input, self.weight, self.bias)
        return logits[..., :-1], logits[..., -1:]

    def project(self) -> None:
        """Between steps: what of v may not be negative becomes 0."""
        if self.convex:
            self.square.data.clamp_(min=0)  # unseen by autograd: an earlier loss may still wait for its backward

    def curvature(self) -> Tensor:
        """v, for each feature as it comes in."""
        return self.coefficients()

    def coefficients(self) -> Tensor:
        """v, in its own units."""
        return self.square.clamp(min=0) if self.convex else self.square

    def within(self, input: Tensor) -> Tensor:
        """The features, none farther out than `FARTHEST` in the units that v is for."""
        return input.clamp(-FARTHEST, FARTHEST)

    def measured(self, input: Tensor) -> Tensor:
        """The features in the units that v is for."""
        return input

    def rise(self, within: Tensor) -> Tensor:
        """v·z², of shape (..., 1)."""
        z, square = self.measured(within), self.coefficients()
        square = square if self.curved else square.detach()
        return nn.functional.linear(z * z, square[None].to(z.dtype))


def computed_in(input: Tensor) -> torch.dtype:
    """The precision in which a linear layer computes here."""
    device = input.device.type
    if input.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return input.dtype
    return torch.get_autocast_dtype(device)


def check_image(model: str, in_shape: Sequence[int], smallest: int) -> None:
    if len(in_shape) != 3:
        raise EowError(f"{model} needs images of shape (C, H, W), not {tuple(in_shape)}: use mlp for feature vectors")
    if in_shape[0] < 1:
        raise EowError(f"{model} needs images with at least one channel, not {in_shape[0]}: in_shape is (C, H, W)")
    if min(in_shape[1:]) < smallest:
        height, width = in_shape[1:]
        raise EowError(
            f"images of {height}x{width} are too small for {model}: use mlp, or {smallest}x{smallest} and more"
        )


def stem_stride(model: str, in_shape: Sequence[int], stem: str) -> int:
    """The stride of the 3x3 stem: 1 for stem "32", 2 for "64"; "auto" takes "64" when the shorter side is 64 or more.

    Either way no max-pool follows: a 64x64 image is brought to 32x32 by the stem, then both go the same way.
    """
    check_choice("stem", stem, ("auto", *STEM_STRIDES))
    # Below 8 pixels after the stem the last stages would work on a map of one pixel.
    check_image(model, in_shape, 8 * STEM_STRIDES.get(stem, 1))
    if stem == "auto":
        stem = "64" if min(in_shape[1:]) >= 64 else "32"
    return STEM_STRIDES[stem]


def he_init(stages: Stages, activation: str, norm: str) -> None:
    """He et al. 2015 for every convolution. Linear and norm layers keep torch's own initialisation.

    With norm the variance is kept backwards (fan out), as the reference ResNets do. Without it nothing repairs the size
    of the activations on the way forwards, so there it is the forward variance that is kept (fan in). On the device
    meta there is nothing to keep, and torch takes a second of imports to find that out.
    """
    mode: Literal["fan_in", "fan_out"] = "fan_out" if norm == "batch" else "fan_in"
    for module in (module for stage in stages.values() for module in stage.modules()):
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, a=SLOPES[activation], mode=mode)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def scale_residuals(last_convs: Sequence[nn.Conv2d]) -> None:
    """For residual nets without norm: divide the last convolution of each of the L branches by sqrt(L).

    A branch initialised after He adds c times the variance it is given (c = 1 with the activation first, 2 with it
    last), so L blocks would multiply it by (1 + c)^L; scaled, by (1 + c/L)^L < e^c. Zeros in the last convolution would
    do as well, but then no gradient reaches the rest of a branch in the first step.
    """
    with torch.no_grad():
        for layer in last_convs:
            if not layer.weight.is_meta:
                layer.weight.div_(len(last_convs) ** 0.5)
