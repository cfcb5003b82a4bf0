"""The fast chain against the reference: gradients at every cut, steps under the same noise, and statistics."""

import gc
import math
from contextlib import nullcontext

import pytest
import torch
from problems import linear_energy_gradient, linear_tail
from torch import Tensor, nn

from eow.errors import EowError
from eow.models import SplitModel, build
from eow.models.layers import OpenLinear
from eow.models.widening import WidenedOpenLinear
from eow.sampling import ENERGIES, Sampler, kernels, run_chain, sample
from eow.sampling.energies import logit_gradient
from eow.sampling.freezing import freeze
from eow.training.loop import Training
from eow.training.stepgraph import recording

NETS = [
    ("mlp", (1, 8, 8), {}),
    ("mlp", (20,), {"norm": "batch", "activation": "leaky_relu", "dropout": 0.2}),
    ("vgg11", (3, 32, 32), {}),
    ("resnet18", (3, 16, 16), {}),
    ("resnet18", (3, 16, 16), {"norm": "none", "activation": "leaky_relu"}),
    ("resnet50", (3, 8, 8), {}),
    ("wrn28_10", (3, 8, 8), {}),
    ("wrn28_10", (3, 8, 8), {"norm": "none", "activation": "leaky_relu"}),
    ("mlp", (20,), {"unknown": "quadratic", "dropout": 0.2}),
    ("resnet18", (3, 16, 16), {"unknown": "quadratic"}),
    ("mlp", (20,), {"unknown": "convex"}),
    ("resnet18", (3, 8, 24), {}),  # maps that are not square
]
SETTINGS = {"steps": 4, "step": 0.5, "noise": 0.05}


def stream(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def net(
    name: str, shape: tuple[int, ...], options: dict, cut: str = "penultimate", dtype: torch.dtype = torch.float64
) -> SplitModel:
    """A network whose batch norms have something to fold, statistics and weights that are not 0 and 1, and whose head,
    where it is quadratic, is curved."""
    torch.manual_seed(0)
    model = build(name, 5, shape, cut=cut, **options).to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -1, 1),
                (module.running_var, 0.5, 2),
                (module.weight.data, 0.5, 2),
            ):
                tensor.uniform_(low, high)
            module.bias.data.uniform_(-1, 1)
        if isinstance(module, OpenLinear):
            module.square.data.uniform_(-1, 1)
    return model.eval()


def latent(model: SplitModel, shape: tuple[int, ...], count: int = 3, layout: str = "rows") -> Tensor:
    z = torch.randn(count, *model.feature_shape(shape), generator=stream(1), dtype=next(model.parameters()).dtype)
    return z.to(memory_format=torch.channels_last) if layout == "channels" and z.dim() == 4 else z


@pytest.mark.parametrize(("name", "shape", "options"), NETS)
def test_written_out_gradients_are_autograds_at_every_cut(name: str, shape: tuple, options: dict) -> None:
    model = net(name, shape, options)
    for cut in model.cuts:
        if name == "wrn28_10" and cut in ("input", "stem", "stage1"):
            continue  # the same blocks again, only slower
        split = model.recut(cut)
        frozen = freeze(split.tail)
        assert frozen is not None, cut
        for layout in ("rows", "channels"):
            z = latent(split, shape, layout=layout).requires_grad_()
            out = split.tail(z)
            weights = torch.randn(out.shape, generator=stream(2), dtype=out.dtype)
            expected = torch.autograd.grad((out * weights).sum(), z)[0]
            with torch.no_grad():
                frozen.read(z.dtype)
                torch.testing.assert_close(frozen.forward(z.detach()), out)
                torch.testing.assert_close(frozen.backward(weights), expected, atol=1e-10, rtol=1e-7)


def test_the_gradient_before_an_upgraded_head_is_autograds() -> None:
    """Its square is in units of its own."""
    tail = WidenedOpenLinear(nn.Linear(6, 4).double())
    tail.measure(7.0)
    tail.square.data.uniform_(-1, 1, generator=stream())
    z = torch.randn(5, 6, generator=stream(1), dtype=torch.float64, requires_grad=True)
    out = tail(z)
    weights = torch.randn(out.shape, generator=stream(2), dtype=out.dtype)
    expected = torch.autograd.grad((out * weights).sum(), z)[0]
    frozen = freeze(tail)
    assert frozen is not None
    with torch.no_grad():
        frozen.read(z.dtype)
        torch.testing.assert_close(frozen.forward(z.detach()), out)
        torch.testing.assert_close(frozen.backward(weights), expected)
        torch.testing.assert_close(out[:, -1] - z @ tail.weight[-1] - tail.bias[-1], (z * z * 300 / 7) @ tail.square)


@pytest.mark.parametrize("energy", ENERGIES)
def test_logit_gradients_are_autograds(energy: str) -> None:
    logits = 3 * torch.randn(20, 6, generator=stream(), dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    expected = torch.autograd.grad(ENERGIES[energy](leaf).sum(), leaf)[0]
    torch.testing.assert_close(logit_gradient(energy, logits), expected)


def test_linear_tail_is_the_closed_form() -> None:
    tail, z = linear_tail(3, 5, dtype=torch.float64), torch.randn(7, 5, generator=stream(), dtype=torch.float64)
    frozen = freeze(tail)
    assert frozen is not None
    with torch.no_grad():
        frozen.read(torch.float64)
        slope = logit_gradient("paper", frozen.forward(z))
        torch.testing.assert_close(frozen.backward(slope), linear_energy_gradient(tail, z))


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("trust", [None, 0.3, (0.0, 0.02, 0.3, 5.0)])
@pytest.mark.parametrize(
    ("name", "shape", "options", "cut"),
    [
        (*NETS[0], "input"), (*NETS[1], "stage1"), (*NETS[3], "stage3"), (*NETS[7], "stage2"),
        (*NETS[8], "penultimate"), (*NETS[9], "stage3"),
    ],
)  # fmt: skip
def test_chain_equals_the_reference_under_the_same_noise(energy, trust, name, shape, options, cut) -> None:
    """After every number of steps: the whole path, not only its end."""
    model = net(name, shape, options, cut, torch.float32)
    z = latent(model, shape)
    radius = None if trust is None else torch.tensor(trust) * z.flatten(1).norm(dim=1).mean()
    if isinstance(trust, tuple):
        radius = radius.repeat(len(z))[: len(z)]  # one a chain
    for steps in range(4):
        settings = {**SETTINGS, "steps": steps}
        expected = run_chain(model.tail, z, energy, trust=radius, generator=stream(7), **settings)
        chain = Sampler(model.tail, energy, **settings)(z, radius, stream(7))
        torch.testing.assert_close(chain.z, expected.z, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(chain.energy[[0, -1]], expected.energy[[0, -1]], atol=1e-4, rtol=1e-4)
        assert torch.equal(chain.capped, expected.capped)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 1.5])
def test_a_linear_tail_keeps_to_its_trust(share: float) -> None:
    """Whether some chains, all or none come to the end of their trust: the path of the reference, number by number."""
    tail, z = linear_tail(3, 16), torch.randn(40, 16, generator=stream(2))
    settings = {"steps": 10, "step": 2.0, "noise": 0.01}
    free = run_chain(tail, z, "paper", generator=stream(5), **settings)
    radius = share * (free.z - z).norm(dim=1).median()
    expected = run_chain(tail, z, "paper", trust=radius, generator=stream(5), **settings)
    chain = Sampler(tail, "paper", **settings)(z, radius, stream(5))
    torch.testing.assert_close(chain.z, expected.z, atol=1e-4, rtol=1e-4)
    assert torch.equal(chain.capped, expected.capped)


def test_pool_and_linear_is_a_chain_on_the_pooled_vector() -> None:
    """Without noise the same ends; with noise the pooled path is that of noise averaged over the map."""
    model = net("resnet18", (3, 16, 16), {}, "stage4", torch.float64)
    z = latent(model, (3, 16, 16), 6)
    area = z.shape[2] * z.shape[3]
    quiet = {**SETTINGS, "noise": 0.0, "step": 3.0}
    torch.testing.assert_close(
        Sampler(model.tail, "paper", **quiet)(z, None, stream()).z, run_chain(model.tail, z, "paper", **quiet).z
    )
    tight = torch.tensor(0.2, dtype=torch.float64)
    held = Sampler(model.tail, "paper", **quiet)(z, tight, stream())
    torch.testing.assert_close(held.z, run_chain(model.tail, z, "paper", trust=tight, **quiet).z)
    assert held.capped.any()
    # The pooled chain by hand: step/HW, noise/sqrt(HW).
    head, v = model.tail.head, z.mean((2, 3))
    noise = stream(3)
    for _ in range(SETTINGS["steps"]):
        v = v - 0.5 * SETTINGS["step"] / area * linear_energy_gradient(head, v).detach()
        v = v + SETTINGS["noise"] / math.sqrt(area) * torch.empty_like(v).normal_(generator=noise)
    torch.testing.assert_close(Sampler(model.tail, "paper", **SETTINGS)(z, None, stream(3)).z.mean((2, 3)), v)


def test_pooled_noise_has_the_reference_s_spread() -> None:
    model = net("resnet18", (3, 16, 16), {}, "stage4", torch.float32)
    with torch.no_grad():
        model.head.weight.zero_()  # no gradient: the noise alone moves the chain
    z = torch.zeros(400, *model.feature_shape((3, 16, 16)))
    settings = {"steps": 5, "step": 1.0, "noise": 0.3}
    ends = [
        Sampler(model.tail, "paper", **settings)(z, None, stream(1)).z.mean((2, 3)),
        run_chain(model.tail, z, "paper", generator=stream(2), **settings).z.mean((2, 3)),
    ]
    deviation = 0.3 * math.sqrt(5 / 4)  # five steps, averaged over 2x2
    for end in ends:
        assert abs(end.std().item() / deviation - 1) < 4 / math.sqrt(2 * end.numel())


def test_weights_are_read_anew_every_time() -> None:
    model = net("mlp", (20,), {"norm": "batch"}, "input", torch.float32)
    sampler, z = Sampler(model.tail, "paper", **SETTINGS), latent(model, (20,))
    sampler(z, None, stream())
    with torch.no_grad():
        for tensor in (*model.tail.parameters(), *model.tail.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    expected = run_chain(model.tail, z, "paper", generator=stream(), **SETTINGS)
    torch.testing.assert_close(sampler(z, None, stream()).z, expected.z, atol=1e-5, rtol=1e-5)


class Cosine(nn.Linear):
    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.normalize(z), nn.functional.normalize(self.weight), self.bias)


class Skipping(nn.Sequential):
    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z) + 1


def hooked(kind: str) -> nn.Module:
    tail = nn.Sequential(nn.Linear(4, 3))
    hook = (lambda *arguments: None) if "backward" in kind else (lambda module, inputs, output: 2 * output)
    getattr(tail[0], kind)(hook)
    return tail


def wrapped(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (4, 1, 1)), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.filterwarnings("ignore:this tail's gradient:UserWarning")
@pytest.mark.parametrize(
    "tail",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 8), nn.SiLU(inplace=True), nn.Linear(8, 3)),
        nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(-0.5), nn.Linear(8, 3)),
        wrapped(nn.Conv2d(4, 4, 1, groups=2)),
        wrapped(nn.Conv2d(4, 4, 1, padding=1)),
        Cosine(4, 3),
        Skipping(nn.Linear(4, 3)),
        hooked("register_forward_hook"),
        hooked("register_full_backward_hook"),
    ],
)
def test_what_cannot_be_written_out_takes_the_reference(tail: nn.Module) -> None:
    """Only the very classes count: a subclass may compute something else, and a hook too."""
    z = torch.randn(5, 4, generator=stream())
    tail(z)
    assert freeze(tail) is None
    chain = Sampler(tail, "paper", **SETTINGS)(z, None, stream(1))
    torch.testing.assert_close(chain.z, run_chain(tail, z, "paper", generator=stream(1), **SETTINGS).z)


def test_a_norm_over_other_axes_than_the_layers_outputs_is_not_folded_into_it() -> None:
    """A linear layer over the last axis of a map, a norm over its channels: as many of these as of outputs, or not."""
    for outputs in (4, 5):
        tail = nn.Sequential(nn.Linear(6, outputs), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        z = torch.randn(5, 4, 6, 6, generator=stream())
        tail(z)  # and the statistics are no longer 0 and 1
        nn.init.uniform_(tail[1].weight, 0.5, 2.0, generator=stream(2))
        chain = Sampler(tail.eval(), "paper", **SETTINGS)(z, None, stream(1))
        torch.testing.assert_close(chain.z, run_chain(tail, z, "paper", generator=stream(1), **SETTINGS).z)


@pytest.mark.parametrize(("linear", "axes"), [(nn.Linear(6, 6), 4), (nn.Linear(6, 6), 3), (nn.Conv2d(4, 4, 1), 4)])
def test_a_linear_layer_is_written_out_for_rows_alone(linear: nn.Module, axes: int) -> None:
    tail = nn.Sequential(linear, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).eval()
    z = torch.randn(5, 4, 6, 6, generator=stream())
    z = z[..., 0] if axes == 3 else z
    tail(z)
    frozen = freeze(tail)
    assert frozen is not None
    assert frozen.takes(axes) is isinstance(linear, nn.Conv2d)
    chain = Sampler(tail, "paper", **SETTINGS)(z, None, stream(1))
    torch.testing.assert_close(chain.z, run_chain(tail, z, "paper", generator=stream(1), **SETTINGS).z)


def test_a_layer_read_again_in_another_precision_forgets_its_padding() -> None:
    """What a bfloat16 read on a GPU leaves behind is put there by hand."""
    tail, z = linear_tail(3, 5, dtype=torch.float64), torch.randn(7, 5, generator=stream(), dtype=torch.float64)
    frozen = freeze(tail)
    assert frozen is not None
    (layer,) = frozen.pieces
    layer.padding, layer.padded = 4, torch.zeros(7, 8)  # type: ignore[attr-defined]
    with torch.no_grad():
        frozen.read(torch.float64)
        torch.testing.assert_close(frozen.forward(z), tail(z))
        assert frozen.backward(torch.ones(7, 4, dtype=torch.float64)).shape == z.shape


def test_the_fallback_is_said() -> None:
    with pytest.warns(UserWarning, match="chains run under autograd"):
        Sampler(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), "paper", **SETTINGS)


def test_a_first_operation_in_place_leaves_the_start_alone() -> None:
    tail = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))
    z = torch.randn(5, 4, generator=stream())
    before = z.clone()
    expected = run_chain(tail, z, "paper", generator=stream(1), **SETTINGS)
    torch.testing.assert_close(Sampler(tail, "paper", **SETTINGS)(z, None, stream(1)).z, expected.z)
    assert torch.equal(z, before)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), torch.ones(5, 1), torch.ones(4)])
def test_a_trust_that_is_none_is_refused(wrong: float | Tensor) -> None:
    with pytest.raises(EowError, match="trust"):
        sample(linear_tail(3, 4), torch.zeros(5, 4), steps=1, trust=wrong)


def energies_after(model: SplitModel, z: Tensor, fast: bool, seed: int) -> Tensor:
    settings = {"steps": 100, "step": 2.0, "noise": 1e-3}
    with torch.autocast(z.device.type, torch.bfloat16, enabled=fast):
        generator = stream(seed, z.device.type)
        if fast:
            return Sampler(model.tail, "paper", **settings)(z, None, generator, autocast=True).energy[-1]
        return run_chain(model.tail, z, "paper", generator=generator, **settings).energy[-1]


def test_bf16_energies_agree_in_distribution() -> None:
    model = net("mlp", (20,), {}, "input", torch.float32)
    z = torch.randn(2000, 20, generator=stream(4))
    slow, fast = (energies_after(model, z, fast, seed) for fast, seed in ((False, 1), (True, 2)))
    error = slow.std() * math.sqrt(2 / len(z))
    assert abs(slow.mean() - fast.mean()) < 4 * error
    assert abs(slow.std() / fast.std() - 1) < 0.1


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
@pytest.mark.parametrize(
    ("name", "shape", "options", "cut"),
    [(*NETS[0], "input"), (*NETS[2], "stage3"), (*NETS[3], "stage3"), (*NETS[7], "stage2")],
)
def test_graph_equals_the_reference_and_sees_new_weights_and_new_noise(name, shape, options, cut) -> None:
    torch.backends.cudnn.allow_tf32 = False
    model = net(name, shape, options, cut, torch.float32).cuda()
    z = latent(model.cpu(), shape, 4, "channels").cuda()
    model.cuda()
    sampler, generator = Sampler(model.tail, "paper", **SETTINGS), stream(3, "cuda")
    for change in range(3):
        expected = run_chain(model.tail, z, "paper", generator=stream(3 + change, "cuda"), **SETTINGS)
        chain = sampler(z, None, generator.manual_seed(3 + change))
        assert len(sampler.graphs) == 1
        torch.testing.assert_close(chain.z, expected.z, atol=1e-3, rtol=1e-3)
        with torch.no_grad():
            for tensor in (*model.tail.parameters(), *model.tail.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.1)
        z = z + 0.1
    assert not torch.equal(sampler(z, None, generator).z, sampler(z, None, generator).z)  # the stream goes on


@needs_gpu
@pytest.mark.parametrize(
    ("name", "shape", "options", "cut"), [(*NETS[5], "stage3"), (*NETS[7], "stage2"), (*NETS[2], "stage3")]
)
def test_bf16_graph_agrees_in_distribution(name, shape, options, cut) -> None:
    model = net(name, shape, options, cut, torch.float32).cuda()
    z = torch.randn(512, *model.feature_shape(shape), generator=stream(4)).cuda().to(memory_format=torch.channels_last)
    slow, fast = (energies_after(model, z, fast, seed) for fast, seed in ((False, 1), (True, 2)))
    error = slow.std() * math.sqrt(2 / len(z))
    assert abs(slow.mean() - fast.mean()) < 4 * error + 0.02 * slow.mean().abs()
    assert abs(slow.std() / fast.std() - 1) < 0.2


@needs_gpu
def test_float64_chains_on_a_gpu_are_the_references() -> None:
    tail = linear_tail(5, 16, dtype=torch.float64).cuda()
    z = torch.randn(7, 16, dtype=torch.float64, device="cuda")
    quiet = {"steps": 10, "step": 1.0, "noise": 0.0}
    torch.testing.assert_close(sample(tail, z, **quiet), run_chain(tail, z, **quiet).z)


@needs_gpu
def test_fused_noise_has_the_right_spread() -> None:
    model = net("resnet18", (3, 16, 16), {}, "stage3", torch.float32).cuda()
    with torch.no_grad():
        model.head.weight.zero_()
    z = torch.zeros(64, *model.feature_shape((3, 16, 16))).cuda().to(memory_format=torch.channels_last)
    chain = Sampler(model.tail, "paper", steps=5, step=1.0, noise=0.3)(z, None, stream(1, "cuda"), autocast=True)
    assert abs(chain.z.mean().item()) < 4 * 0.3 * math.sqrt(5 / chain.z.numel())
    assert abs(chain.z.std().item() / (0.3 * math.sqrt(5)) - 1) < 4 / math.sqrt(2 * chain.z.numel())


@needs_gpu
@pytest.mark.parametrize("method", ["vanilla", "eow", "ova_dm", "dble"])
def test_captured_steps_train_like_eager_ones(method: str) -> None:
    from test_training import make_training

    runs = {}
    for graph in ("off", "on"):
        training = make_training(
            method, device=torch.device("cuda"), graph=graph, precision="fp32", optimizer="sgd", lr=0.05
        )
        runs[graph] = [line["ova" if method == "ova_dm" else "ce"] for line in training.epochs()]
    torch.testing.assert_close(torch.tensor(runs["on"]), torch.tensor(runs["off"]), atol=5e-3, rtol=0.05)
    assert runs["on"][-1] < runs["on"][0] / (1.5 if method == "ova_dm" else 3)


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("anew", [True, False], ids=["in a new process", "after steps that were captured"])
def test_a_restored_state_goes_on_on_a_gpu(optimizer: str, anew: bool) -> None:
    """With the schedule's rates, with the optimiser's own past, and with an unknown that bends from epoch 4 on."""
    from test_training import make_training

    def fresh() -> Training:
        settings = {"precision": "fp32", "optimizer": optimizer, "lr": 0.05 if optimizer == "sgd" else 0.01}
        return make_training(device=torch.device("cuda"), graph="on", unknown="quadratic", **settings)

    whole = fresh()
    lines = list(whole.epochs())
    other = fresh()
    for line in other.epochs():
        if line["epoch"] == 2:
            break
    state = {name: tensor.clone() for name, tensor in other.state().items()}
    if anew:
        other = fresh()
    else:
        list(other.epochs(3))
    other.restore(state)
    rest = list(other.epochs(3))
    for key in ("ce", "energy", "lr"):
        want = [line[key] for line in lines[3:] if line.get(key)]  # a term that was on before says 0 once it is off
        assert want, key
        assert [line[key] for line in rest if line.get(key)] == pytest.approx(want, rel=0.02), key
    assert rest[-1]["lr"] < rest[0]["lr"] / 2
    for name, tensor in whole.state().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(other.state()[name], tensor, rtol=0.02, atol=0.005)


@needs_gpu
@pytest.mark.parametrize("energy", ["paper", "proof"])
@pytest.mark.parametrize(("chains", "classes"), [(64, 100), (5, 2), (33, 127)])
def test_one_kernel_for_all_steps_equals_the_loop(
    chains: int, classes: int, energy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tail, z = nn.Linear(256, classes + 1).cuda(), torch.randn(chains, 256, device="cuda")
    sampler = Sampler(tail, energy, steps=50, step=0.5, noise=0.05)
    assert kernels.fits_logits(tail(z))
    fast = sampler.run(z, None, stream(1, "cuda"), False)
    monkeypatch.setattr(kernels, "fits_logits", lambda f: False)
    slow = sampler.run(z, None, stream(1, "cuda"), False)
    torch.testing.assert_close(fast.z, slow.z, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.energy, slow.energy, rtol=1e-4, atol=1e-4)


@needs_gpu
def test_a_forgotten_graph_does_not_break_a_capture() -> None:
    """The collector destroys what an earlier training has left, but not in the middle of recording another."""

    class Forgotten:
        def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
            self.graph, self.itself = graph, self  # only the collector can find it

    side = torch.cuda.Stream()
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with recording(graph, side):
            torch.zeros(1, device="cuda")
        Forgotten(graph)
        del graph
        last = torch.cuda.CUDAGraph()
        with recording(last, side):
            kept = [[] for _ in range(100_000)]  # enough to make the collector run, were it on
            torch.zeros(1, device="cuda")
        last.replay()
        assert len(kept) == 100_000


def test_the_collector_rests_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: nullcontext())

    def fail() -> None:
        assert not gc.isenabled()
        raise ZeroDivisionError

    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), recording(None, None):  # type: ignore[arg-type]
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with recording(None, None):  # type: ignore[arg-type]
            pass
        assert not gc.isenabled()  # as it was found
    finally:
        gc.enable()
