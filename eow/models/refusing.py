"""What is refused, or left whole, before a network is read as a graph: what its modules do beside their forward."""

import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import fx, nn

from eow.errors import EowError

PAIR = "or pass the two parts yourself: eow.upgrade((encoder, tail)), tail(encoder(x)) being the logits"
WHOLE = f"or upgrade it with trace=False, which takes off its last layer and leaves the rest as it is, {PAIR}"
USUAL = fx.Tracer()
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def taken_whole(module: nn.Module, path: str) -> bool:
    """Whether a module becomes one node whatever it does: it has no children, or it is one of torch's own."""
    return next(module.children(), None) is None or USUAL.is_leaf_module(module, path)


def refuse_arguments(model: nn.Module) -> None:
    try:
        inspect.signature(model.forward).bind(None)
    except TypeError as error:
        raise EowError(
            f"{type(model).__name__}.forward cannot be called with one tensor alone ({error}): wrap the model in one "
            f"that supplies the other arguments, {PAIR}"
        ) from error


def refuse_hooks(model: nn.Module) -> None:
    """A module that the tracer goes through is not called any more, so its hooks would be lost."""
    for path, module in model.named_modules():
        if not taken_whole(module, path) and any(getattr(module, kind) for kind in HOOKS):
            raise EowError(
                f"{path or 'the model'} has a hook, which would be lost when the model is cut: remove it first and "
                f"register it again on the upgraded model, {WHOLE}"
            )


def refuse_gradient_hooks(model: nn.Module, prefix: str = "") -> None:
    """A copy of a parameter, or a wider one, has none of its hooks, which may mask its gradient or collect it."""
    for path, parameter in model.named_parameters(prefix):
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise EowError(
                f"{path} has a hook on its gradient, which would be lost: remove it first and register it again on the "
                "upgraded model"
            )


def refuse_closures(model: nn.Module, instead: str = "or upgrade with copy=False") -> None:
    """A layer in torch.compile is none of these: what compiled it wraps a copy anew, and without it none is called."""
    if paths := with_closures(model, compiled=False):
        where = f"model.get_submodule({paths[0]!r})" if paths[0] else "model"
        what = f"the layer {paths[0]!r}" if paths[0] else "the model"
        raise EowError(
            f"{what} has a function in the place of its forward that holds a part of the model, and a copy would go on "
            f"computing with the weights of the original: take it off first, del {where}.forward, {instead}"
        )


def with_closures(model: nn.Module, compiled: bool = True) -> list[str]:
    """Modules whose forward is a function that holds a part of the model: functions are not copied. With or without
    those of torch.compile, which wraps a copy anew."""
    own = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
    return [
        path
        for path, module in model.named_modules()
        if (compiled or "_orig_mod" not in module._modules) and holds(vars(module).get("forward"), own, set(), True)
    ]


def holds(value: Any, own: set[int], seen: set[int], copied: bool) -> bool:
    """Whether a copy of the value would hold any of `own` itself; `copied`: the value would be copied, if it can be."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, FunctionType):
        cells = [cell for cell in value.__closure__ or () if cell != type(cell)()]  # some are filled later
        found = [*(cell.cell_contents for cell in cells), value.__defaults__, value.__kwdefaults__]
        return any(holds(each, own, seen, False) for each in found)
    inside: Any = ()
    if isinstance(value, MethodType):
        inside = value.__self__, value.__func__
    elif isinstance(value, partial):
        inside = value.func, value.args, value.keywords
    elif isinstance(value, tuple | list | dict):
        inside = value.values() if isinstance(value, dict) else value
    return any(holds(each, own, seen, copied) for each in inside) or (not copied and id(value) in own)


def with_modes_of_their_own(model: nn.Module) -> set[str]:
    """Modules whose `train` does more than torch's, such as to hold a part in evaluation mode: a graph would not keep
    it."""
    found = {
        path
        for path, module in model.named_modules()
        if type(module).train is not nn.Module.train and not taken_whole(module, path) and holds_still(module)
    }
    if "" in found:
        raise EowError(
            f"{type(model).__name__}.train does more than torch's, which would be lost when the model is cut: take it "
            f"off, and freeze what it holds still by requires_grad_(False), whose statistics stay as well, {PAIR}"
        )
    return found


def holds_still(module: nn.Module) -> bool:
    """Whether `train` leaves any module in another mode than was asked for, or freezes or frees any weight."""
    modes = [(each, each.training) for each in module.modules()]
    free = [(each, each.requires_grad) for each in module.parameters()]
    try:
        for mode in (False, True):
            module.train(mode)
            if any(each.training != mode for each, _ in modes) or any(p.requires_grad != was for p, was in free):
                return True
        return False
    except Exception:  # whatever somebody else's `train` raises
        return True
    finally:
        for each, was in modes:
            each.training = was
        for parameter, was in free:
            parameter.requires_grad_(was)


def asking_for_tensors(model: nn.Module) -> set[str]:
    """Modules whose forward speaks of Tensor, as in isinstance(x, Tensor) or type(x) is Tensor: while it is read there
    are none."""
    found = set()
    for path, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        speaks = any(name.endswith("Tensor") for name in getattr(code, "co_names", ()))
        if path and speaks and not taken_whole(module, path):
            found.add(path)
    return found
