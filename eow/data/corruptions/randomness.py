"""Random numbers by counting: the number at (seed, corruption, severity, image, draw, position) is a hash of these.

So an image's numbers do not depend on what else is in its batch, and no generator has a state to keep. The hash is two
rounds of a 32-bit mixer (multiply and xor-shift, with the constants of Wellons' search for low bias), keyed by 64 bits
an image, in int32 arithmetic that wraps: exact on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eow.seeds import derive

BITS = 23  # a uniform number is (b + 1/2) / 2^23: symmetric, never 0 or 1, and exact in float32 too
GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio, so that draws 0, 1, 2 ... lie far apart


def signed(word: int) -> int:
    """The int32 of the same 32 bits."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


FIRST, SECOND = signed(0x7FEB352D), signed(0x846CA68B)


def mix(x: Tensor) -> Tensor:
    """In place. An int32 shift drags the sign along, so the mask cuts it off."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= FIRST
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= SECOND
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


class Draws:
    """The random fields of images first, first + 1, ... first + count - 1 under one corruption, one draw after the
    other."""

    def __init__(self, name: str, severity: int, seed: int, first: int, count: int, device: torch.device) -> None:
        long = derive(f"corruption {name}", seed, severity), derive(f"corruption {name} again", seed, severity)
        self.words = [signed(word) for number in long for word in (number, number >> 31)]
        self.images = torch.arange(first, first + count, device=device).to(torch.int32)
        self.draw = 0

    def bits(self, size: int) -> Tensor:
        """(count, size) int32, all 32 bits random."""
        self.draw += 1
        step = signed(self.draw * GOLDEN)
        one, two, three, four = self.words
        outer = mix(mix(self.images ^ one).add_(two).add_(step))[:, None]
        inner = mix(mix(self.images ^ three).add_(four).add_(step))[:, None]
        positions = torch.arange(size, dtype=torch.int32, device=self.images.device)
        return mix(mix(positions ^ outer).add_(inner))

    def uniform(self, *shape: int) -> Tensor:
        """(count, *shape) float64, uniform in (0, 1)."""
        bits = self.bits(math.prod(shape)).bitwise_right_shift_(32 - BITS).bitwise_and_((1 << BITS) - 1)
        return bits.double().add_(0.5).mul_(2.0**-BITS).view(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """(count, *shape) float64, standard normal by Box and Muller: the far tail ends at 5.8 deviations."""
        size = math.prod(shape)
        half = (size + 1) // 2
        uniform = self.uniform(2, half)
        radius = uniform[:, 0].log().mul_(-2).sqrt_()
        angle = uniform[:, 1].mul(2 * math.pi)
        return torch.cat((angle.cos().mul_(radius), angle.sin().mul_(radius)), 1)[:, :size].reshape(-1, *shape)
