"""Batch norm, residual and activation as one step: against torch's own operations, in float64 where it can be."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eow.models import build
from eow.models.fused import fits, norm_activate
from eow.models.layers import Layers, in_turn

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels run on a GPU")


def problem(channels: int, shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[nn.BatchNorm2d, Tensor, Tensor]:
    """A norm with weights of both signs, and inputs whose mean is far from 0."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels).cuda()
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.bias.uniform_(-1, 1)
    count, height, width = shape
    x, residual = torch.randn(2, count, channels, height, width, device="cuda")
    x = 3 * x + 20 * torch.rand(channels, 1, 1, device="cuda")
    return norm, *(each.to(dtype).contiguous(memory_format=torch.channels_last) for each in (x, residual))


def by_torch(norm: nn.BatchNorm2d, x: Tensor, slope: float, residual: Tensor | None) -> tuple[Tensor, ...]:
    """Result and gradients of the sum of result · weights, and the norm's new running statistics, in x's precision."""
    norm = copy.deepcopy(norm).to(x.dtype)
    x = x.clone().requires_grad_()
    residual = None if residual is None else residual.to(x.dtype).requires_grad_()
    y = norm(x) if residual is None else norm(x) + residual
    y = F.leaky_relu(y, slope)
    inputs = [x, norm.weight, norm.bias] + ([] if residual is None else [residual])
    return y, *torch.autograd.grad((y * weights_of(y).to(y.dtype)).sum(), inputs), norm.running_mean, norm.running_var


def by_us(norm: nn.BatchNorm2d, x: Tensor, slope: float, residual: Tensor | None) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    residual = None if residual is None else residual.clone().requires_grad_()
    assert fits(norm, x, residual)
    y = norm_activate(norm, x, slope, residual)
    inputs = [x, norm.weight, norm.bias] + ([] if residual is None else [residual])
    return y, *torch.autograd.grad((y * weights_of(y).to(y.dtype)).sum(), inputs), norm.running_mean, norm.running_var


def weights_of(y: Tensor) -> Tensor:
    wave = torch.linspace(0, 50, y.numel(), device=y.device, dtype=torch.float64).cos().bfloat16().double()
    return wave.view(y.shape)


@gpu
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(
    ("channels", "shape"), [(64, (8, 32, 32)), (100, (3, 7, 5)), (2048, (16, 4, 4)), (1, (2, 1, 1))]
)
def test_kernels_equal_torch_in_float64(channels: int, shape: tuple, with_residual: bool, slope: float) -> None:
    norm, x, residual = problem(channels, shape, torch.float32)
    plus = residual if with_residual else None
    exact, in_float32 = by_torch(norm, x.double(), slope, plus), by_torch(norm, x, slope, plus)
    for ours, theirs, truth in zip(by_us(norm, x, slope, plus), in_float32, exact):
        error, rounding = (ours - truth).norm(), (theirs - truth).norm()
        assert error <= 4 * rounding + 1e-6 * truth.norm()


@gpu
@pytest.mark.parametrize("with_residual", [False, True])
def test_kernels_in_bfloat16_err_by_its_rounding_only(with_residual: bool) -> None:
    norm, x, residual = problem(128, (16, 16, 16), torch.bfloat16)
    expected = by_torch(norm, x.double(), 0.0, residual if with_residual else None)
    found = by_us(norm, x, 0.0, residual if with_residual else None)
    for ours, theirs in zip(found, expected):
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert error < 2**-8  # half a unit in the last place of 8 bits, the root mean square over all


@gpu
def test_two_runs_give_the_same_bytes() -> None:
    norm, x, residual = problem(64, (64, 32, 32), torch.bfloat16)
    first, second = (by_us(copy.deepcopy(norm), x, 0.0, residual) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second))


@gpu
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11", "wrn28_10"])
def test_networks_train_alike_with_and_without_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cudnn.allow_tf32", False)
    torch.manual_seed(0)
    model = build(name, 5, (3, 32, 32), cut="penultimate").cuda().to(memory_format=torch.channels_last).train()
    x = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    model(x).logsumexp(1).sum().backward()
    monkeypatch.setattr("eow.models.fused.AVAILABLE", False)
    plain(x).logsumexp(1).sum().backward()
    exact(x.double()).logsumexp(1).sum().backward()
    for (label, ours), theirs, truth in zip(model.named_parameters(), plain.parameters(), exact.parameters()):
        error, rounding = (ours.grad - truth.grad).norm(), (theirs.grad - truth.grad).norm()
        # A ReLU whose input is 1e-7 from 0 may open in one and not in the other: one of thousands is 0.1 % of a norm.
        assert error <= 4 * rounding + 1e-2 * truth.grad.norm() + 1e-9, label
    for (label, ours), truth in zip(model.named_buffers(), exact.buffers()):
        torch.testing.assert_close(ours.double(), truth.double(), rtol=1e-3, atol=1e-4, msg=label)


def test_layers_are_a_sequential() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.BatchNorm2d(4), nn.Flatten()]
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(Layers(*copy.deepcopy(layers))(x), nn.Sequential(*layers)(x))


def test_the_residual_is_added_before_the_last_activation() -> None:
    torch.manual_seed(0)
    norm, x, residual = nn.BatchNorm2d(4), torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
    expected = F.relu(copy.deepcopy(norm)(x) + residual)
    assert torch.equal(in_turn([norm, nn.ReLU()], x, residual), expected)
