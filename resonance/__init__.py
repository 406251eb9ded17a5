"""What the instruments share: layer names, guards, batches, provenance, executors."""

from resonance._evaluating import evaluating
from resonance._find_layers import find_layers, select, unwrap
from resonance._preserving import preserving, preserving_rng
from resonance._provenance import provenance
from resonance._spread import spread
from resonance._take import AtMost, Batches, device_of, take

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
