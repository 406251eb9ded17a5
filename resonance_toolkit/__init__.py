"""What the instruments share: layer names, guards, batches, provenance, executors."""

from resonance_toolkit._base.evaluating import evaluating
from resonance_toolkit._base.find_layers import find_layers, select, unwrap
from resonance_toolkit._base.preserving import preserving, preserving_rng
from resonance_toolkit._base.provenance import provenance
from resonance_toolkit._base.spread import spread
from resonance_toolkit._base.take import AtMost, Batches, device_of, take

__all__ = [
    "AtMost",
    "Batches",
    "device_of",
    "evaluating",
    "find_layers",
    "preserving",
    "preserving_rng",
    "provenance",
    "select",
    "spread",
    "take",
    "unwrap",
]
