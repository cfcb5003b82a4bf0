"""The last linear layer of somebody else's model: found, or an error that says why not, and widened by one output."""

import copy as copying
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from eow.errors import EowError
from eow.models.comparing import same
from eow.models.generators import forked
from eow.models.layers import FARTHEST, UNKNOWNS, OpenLinear, check_choice
from eow.models.refusing import HOOKS, PAIR, WHOLE, refuse_gradient_hooks
from eow.models.tracing import Detached, Traced

BELOW = 16.0  # how far below the mean of the K logits the unknown starts
UNIT = 300.0  # the mean squared norm of the features in the units that the square of the unknown is trained in
PEAKED = 16.0  # how many times the squared norm of z² may be what it is where all features are equally large
STRETCH = 2.0  # how many times larger or smaller |z|² may become before the units follow it
GROWTH = 1.02  # the most that they grow by in a step: too small units hardly matter, too large ones make v·z² explode
SMALLEST = 1e-30  # of UNIT / |z|², and its inverse the largest: beyond, units are left as they are
PROBED = 16  # rows that a linear layer with a forward of its own is asked for, every other of them large
LARGE = 1e4  # by so much, to see whether it keeps them within bounds
SOFTMAXES = ("softmax", "log_softmax", "sigmoid", "logsigmoid", "softmin", "Softmax", "LogSoftmax", "Sigmoid",
             "LogSigmoid", "Softmin", "Softmax2d")  # fmt: skip

# Hooks that compute a weight before every call, and what takes them off.
WEIGHT_HOOKS: dict[type, str] = {
    WeightNorm: "torch.nn.utils.remove_weight_norm",
    SpectralNorm: "torch.nn.utils.remove_spectral_norm",
    prune.BasePruningMethod: "torch.nn.utils.prune.remove",
}


class WidenedLinear(nn.Linear):
    """A linear layer with one output more. The K old ones are a product of their own: a product of K+1 columns adds up
    in another order and may differ in the last bit."""

    def __init__(self, old: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = old.in_features, old.out_features + 1
        weight = old.weight.detach()
        bias = weight.new_zeros(len(weight)) if old.bias is None else old.bias.detach()
        # Means in double precision: what is to lie 16 below the others must not be rounded there.
        self.weight = nn.Parameter(torch.cat([weight, weight.double().mean(0, keepdim=True).to(weight.dtype)]))
        self.bias = nn.Parameter(torch.cat([bias, (bias.double().mean(0, keepdim=True) - BELOW).to(bias.dtype)]))
        self.training = old.training

    def forward(self, input: Tensor) -> Tensor:
        known = F.linear(input, self.weight[:-1], self.bias[:-1])
        return torch.cat([known, F.linear(input, self.weight[-1:], self.bias[-1:])], -1)


class WidenedOpenLinear(OpenLinear):
    """A widened layer whose unknown is quadratic. Whose features they are nobody knows: they may be of any size, and a
    step of the optimiser would move v·z² by as much. So z is taken in units in which its squared norm has a mean of 300
    (records/2026-11-15_upgrade); `measure` finds them when training begins, and v is 0 until then.

    A trained network's features keep their size. Those of one that is not trained yet may grow a thousandfold in a few
    steps, and v·z² would with them. So in training the units follow features whose |z|² leaves half to twice the size
    it had; v stays. They shrink at once and grow slowly: a batch of small features alone must not make all others
    unknown.

    The units are for Adam, whose steps are of one length whatever the gradient. In them |z²|² is 300² / D and more, for
    D features, where |z|² is 300: by gradient descent v would run away in a narrow network, so its gradient is scaled
    down by that much, PEAKED included. To Adam it is the same."""

    unit: Tensor

    def __init__(self, old: nn.Linear, *, convex: bool = False) -> None:
        super().__init__(WidenedLinear(old), convex=convex)
        self.register_buffer("unit", torch.ones((), dtype=old.weight.dtype, device=old.weight.device))
        self.training = old.training

    def forward(self, input: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and self.square.requires_grad:
            self.follow(input.detach())
        return super().forward(input)

    def coefficients(self) -> Tensor:
        v = super().coefficients()
        share = min(1.0, self.in_features / (PEAKED * UNIT))
        return v.detach() + share * (v - v.detach())

    def curvature(self) -> Tensor:
        return self.coefficients() * self.unit**2

    def within(self, input: Tensor) -> Tensor:
        farthest = FARTHEST / self.unit.to(input.dtype)
        return input.clamp(-farthest, farthest)

    def measured(self, input: Tensor) -> Tensor:
        return input * self.unit.to(input.dtype, copy=True)  # the next batch may change it before this one's backward

    def lines(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(input, self.weight[:-1], self.bias[:-1]), F.linear(input, self.weight[-1:], self.bias[-1:])

    def measure(self, squares: float) -> None:
        """Take the units from the mean squared norm of the features. What v·z² is stays as it is."""
        factor = UNIT / squares if squares else 1.0
        kind = torch.finfo(self.unit.dtype)
        if not kind.tiny < factor < kind.max:
            raise EowError(
                f"the features that the last layer reads have a mean squared norm of {squares:.4g}: normalise them"
            )
        with torch.no_grad():
            self.square.mul_(float(self.unit) ** 2 / factor)
            self.unit.fill_(factor**0.5)

    def follow(self, input: Tensor) -> None:
        """Keep |z|² in these units above UNIT / STRETCH in the mean of a batch and below UNIT · STRETCH in its median,
        which a few large rows do not move. In place and without waiting for a device."""
        squares = input.float().square().sum(-1)
        wanted, usual = UNIT / squares.mean(), UNIT / squares.median()
        followed = self.unit.clamp((wanted / STRETCH).sqrt(), (usual * STRETCH).sqrt())
        followed = torch.minimum(followed, GROWTH * self.unit)
        telling = (wanted > SMALLEST) & (wanted < 1 / SMALLEST)
        self.unit.copy_(torch.where(telling, followed, self.unit))


def widened(old: nn.Linear, unknown: str) -> nn.Linear:
    """The layer with an unknown that is linear, quadratic or convex in its input."""
    check_choice("unknown", unknown, UNKNOWNS)
    return WidenedLinear(old) if unknown == "linear" else WidenedOpenLinear(old, convex=unknown == "convex")


def has_hook(module: nn.Module, kind: type) -> bool:
    return any(isinstance(hook, kind) for hook in module._forward_pre_hooks.values())


def is_linear(head: nn.Linear) -> bool:
    """Whether a forward of its own does what nn.Linear's does, in training too, and with nothing but weight and bias:
    some only cast before it, as timm's does in scripts."""
    if not head.state_dict().keys() <= {"weight", "bias"} or next(head.children(), None) is not None:
        return False
    try:
        copied = copying.deepcopy(head).cpu()  # whatever it may count or remember
        with forked(copied), torch.no_grad():
            z = torch.randn(PROBED, head.in_features)
            z[::2] *= LARGE
            z = z.to(copied.weight)
            expected = F.linear(z, copied.weight, copied.bias)
            return all(same(copied.train(mode).forward(z), expected) for mode in (False, True))
    except Exception:  # whatever somebody else's forward raises
        return False


def checked_head(head: Any, path: str, model: nn.Module, classes: int | None) -> nn.Linear:
    if type(head).forward is not nn.Linear.forward and not is_linear(head):
        raise EowError(
            f"{path} is a {type(head).__name__} with a forward of its own: end the model in a plain nn.Linear"
        )
    refuse_one(head, path)
    if classes is not None and classes != head.out_features:
        raise EowError(
            f"classes is {classes}, but the model's last linear layer, {path}, has {head.out_features} outputs: "
            "leave classes out, or pass the model trained on them"
        )
    if parametrize.is_parametrized(head):
        raise EowError(
            f"{path} has a parametrization, which widening would undo: take it off first with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    if any(getattr(head, kind) for kind in HOOKS):
        raise EowError(
            f"{path} has a hook, which would be lost when it is widened: remove it first"
            + "".join(f" with {remover}" for kind, remover in WEIGHT_HOOKS.items() if has_hook(head, kind))
        )
    refuse_gradient_hooks(head, path)
    own = {id(parameter) for parameter in head.parameters()}
    for name, module in model.named_modules():
        if module is not head and any(id(each) in own for each in module.parameters(recurse=False)):
            raise EowError(
                f"{path} shares its weight with {name}, which widening would undo: give it a weight of its own first "
                f"({path}.weight = nn.Parameter({path}.weight.detach().clone()))"
            )
    return head


def refuse_one(head: nn.Linear, path: str) -> None:
    if head.out_features < 2:
        raise EowError(f"{path} has one output, a yes or no: give the model one output for each class, at least 2")


def keeps_logits(node: fx.Node) -> bool:
    """Whether the node gives the logits as they are, or in another precision or shape: K or K+1 of them, the same way.
    A squeeze that names no axis would also drop a batch of one."""
    squeezes = node.target in ("squeeze", torch.squeeze) and len(node.args) + len(node.kwargs) > 1
    return squeezes or (node.op == "call_method" and node.target in ("contiguous", "float"))


def refuse_quantized(path: str, module: nn.Module | None) -> None:
    if ".quantized" in type(module).__module__:
        raise EowError(
            f"{path} is a quantized layer, and these cannot be trained: upgrade the model as it was before it was "
            "quantized, and quantize what comes out"
        )


def find_head(traced: Traced, model: str) -> fx.Node:
    """The linear layer that makes the logits, or an error that says what stands in its place."""
    node = list(traced.graph.nodes)[-1].args[0]
    if not isinstance(node, fx.Node):
        kind = type(node).__name__.removeprefix("immutable_")
        instead = WHOLE if isinstance(node, dict) and "logits" in node else PAIR  # as Hugging Face's models return them
        raise EowError(f"the model returns a {kind}: make its forward return the logits alone, {instead}")
    module = traced.parts.get(str(node.target)) if node.op == "call_module" else None
    while isinstance(module, nn.Identity | nn.Dropout) or keeps_logits(node):
        node = node.all_input_nodes[0]
        module = traced.parts.get(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, nn.Linear):
        return node
    if isinstance(module, Detached):
        raise EowError(f"{model} computes its logits inside torch.no_grad(), where nothing is trained: take that off")
    last = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
    where = f"{node.target} ({last})" if module is not None else last
    if last in SOFTMAXES:
        before = node.all_input_nodes[0]
        said_by = traced.parts.get(str(before.target)) if before.op == "call_module" else None
        if isinstance(said_by, nn.Linear):
            refuse_one(said_by, str(before.target))
        remedy = f"model.set_submodule({node.target!r}, torch.nn.Identity())" if module is not None else "remove it"
        raise EowError(
            f"{model} ends in {where}, so it gives no logits: {remedy}, and train with cross-entropy, which has the "
            "softmax in it"
        )
    if module is not None and any(isinstance(child, nn.Linear) for child in module.modules()):
        raise EowError(
            f"the model's last linear layer lies in {where}, which torch.fx cannot trace: simplify it, {WHOLE}"
        )
    refuse_quantized(str(node.target), module)
    if node.target is F.linear:
        raise EowError(
            f"{model} makes its logits by functional.linear, of parameters of its own: let an nn.Linear make them, "
            "which may be given the same weight and bias"
        )
    if not any(isinstance(part, nn.Linear) for part in traced.parts.values()):
        convolution = any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in traced.parts.values())
        instead = ": replace its convolution head by a pool, nn.Flatten and an nn.Linear" if convolution else (
            ": end it in an nn.Linear with one output for each class")  # fmt: skip
        raise EowError(f"{model} has no nn.Linear that makes its logits, it ends in {where}{instead}")
    raise EowError(
        f"{model} does not end in its last linear layer but in {where}: return that layer's logits as they are, {PAIR}"
    )
