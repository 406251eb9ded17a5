"""Cosines, norms and inner products of several losses' gradients while training."""

from gradients._regroup import regroup
from gradients._trace import Trace

__all__ = ["Trace", "regroup"]
