"""Networks by name. Each is a list of named stages, so that it can be cut where the sampler is to work.

ours        mlp.py, vgg.py, resnet.py, wideresnet.py of layers.py; split.py cuts them; fused.py, kernels for training
of others   surgery.py (eow.upgrade) has one read as a graph, cut in two and widened, step by step:
            refusing.py    what a graph would miss      keeping.py     what it would not keep of a forward
            allowing.py    what it keeps beside what torch.fx reads
            tracing.py     the graph                    generators.py  whether a forward draws random numbers
            probing.py     a batch it can take          constant.py    what either part can compute for itself
            cutting.py     the two parts                widening.py    the last layer, K to K+1
            comparing.py   whether they compute what it did
            plaintail.py   the second as plain layers
            headless.py    the two parts of a model that is not read, cut before its last layer
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from eow.errors import EowError
from eow.models.layers import UNKNOWNS, GaussianNoise, Layers, OpenLinear, Stages, check_choice
from eow.models.mlp import mlp
from eow.models.resnet import Block, resnet
from eow.models.split import SplitModel, frozen_statistics
from eow.models.vgg import vgg11
from eow.models.wideresnet import PreactivationBlock, wrn28_10

__all__ = ["MODELS", "GaussianNoise", "SplitModel", "alike_in_both_modes", "build", "frozen_statistics"]

MODELS: dict[str, Callable[..., Stages]] = {
    "mlp": mlp,
    "vgg11": vgg11,
    "resnet18": partial(resnet, depth=18),
    "resnet50": partial(resnet, depth=50),
    "resnet101": partial(resnet, depth=101),
    "wrn28_10": wrn28_10,
}

# What computes the same in training and in evaluation, and draws no random numbers.
ALIKE = {
    SplitModel, Block, PreactivationBlock, Layers, nn.Sequential, nn.Identity, nn.Flatten, nn.Linear, OpenLinear,
    nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d,
}  # fmt: skip


def alike_in_both_modes(model: nn.Module) -> bool:
    """Whether training and evaluation are surely the same function: of networks without norm, dropout and noise."""
    return all(type(each) in ALIKE and not (each._forward_pre_hooks or each._forward_hooks) for each in model.modules())


def build(
    name: str,
    outputs: int,
    in_shape: Sequence[int] = (3, 32, 32),
    *,
    cut: str = "penultimate",
    hidden: Sequence[int] | None = None,
    norm: str = "auto",
    activation: str = "relu",
    dropout: float = 0.0,
    stem: str = "auto",
    input_noise: float = 0.0,
    stage_noise: float = 0.0,
    unknown: str = "linear",
) -> SplitModel:
    """The model called `name` with `outputs` logits for inputs of shape `in_shape`, cut at `cut`.

    hidden       units of the mlp's hidden layers, (512, 512) if None; for the mlp only
    norm         "batch" or "none"; "auto": none in the mlp, batch in all others
    activation   "relu" or "leaky_relu" (slope 0.2)
    dropout      rate before the head, in the mlp after every hidden layer, in wrn28_10 also inside the blocks
    stem         "32" (stride 1) or "64" (stride 2), for ResNets; "auto": by the image's shorter side
    input_noise  standard deviation of the noise added to the input, in training and evaluation
    stage_noise  the same after stage 1
    unknown      the last logit in the last features: "linear", "quadratic" or "convex" (layers.OpenLinear)
    """
    if name not in MODELS:
        raise EowError(f"there is no model {name!r}: choose one of {', '.join(MODELS)}")
    builder = MODELS[name]
    # What is left to the model is not passed on, so that each builder's own default holds.
    left_to_model: dict[str, Any] = {"hidden": None, "norm": "auto", "stem": "auto"}
    asked: dict[str, Any] = {"hidden": hidden, "norm": norm, "stem": stem}
    options = {option: value for option, value in asked.items() if value != left_to_model[option]}
    for option in options:
        if option not in inspect.signature(builder).parameters:
            raise EowError(f"{name} has no use for {option!r}: leave it out")
    stages = builder(outputs, in_shape, activation=activation, dropout=dropout, **options)
    _add_noise(name, stages, input_noise, stage_noise)
    check_choice("unknown logit", unknown, UNKNOWNS)
    if unknown != "linear":
        _open_head(stages, unknown == "convex")
    return SplitModel.from_stages(stages, cut)


def _open_head(stages: Stages, convex: bool) -> None:
    """The head with its last logit quadratic, from the same weights."""
    head = stages["head"]
    if isinstance(head, nn.Linear):
        stages["head"] = OpenLinear(head, convex=convex)
    else:  # a dropout stands before it
        head.linear = OpenLinear(head.linear, convex=convex)  # type: ignore[arg-type]


def _add_noise(name: str, stages: Stages, input_noise: float, stage_noise: float) -> None:
    """Put noise before the first stage and after stage 1, inside these stages and under a name of its own: stages and
    parameters are called the same with and without it, so weights fit both."""
    for option, std in (("input_noise", input_noise), ("stage_noise", stage_noise)):
        if std < 0.0:
            raise EowError(f"{option} is {std}: a standard deviation cannot be negative, give 0 for no noise")
    if stage_noise > 0.0 and "stage1" not in stages:
        raise EowError(f"this {name} has no stage1 for 'stage_noise' to follow: leave it out or add a hidden layer")
    if input_noise > 0.0:
        first = next(iter(stages))
        layers = stages[first].named_children()
        stages[first] = nn.Sequential(OrderedDict([("input_noise", GaussianNoise(input_noise)), *layers]))
    if stage_noise > 0.0:
        layers = stages["stage1"].named_children()
        stages["stage1"] = nn.Sequential(OrderedDict([*layers, ("stage_noise", GaussianNoise(stage_noise))]))
