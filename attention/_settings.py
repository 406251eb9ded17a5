"""What `capture` and `capturing` are asked for: one record that all their parts read."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from resonance_toolkit import check_choice, check_share, check_whole

QueryChoice: TypeAlias = Literal["auto", "cls", "mean", "all"]
KeyChoice: TypeAlias = Literal["patches", "all"]


@dataclass(frozen=True)
class Settings:
    """The options of `capture`, whose docstring says what each means."""

    layers: str | Sequence[str] | None
    queries: QueryChoice | Sequence[int]
    keys: KeyChoice
    maps: bool
    threshold: float
    mass: float
    prefix: int | None
    chunk: int
    among_seeing_queries: bool = False  # mean maps over the queries that see a key, if half do

    @property
    def has_query_axis(self) -> bool:
        """Whether the result has a dimension `query`: not if one row stands for all."""
        return self.queries not in ("auto", "cls", "mean")


def check_settings(settings: Settings) -> Settings:
    """Return the settings in Python's own types.

    Raises:
        ValueError: If one makes no sense.
    """
    check_choice("keys", settings.keys, get_args(KeyChoice))
    prefix = settings.prefix
    if prefix is not None:
        prefix = check_whole("prefix", prefix, at_least=0)

    return replace(
        settings,
        queries=_check_queries(settings.queries),
        maps=bool(settings.maps),
        threshold=check_share("threshold", settings.threshold),
        mass=check_share("mass", settings.mass),
        prefix=prefix,
        chunk=check_whole("chunk", settings.chunk),
    )


def _check_queries(queries: Any) -> Any:
    indices = [] if isinstance(queries, str) else _whole_numbers(queries)
    return indices or check_choice("queries", queries, get_args(QueryChoice), or_else="indices")


def _whole_numbers(queries: Any) -> list[int]:
    """Whole numbers; none at all if anything else is among them, as in a mask of rows."""
    rows = queries.tolist() if isinstance(queries, Tensor) else queries
    try:
        return [] if any(isinstance(row, bool) for row in rows) else [*map(operator.index, rows)]
    except TypeError:
        return []
