from collections.abc import Sequence

from torch import nn

from landscape._directions.parameters import Params, tensors_to_move
from landscape._directions.principal_components import principal_components
from landscape._directions.states import State, read_state
from resonance_toolkit import check_module


def principal_directions(
    model: nn.Module, checkpoints: Sequence[State], *, over: str | Sequence[str] | None = None
) -> tuple[Params, Params]:
    """The two directions in which checkpoints vary most, for `grid(directions=...)`.

    Args:
        model: A model of the same architecture; left as it was found.
        checkpoints: Three or more models or state dicts.
        over: Names or patterns of the parameters to cover; by default trained weights of two or
            more dimensions, as in `grid`.

    Returns:
        Two orthonormal mappings of tensors by parameter name.

    Raises:
        ValueError: If there are fewer than three checkpoints, or they do not fit or do not move.

    Examples:
        >>> import torch
        >>> path = [{"weight": torch.tensor([[2.0 * i, float(i % 2)]])} for i in range(5)]
        >>> first, second = principal_directions(nn.Linear(2, 1, bias=False), path)
        >>> first["weight"].abs().round(decimals=3) + 0
        tensor([[1., 0.]])
    """
    if not isinstance(checkpoints, Sequence) or len(checkpoints) < 3:
        raise ValueError("`checkpoints`: expected three or more models or state dicts, in order")
    check_module(model)

    tensors = tensors_to_move(model, over, None)
    last = read_state(checkpoints[-1], tensors, "checkpoints[-1]")
    components, _ = principal_components(checkpoints, last)
    return components
