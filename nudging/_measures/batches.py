"""The one loop over batches that six verbs share.

    Request  ->  draw the samples, once, and choose the loss that their targets ask for
                 for each batch:  observe it, ask for its credit, give both to every measure
                 join what each measure returned  ->  Observations

A verb says what to measure (functions of an `ObservedBatch`) and makes a Dataset of the numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from nudging._credits.credit import Credit, describe_credit
from nudging._measures.numbers import Array, Attributes, concatenate_batches
from nudging._replay.losses import choose_loss, name_of_loss, settle_meaning
from nudging._replay.observe_batch import observe_batch
from nudging._replay.padding import zero_padding
from nudging._replay.replay import tensor_versions
from nudging._replay.setup import Setup, choose_blocks, make_setup
from nudging._replay.state import State
from resonance_toolkit import (
    IGNORED_TARGET,
    Batches,
    Loss,
    count_samples,
    describe_targets,
    devices_of,
    dtype_name,
    ignore_index_of,
    leave_out_uncounted,
    preserving,
    provenance,
    take,
    to_host,
    track,
    widest_float,
)


@dataclass(frozen=True, eq=False)
class Request:
    """What the six verbs are given alike; see `nudge` for the meaning.

    Attributes:
        verb: Name of the verb, for progress and provenance.
        credit: None where only the model is measured.
    """

    verb: str
    model: nn.Module
    data: Any
    blocks: str | Sequence[str] | None
    credit: Credit | None
    loss: Loss | None
    samples: int | None
    batch_size: int
    seed: int
    dtype: torch.dtype | None = None


class ObservedBatch(NamedTuple):
    """A batch, and the credit that a rule gives it, if there is one."""

    state: State
    credit: dict[str, Tensor]


# Returns tensors by name, with the samples (or whatever the batches are joined along) last.
Measure: TypeAlias = Callable[[ObservedBatch], Mapping[str, Tensor]]


class Observations(NamedTuple):
    """What came out of all batches.

    Attributes:
        values: For each measure, arrays by name; the samples of all batches are the last axis.
        blocks: Names, in the order in which the blocks ran.
        attributes: What made the result: samples, loss, targets, blocks and why these, credit,
            precision, and which passes.
    """

    values: dict[str, dict[str, Array]]
    blocks: tuple[str, ...]
    attributes: Attributes


def measure_batches(request: Request, measures: Mapping[str, Measure]) -> Observations:
    """Draw the samples, and put every batch before every measure."""
    modules = choose_blocks(request.model, request.blocks)
    dtype = request.dtype
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"`dtype`: expected a floating-point torch.dtype or None, got {dtype!r}")
    _check_device_has(dtype, request.model)

    # Tensors made in inference mode could not be differentiated later.
    with torch.inference_mode(False):
        batches = take(
            request.data,
            request.samples,
            request.seed,
            model=request.model,
            batch_size=request.batch_size,
            has_loss=request.loss is not None,
        )
        ignored = IGNORED_TARGET if request.loss is None else ignore_index_of(request.loss)
        if ignored is not None:
            batches = _leave_out_uncounted(batches, ignored, request.batch_size)
        loss = choose_loss(request.loss, [targets for _, targets in batches])

        setup = make_setup(request.model, modules, loss)
        cast_setup = replace(setup, tensors=_cast_model_tensors(setup.model, dtype))

    parts: dict[str, list[Mapping[str, Tensor]]] = {name: [] for name in measures}
    n_samples = 0
    # A credit is the user's code: whatever it does to the model is undone in the end.
    with torch.inference_mode(False), preserving(setup.model):
        for batch in _observe_batches(request, batches, setup, cast_setup):
            values_on_device = {name: measure(batch) for name, measure in measures.items()}
            for name, part in _bring_to_host(values_on_device, batch.credit).items():
                parts[name].append(part)
            n_samples += len(batch.state)

    values = {name: concatenate_batches(batch_values) for name, batch_values in parts.items()}
    attributes = _describe(request, batch.state, n_samples)
    return Observations(values, batch.state.blocks, attributes)


def _check_device_has(dtype: torch.dtype | None, model: nn.Module) -> None:
    """Refuse double precision where there is none."""
    lacking = [d for d in devices_of(model) if widest_float(d) != torch.float64]
    if dtype == torch.float64 and lacking:
        raise ValueError(
            f"`dtype`: the device {lacking[0]} has no float64; give dtype=torch.float32, or "
            "`model.cpu()`"
        )


def _bring_to_host(
    values: Mapping[str, Mapping[str, Tensor]], credit: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Fetch what all measures found of a batch, waiting for the device once.

    Raises:
        ValueError: If the credit is not finite, which only now can be seen without another wait.
    """
    are_finite = [tensor.isfinite().all() for tensor in credit.values()]
    tensors = [tensor for part in values.values() for tensor in part.values()]
    on_host = iter(to_host([*are_finite, *tensors]))

    for name in credit:
        if not next(on_host):
            raise ValueError(f"`credit` of {name!r}: expected finite numbers, got NaN or infinity")
    return {measure: {name: next(on_host) for name in part} for measure, part in values.items()}


def _leave_out_uncounted(batches: Batches, ignored: int, batch_size: int) -> Batches:
    counted_batches = leave_out_uncounted(batches, ignored)
    if _count_all(counted_batches) == _count_all(batches):
        return batches

    # Joined and cut again, so that batches are as full as they can be.
    return take(counted_batches, None, batch_size=batch_size)


def _count_all(batches: Batches) -> int:
    return sum(count_samples(inputs) for inputs, _ in batches)


def _observe_batches(
    request: Request, batches: Batches, setup: Setup, cast_setup: Setup
) -> Iterator[ObservedBatch]:
    """Yield every batch, measured in `cast_setup`; credits see the model itself, in `setup`."""
    label = request.verb.removeprefix("nudging.")
    first_sample = 0
    full_pass_reason: str | None = None

    for inputs, targets in track(batches, label, unit="batch"):
        x, y = _cast((inputs, targets), request.dtype)
        with _explaining_cut_data(request, batches):
            state = observe_batch(
                cast_setup, x, y, full_pass_reason=full_pass_reason, first_sample=first_sample
            )

        # Properties of the model and the loss: the first batch found them out for all.
        full_pass_reason = state.full_pass_reason
        cast_setup = cast_setup.keep_blocks(state.blocks)
        setup = setup.keep_blocks(state.blocks)

        credit: dict[str, Tensor] = {}
        if request.credit is not None:
            # With a copy in another precision, the model itself has not run yet.
            state_of_model = state
            if cast_setup.tensors is not None:
                state_of_model = observe_batch(
                    setup,
                    inputs,
                    targets,
                    full_pass_reason=full_pass_reason,
                    first_sample=first_sample,
                )
            credit = _ask_credit(request.credit, state_of_model, state)

        yield ObservedBatch(state, credit)
        first_sample += len(state)


@contextmanager
def _explaining_cut_data(request: Request, batches: Batches) -> Iterator[None]:
    """Say which arguments cut the data, if a forward pass fails on a part of it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        n_samples = _count_all(batches)
        if len(batches) == 1 and (request.samples is None or n_samples < request.samples):
            raise  # all there are, in one batch: nothing was cut
        raise ValueError(
            f"`data`: the forward pass failed on a part of the samples ({error}); if they belong "
            f"together, such as the nodes of one graph, `samples` (now {request.samples}) and "
            f"`batch_size` (now {request.batch_size}) must not cut them"
        ) from error


def _ask_credit(credit: Credit, state_of_model: State, state: State) -> dict[str, Tensor]:
    """Return the credit of a batch, fit for the state that is measured."""
    versions_before = tensor_versions((state_of_model.hidden, state_of_model.inputs))
    credit_by_block = credit(state_of_model)

    if tensor_versions((state_of_model.hidden, state_of_model.inputs)) != versions_before:
        raise ValueError("`credit`: expected a credit that does not change the state, but it did")
    return _check_credit_tensors(credit_by_block, state)


def _check_credit_tensors(credit_by_block: Any, state: State) -> dict[str, Tensor]:
    """Return one tensor per block, like its output and on its device, 0 at padding."""
    if not isinstance(credit_by_block, Mapping):
        kind = type(credit_by_block).__name__
        raise TypeError(f"`credit`: expected a mapping by block, got {kind}")

    checked: dict[str, Tensor] = {}
    for name, hidden in state.hidden.items():
        tensor = credit_by_block.get(name)
        if not isinstance(tensor, Tensor):
            keys = ", ".join(map(str, credit_by_block)) or "nothing"
            raise ValueError(f"`credit`: expected a tensor for block {name!r}, got {keys}")
        if tensor.shape != hidden.shape:
            raise ValueError(
                f"`credit` of {name!r}: expected {tuple(hidden.shape)}, got {tuple(tensor.shape)}"
            )

        # In its own precision: what is finite there may not be so in half precision.
        tensor = zero_padding(tensor.to(hidden.device), state.positions(name))
        checked[name] = tensor.detach()
    return checked


def _describe(request: Request, state: State, n_samples: int) -> Attributes:
    """Say what made a result."""
    reason = state.full_pass_reason
    meaning = settle_meaning(state.loss, state.outputs, state.targets)
    settings: dict[str, Any] = {
        "loss": name_of_loss(state.loss),
        "targets": describe_targets(meaning, state.inputs, state.targets),
        "blocks": state.blocks,
        "blocks_reason": state._setup.modules.reason,
        "dtype": dtype_name(state.hidden[state.blocks[0]].dtype),
        "passes": f"full passes: {reason}" if reason else "what follows each block",
        "seed": request.seed,
        "n_samples": n_samples,
    }
    if request.credit is not None:
        settings["credit"] = describe_credit(request.credit)
    return provenance(request.verb, request.model, **settings)


def _cast_model_tensors(model: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor] | None:
    """Return parameters and buffers in another precision, or None where they have it already."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    has_dtype = all(
        tensor.dtype == dtype or not tensor.is_floating_point() for tensor in tensors.values()
    )
    if dtype is None or has_dtype:
        return None

    cast: dict[str, Tensor] = _cast({n: tensor.detach() for n, tensor in tensors.items()}, dtype)
    return cast


def _cast(nest: Any, dtype: torch.dtype | None) -> Any:
    """Return a nest with its floating-point tensors in another precision; None leaves it."""
    if dtype is None:
        return nest
    return tree_map_only(
        Tensor, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, nest
    )
