"""A whole training step as one CUDA graph: forward, chains, backward and optimiser, launched at once."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """`torch.cuda.graph` while the garbage collector rests. Were it to find the graph of an earlier training in the
    middle of a capture, destroying that one would break this one."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=stream):
            yield
    finally:
        if collecting:
            gc.enable()


class StepGraph:
    """A training step that is run a few times as it is, then captured as one CUDA graph and replayed ever after."""

    WARM_UP = 3

    def __init__(self, step: Callable[[Tensor, Tensor], None], generator: torch.Generator) -> None:
        self.step, self.generator, self.calls = step, generator, 0
        self.stream = torch.cuda.Stream()  # one for warm-up and capture: autograd's nodes remember where they were made
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, y: Tensor) -> None:
        self.calls += 1
        if self.calls <= self.WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step(x, y)
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        graph = self.graph or self.capture(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        graph.replay()

    def capture(self, x: Tensor, y: Tensor) -> torch.cuda.CUDAGraph:
        """Recording runs nothing: the first replay is the step."""
        layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        self.x, self.y = x.clone(memory_format=layout), y.clone()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with recording(self.graph, self.stream):
            self.step(self.x, self.y)
        return self.graph
