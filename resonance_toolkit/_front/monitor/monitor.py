from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import torch
import torch.distributed as dist
import xarray as xr
from torch import Tensor, nn

from resonance_toolkit import (
    AtMost,
    Batches,
    LineFile,
    Loss,
    NotApplicableError,
    check_choice,
    check_module,
    check_whole,
    count_samples,
    find_blocks,
    gradients,
    is_first_process,
    probes,
    provenance,
    take,
    unwrap,
    warn_user,
)
from resonance_toolkit._front.monitor.instruments import (
    Attention,
    Branches,
    Gradients,
    Instrument,
    Sharpness,
)
from resonance_toolkit._front.monitor.logs import Log, understand_log
from resonance_toolkit._front.monitor.record import MADE_BY, Attributes, Record
from resonance_toolkit._front.monitor.scalars import to_scalars

Group: TypeAlias = dist.ProcessGroup | Literal["auto"] | None

# What the warning says of a failure that is not one of a measurement.
_FAILURES = {
    "gradients": "the gradients could not be read",
    "log": "`log` failed; the training continues, and the tree has all values. First",
    "path": "the file at `path` could not be written; it is tried again at the next row. First",
}


class Monitor:
    """Watches a model while it trains: gradients, branches, attention, sharpness.

    Call `monitor.backward(main, auxiliary)` instead of `(main + auxiliary).backward()`. The
    gradients in `.grad` are the same, bit for bit, and so is the whole training: no measurement
    draws random numbers, or leaves anything behind in the model. At every `every`-th update,
    between the backward pass and the optimizer's step, the monitor measures

    - the cosine of the main and the auxiliary gradient, and their norms, at each layer (at next to
      no cost; see `gradients.Trace`, level "activation");
    - with a `probe`: loss and accuracy of each branch on the current batch;
    - with `data`, if the model has attention: the statistics of `attention.capture` on fixed
      samples, in eval mode;
    - with `sharpness_every`: `landscape.critical_sharpness` on the fixed samples.

    A plain loop:

        probe = probes.attach(model, "blocks.*")
        monitor = resonance.Monitor(model, probe=probe, log=SummaryWriter(), data=(x, y))
        for x, y in loader:
            main = cross_entropy(model(x), y)
            monitor.backward(main, probe.loss(y))
            optimizer.step()
            optimizer.zero_grad()

    If a framework calls `backward`, use a monitor wherever you would use a `gradients.Trace`:
    `ProbeCallback(probe, join=monitor.join)` with `gradients.transformers.TraceCallback(monitor)`
    in transformers' Trainer, `gradients.lightning.TraceCallback(monitor)` in Lightning, and
    `gradients.accelerate.backward(accelerator, monitor, main, auxiliary)` with Accelerate.

    Failures do not stop the training. If the logger or a measurement raises an error, a warning
    says so once, the tree says why (`log_reason`, `attention_reason`, ...), and the monitor tries
    again the next time. Only an error at the first sampled update of `backward`, such as losses
    whose gradients cannot be separated, is raised, because then the call is wrong.

    Args:
        model: Any module, wrapped (compiled, `DistributedDataParallel`, `fully_shard`) or not.
        probe: What `probes.attach` or `probes.attach_exits` returned, attached to the model.
        every: Measure every so many optimizer updates. With the default, the cost is below 2 % of
            training, unless an update takes less than about 8 ms: a row takes 15 ms and, with
            attention, a forward pass of the fixed samples that costs more than usual.
        log: A `SummaryWriter`, a run of W&B or of MLflow (or one of these two modules, once a run
            has begun), or a callable `(values, step)`, such as `accelerator.log`. Values have names
            such as "resonance/gradients/cosine/blocks.2"; undefined and infinite values are left
            out.
        data: Samples for attention and sharpness, the same at every step: `(inputs, targets)`, a
            mapping, or a source of these; see `resonance.take`. Only sharpness needs targets.
        samples: How many samples of `data` to draw, at most; None takes all.
        seed: Determines which samples are drawn.
        layers: Names or patterns of the layers at which gradients are compared; by default those
            of the probe, or else the model's repeated blocks. At the parameter level, leave it out:
            all layers are compared.
        level: Gradients with respect to "activation" or "parameter". The latter costs up to one
            more backward pass at each sampled update, and also works in compiled models.
        objectives: Names of the losses, in the order of `backward`; see `gradients.Trace`.
        sharpness_every: Measure sharpness every so many updates, at the cost of a dozen forward
            passes and two backward passes of the fixed samples. It is measured for the main loss;
            with a probe, also for the branches' loss along the main update, and for the main loss
            along the branches' update (not with an adaptive strength).
        loss: The main loss, for sharpness: a function of `(outputs, targets)` or `(model, inputs,
            targets)`. By default, the targets decide.
        scaler: A `torch.amp.GradScaler` that `backward` scales by.
        group: Processes to average gradients over; see `gradients.Trace`.
        path: A new file. Each row is written to it as soon as it is measured, so that nothing is
            lost if the process is killed; `read_monitor` reads it.
        name: First part of the name of each logged value, and name of the monitor's file in a
            framework's checkpoint.

    If there are several processes, all of them measure, and the first one logs and writes.
    Gradients are those of the whole batch; branches are measured on the first process's share of
    it.

    Attributes:
        step: Optimizer updates made so far; set it if training resumes without `state_dict`.
        latest: The values logged last, by name, and their `step`; empty before the first row.

    Raises:
        TypeError, ValueError: If an argument does not fit.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> curves = {}
        >>> log = lambda values, step: curves.update(values)
        >>> monitor = Monitor(model, level="parameter", log=log)
        >>> out = model(torch.ones(1, 1)).sum()
        >>> monitor.backward(3 * out, -2 * out)  # opposed: 3 and -2
        >>> model.weight.grad.item(), curves["resonance/gradients/cosine_total"]
        (1.0, -1.0)
        >>> monitor.tree()["gradients"]["step"].values  # the next row comes at step 100
        array([0])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        probe: Any = None,
        every: int = 100,
        log: Any = None,
        data: Any = None,
        samples: int | None = 32,
        seed: int = 0,
        layers: str | Sequence[str] | None = None,
        level: Literal["activation", "parameter"] = "activation",
        objectives: Sequence[str] | None = None,
        sharpness_every: int | None = None,
        loss: Loss | None = None,
        scaler: torch.amp.GradScaler | None = None,
        group: Group = "auto",
        path: str | Path | None = None,
        name: str = "resonance",
    ) -> None:
        check_module(model)
        check_choice("level", level, ("activation", "parameter"))
        _check_probe(probe)
        _check_name(name)
        self.every = check_whole("every", every)
        if sharpness_every is not None:
            sharpness_every = check_whole("sharpness_every", sharpness_every)
        batches = _take_samples(model, data, samples, seed, loss, sharpness_every)
        if layers is None and level == "activation":
            layers = _default_layers(model, probe)

        self._log: Log | None = None if log is None else understand_log(log, name)
        self._file = None if path is None else LineFile(path)
        self._is_file_behind = False
        self._record = Record()

        self.model = model
        self.level = level
        self.checkpoint_name = name
        self.latest: dict[str, float] = {}

        # The last thing that may be refused, since it puts hooks on the model.
        self._trace = gradients.Trace(
            model,
            self.every,
            level=level,
            layers=layers,
            objectives=objectives,
            scaler=scaler,
            group=group,
        )
        self._attributes: Attributes = provenance(
            MADE_BY,
            model,
            every=self.every,
            level=level,
            gradient_layers="all" if layers is None else self._trace.state_dict()["layers"],
            sharpness_every=sharpness_every,
            n_samples=sum(count_samples(inputs) for inputs, _ in batches),
        )

        self._instruments: list[Instrument] = [Gradients(self._trace)]
        if probe is not None:
            self._instruments.append(Branches(probe, self.every))
        if batches:
            self._instruments.append(Attention(model, batches, probe, self.every))
        if sharpness_every is not None:
            self._instruments.append(
                Sharpness(model, batches, loss, probe, self._trace, sharpness_every)
            )

    def __repr__(self) -> str:
        model_name = type(unwrap(self.model)).__name__
        parts = ", ".join(instrument.part for instrument in self._instruments)
        return (
            f"Monitor({model_name}, every={self.every}, step={self.step}, parts: {parts}; "
            f"{len(self._record)} rows)"
        )

    @property
    def step(self) -> int:
        """Optimizer updates made so far."""
        step: int = self._trace.step
        return step

    @step.setter
    def step(self, step: int) -> None:
        self._trace.step = step

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What `backward` scales by."""
        scaler: torch.amp.GradScaler | None = self._trace.scaler
        return scaler

    @scaler.setter
    def scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        self._trace.scaler = scaler

    @property
    def group(self) -> Group:
        """Processes to average gradients over."""
        group: Group = self._trace.group
        return group

    @group.setter
    def group(self, group: Group) -> None:
        self._trace.group = group

    def backward(self, *losses: Tensor, update: bool = True) -> None:
        """Backpropagate the sum of the losses, and measure on the steps that are sampled.

        Args:
            losses: Scalars of one forward pass: the main loss, then the auxiliary ones. With one
                loss alone, its gradient norms are recorded.
            update: Whether an optimizer update follows. With gradient accumulation, pass False for
                all micro-batches but the last.

        Raises:
            ValueError: If the losses are not scalars, are not as many as before, or do not depend
                on the model; at the first sampled update, also if their gradients cannot be
                separated.
        """
        step = self.step
        try:
            self._trace.backward(*losses, update=update)
        except gradients.UnreadableUpdateError as error:
            # A mistake in the call shows at the first row. Later it is this update that is unlike
            # others, in a layer that did not run, say: it is trained on all the same.
            if not self._record.has_rows("gradients"):
                raise
            self._report_failure("gradients", step, error)
            self._backward_unread(losses)
            if update:
                self._trace.advance()

        if update:
            self._measure_what_is_due(step)

    def join(self, *losses: Tensor) -> Tensor:
        """Return the sum of the losses, for a framework that calls `backward` itself.

        Gradients are read during that call. Call `advance` once per optimizer update, after its
        last backward pass; the callbacks do that for you.

        Args:
            losses: Scalars of one forward pass: the main loss, then the auxiliary ones.

        Raises:
            ValueError: If the losses are not scalars, are not as many as before, or are constants.
        """
        total: Tensor = self._trace.join(*losses)
        return total

    def advance(self) -> None:
        """Measure if this step is sampled; call it after the last backward pass of an update."""
        step = self.step
        self._trace.advance()
        self._measure_what_is_due(step)

    def tree(self) -> xr.DataTree:
        """Return what was measured so far.

        Returns:
            Tree with a node for each part that has a row. Each node has a dimension `step`:

            - `/gradients`: as in `gradients.Trace.to_dataset`;
            - `/branches`: `loss`, `accuracy (step, layer, branch)`, `alpha (step, layer)`, as in
              `probes.Probe.measure`; for exits, `loss`, `weight (step, layer)`;
            - `/attention`: the statistics of `attention.capture (step, layer, head)`, means over
              the fixed samples;
            - `/sharpness`: `critical_sharpness (step, objective, other_objective)` and the other
              variables of `landscape.critical_sharpness`.

            If rows of a part are missing, an attribute such as `attention_reason` gives the first
            error and its step. Save the tree by `tree.to_netcdf(path, engine="h5netcdf")`;
            `resonance.page(tree, path)` draws it.
        """
        return self._record.to_tree(self._attributes)

    def state_dict(self) -> dict[str, Any]:
        """Return the record so far, for a checkpoint: tensors, strings and numbers only."""
        return {
            "trace": self._trace.state_dict(),
            "record": "".join(self._record.lines(self._attributes)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, so that the record is that of an uninterrupted training.

        The file at `path`, if there is one, is rewritten with the rows of the state. Rows of later
        updates, which will be trained again, are removed.

        Args:
            state: What `state_dict` returned, for a monitor with the same layers and losses.

        Raises:
            ValueError: If the state is that of another monitor.
        """
        record = Record()
        try:
            record.read(state["record"].encode().splitlines())
            trace_state = state["trace"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"`state`: expected that of a Monitor, got another: {error}") from None

        self._trace.load_state_dict(trace_state)
        self._record = record
        if self._file is not None:
            self._file.replace(record.lines(self._attributes))
            self._is_file_behind = False

    def close(self) -> None:
        """Take the monitor's hooks away from the model."""
        self._trace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _measure_what_is_due(self, step: int) -> None:
        """Measure, keep and log whatever is due at a step."""
        values: dict[str, float] = {}
        for instrument in list(self._instruments):
            if step % instrument.every:
                continue
            row = self._measure(instrument, step)
            if row is not None:
                self._write_lines(self._record.add(instrument.part, step, row))
                values |= to_scalars(instrument.part, row)

        if values:
            self.latest = {"step": step, **values}
            self._log_values(values, step)

    def _measure(self, instrument: Instrument, step: int) -> xr.Dataset | None:
        try:
            return instrument.measure()
        except NotApplicableError as error:
            self._instruments.remove(instrument)
            self._write_lines(self._record.add_reason(instrument.part, str(error)))
        except Exception as error:  # whatever a measurement says, the training goes on
            self._report_failure(instrument.part, step, error)
        return None

    def _backward_unread(self, losses: Sequence[Tensor]) -> None:
        total = reduce(add, losses)
        (total if self.scaler is None else self.scaler.scale(total)).backward()

    def _log_values(self, values: Mapping[str, float], step: int) -> None:
        if self._log is None or not is_first_process():
            return
        try:
            self._log(values, step)
        except Exception as error:  # a server that is away is no reason to stop a training
            self._report_failure("log", step, error)

    def _write_lines(self, lines: Sequence[str]) -> None:
        if self._file is None or not lines:
            return
        try:
            if self._is_file_behind:
                self._file.replace(self._record.lines(self._attributes))
            else:
                self._file.add(lines, lambda: self._record.lines(self._attributes))
            self._is_file_behind = False
        except OSError as error:
            self._is_file_behind = True
            self._report_failure("path", self.step, error)

    def _report_failure(self, part: str, step: int, error: Exception) -> None:
        """Warn of a failure, and keep it: the first of each part."""
        if part in self._record.reasons:
            return
        first_line = str(error).partition("\n")[0]
        reason = f"step {step}: {type(error).__name__}: {first_line}"
        lines = self._record.add_reason(part, reason)
        if part != "path":
            self._write_lines(lines)
        warn_user(f"Monitor: {_FAILURES.get(part, f'{part} could not be measured')} at {reason}")


def _check_probe(probe: Any) -> None:
    if probe is not None and not isinstance(probe, probes.Probe | probes.Exits):
        raise TypeError(
            "`probe`: expected what probes.attach or attach_exits returned, got "
            f"{type(probe).__name__}"
        )


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"`name`: expected a word, got {name!r}")


def _default_layers(model: nn.Module, probe: Any) -> list[str]:
    if isinstance(probe, probes.Probe):
        return list(probe.layers)
    return list(find_blocks(model))


def _take_samples(
    model: nn.Module,
    data: Any,
    samples: int | None,
    seed: int,
    loss: Loss | None,
    sharpness_every: int | None,
) -> Batches:
    if data is None:
        if sharpness_every is not None:
            raise ValueError("`data`: expected samples, on which sharpness is measured, got None")
        return []

    most = None if samples is None else AtMost(check_whole("samples", samples))
    return take(
        data,
        most,
        seed,
        model=model,
        batch_size=None,
        needs_targets=sharpness_every is not None,
        has_loss=loss is not None,
    )
