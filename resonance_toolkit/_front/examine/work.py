"""What a part is given, and what came of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import xarray as xr

from resonance_toolkit._front.examine.budget import Clock
from resonance_toolkit._front.examine.plan import Plan
from resonance_toolkit._front.examine.store import Store
from resonance_toolkit._front.examine.subject import Subject

Status: TypeAlias = Literal[
    "done", "not applicable", "refused", "failed", "out of time", "interrupted"
]

# What another run would not change: such a part is not begun again.
FINAL: tuple[Status, ...] = ("done", "not applicable", "refused", "failed")

_LONGEST_REASON = 600


@dataclass(frozen=True)
class Outcome:
    """What a part came to."""

    status: Status
    reason: str = ""
    seconds: float = float("nan")
    warnings: str = ""
    child_reasons: dict[str, str] = field(default_factory=dict)

    def as_numbers(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


@dataclass(eq=False)
class Work:
    """One part at work.

    Attributes:
        part: Its name.
        subject: What is examined.
        plan: How large.
        store: Where what is finished goes.
        clock: What is left.
        auxiliary_reason: Why there is no auxiliary loss; "" if there is one.
        on_advance: Called with the number of runs that the part has finished.
        child_reasons: Why children are missing, by name.
    """

    part: str
    subject: Subject
    plan: Plan
    store: Store
    clock: Clock
    auxiliary_reason: str
    on_advance: Callable[[int], None]
    child_reasons: dict[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Of this part."""
        return self.plan.sizes[self.part]

    def advance(self, n_runs: int = 1) -> None:
        """Say that so many runs of the part are finished."""
        self.on_advance(n_runs)

    def measure(self, child: str, work: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Measure the part's own Dataset (""), or a child's, unless it is there already."""
        return self.store.measure(name_of_piece(self.part, child), work)

    def attempt(self, child: str, work: Callable[[], xr.Dataset]) -> None:
        """Measure a child without which the part is something still."""
        try:
            self.measure(child, work)
        except Exception as error:
            self.child_reasons[child] = sentence_of(error)

    def need_auxiliary_loss(self) -> None:
        """Refuse the part if there is none."""
        if self.auxiliary_reason:
            raise ValueError(self.auxiliary_reason)


def name_of_piece(part: str, child: str) -> str:
    """The name under which a Dataset is stored, which is its path in the tree."""
    return f"{part}/{child}" if child else part


def sentence_of(error: BaseException) -> str:
    """One line of what went wrong."""
    text = " ".join(str(error).split()) or "it says no more"
    if not isinstance(error, ValueError | TypeError):
        text = f"{type(error).__name__}: {text}"
    if len(text) > _LONGEST_REASON:
        text = f"{text[:_LONGEST_REASON]} ..."
    return text
