"""Whether the two parts of an upgraded model compute what the model computed, in evaluation and in training."""

import copy as copying
import random
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.models.generators import forked
from eow.models.layers import FARTHEST
from eow.models.probing import evaluated
from eow.models.refusing import PAIR, with_closures
from eow.models.tracing import ROOT
from eow.plain import first_line, shortened
from eow.seeds import seed_torch

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 1e-2}
# Batch norm divides by the deviations of three rows, which may be small: that blows up mere rounding.
COARSE, COARSEST = 1e-2, 0.1
AGAIN = 4  # so often the model is asked again whether it says the same twice


def compare(old: Tensor, model: nn.Module, x: Tensor) -> Tensor:
    """What the model says now: the K logits as they were, and an unknown that nothing chooses. A warning where that
    needs the random numbers of before, in evaluation too, which may be meant."""
    scale = largest(old)

    def as_before(new: Any) -> bool:
        tolerance = TOLERANCE.get(old.dtype, 1e-5) * scale
        return new.shape == (*old.shape[:-1], old.shape[-1] + 1) and close(new[:, :-1], old, tolerance)

    try:
        new = evaluated(model, x, seed=1)
        steady = as_before(new)
        new = new if steady else evaluated(model, x)
    except Exception as error:  # whatever somebody else's forward does with one logit more
        raise EowError(
            f"with a logit for the unknown the model cannot compute what it did ({first_line(error)}): its forward "
            f"must not count its logits, nor use them but to return them; {PAIR}"
        ) from error
    alike = steady or as_before(new)
    if not alike and scale > FARTHEST / 1e3:  # weights are smaller than 1, and there are many
        raise EowError(
            f"the model's logits reach {scale:.2g}, and of what its last linear layer reads nothing counts for more "
            f"than {FARTHEST:.0g}: train the model first, or let it normalise them"
        )
    if not alike:
        raise EowError(
            "cut in two, the model says something else than before: its forward must depend on nothing but its input, "
            f"and its last linear layer must make the logits; {PAIR}"
        )
    if not steady:
        warnings.warn(
            "the model draws random numbers in evaluation too, so each time it says something else of the same input: "
            "unless that is meant, as in MC dropout, let it draw in training alone, as F.dropout(x, p, self.training) "
            "does",
            RuntimeWarning,
            stacklevel=2,
        )
    return new


class Said(NamedTuple):
    """In training: what a model returns, and for which parameters there is a gradient of it."""

    logits: Any
    learning: list[set[str]]  # each by all its names
    strange: set[int]  # of parameters that are none of the model's


def other_in_training(whole: nn.Module, model: nn.Module, x: Tensor, original: nn.Module) -> str | None:
    """What the two parts do in training that the model does not, as the rest of a sentence: there too they must say the
    same, under the same random numbers, and the same parameters must learn.

    Nothing can be said of a model that cannot be copied, that cannot take these rows in training, or that says
    something else each time, drawing from a generator that is not its own."""
    if with_closures(whole):
        return None
    try:
        expected = in_training(whole, x)
    except Exception:  # whatever somebody else's modules raise
        return None
    try:
        found = in_training(model, x)
    except Exception as error:
        why: str | None = f"cannot compute what it did ({first_line(error)})"
    else:
        refuse_strange(found.strange, original)
        why = difference(expected, found)
    return None if why is None or unsteady(whole, x, expected) else why


def said_in_training(module: nn.Module, x: Tensor, otherwise: Any) -> Any:
    """What a module returns in training; `otherwise` where that cannot be found out without a trace in the module."""
    if with_closures(module):
        return otherwise
    try:
        return in_training(module, x).logits
    except Exception:  # whatever somebody else's modules raise
        return otherwise


def unsteady(model: nn.Module, x: Tensor, before: Said) -> bool:
    """Whether a model says something else each time, from random numbers that begin at the same place."""
    try:
        return any(difference(before, in_training(model, x), 0) for _ in range(AGAIN))
    except Exception:
        return True


def in_training(model: nn.Module, x: Tensor) -> Said:
    """Of a copy, from generators that begin at the same place each time. The graph of autograd is looked through rather
    than run: somebody's hooks are not called."""
    copied = copying.deepcopy(model)
    with forked(model), torch.random.fork_rng([x.device] if x.is_cuda else []), torch.enable_grad():
        seed_torch(x.device, 0)
        np.random.seed(0)
        random.seed(0)
        logits = copied.train()(x.clone())
    names: dict[int, set[str]] = {}
    for name, each in copied.named_parameters(remove_duplicate=False):
        names.setdefault(id(each), set()).add(name)
    reached = leaves(logits)
    learning = [names[each] for each in reached if each in names]
    return Said(logits.detach() if isinstance(logits, Tensor) else logits, learning, reached - names.keys())


def leaves(logits: Any) -> set[int]:
    """The tensors that a backward from here would give a gradient to."""
    waiting, seen, found = [getattr(logits, "grad_fn", None)], set(), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            found.add(id(variable))
        waiting += [each for each, _ in node.next_functions]
    return found


def difference(expected: Said, found: Said, more: int = 1) -> str | None:
    """What the second does that the first does not, as the rest of a sentence; it has `more` logits."""
    old, new = expected.logits, found.logits
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return None if type(old) is type(new) else f"returns a {type(new).__name__} and no {type(old).__name__}"
    if new.shape != (*old.shape[:-1], old.shape[-1] + more):
        return f"gives logits of shape {tuple(new.shape)} in place of {tuple(old.shape)}, and one for the unknown"
    new, coarse = new[..., : old.shape[-1]], COARSEST if old.dtype in (torch.bfloat16, torch.float16) else COARSE
    if not close(new, old, coarse * largest(old)):
        return f"says something else than before (logits differ by up to {float((new - old).abs().max()):.2g})"
    known = {name for names in found.learning for name in names}
    if more:  # the parts are called encoder and tail, and a model that is one layer has a name there
        paths = {name.partition(".")[2] for name in known}
        known = paths | {path.removeprefix(f"{ROOT}.") for path in paths}
    idle = sorted(min(names) for names in expected.learning if not names & known)
    return f"has no gradient for {shortened(idle)} any more" if idle else None


def refuse_strange(strange: set[int], original: nn.Module, instead: str = "or upgrade with copy=False") -> None:
    """A copy that computes with what it was copied from: a function among its attributes holds that."""
    names = [name for name, each in original.named_parameters() if id(each) in strange]
    if names:
        raise EowError(
            f"a copy of the model computes with {shortened(names)} of the model it was copied from, so it could not be "
            f"trained: look for a lambda or an inner function that holds a layer, make it a method, {instead}"
        )


def largest(logits: Tensor) -> float:
    return 1 + float(logits.float().abs().nan_to_num(0, 0, 0).max())


def close(new: Tensor, old: Tensor, tolerance: float) -> bool:
    return torch.allclose(new.float(), old.float(), rtol=0, atol=tolerance, equal_nan=True)


def changed_in_training(model: nn.Module, x: Tensor) -> set[str]:
    """The buffers that a forward in training mode changes, of a copy; none, where it cannot be copied or cannot take
    these rows in training. By their values: what batch norm does to its statistics is not a change in torch's count."""
    try:
        copied = copying.deepcopy(model)
        with forked(model), torch.random.fork_rng([x.device] if x.is_cuda else []), torch.no_grad():
            copied.train()(x.clone())
    except Exception:  # whatever somebody else's modules raise
        return set()
    after = dict(copied.named_buffers())
    return {name for name, each in model.named_buffers() if not same(each, after.get(name))}


def same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    one, other = (each if each.layout == torch.strided else each.to_dense() for each in (one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())
