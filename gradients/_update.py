"""One optimizer update, from its first backward pass to its row in the journal.

Two state machines run inside each other. `Update` follows the backward passes of one optimizer
update; its `Recorder` reads the gradients of one pass after another. In time, from left to right:

    one micro-batch    backward(update=True)
        Update         begin ............ end   record_if_complete
        Recorder       arm   (gradients)  disarm        measure, reset
        torch                backward pass

    several            backward(update=False)   backward(update=False)   backward(update=True)
        Update         begin ... end            begin ... end            begin ... end   record_...
        Recorder       arm ... disarm           arm ... disarm           arm ... disarm  measure
                       (gradients are added up until they are measured)

    one that fails     backward(update=False)   backward: raises         backward(update=True)
        Update         begin ... end            begin, abandon           begin ... end   record_...
        Recorder       arm ... disarm           arm, reset               arm ... disarm  reset
                       (the optimizer's own sum is not known: the update is left out)

    `join`             (join(...) / 2).backward(), which the framework calls   advance()
        Update         begin, from a hook on the sum ... end, from a callback  record_if_complete
        Recorder       arm ............................. disarm                measure, reset
                       (a pass that raises never calls `end`: the next `begin`, or
                       `record_if_complete`, finds the update still in a pass, and leaves it out)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradients._recorders.inner_products import stack_losses
from gradients._recorders.processes import mean_over
from gradients._recorders.protocol import Recorder
from gradients._rows import Journal, MeasuredUpdate


class Update:
    """The backward passes of one optimizer update, up to their entry in the journal.

    An update of which a pass did not come to its end is not recorded: what an optimizer makes of
    it is not known.
    """

    _losses: Tensor | None  # summed over the passes so far
    _n_passes: int
    _is_in_pass: bool  # between the beginning and the end of a backward pass
    _is_complete: bool  # no pass has failed so far

    def __init__(self, recorder: Recorder, journal: Journal) -> None:
        self._recorder = recorder
        self._journal = journal
        self._scale = torch.ones(())
        self._start_anew()

    def begin(
        self,
        losses: Sequence[Tensor],
        seed: Tensor,
        scaler: torch.amp.GradScaler | None,
        *,
        whole_update: bool,
    ) -> None:
        """Get ready to read a backward pass that begins with `seed`, scaled already."""
        # Still in a pass: the one before, of a framework, has raised.
        self._is_complete &= not self._is_in_pass
        self._is_in_pass = True
        self._n_passes += 1
        self._recorder.arm(losses, seed, whole_update=whole_update)

        values = stack_losses(losses)
        unit = torch.ones((), device=values.device)
        self._scale = (unit if scaler is None else scaler.scale(unit)).to(values)

        # What a framework divides the sum by, as for accumulation, is in the seed.
        weighted_losses = values * (seed.to(values).reshape(()) / self._scale)
        if self._losses is None:
            self._losses = weighted_losses
        else:
            self._losses = self._losses + weighted_losses

    def end(self) -> None:
        """Close the backward pass, which has come to its end."""
        self._recorder.disarm()
        self._is_in_pass = False

    def abandon(self, *, was_whole_update: bool) -> None:
        """Forget the update, of which a backward pass has raised.

        Args:
            was_whole_update: The pass was to be the only one. The next pass then begins another
                update, which can be recorded; otherwise passes of this very update may follow,
                and it is left out when it is complete.
        """
        was_first_pass = self._n_passes <= 1
        self._start_anew()
        self._is_complete = was_whole_update and was_first_pass

    def forget(self) -> None:
        """Begin another update: what was seen of this one belongs to a training that is over."""
        self._start_anew()

    def record_if_complete(self, step: int) -> None:
        """Enter the update in the journal: all its backward passes have been made."""
        try:
            if self._losses is None or not self._is_complete or self._is_in_pass:
                return

            measurement = self._recorder.measure()
            losses = self._losses
            if self._recorder.group is not None:
                (losses,) = mean_over(self._recorder.group, [losses])
            self._journal.add(MeasuredUpdate(step, losses, self._scale, measurement))
        finally:
            self._start_anew()

    def _start_anew(self) -> None:
        self._recorder.reset()
        self._losses = None
        self._n_passes = 0
        self._is_in_pass = False
        self._is_complete = True
