"""What the energy term costs: plain steps and EOW steps side by side, in one run, as milliseconds and ratios.

    python benchmarks/speed.py                       # on a GPU: ResNet-50, WRN-28-10, VGG11, MLP; minutes
    python benchmarks/speed.py --small               # on a CPU: the same table, smaller
    python benchmarks/speed.py --modern              # EOW as the recipe has it, not as the paper has it
    python benchmarks/speed.py --json speed.json

Warm-up is excluded, GPU times are device events, every figure is a median. `chain` is the Langevin steps alone: 100,
with --small and on a CPU 20; `floor` is what their arithmetic would take at the matrix rate that the same run measures;
`reference` is the chain of langevin.py under autograd. With --modern chains are 20 steps within their trust, before a
quadratic unknown; without it they are free, before a linear one. On a GPU `plain` and `EOW` are whole steps as one CUDA
graph, in bfloat16 or, with --tf32, in float32 with TF32 products; a CPU has float32.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from arguments import several, whole, writable
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eow.config import TrainConfig
from eow.console import in_one_line, print_table
from eow.methods import METHODS
from eow.models import build
from eow.sampling import Sampler, run_chain
from eow.training.distributed import Place
from eow.training.loop import Training
from eow.training.stepgraph import StepGraph

# model, options of the model, cuts, input shape, classes
FULL = [
    ("mlp", {"hidden": (512, 512)}, ["penultimate", "input"], (1, 28, 28), 10),
    ("vgg11", {}, ["penultimate", "stage3"], (3, 32, 32), 10),
    ("resnet50", {}, ["penultimate", "stage4", "stage3"], (3, 32, 32), 100),
    ("wrn28_10", {"norm": "none", "activation": "leaky_relu"}, ["stage2"], (3, 32, 32), 100),
]
SMALL = [
    ("mlp", {"hidden": (256, 256)}, ["penultimate", "input"], (1, 8, 8), 8),
    ("vgg11", {}, ["penultimate", "stage4"], (3, 32, 32), 10),
    ("resnet18", {}, ["penultimate", "stage4", "stage3"], (3, 32, 32), 100),
]


def timed(work: Callable[[], Any], device: torch.device, repeats: int, warm_up: int = 5) -> float:
    """Median milliseconds of one call."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            work()
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def matrix_rate(device: torch.device, bf16: bool) -> float:
    """Floating-point operations a second of a large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16 if bf16 else torch.float32) for _ in range(2))
    return 2 * size**3 / (timed(lambda: a @ b, device, 20) / 1000)


def make_step(
    method: str,
    spec: Any,
    cut: str,
    batch: int,
    place: Place,
    options: dict[str, Any],
    tf32: bool,
    graph: str = "auto",
    unknown: str = "linear",
) -> Any:
    """A training step on random data, ready to be called, and the method it trains."""
    name, model_options, _, shape, classes = spec
    kind = METHODS[method]
    torch.manual_seed(0)
    model = build(name, classes + kind.extra_outputs, shape, cut=cut, unknown=unknown, **model_options)
    trained = kind(model, kind.Options(**options), classes, shape).to(place.device)
    trained.prepare(place.device)
    x = torch.randn(batch, *shape, device=place.device)
    y = torch.randint(classes, (batch,), device=place.device)

    class Unread:
        """The loop's batches, which nobody asks for: its step is called directly."""

        def __len__(self) -> int:
            return 1

        def epoch(self, epoch: int) -> Any:
            return iter(())

    settings = TrainConfig(lr=1e-4, precision="fp32" if tf32 else "auto", graph=graph)
    training = Training(trained, Unread(), settings, place, 0)
    trained.train()
    if not training.graphed:
        return lambda: training.step(x, y), trained
    recorded = StepGraph(training.step, trained.stream)
    return lambda: recorded(x, y), trained


def chain_flops(tail: torch.nn.Module, z: Tensor, steps: int) -> float:
    """Operations of the chain: one pass forward and one back to the input a step, as the reference does them."""
    z = z.detach().clone().requires_grad_()
    for parameter in tail.parameters():
        parameter.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        tail(z).sum().backward()
    for parameter in tail.parameters():
        parameter.requires_grad_(True)
    return counter.get_total_flops() * steps


def rows_of(
    spec: Any,
    batch: int,
    place: Place,
    options: dict[str, Any],
    unknown: str,
    repeats: int,
    references: bool,
    tf32: bool,
) -> list[dict[str, Any]]:
    """A row for every cut; `options` and the kind of `unknown` are EOW's."""
    cuda = place.device.type == "cuda"
    plain_eager = timed(
        make_step("vanilla", spec, "penultimate", batch, place, {}, tf32, graph="off")[0], place.device, repeats
    )
    plain = (
        timed(make_step("vanilla", spec, "penultimate", batch, place, {}, tf32)[0], place.device, repeats)
        if cuda
        else plain_eager
    )
    rows = []
    for cut in spec[2]:
        step, method = make_step("eow", spec, cut, batch, place, options, tf32, unknown=unknown)
        row: dict[str, Any] = {"model": spec[0], "cut": cut, "batch": batch, "plain_eager": plain_eager, "plain": plain}
        row["eow"] = timed(step, place.device, repeats)
        row["ratio"] = row["eow"] / plain
        z = method.model.encoder.eval()(torch.randn(options["chains"], *spec[3], device=place.device)).detach()
        layout = torch.channels_last if z.dim() == 4 and cuda else torch.contiguous_format
        z = z.contiguous(memory_format=layout)
        settings: dict[str, Any] = {"steps": options["steps"], "step": 2.0, "noise": 1e-3}
        radius = method.trust_radius(z, method.stream)
        sampler = Sampler(method.model.tail, "paper", **settings)
        row["chain"] = timed(
            lambda s=sampler, z=z, r=radius, m=method: s(z, r, m.stream, autocast=cuda and not tf32),
            place.device,
            repeats,
        )
        row["flops"] = chain_flops(method.model.tail.eval(), z, options["steps"])
        if references:
            slow = make_step("eow", spec, cut, batch, place, options, tf32, graph="off", unknown=unknown)

            def reference(method: Any = slow[1], z: Tensor = z, settings: dict[str, Any] = settings) -> None:
                with torch.autocast(place.device.type, torch.bfloat16, enabled=cuda and not tf32):
                    trust = method.trust_radius(z, method.stream)
                    run_chain(method.model.tail, z, "paper", trust=trust, generator=method.stream, **settings)

            row["chain_reference"] = timed(reference, place.device, max(3, repeats // 5), warm_up=2)
        rows.append(row)
        if cuda:
            torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small networks and 20 steps, as always on a CPU")
    parser.add_argument("--models", default="", help="only these, separated by commas")
    parser.add_argument("--batches", type=several, help="batch sizes, separated by commas")
    parser.add_argument("--modern", action="store_true", help="chains and unknown as the recipe has them")
    parser.add_argument("--steps", type=whole, help="of a chain")
    parser.add_argument("--chains", type=whole, default=64, help="how many at once")
    parser.add_argument("--tf32", action="store_true", help="float32 with TF32 products instead of bfloat16")
    parser.add_argument("--repeats", type=whole, help="timed calls, of which the median is told")
    parser.add_argument("--json", type=writable, help="write the figures there")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = arguments.small or device.type == "cpu"
    steps = arguments.steps or (20 if small or arguments.modern else 100)
    repeats = arguments.repeats or (5 if small else 20)
    batches = arguments.batches or ([64] if small else [64, 256, 1024])
    specs, wanted = SMALL if small else FULL, [name for name in arguments.models.split(",") if name]
    known = {spec[0] for spec in specs}
    if missing := set(wanted) - known:
        parser.error(f"there is no {', '.join(sorted(missing))} here: choose of {', '.join(sorted(known))}")
    chosen = [spec for spec in specs if not wanted or spec[0] in wanted]
    place = Place(device)
    precision = "float32"
    if device.type == "cuda":
        precision = "float32 with TF32 products" if arguments.tf32 else "bfloat16"
    if arguments.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rate = matrix_rate(device, bf16=device.type == "cuda" and not arguments.tf32)
    options = {"steps": steps, "chains": arguments.chains, "start_epoch": 0}
    options |= {} if arguments.modern else {"trust": 0.0}
    unknown = "quadratic" if arguments.modern else "linear"
    rows = []
    for spec in chosen:
        for batch in batches:
            rows += rows_of(spec, batch, place, options, unknown, repeats, batch == batches[0], arguments.tf32)
    for row in rows:
        row["floor"] = 1000 * row["flops"] / rate
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    columns = [
        "model",
        "cut",
        "batch",
        "plain eager",
        "plain",
        "EOW",
        "EOW / plain",
        "chain",
        "reference",
        "floor",
        "of the floor",
    ]
    cells = []
    for row in rows:
        times = [f"{row[key]:.2f}" for key in ("plain_eager", "plain", "eow", "ratio", "chain")]
        reference = f"{row['chain_reference']:.1f}" if "chain_reference" in row else "-"
        share = f"{row['floor'] / row['chain']:.0%}"
        cells.append([row["model"], row["cut"], row["batch"], *times, reference, f"{row['floor']:.2f}", share])
    title = f"{where}, torch {torch.__version__}, {arguments.chains} chains of {steps} steps"
    title += " (recipe modern)" if arguments.modern else ""
    title += f", {rate / 1e12:.3g} TFLOP/s; milliseconds"
    print_table(title, columns, cells)
    if arguments.json:
        about = {"device": where, "torch": torch.__version__, "steps": steps, "chains": arguments.chains}
        about |= {"modern": arguments.modern, "tf32": arguments.tf32, "precision": precision, "rate": rate}
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    with in_one_line():
        main()
