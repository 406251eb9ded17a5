"""One batch, observed: recorded, and known to need full passes or not."""

from dataclasses import replace
from typing import Any

from nudging._replay.full_passes import reason_for_full_passes
from nudging._replay.record import record_state
from nudging._replay.setup import Setup
from nudging._replay.state import State


def observe_batch(
    setup: Setup,
    inputs: Any,
    targets: Any,
    *,
    full_pass_reason: str | None = None,
    first_sample: int = 0,
) -> State:
    """Record a batch; find out why full passes are needed, unless that is known already."""
    state = record_state(
        setup,
        inputs,
        targets,
        full_pass_reason=full_pass_reason or "",
        first_sample=first_sample,
    )
    if full_pass_reason is not None:
        return state
    return replace(state, full_pass_reason=reason_for_full_passes(state))
