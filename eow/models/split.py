"""A network in two parts: the encoder up to a named cut, and the tail from there to the logits.

EOW draws its negatives at the cut: chains run through the tail only, so where the cut lies decides what they cost
and which layers the energy term trains.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from eow.errors import EowError
from eow.threads import in_forked_child

INPUT = "input"


class SplitModel(nn.Module):
    """`model(x) == tail(encoder(x))`, for any two modules; built with `from_stages`, it can be cut elsewhere.

    The names in a state dict begin with `encoder.` or `tail.`: weights are loaded at the cut they were saved at, and
    `recut` after that.
    """

    _shown: Tensor | None = None

    def __init__(self, encoder: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.tail = tail
        self._cut: str | None = None

    @classmethod
    def from_stages(cls, stages: Mapping[str, nn.Module], cut: str) -> "SplitModel":
        """Encoder: the stages up to and including `cut` (none for "input"). Tail: the rest, at least the last stage."""
        if not stages or INPUT in stages:
            raise EowError(f"a model needs at least one stage and none called {INPUT!r}: these are {list(stages)}")
        names = list(stages)
        cuts = (INPUT, *names[:-1])
        if cut not in cuts:
            raise EowError(f"the model has no cut {cut!r}: choose one of {', '.join(cuts)}")
        position = cuts.index(cut)
        model = cls(
            nn.Sequential(OrderedDict((name, stages[name]) for name in names[:position])),
            nn.Sequential(OrderedDict((name, stages[name]) for name in names[position:])),
        )
        model._cut = cut
        return model

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.encoder(x))

    @property
    def cut(self) -> str | None:
        """The name of the cut, or None for two modules put together by hand."""
        return self._cut

    @property
    def cuts(self) -> tuple[str, ...]:
        """Every cut there is: "input", then all stages but the last. Empty for two modules put together by hand."""
        if self._cut is None:
            return ()
        return (INPUT, *list(self._stages())[:-1])

    @property
    def head(self) -> nn.Linear:
        """The tail's last linear layer, in the order of registration."""
        linears = [module for module in self.tail.modules() if isinstance(module, nn.Linear)]
        if not linears:
            raise EowError("the tail has no nn.Linear to serve as head: cut the model before its last linear layer")
        return linears[-1]

    def replace_head(self, module: nn.Module) -> None:
        """Put a module where the head is; every cut stays where it was."""
        head = self.head
        (path,) = [name for name, each in self.tail.named_modules() if each is head]
        if path:
            self.tail.set_submodule(path, module)
        else:
            self.tail = module

    def recut(self, cut: str) -> "SplitModel":
        """The same modules, parameters shared, cut elsewhere."""
        if self._cut is None:
            raise EowError(
                "this SplitModel was put together from two modules and has no named cuts: build it with from_stages"
            )
        model = SplitModel.from_stages(self._stages(), cut)
        # Set one by one and not with train(): the stages are shared, and each keeps its own mode.
        for part in (model, model.encoder, model.tail):
            part.training = self.training
        return model

    def feature_shape(self, in_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one latent at the cut, without the batch, for one input of shape `in_shape`.

        Found by a dry run, which leaves running statistics, modes and random generators alone: on one input of zeros,
        or inside `shown` on real ones. Inside `only_counted` there is no run, and one feature stands for all.
        """
        if COUNTED.get():
            return (1,)
        tensors = [*self.encoder.parameters(), *self.encoder.buffers()]
        device = tensors[0].device if tensors else torch.device("cpu")
        dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.get_default_dtype())
        generators = [device] if device.type == "cuda" else []
        x = self.blank(in_shape, dtype)
        if self._shown is not None and self._shown.shape[1:] == x.shape[1:]:
            x = self._shown.clone()
        with frozen_statistics(self.encoder), torch.no_grad(), torch.random.fork_rng(generators):
            try:
                latent = self.encoder(x.to(device))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever somebody else's forward raises
                shape, why = tuple(in_shape), str(error) or type(error).__name__
                if self._shown is not None:  # somebody passed a batch, and no shape
                    raise EowError(
                        f"the model cannot take inputs of shape {shape} each ({why}): pass a batch as it wants it, "
                        "x[None] for a single one"
                    ) from error
                raise EowError(
                    f"the encoder cannot take an input of shape {shape}: give that of one input, without the batch "
                    f"({why})"
                ) from error
        if not isinstance(latent, Tensor):
            raise EowError(f"the encoder returns a {type(latent).__name__}: cut the model where a single tensor passes")
        return tuple(latent.shape[1:])

    def blank(self, in_shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An input for a dry run where there is no real one."""
        return torch.zeros(1, *in_shape, dtype=dtype)

    @contextmanager
    def shown(self, x: Tensor) -> Iterator[None]:
        """Inside the block dry runs take the first rows of x: a model that masks padding takes no row of zeros, and
        one that normalises by its batch takes no single row. They are not kept: a model that is saved holds nobody's
        data."""
        self._shown = x[:2].detach()
        try:
            yield
        finally:
            self._shown = None

    def _stages(self) -> OrderedDict[str, nn.Module]:
        return OrderedDict([*self.encoder.named_children(), *self.tail.named_children()])


COUNTED = ContextVar("counted", default=False)


@contextmanager
def only_counted() -> Iterator[None]:
    """On the device meta inside: networks are made for the shapes of their weights, and none is run. The first run
    there costs a second, as torch imports its compiler for it."""
    token = COUNTED.set(True)
    try:
        with torch.device("meta"):
            yield
    finally:
        COUNTED.reset(token)


def unwrapped(model: object) -> object:
    """The module inside torch.compile's, (Distributed)DataParallel's or AveragedModel's: it computes the same."""
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel | AveragedModel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


LOCK = threading.Lock()
FROZEN: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()  # how many blocks hold it; its own mode


@in_forked_child
def thawed_after_fork() -> None:
    """A forked process has the thread that forked and no other: what the others held, nobody would ever let go."""
    global LOCK
    LOCK = threading.Lock()
    for module, (_, own) in list(FROZEN.items()):
        module.training = own
    FROZEN.clear()


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block: no running statistic moves, no dropout falls.

    Afterwards each submodule has its own mode back: `train()` would give all the same one, also to those that somebody
    had put in evaluation on purpose. Of several threads that predict with one model the last to leave brings it back.
    """
    inside = list(module.modules())
    with LOCK:
        for each in inside:
            blocks, own = FROZEN.get(each, (0, each.training))
            FROZEN[each] = blocks + 1, own
            each.training = False
    try:
        yield
    finally:
        with LOCK:
            for each in inside:
                blocks, own = FROZEN.pop(each, (1, each.training))  # none after a fork inside the block
                if blocks > 1:
                    FROZEN[each] = blocks - 1, own
                else:
                    each.training = own


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Every submodule in one mode inside the block, and each in its own again afterwards."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        for submodule, _ in modes:
            submodule.training = training
        yield
    finally:
        for submodule, before in modes:
            submodule.training = before
