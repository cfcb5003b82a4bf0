"""What a graph does not keep of a forward: gradients switched off, a Function's own backward, autocast, random numbers
drawn in Python. While a network is read (tracing.py) each raises `Lost`: the module that does it is then taken whole,
as one step of the graph, and where that is the outermost its user is told.
"""

import inspect
import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

CHANGES = "changes a tensor in place inside torch.no_grad(), and a graph does not keep that"
APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
AUGMENTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
IN_PLACE = {operator.setitem, *(getattr(operator, f"i{name}") for name in AUGMENTED)}

# What returns a tensor of its own, or none, whatever its arguments but `inplace`: as functions and as methods.
NAMES = """
    abs add addcdiv addcmul addmm and_ atan2 baddbmm bmm bucketize ceil clamp clamp_max clamp_min clip cos cosh div
    divide dot erf exp exp2 expm1 floor floor_divide floordiv fmod frac invert lerp log log10 log1p log2 logaddexp
    lshift matmul maximum minimum mm mod mul multiply mv nan_to_num neg negative or_ outer pow reciprocal remainder
    round rshift rsqrt sign sin sinh sqrt square sub subtract tan true_divide truediv trunc xor
    eq ge gt isclose isfinite isinf isnan le logical_and logical_not logical_or logical_xor lt ne
    _threshold celu elu gelu glu gumbel_softmax hardshrink hardsigmoid hardswish hardtanh leaky_relu log_softmax
    logsigmoid mish prelu relu relu6 rrelu selu sigmoid silu softmax softmin softplus softshrink softsign tanh
    tanhshrink threshold
    all amax amin any argmax argmin argsort count_nonzero cumprod cumsum diff logsumexp max mean median min norm prod
    quantile searchsorted sort std stft std_mean sum topk var var_mean vector_norm
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d max_pool1d max_pool2d max_pool3d
    batch_norm group_norm instance_norm layer_norm local_response_norm normalize rms_norm
    bilinear cdist conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cosine_similarity
    embedding embedding_bag grid_sample interpolate linear one_hot pad pairwise_distance
    scaled_dot_product_attention
    cat clone concat concatenate dstack flip gather hstack index_add index_copy index_fill index_select masked_fill
    masked_select repeat repeat_interleave roll scatter scatter_add stack take take_along_dim tile tril triu vstack
    where
    arange bernoulli empty_like full full_like new_empty new_full new_ones new_tensor new_zeros ones_like rand_like
    randint_like randn_like zeros_like
    dim item ndimension nelement numel size stride tolist
"""
SPACES = (torch, F, operator, torch.linalg)
NEW = {*NAMES.split(), *(getattr(space, name) for space in SPACES for name in NAMES.split() if hasattr(space, name))}
NO_TENSORS = ("device", "dtype", "layout", "ndim", "shape")  # among a tensor's attributes
LAYERS = {nn.Linear, nn.Bilinear}  # and all that torch.nn has in the files of
KINDS = ("activation", "batchnorm", "conv", "instancenorm", "normalization", "padding", "pooling", "rnn", "sparse",
         "upsampling")  # fmt: skip
FILES = {f"torch.nn.modules.{kind}" for kind in KINDS}


class Lost(Exception):
    """A forward does something that a graph does not keep: what it does, as the rest of a sentence."""


class Drawn(Lost):
    """It draws random numbers, or another thread did."""


class Value(fx.Proxy):
    """torch.fx's stand-in for a tensor, which takes `a += b` for `a = a + b`: inside torch.no_grad() that is not the
    same."""

    __array_ufunc__ = None  # a number of numpy's on the left leaves the computation to this, as it does to a tensor

    def __getattr__(self, name: str) -> "Attribute":
        return Attribute(self, name)

    def __setitem__(self, place: Any, value: Any) -> None:
        raise Lost(
            "assigns to items of a tensor, as in h[mask] = 0, which torch.fx cannot trace (torch.where or masked_fill "
            "may do instead)"
        )


class Attribute(Value, fx.proxy.Attribute):
    """`h.T` or `h.mul`: a node only when it is used as a tensor, with gradients if it was read with them."""

    def __init__(self, root: fx.Proxy, name: str) -> None:
        super().__init__(root, name)
        self.enabled = torch.is_grad_enabled()

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        with torch.set_grad_enabled(self.enabled):
            return super().node


def augmented(name: str) -> Any:
    def change(self: Value, other: Any) -> Any:
        if not torch.is_grad_enabled() and self.node.meta["outside"]:
            raise Lost(CHANGES)
        return getattr(operator, name)(self, other)

    return change


for each in AUGMENTED:
    setattr(Value, f"__i{each}__", augmented(f"__{each}__"))


def refuse_functions() -> None:
    """A torch.autograd.Function runs its forward without gradients, and of that the graph would be made."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not APPLY:
        frame = frame.f_back
    if frame is not None:
        name = frame.f_locals["cls"].__name__
        raise Lost(f"calls {name}, a torch.autograd.Function, and a graph does not keep its backward")


def refuse_in_place(node: fx.Node, root: nn.Module) -> None:
    """Without gradients a tensor may be changed behind autograd's back; with them that is another computation."""
    changed = [*node.args[:1], node.kwargs.get("input")] if in_place(node, root) else node.kwargs.get("out")
    if any(isinstance(each, fx.Node) and each.meta["outside"] for each in pytree.tree_leaves(changed)):
        raise Lost(CHANGES)


def in_place(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    underscored = name.endswith("_") and not name.endswith("__") and node.target not in NEW  # operator.and_ is new
    return underscored or node.target in IN_PLACE or bool(node.kwargs.get("inplace"))


def outside(node: fx.Node, root: nn.Module) -> bool:
    """Whether a tensor was made outside torch.no_grad(), or may share the memory of one that was: what is not known to
    be new is taken for a view of all that it was made of."""
    if not node.meta["no_grad"]:
        return True
    return not new(node, root) and any(each.meta["outside"] for each in node.all_input_nodes)


def new(node: fx.Node, root: nn.Module) -> bool:
    """Whether nothing of what a node was made of is in its result, or only what was made inside torch.no_grad()."""
    if node.op == "call_module":
        layer = root.get_submodule(str(node.target))
        return (type(layer) in LAYERS or type(layer).__module__ in FILES) and not layer._forward_hooks
    if node.op == "call_method" and in_place(node, root):
        return True  # the tensor that it was called on, which else was refused
    return node.target in NEW or (node.target is getattr and node.args[1] in NO_TENSORS)


def about_a_tensor(node: fx.Node) -> bool:
    """Whether a node asks a tensor for its type, device or shape, and not for its numbers."""
    if node.target is getattr:
        return node.args[1] in NO_TENSORS
    return node.op == "call_method" and node.target in ("dim", "numel", "size")


@contextmanager
def plain_checkpoints() -> Iterator[None]:
    """Checkpoints of torch's older kind, a Function too, as calls: what is computed again has the same gradient."""
    reading, usual = threading.get_ident(), CheckpointFunction.apply

    def apply(function: Any, preserve_rng_state: Any, *args: Any) -> Any:
        if threading.get_ident() != reading:
            return usual(function, preserve_rng_state, *args)
        return function(*args)

    CheckpointFunction.apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointFunction.apply  # Function has it


@contextmanager
def no_autocast() -> Iterator[None]:
    """Whatever it switches on or off, a graph does not keep it."""
    reading, usual = threading.get_ident(), torch.autocast.__enter__

    def enter(self: Any) -> Any:
        if threading.get_ident() != reading:
            return usual(self)
        raise Lost("enters torch.autocast, which a graph does not keep")

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = usual  # type: ignore[method-assign]


@contextmanager
def stand_ins_are_tensors() -> Iterator[None]:
    """To torch.is_tensor. To isinstance they cannot be: torch would take them for its own and read their memory."""
    reading, usual = threading.get_ident(), torch.is_tensor
    torch.is_tensor = lambda obj: usual(obj) or (isinstance(obj, Value) and threading.get_ident() == reading)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.is_tensor = usual


class Derived(TorchFunctionMode):
    """While a forward is read: of which buffers each tensor was made that is not a node of the graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.made_of = {id(each): {name} for name, each in model.named_buffers()}
        self.alive: list[Tensor] = []  # an address is given away again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        names = set().union(*(self.names(each) for each in given))
        for each in pytree.tree_leaves(made) if names else ():
            if isinstance(each, Tensor) and id(each) not in self.made_of:
                self.made_of[id(each)] = names
                self.alive.append(each)
        return made

    def names(self, tensor: Tensor) -> set[str]:
        return self.made_of.get(id(tensor), set())


@contextmanager
def undisturbed() -> Iterator[None]:
    """A forward is read with gradients, whatever is switched off outside it."""
    with torch.enable_grad(), plain_checkpoints(), no_autocast(), stand_ins_are_tensors():
        yield


def stores_of(model: nn.Module) -> list[dict[str, Any]]:
    """Where a model keeps its parameters and buffers."""
    return [store for module in model.modules() for store in (module._parameters, module._buffers)]


def state_of(stores: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Which parameters and buffers there are, and how often each has been changed in place."""
    with torch._C.DisableTorchFunction():  # no mode has to hear of so many questions
        return [(id(each), version(each)) for store in stores for each in store.values() if each is not None]


def version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers afterwards as they were before: a forward that is read is run, but for its layers."""
    found = [
        (store, name, each, version(each), each.detach().clone())
        for store in stores_of(model)
        for name, each in store.items()
        if each is not None
    ]
    try:
        yield
    finally:
        for store, name, each, before, value in found:
            store[name] = each
            if version(each) != before:
                with torch.no_grad():
                    each.copy_(value)
