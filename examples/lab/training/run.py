"""The state of one training run, which the loop changes and a checkpoint keeps."""

from dataclasses import dataclass, field
from typing import Any

import torch
import xarray as xr
from accelerate import Accelerator
from torch import Tensor, nn

import gradients
from lab.data.images import Images
from lab.training.recipe import Recipe
from probes import Probe


@dataclass
class Run:
    """What a run is made of, and what it has measured so far.

    Attributes:
        recipe: What decides the run.
        images: Of this recipe.
        accelerator: Knows the device, the processes and the precision.
        model: The backbone, wrapped by whatever distributes it.
        probe: Its branches; None for the plain model.
        optimizer: Of backbone and branches.
        trace: Records gradients, if the recipe says so.
        unlabelled: Static branches that never see a label; None where all do. Drawn by seed, so a
            checkpoint need not hold them.
        curves: What was measured in each finished epoch, by name.
        earlier_traces: What `trace` recorded before the run was interrupted, part by part.
        attention: What `attention.capture` gave, by the epoch after which it was measured.
    """

    recipe: Recipe
    images: Images
    accelerator: Accelerator
    model: nn.Module
    probe: Probe | None
    optimizer: Any
    trace: gradients.Trace | None
    unlabelled: Probe | None = None
    curves: list[dict[str, float]] = field(default_factory=list)
    earlier_traces: list[xr.Dataset] = field(default_factory=list)
    attention: dict[int, xr.Dataset] = field(default_factory=dict)

    @property
    def backbone(self) -> nn.Module:
        """The model without what distributes it."""
        backbone: nn.Module = self.accelerator.unwrap_model(self.model)
        return backbone

    def traces(self) -> list[xr.Dataset]:
        """Return gradient measurements, a piece for each part of a run that was interrupted."""
        latest = [self.trace.to_dataset()] if self.trace else []

        # An empty piece knows neither its losses nor, once written, its shape.
        return [piece for piece in [*self.earlier_traces, *latest] if piece.sizes["step"]]

    def sum_over_processes(self, sums: Tensor) -> list[float]:
        """Add up numbers that every process has of its own images."""
        device = self.accelerator.device
        dtype = torch.float32 if device.type == "mps" else None  # Apple's have no float64
        total: list[float] = self.accelerator.reduce(sums.to(device, dtype)).tolist()
        return total
