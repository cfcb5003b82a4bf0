"""Distances to centres: values and gradients against differences in float64, also where a feature is its centre."""

import pytest
import torch
from torch import Tensor

from eow.methods.distances import distances


def by_hand(features: Tensor, centres: Tensor) -> Tensor:
    return (features[:, None] - centres).square().sum(2).sqrt()


def gradients(of: object, features: Tensor, centres: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    inputs = [each.clone().requires_grad_() for each in (features, centres)]
    return torch.autograd.grad((of(*inputs) * weight).sum(), inputs)  # type: ignore[operator]


@pytest.mark.parametrize("distance", [1.0, 1e-2, 1e-3])
def test_values_and_gradients_are_those_of_the_differences_near_a_centre_too(distance: float) -> None:
    """A feature at `distance` from its centre, both at norm 6: |h|² - 2hc + |c|² in float32 would be off by more than
    the smallest distance here. The gradient may be off by 1e-6 / distance of itself, 1e-7 |h| / d and some."""
    stream = torch.Generator().manual_seed(0)
    centres = torch.randn(7, 512, generator=stream)
    centres *= 6 / centres.norm(dim=1, keepdim=True)
    away = torch.randn(20, 512, generator=stream)
    features = centres[torch.arange(20) % 7] + distance * away / away.norm(dim=1, keepdim=True)
    weight = torch.randn(20, 7, generator=stream)
    exact = [each.double() for each in (features, centres, weight)]
    found = distances(features, centres)
    assert torch.allclose(found.double(), by_hand(*exact[:2]), rtol=1e-5)
    for mine, wanted in zip(gradients(distances, features, centres, weight), gradients(by_hand, *exact)):
        assert (mine - wanted).norm() < 1e-6 / distance * wanted.norm()


def test_the_gradient_is_that_of_finite_differences() -> None:
    stream = torch.Generator().manual_seed(1)
    features, centres = (torch.randn(n, 4, generator=stream, dtype=torch.float64, requires_grad=True) for n in (5, 3))
    assert torch.autograd.gradcheck(distances, (features, centres))


def test_where_a_feature_is_its_centre_the_gradient_is_0_as_torch_has_it() -> None:
    centres = torch.eye(3)
    features = torch.cat([centres[:1], torch.zeros(1, 3)])
    mine = gradients(distances, features, centres, torch.ones(2, 3))
    assert all(each.isfinite().all() for each in mine)
    for each, wanted in zip(mine, gradients(torch.cdist, features, centres, torch.ones(2, 3))):
        assert torch.allclose(each, wanted, atol=1e-6)


def test_a_backward_inside_autocast_stays_in_float32() -> None:
    stream = torch.Generator().manual_seed(2)
    features, centres, weight = (torch.randn(*shape, generator=stream) for shape in ((9, 16), (4, 16), (9, 4)))
    wanted = gradients(distances, features, centres, weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(distances, features, centres, weight)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_without_gradients_it_is_one_operation_that_an_export_can_read() -> None:
    features, centres = torch.rand(3, 4), torch.rand(2, 4)
    with torch.no_grad():
        graph = torch.export.export(Wrapped(), (features, centres)).graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] in (
        [torch.ops.aten.cdist.default], [torch.ops.aten._cdist_forward.default],
    )  # fmt: skip


class Wrapped(torch.nn.Module):
    def forward(self, features: Tensor, centres: Tensor) -> Tensor:
        return distances(features, centres)
