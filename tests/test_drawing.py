"""`eow.upgrade` of models that draw random numbers in evaluation: said once, and not refused."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import eow


class Dropping(nn.Module):
    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always, self.body, self.fc = always, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.dropout(self.body(x), 0.5, self.always or self.training))


@pytest.mark.parametrize("trace", [True, False])
def test_a_model_that_draws_in_evaluation_is_upgraded_with_a_warning(trace: bool) -> None:
    """Monte Carlo dropout may be meant; a dropout function without self.training rarely is."""
    x = torch.randn(9, 6)
    with pytest.warns(RuntimeWarning, match="draws random numbers in evaluation too") as warned:
        upgraded = eow.upgrade(Dropping(True), trace=trace).eval()
    assert len(warned) == 1
    assert not torch.equal(upgraded(x), upgraded(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upgraded = eow.upgrade(Dropping(False), trace=trace).eval()
        eow.upgrade((nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), nn.Linear(8, 3)))
    assert torch.equal(upgraded(x), upgraded(x))
