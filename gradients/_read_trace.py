from pathlib import Path

import xarray as xr

from gradients._dataset import make_dataset
from gradients._record_file import read_record


def read_trace(path: str | Path) -> xr.Dataset:
    """Read what `Trace(model, path=...)` has written, after a crash or while the training runs.

    Args:
        path: The file.

    Returns:
        What `Trace.to_dataset` would have returned when the latest row was written.

    Raises:
        ValueError: If the file was not written by a trace.

    Examples:
        >>> import tempfile, torch
        >>> from gradients import Trace
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trace = Trace(model, path=f"{folder}/trace.jsonl")
        ...     out = model(torch.ones(1, 1)).sum()
        ...     trace.backward(3 * out, -2 * out)
        ...     record = read_trace(f"{folder}/trace.jsonl")
        >>> record["dot"].item(), record.identical(trace.to_dataset())
        (-6.0, True)
    """
    header, updates = read_record(Path(path))
    return make_dataset(updates, header, header.objectives, header.attributes)
