from pathlib import Path

import xarray as xr

from resonance_toolkit._front.monitor.record import Record


def read_monitor(path: str | Path) -> xr.DataTree:
    """Read what `Monitor(model, path=...)` has written, after a crash or while the training runs.

    Args:
        path: The file.

    Returns:
        What `Monitor.tree` would have returned when the latest row was written.

    Raises:
        ValueError: If the file was not written by a monitor, or is damaged.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from resonance_toolkit import Monitor
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     monitor = Monitor(model, level="parameter", path=f"{folder}/monitor.jsonl")
        ...     out = model(torch.ones(1, 1)).sum()
        ...     monitor.backward(3 * out, -2 * out)
        ...     tree = read_monitor(f"{folder}/monitor.jsonl")
        >>> tree["gradients"]["cosine_total"].item(), tree.identical(monitor.tree())
        (-1.0, True)
    """
    # A line without an end is torn; a file without a whole line is not a record.
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    record = Record()
    try:
        attributes = record.read(lines)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"`path`: expected a record that Monitor(..., path=) wrote, got {str(path)!r}, which "
            f"is another file or damaged: {error}"
        ) from None
    if not attributes:
        raise ValueError(
            f"`path`: expected a record that Monitor(..., path=) wrote, got {str(path)!r}, which "
            "has no whole line"
        )
    return record.to_tree(attributes)
