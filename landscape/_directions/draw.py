"""Draw Gaussian directions."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from landscape._directions.parameters import Params
from landscape._directions.random_directions import Drawn
from landscape._directions.vectors import dot, scales_of

_AT_ONCE = 2**18  # numbers drawn at a time: in float64 a whole layer would be two copies of it


def draw_axes(
    moving: Params, owners: Mapping[str, nn.Module], how: str, seed: int, count: int
) -> Sequence[Drawn]:
    """One or two Gaussian directions: orthogonal to each other, then normalised."""
    numbers = [draw_numbers(moving, seed, axis) for axis in range(count)]
    plain = {name: torch.ones((), dtype=t.dtype, device=t.device) for name, t in moving.items()}
    axes = [Drawn(own, plain, numbers[0]) for own in numbers]
    if count == 2:
        length = dot(axes[0], axes[0])
        for _ in range(2):  # twice: once leaves the round-off of nearly parallel directions
            share = axes[1].share + (dot(axes[0], axes[1]) / length if length else 0.0)
            axes[1] = replace(axes[1], share=share)
    return [replace(axis, scales=scales_of(axis, moving, owners, how)) for axis in axes]


def draw_numbers(moving: Params, seed: int, axis: int) -> Params:
    """Gaussian numbers that depend on seed, axis and parameter name alone, at half precision.

    Drawn on the CPU: every device and precision gets the same ones, and leaving one parameter out
    changes no other.
    """
    drawn = {}
    for name, tensor in moving.items():
        key = hashlib.sha256(f"{seed}/{axis}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
        numbers = torch.empty(tensor.numel(), dtype=torch.float16)
        for piece in numbers.split(_AT_ONCE):
            piece.copy_(torch.randn(len(piece), generator=generator, dtype=torch.float64))
        drawn[name] = numbers.view(tensor.shape).to(tensor.device)
    return drawn


def random_direction(moving: Params, seed: int, axis: int) -> Params:
    """The same numbers, in the type of the weights."""
    drawn = draw_numbers(moving, seed, axis)
    return {name: drawn.pop(name).to(tensor.dtype) for name, tensor in moving.items()}
