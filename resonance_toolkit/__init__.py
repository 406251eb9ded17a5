"""What all five instruments share, and the calls that combine them.

To measure, start with `examine`, which applies every instrument to a model, `page`, which writes a
report, and `Monitor`, which measures while a model trains. To write a verb, start with
`find_layers`, which turns patterns such as `"blocks.*"` into modules, and `take`, which turns data
of any kind into fixed batches.

The instruments are the packages `probes`, `landscape`, `gradients`, `attention` and `nudging`. If a
file or an installed package of yours has one of these names, `from resonance_toolkit import
attention` gives ours, or an error that names the other one.
"""

from importlib import import_module as _import_module
from typing import Any

from resonance_toolkit._base.branch_weights import (
    WeightCount,
    branch_weights,
    count_branch_weights,
    is_stack,
    stack_length,
)
from resonance_toolkit._base.call_model import (
    FailedPassError,
    call_model,
    is_about_tensors,
    keywords_of_forward,
)
from resonance_toolkit._base.checked_lines import from_checked_line, to_checked_line
from resonance_toolkit._base.checks import (
    check_choice,
    check_module,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from resonance_toolkit._base.data.forms import (
    LABEL_NAMES,
    Batches,
    check_no_nan,
    describe_tensors,
    index_rows,
)
from resonance_toolkit._base.data.language_models import (
    IGNORED_TARGET,
    describe_targets,
    predicts_next_token,
    reads_class_token,
    shift_labels,
)
from resonance_toolkit._base.data.padding import name_inputs, positions_that_count
from resonance_toolkit._base.data.sources import is_whole_batch
from resonance_toolkit._base.data.take import AtMost, streaming_inputs, take
from resonance_toolkit._base.devices import (
    all_accelerators,
    device_of,
    devices_of,
    to_host,
    widest_float,
)
from resonance_toolkit._base.drawing import (
    Title,
    colors_by_order,
    label_places,
    label_rows,
    legend_outside,
    thin_out,
    title_text,
    write_figure_title,
    write_title,
)
from resonance_toolkit._base.errors import NotApplicableError, missing_extra
from resonance_toolkit._base.facts import (
    CLASS_TOKEN_NAMES,
    count_arguments,
    count_samples,
    dtype_name,
    first_tensor,
    floating_dtype_of,
    has_class_token,
    is_compiled,
    is_sharded,
    name_of,
    sample_tensor,
)
from resonance_toolkit._base.files import (
    Writer,
    check_writable,
    locking,
    tensor_writer,
    write_atomically,
)
from resonance_toolkit._base.find_blocks import Blocks, find_blocks
from resonance_toolkit._base.find_layers import find_layers, select, unwrap
from resonance_toolkit._base.instruments import INSTRUMENTS as _INSTRUMENTS
from resonance_toolkit._base.instruments import load_instrument as _load_instrument
from resonance_toolkit._base.line_file import LineFile
from resonance_toolkit._base.losses.accuracy import align_predictions, correct_shares
from resonance_toolkit._base.losses.call_loss import FailedLossError, call_loss
from resonance_toolkit._base.losses.class_losses import ClassLoss, fit_class_loss
from resonance_toolkit._base.losses.default_loss import (
    DefaultLoss,
    align_classes,
    default_loss,
    leave_out_uncounted,
    mean_over_positions,
)
from resonance_toolkit._base.losses.per_sample import (
    Loss,
    cross_entropy_per_sample,
    has_class_weights,
    ignore_index_of,
    logits_of,
    without_mean,
)
from resonance_toolkit._base.preserving import (
    evaluating,
    preserving,
    preserving_rng,
    seed_generators,
)
from resonance_toolkit._base.processes import is_first_process
from resonance_toolkit._base.progress import (
    Progress,
    ProgressForm,
    reporting,
    showing_progress,
    track,
)
from resonance_toolkit._base.provenance import __version__, provenance
from resonance_toolkit._base.sharding import is_dtensor, is_fully_sharded, resharding
from resonance_toolkit._base.showing import new_axes, render_page, text_table, warn_user
from resonance_toolkit._base.spread import spread
from resonance_toolkit._base.undamaged import (
    check_digest,
    load_tensors,
    open_netcdf,
    to_netcdf_bytes,
    with_digest,
)

# The front door by public name, loaded on first use: it needs the instruments, which need this
# module.
_FRONT_DOOR: dict[str, str] = {
    "Monitor": "resonance_toolkit._front.monitor.monitor",
    "examine": "resonance_toolkit._front.examine.examine",
    "from_command": "resonance_toolkit._front.command.from_command",
    "page": "resonance_toolkit._front.page.page",
    "read_monitor": "resonance_toolkit._front.monitor.read_monitor",
}

__all__ = [
    "__version__",
    # Models and their layers
    "CLASS_TOKEN_NAMES",
    "count_arguments",
    "count_samples",
    "dtype_name",
    "first_tensor",
    "floating_dtype_of",
    "has_class_token",
    "is_compiled",
    "is_dtensor",
    "is_fully_sharded",
    "is_sharded",
    "name_of",
    "sample_tensor",
    "Blocks",
    "find_blocks",
    "find_layers",
    "select",
    "unwrap",
    # Weights of branches beside a model
    "WeightCount",
    "branch_weights",
    "count_branch_weights",
    "is_stack",
    "stack_length",
    # Data and losses
    "IGNORED_TARGET",
    "LABEL_NAMES",
    "ClassLoss",
    "DefaultLoss",
    "FailedLossError",
    "FailedPassError",
    "NotApplicableError",
    "align_classes",
    "align_predictions",
    "call_loss",
    "call_model",
    "correct_shares",
    "default_loss",
    "describe_targets",
    "describe_tensors",
    "fit_class_loss",
    "index_rows",
    "is_about_tensors",
    "leave_out_uncounted",
    "mean_over_positions",
    "name_inputs",
    "positions_that_count",
    "predicts_next_token",
    "reads_class_token",
    "shift_labels",
    "Loss",
    "cross_entropy_per_sample",
    "has_class_weights",
    "ignore_index_of",
    "logits_of",
    "without_mean",
    "AtMost",
    "Batches",
    "all_accelerators",
    "device_of",
    "devices_of",
    "to_host",
    "widest_float",
    "is_whole_batch",
    "keywords_of_forward",
    "streaming_inputs",
    "take",
    # Guards
    "evaluating",
    "preserving",
    "preserving_rng",
    "resharding",
    "seed_generators",
    # Checks of arguments
    "check_choice",
    "check_module",
    "check_no_nan",
    "check_not_negative",
    "check_positive",
    "check_share",
    "check_whole",
    # Files
    "LineFile",
    "Writer",
    "check_digest",
    "check_writable",
    "from_checked_line",
    "is_first_process",
    "load_tensors",
    "locking",
    "open_netcdf",
    "tensor_writer",
    "to_checked_line",
    "to_netcdf_bytes",
    "with_digest",
    "write_atomically",
    # Drawing
    "Title",
    "colors_by_order",
    "label_places",
    "label_rows",
    "legend_outside",
    "new_axes",
    "thin_out",
    "title_text",
    "write_figure_title",
    "write_title",
    # Results and long work
    "Progress",
    "ProgressForm",
    "missing_extra",
    "provenance",
    "render_page",
    "reporting",
    "showing_progress",
    "spread",
    "text_table",
    "track",
    "warn_user",
]


def __getattr__(name: str) -> Any:
    # On first use, since the instruments import this module.
    if name in _INSTRUMENTS:
        return _load_instrument(name)
    if name in _FRONT_DOOR:
        return getattr(_import_module(_FRONT_DOOR[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_INSTRUMENTS, *_FRONT_DOOR})
