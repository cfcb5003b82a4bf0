"""MATLAB's .mat files of version 5, as far as SVHN needs them: arrays of numbers, compressed or not.

A reader of our own, because scipy's crashes on damaged files: no exception, the process is gone. A file is a header of
128 bytes and elements (type, size, data); an element may be compressed, a matrix is made of elements.
"""

import math
import struct
import zlib

import numpy as np

from eow.data.files import most_unpacked

NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # as stored
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}  # as meant
MATRIX, COMPRESSED = 14, 15
COMPLEX = 0x800


def read_mat(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of numbers by name; raises ValueError, in a few words, for whatever is wrong."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("no MATLAB file of version 5")
    arrays, place = {}, 128
    while place < len(content):
        kind, data, place = element(content, place, order)
        if kind == COMPRESSED:
            place -= -len(data) % 8  # these alone are not filled up to eight bytes
            kind, data, _ = element(unpacked(data), 0, order)
        if kind == MATRIX:
            name, array = matrix(data, order)
            if array is not None:
                arrays[name] = array
    return arrays


def unpacked(data: bytes) -> bytes:
    stream, most = zlib.decompressobj(), most_unpacked(len(data))
    try:
        whole = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(whole) > most:
        raise ValueError("it unpacks to far more than images do")
    if not stream.eof:
        raise ValueError("it ends too early")
    return whole


def element(data: bytes, place: int, order: str) -> tuple[int, bytes, int]:
    """Type and data of the element at this place, and the place of the next."""
    if place + 8 > len(data):
        raise ValueError("it ends too early")
    kind, size = struct.unpack_from(f"{order}2I", data, place)
    start = place + 8
    if kind >> 16:  # up to four bytes stand in the place of the size
        kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
        if size > 4:
            raise ValueError("an element is longer than it can be")
        return kind, data[start : start + size], place + 8
    if start + size > len(data):
        raise ValueError("it ends too early")
    return kind, data[start : start + size], start + size + -size % 8


def matrix(data: bytes, order: str) -> tuple[str, np.ndarray | None]:
    """Name and numbers of a matrix; None for what is made of something else."""
    parts, place = [], 0
    for _ in range(4):  # flags, dimensions, name, numbers
        kind, part, place = element(data, place, order)
        parts.append((kind, part))
        if len(parts) == 1:
            flags = int.from_bytes(part[:4], "little" if order == "<" else "big")
            if flags & 0xFF not in CLASSES or flags & COMPLEX:
                return "", None
    (_, _), (_, sizes), (_, name), (stored, numbers) = parts
    if len(sizes) % 4 or stored not in NUMBERS:
        raise ValueError("a matrix has no shape or no numbers")
    shape = np.frombuffer(sizes, f"{order}i4").tolist()
    kind_of = np.dtype(f"{order}{NUMBERS[stored]}")
    if min(shape, default=-1) < 0 or math.prod(shape) * kind_of.itemsize != len(numbers):
        raise ValueError("a matrix whose shape does not fit its data")
    array = np.frombuffer(numbers, kind_of).astype(CLASSES[flags & 0xFF], copy=False)
    return name.decode("latin-1"), array.reshape(shape, order="F")
