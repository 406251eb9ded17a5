"""What a part has to say about itself, before its pictures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from resonance_toolkit._front.page.numbers import Number


@dataclass(frozen=True)
class Findings:
    """The words and numbers of a part.

    Args:
        lead: What came out, in a sentence or two.
        numbers: With what each is to be held against.
        meanings: How to read them, a paragraph each.
        drawn: The results to draw, in this order.
        surface: A plane for the surface that can be turned.
    """

    lead: str = ""
    numbers: Sequence[Number] = ()
    meanings: Sequence[str] = ()
    drawn: Sequence[xr.Dataset] = ()
    surface: xr.Dataset | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def child_of(node: xr.DataTree, name: str) -> xr.Dataset | None:
    """Return a child's result, if there is such a child."""
    return node.children[name].to_dataset(inherit=False) if name in node.children else None
