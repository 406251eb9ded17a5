from collections.abc import Sequence

import torch
from torch import Tensor

from gradients._journal import Journal
from gradients._recorders.processes import mean_over
from gradients._recorders.protocol import Recorder


class Update:
    """The backward passes of one optimizer update, up to their entry in the journal.

    An update of which a pass did not come to its end is not entered: what an optimizer makes of it
    is not known.
    """

    _losses: Tensor | None
    _passes: int
    _running: bool  # between the beginning and the end of a backward pass
    _complete: bool

    def __init__(self, recorder: Recorder, journal: Journal) -> None:
        self._recorder, self._journal = recorder, journal
        self._scale = torch.ones((), dtype=torch.float64)
        self._forget()

    def begin(
        self,
        losses: Sequence[Tensor],
        seed: Tensor,
        scaler: torch.amp.GradScaler | None,
        *,
        whole_update: bool,
    ) -> None:
        """Get ready to read a backward pass that begins with `seed`, scaled already."""
        self._complete &= not self._running
        self._running = True
        self._passes += 1
        self._recorder.arm(losses, seed, whole_update=whole_update)
        values = torch.stack([loss.detach().double().reshape(()) for loss in losses])
        one = torch.ones((), device=values.device)
        self._scale = (one if scaler is None else scaler.scale(one)).double()
        weighted = values * (seed.double().reshape(()) / self._scale)
        self._losses = weighted if self._losses is None else self._losses + weighted

    def end(self) -> None:
        """The backward pass has come to its end."""
        self._recorder.disarm()
        self._running = False

    def fail(self, *, alone: bool) -> None:
        """The backward pass has raised; `alone`: it would have been the whole update."""
        first = self._passes <= 1
        self._forget()
        self._complete = alone and first  # otherwise others of the same update may follow

    def enter(self, step: int) -> None:
        """All backward passes have been made."""
        try:
            if self._losses is not None and self._complete and not self._running:
                measured, losses = self._recorder.measure(), self._losses
                if self._recorder.group is not None:
                    (losses,) = mean_over(self._recorder.group, [losses])
                self._journal.add(step, losses, self._scale, measured)
        finally:
            self._forget()

    def _forget(self) -> None:
        self._recorder.reset()
        self._losses, self._passes = None, 0
        self._running, self._complete = False, True
