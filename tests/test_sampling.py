"""The sampler against closed forms: gradients by hand, a chain with a known stationary distribution, chain starts."""

import inspect
import itertools
import math
import pickle

import pytest
import torch
from problems import linear_energy_gradient, linear_tail, quadratic
from torch import nn

from eow.errors import EowError
from eow.models.layers import OpenLinear
from eow.sampling import ENERGIES, NEGATIVE_LOSSES, ReplayBuffer, Starts, Tally, blocks, parse_starts, run_chain, sample
from eow.sampling.energies import logit_gradient
from eow.sampling.langevin import mean_norm
from eow.sampling.starts import apportion, mixed_pairs


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(rows: int = 50, classes: int = 4, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, classes + 1, generator=stream(1), dtype=torch.float64)


def test_energies_are_logs_of_softmax_entries() -> None:
    f = logits()
    h = f.softmax(1)
    known = h[:, :-1].sum(1)
    torch.testing.assert_close(ENERGIES["paper"](f), h[:, -1].log())
    torch.testing.assert_close(ENERGIES["proof"](f), -h[:, -1].log())
    torch.testing.assert_close(ENERGIES["complement"](f), -known.log())
    torch.testing.assert_close(ENERGIES["joint"](f), -f.exp().sum(1).log())
    torch.testing.assert_close(NEGATIVE_LOSSES["paper"](f), -h[:, -1].log())
    torch.testing.assert_close(NEGATIVE_LOSSES["proof"](f), -h[:, -1].log())
    torch.testing.assert_close(NEGATIVE_LOSSES["complement"](f), known.log())


def test_energies_stay_finite_where_probabilities_round_to_zero() -> None:
    f = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]])
    for energy in ENERGIES.values():
        assert torch.isfinite(energy(f)).all()


@pytest.mark.parametrize("energy", ENERGIES)
def test_gradients_by_hand_are_autograds(energy: str) -> None:
    f = logits().requires_grad_()
    (wanted,) = torch.autograd.grad(ENERGIES[energy](f).sum(), f)
    torch.testing.assert_close(logit_gradient(energy, f.detach()), wanted)


def test_complement_gradient_is_eq3s_scaled_by_h_over_one_minus_h() -> None:
    f = logits().requires_grad_()
    h = f.detach().softmax(1)[:, -1:]
    paper = torch.autograd.grad(ENERGIES["paper"](f).sum(), f)[0]
    complement = torch.autograd.grad(ENERGIES["complement"](f).sum(), f)[0]
    torch.testing.assert_close(complement, paper * h / (1 - h))


@pytest.mark.parametrize("energy", ["paper", "proof"])
def test_one_step_is_equation_5(energy: str) -> None:
    """Of the reference, and of the fast path that `sample` takes."""
    tail, z = linear_tail(3, 5, dtype=torch.float64), torch.randn(7, 5, generator=stream(), dtype=torch.float64)
    gradient = linear_energy_gradient(tail, z).detach() * (1 if energy == "paper" else -1)
    noise = torch.randn(7, 5, generator=stream(9), dtype=torch.float64)
    settings = {"steps": 1, "step": 0.3, "noise": 0.2}
    for moved in (
        run_chain(tail, z, energy, **settings, generator=stream(9)).z,
        sample(tail, z, energy, **settings, generator=stream(9)),
    ):
        torch.testing.assert_close(moved, z - 0.15 * gradient + 0.2 * noise)


def test_langevin_noise_is_the_root_of_the_step() -> None:
    z = torch.zeros(4, 2)
    by_name = sample(nn.Identity(), z, quadratic, steps=3, step=0.3, noise="langevin", generator=stream())
    by_value = sample(nn.Identity(), z, quadratic, steps=3, step=0.3, noise=math.sqrt(0.3), generator=stream())
    assert torch.equal(by_name, by_value)


@pytest.mark.parametrize("step", [0.1, 0.5, 1.0])
def test_stationary_distribution_of_the_unadjusted_chain(step: float) -> None:
    """On E = z²/2 the chain is z <- (1 - step/2) z + sqrt(step) ε: mean 0, variance 1/(1 - step/4)."""
    chains = 40_000
    steps = int(30 / step)
    z = sample(
        nn.Identity(), torch.zeros(chains, 1), quadratic, steps=steps, step=step, noise="langevin", generator=stream(3)
    )
    variance = 1 / (1 - step / 4)
    assert abs(z.mean().item()) < 4 * math.sqrt(variance / chains)
    assert abs(z.var().item() / variance - 1) < 4 * math.sqrt(2 / chains)


def test_a_chain_lowers_the_energy_and_says_so() -> None:
    tail = linear_tail(3, 5)
    chain = run_chain(tail, torch.zeros(64, 5), "paper", steps=50, step=0.5, noise=0.01, generator=stream())
    assert chain.energy.shape == (51, 64)
    assert (chain.energy[-1] < chain.energy[0] - 1).all()
    torch.testing.assert_close(chain.energy[-1], ENERGIES["paper"](tail(chain.z)).detach())
    torch.testing.assert_close(chain.energy[0], ENERGIES["paper"](tail(torch.zeros(64, 5))).detach())


def test_a_quadratic_unknown_gives_a_chain_a_place_to_stay() -> None:
    """Before a linear head the energy falls for ever, and the longer the chain, the farther it is. With v > 0 the
    unknown rises in every direction, and twice the steps end in the same place."""
    ends: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for curved, steps in itertools.product((False, True), (2000, 4000)):
        tail: nn.Module = linear_tail(3, 5)
        if curved:
            tail = OpenLinear(tail)
            nn.init.constant_(tail.square, 0.1)
        ends[curved].append(sample(tail, torch.zeros(4, 5), steps=steps, step=0.5, noise=0.0))
    assert (ends[False][1].norm(dim=1) > 1.9 * ends[False][0].norm(dim=1)).all()
    torch.testing.assert_close(*ends[True], atol=1e-3, rtol=1e-3)


def test_trust_region_holds_a_chain_that_runs_away() -> None:
    def unbounded(z: torch.Tensor) -> torch.Tensor:
        return -z.square().sum(1)

    start = torch.ones(5, 3)
    free = sample(nn.Identity(), start, unbounded, steps=300, step=2.0, noise=0.0)
    assert not torch.isfinite(free).all()
    radius = torch.tensor([0.5, 1.0, 2.0, 4.0, 1e30])
    chain = run_chain(nn.Identity(), start, unbounded, steps=20, step=2.0, noise=0.0, trust=radius)
    torch.testing.assert_close((chain.z - start).norm(dim=1)[:4], radius[:4])
    assert chain.capped.tolist() == [True, True, True, True, False]


def test_trust_region_is_a_ball_around_the_start() -> None:
    """Under a force that is the same everywhere a step is known: it ends there, or on the way, at the radius."""
    start, force = torch.randn(3, 4, generator=stream()), torch.tensor([1.0, -2.0, 0.5, 3.0])
    move = -0.5 * 0.7 * force
    radius = torch.tensor([0.3, 1.0, 9.0])
    chain = run_chain(nn.Identity(), start, lambda z: z @ force, steps=1, step=0.7, noise=0.0, trust=radius)
    share = (radius / move.norm()).clamp_max(1)[:, None]
    torch.testing.assert_close(chain.z, start + share * move)
    assert chain.capped.tolist() == [True, True, False]


def test_trust_region_brings_back_a_chain_that_is_already_nan() -> None:
    chain = run_chain(
        nn.Identity(), torch.ones(2, 3), lambda z: (z * torch.inf).sum(1), steps=2, step=1.0, noise=0.0, trust=1.0
    )
    assert torch.isfinite(chain.z).all()
    assert chain.capped.all()


def test_the_unit_of_trust_is_the_mean_length_of_whole_rows() -> None:
    z = torch.randn(5, 3, 2, 4, generator=stream())
    assert mean_norm(z).item() == pytest.approx(sum(float(row.square().sum()) ** 0.5 for row in z) / 5, rel=1e-6)


def test_the_tally_adds_chains_up_until_it_is_read() -> None:
    settings = {"steps": 2, "step": 0.5, "noise": 0.0, "trust": torch.tensor([1e-3, 1e9, 1e9])}
    chains = [run_chain(nn.Identity(), torch.randn(3, 2, generator=stream(n)), quadratic, **settings) for n in (0, 1)]
    tally = Tally()
    for chain in chains:
        tally.add(chain)
    energy = torch.cat([chain.energy for chain in chains], 1)
    wanted = {"chains": 6, "capped": 2, "energy_start": energy[0].mean(), "energy_end": energy[-1].mean()}
    assert tally.read() == pytest.approx({name: float(value) for name, value in wanted.items()})
    assert tally.read() == {}


@pytest.mark.parametrize(
    ("given", "state"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_a_chain_moves_in_float32_at_least(given: torch.dtype, state: torch.dtype) -> None:
    assert run_chain(nn.Identity(), torch.ones(1, 2, dtype=given), quadratic, steps=1).z.dtype == state
    assert sample(nn.Identity(), torch.ones(1, 2, dtype=given), quadratic, steps=1).dtype == state


def test_sample_and_its_reference_have_the_papers_settings() -> None:
    for function in (sample, run_chain):
        defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
        assert (defaults["steps"], defaults["step"], defaults["noise"]) == (100, 2.0, 1e-3)
        assert (defaults["energy"], defaults["trust"]) == ("paper", None)


def test_sampling_leaves_statistics_modes_and_gradients_alone() -> None:
    tail = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    tail.train()
    tail[2].eval()
    before = {name: value.clone() for name, value in tail.state_dict().items()}
    start = torch.randn(8, 4, generator=stream())
    chain = run_chain(tail, start, steps=5)
    z = sample(tail, start, steps=5)
    assert all(torch.equal(before[name], value) for name, value in tail.state_dict().items())
    assert tail.training
    assert not tail[2].training
    assert all(p.grad is None for p in tail.parameters())
    assert not any(each.requires_grad for each in (z, chain.z, chain.energy))


def test_same_stream_same_chain_and_global_generator_untouched() -> None:
    tail, z = linear_tail(3, 5), torch.zeros(4, 5)
    state = torch.get_rng_state()
    first = sample(tail, z, steps=5, noise=0.1, generator=stream(5))
    assert torch.equal(first, sample(tail, z, steps=5, noise=0.1, generator=stream(5)))
    assert not torch.equal(first, sample(tail, z, steps=5, noise=0.1, generator=stream(6)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "wrong", [{"energy": "papper"}, {"noise": "brown"}, {"noise": -1.0}, {"steps": -1}, {"step": 0.0}]
)
def test_wrong_settings_are_named(wrong: dict) -> None:
    with pytest.raises(EowError):
        sample(linear_tail(3, 5), torch.zeros(2, 5), **{"steps": 1, **wrong})


# Where chains start


def test_weights_of_starts() -> None:
    assert parse_starts("mixed") == {"mixed": 1.0}
    assert parse_starts("noise:1, mixed:3") == {"noise": 0.25, "mixed": 0.75}
    for wrong in ("", "nois", "noise:x", "noise:-1", "noise:0", "noise,noise", "noise:inf"):
        with pytest.raises(EowError):
            parse_starts(wrong)


def test_apportion_adds_up_and_is_near() -> None:
    for count in (1, 2, 7, 64):
        shares = apportion({"noise": 0.3, "features": 0.5, "mixed": 0.2}, count)
        assert sum(shares.values()) == count
        assert all(
            abs(shares[kind] - weight * count) < 1
            for kind, weight in (("noise", 0.3), ("features", 0.5), ("mixed", 0.2))
        )


def test_mixed_starts_lie_between_two_points_of_different_classes() -> None:
    labels = torch.arange(30) % 3
    features = torch.eye(3)[labels] * torch.tensor([1.0, 10.0, 100.0])
    mixed = mixed_pairs(features, labels, 500, stream())
    assert ((mixed > 0).sum(1) == 2).all()  # two classes, never one
    share = mixed / torch.tensor([1.0, 10.0, 100.0])
    torch.testing.assert_close(share.sum(1), torch.ones(500))
    weights = share[share > 0]
    assert abs(weights.mean().item() - 0.5) < 0.02
    assert abs(weights.var().item() - 1 / 12) < 0.01  # uniform


def test_a_map_is_mixed_whole_or_started_anew_whole() -> None:
    """(N, C, H, W): one share for all of a chain's map, and a slot keeps all of its map or none."""
    labels = torch.arange(6) % 3
    features = (labels + 1.0).view(-1, 1, 1, 1) * torch.randn(2, 4, 5, generator=stream())
    mixed = mixed_pairs(features, labels, 200, stream(1))
    pattern = features[0]  # of the first class; the others are two and three times it
    share = (mixed / pattern).flatten(1)
    assert mixed.shape == (200, 2, 4, 5)
    torch.testing.assert_close(share, share[:, :1].expand_as(share))
    assert ((share[:, 0] > 1) & (share[:, 0] < 3)).all()
    buffer = ReplayBuffer(50, (2, 4, 5), width=0.1, restart=0.5)
    buffer.fill(stream())
    buffer.store(torch.full_like(buffer.draw(50, stream(1)), 7.0))
    kept = (buffer.draw(50, stream(2)) == 7).flatten(1)
    assert torch.equal(kept.all(1), kept.any(1))
    assert 10 < kept.all(1).sum() < 40


def test_mixture_has_its_shares_in_order() -> None:
    starts = Starts("noise:0.25,features:0.75", (4,), 16, width=0.1, buffer_size=8, restart=0.0)
    features = 5 + torch.rand(6, 4, generator=stream())
    z = starts.draw(features, torch.zeros(6, dtype=torch.long), stream())
    assert (z[:4].abs() <= 0.1).all()
    assert all(any(torch.equal(row, feature) for feature in features) for row in z[4:])
    assert len(z[4:].unique(dim=0)) == 6  # more chains than samples: each is used before one is used again


def test_buffer_keeps_ends_and_restarts_its_share() -> None:
    buffer = ReplayBuffer(2000, (3,), width=0.1, restart=0.05)
    buffer.fill(stream())
    assert buffer.slots.abs().max() <= 0.1
    drawn = buffer.draw(2000, stream(1))
    assert len(buffer.drawn.unique()) == 2000
    buffer.store(torch.full_like(drawn, 7.0))
    again = buffer.draw(2000, stream(2))
    fresh = (again != 7).all(1).float().mean().item()
    assert abs(fresh - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)
    assert "slots" not in buffer.state_dict()


def test_a_buffer_takes_no_memory_before_training() -> None:
    buffer = ReplayBuffer(10_000, (320, 16, 16), width=0.1, restart=0.05)  # the release's: 3.3 GB
    assert buffer.slots.numel() == 0


def test_a_kind_that_no_chain_would_start_from_is_refused() -> None:
    with pytest.raises(EowError, match=r"of 1 chains none would start from mixed as 'noise:0\.5,mixed:0\.5' asks"):
        Starts("noise:0.5,mixed:0.5", (2,), 1, width=0.1, buffer_size=8, restart=0.0)


def test_a_width_is_for_chains_from_noise() -> None:
    others = {"width": 0.0, "buffer_size": 8, "restart": 0.0}
    assert Starts("features", (2,), 4, **others).counts == {"features": 4}
    for text in ("noise", "buffer", "features:3,noise:1"):
        with pytest.raises(EowError, match=r"a width of 0\.0: it must be above 0"):
            Starts(text, (2,), 4, **others)


def test_mixture_stores_only_the_buffers_chains() -> None:
    starts = Starts("noise:0.5,buffer:0.5", (2,), 4, width=0.1, buffer_size=2, restart=0.0)
    assert starts.buffer is not None
    starts.buffer.fill(stream())
    starts.draw(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), stream())
    starts.store(torch.tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]]))
    assert sorted(starts.buffer.slots[:, 0].tolist()) == [3.0, 4.0]


@pytest.mark.parametrize("name", ["Chained", "Residual", "Preactivation"])
def test_old_pickles_find_the_pieces_where_they_were(name: str) -> None:
    """torch.save of a method that eow.fit returned writes the fast path's pieces, too."""
    old = f"ceow.sampling.frozen\n{name}\n.".encode()
    assert pickle.loads(old) is getattr(blocks, name)
    with pytest.raises(AttributeError, match="Chain"):
        pickle.loads(b"ceow.sampling.frozen\nChain\n.")
