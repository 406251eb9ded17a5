"""The ground floor of the toolkit: what all five instruments share.

Start with `find_layers`, which turns patterns such as `"blocks.*"` into modules, and with `take`,
which turns data of any kind into fixed batches. The instruments themselves are the packages
`probes`, `landscape`, `gradients`, `attention` and `nudging`.
"""

from resonance_toolkit._base.branch_weights import (
    WeightCount,
    branch_weights,
    count_branch_weights,
    is_stack,
    stack_length,
)
from resonance_toolkit._base.call_model import call_model
from resonance_toolkit._base.checks import (
    check_choice,
    check_module,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from resonance_toolkit._base.class_losses import ClassLoss, fit_class_loss
from resonance_toolkit._base.default_loss import (
    DefaultLoss,
    align_classes,
    default_loss,
    leave_out_uncounted,
    mean_over_positions,
)
from resonance_toolkit._base.devices import (
    all_accelerators,
    device_of,
    devices_of,
    widest_float,
)
from resonance_toolkit._base.evaluating import evaluating
from resonance_toolkit._base.facts import (
    CLASS_TOKEN_NAMES,
    count_samples,
    dtype_name,
    first_tensor,
    has_class_token,
    is_compiled,
    is_sharded,
    name_of,
)
from resonance_toolkit._base.find_blocks import Blocks, find_blocks
from resonance_toolkit._base.find_layers import find_layers, select, unwrap
from resonance_toolkit._base.forms import LABEL_NAMES, Batches, check_no_nan, index_rows
from resonance_toolkit._base.language_models import (
    IGNORED_TARGET,
    predicts_next_token,
    reads_class_token,
    shift_labels,
)
from resonance_toolkit._base.losses import (
    Loss,
    cross_entropy_per_sample,
    has_class_weights,
    ignore_index_of,
    logits_of,
    without_mean,
)
from resonance_toolkit._base.new_axes import new_axes
from resonance_toolkit._base.padding import positions_that_count
from resonance_toolkit._base.preserving import preserving, preserving_rng
from resonance_toolkit._base.provenance import provenance
from resonance_toolkit._base.seed_generators import seed_generators
from resonance_toolkit._base.sources import is_whole_batch
from resonance_toolkit._base.spread import spread
from resonance_toolkit._base.take import AtMost, take
from resonance_toolkit._base.text_table import text_table
from resonance_toolkit._base.to_host import to_host
from resonance_toolkit._base.warn_user import warn_user

__all__ = [
    # Models and their layers
    "CLASS_TOKEN_NAMES",
    "count_samples",
    "dtype_name",
    "first_tensor",
    "has_class_token",
    "is_compiled",
    "is_sharded",
    "name_of",
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
    "align_classes",
    "call_model",
    "default_loss",
    "fit_class_loss",
    "index_rows",
    "leave_out_uncounted",
    "mean_over_positions",
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
    "take",
    # Guards
    "evaluating",
    "preserving",
    "preserving_rng",
    "seed_generators",
    # Checks of arguments
    "check_choice",
    "check_module",
    "check_no_nan",
    "check_not_negative",
    "check_positive",
    "check_share",
    "check_whole",
    # Results and long work
    "new_axes",
    "provenance",
    "spread",
    "text_table",
    "warn_user",
]
