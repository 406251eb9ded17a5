"""What a user gave to log to, as a function `(values, step)`.

The libraries are known by the names of their classes: none is imported that the user has not
imported already.
"""

import inspect
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import nn

Values = Mapping[str, float]
Log = Callable[[Values, int], object]

_EXPECTED = (
    "expected a SummaryWriter, a run of W&B, a run of MLflow (or one of these two modules, with a "
    "run begun), or a callable (values, step)"
)

# MLflow takes as many metrics in one request.
_MOST_METRICS = 1000


def understand_log(log: Any, name: str) -> Log:
    """Return a function that logs numbers by name at a step.

    Args:
        log: What the user gave.
        name: Comes before the name of each number, with a slash; for W&B it also has an axis of
            steps of its own.

    Raises:
        TypeError: If it is nothing that one can log to.
        ValueError: If it is a library of which no run was begun.
    """
    package = _package_of(log)
    if isinstance(log, type):
        raise TypeError(f"`log`: {_EXPECTED}, got the class {log.__name__}: call it first")
    if isinstance(log, nn.Module):
        raise TypeError(f"`log`: {_EXPECTED}, got the model {type(log).__name__}")

    if isinstance(log, ModuleType):
        log = _run_of_module(log, package)
    if package == "wandb" and callable(getattr(log, "log", None)):
        return WandbLog(log, name)
    if package == "mlflow" and hasattr(getattr(log, "info", None), "run_id"):
        return MlflowLog(log.info.run_id, name)
    if callable(getattr(log, "add_scalar", None)):
        return SummaryLog(log, name)
    if callable(log):
        _check_arguments(log)
        return CallableLog(log, name)

    hint = "; for a folder: SummaryWriter(folder)" if isinstance(log, str) else ""
    raise TypeError(f"`log`: {_EXPECTED}, got {type(log).__name__}{hint}")


class CallableLog:
    """Hands all numbers to a function of the user's."""

    def __init__(self, function: Callable[..., object], name: str) -> None:
        self._function = function
        self._name = name

    def __call__(self, values: Values, step: int) -> None:
        self._function({f"{self._name}/{key}": value for key, value in values.items()}, step)


class SummaryLog:
    """Writes scalars through a `SummaryWriter`, of torch or of tensorboardX."""

    def __init__(self, writer: Any, name: str) -> None:
        self._writer = writer
        self._name = name

    def __call__(self, values: Values, step: int) -> None:
        for key, value in values.items():
            self._writer.add_scalar(f"{self._name}/{key}", value, step)


class WandbLog:
    """Adds numbers to the rows of a W&B run, whatever steps its user counts.

    W&B drops what comes for a step before the latest, so that two who count differently lose rows.
    These numbers have an axis of their own, and join the row that the run has open: it is the user
    who closes it. If the row of last time is open still, nobody else logs, and it is closed here.
    So the run's own steps go on by one for each of these rows at most: no user who counts updates
    loses a row, but one who counts epochs would.
    """

    def __init__(self, run: Any, name: str) -> None:
        self._run = run
        self._name = name
        self._open_row: int | None = None
        self._is_begun = False

    def __call__(self, values: Values, step: int) -> None:
        if not self._is_begun:
            self._run.define_metric(f"{self._name}/*", step_metric=f"{self._name}/step")
            self._is_begun = True
        if self._open_row == self._run.step:
            self._run.log({}, commit=True)

        row = {f"{self._name}/{key}": value for key, value in values.items()}
        self._run.log(row | {f"{self._name}/step": step}, commit=False)
        self._open_row = self._run.step


class MlflowLog:
    """Logs metrics to one run of MLflow, whether it is the active one or not."""

    def __init__(self, run_id: str, name: str) -> None:
        self._run_id = run_id
        self._name = name

    def __call__(self, values: Values, step: int) -> None:
        mlflow = sys.modules["mlflow"]  # the run comes from it
        now = int(time.time() * 1000)
        metrics = [
            mlflow.entities.Metric(_mlflow_name(f"{self._name}/{key}"), value, now, step)
            for key, value in values.items()
        ]
        client = mlflow.MlflowClient()
        for start in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(self._run_id, metrics=metrics[start : start + _MOST_METRICS])


def _mlflow_name(name: str) -> str:
    # Of other characters, such as that in "attn#2", it takes none.
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-. :/" else "_" for c in name)


def _package_of(log: Any) -> str:
    place = log.__name__ if isinstance(log, ModuleType) else type(log).__module__
    return str(place).partition(".")[0]


def _run_of_module(module: ModuleType, package: str) -> Any:
    """The run that a library has begun."""
    if package == "wandb":
        run = getattr(module, "run", None)
        cure = "wandb.init()"
    elif package == "mlflow":
        run = module.active_run()
        cure = "mlflow.start_run()"
    else:
        raise TypeError(f"`log`: {_EXPECTED}, got the module {module.__name__}")

    if run is None:
        raise ValueError(
            f"`log`: expected {module.__name__} with a run begun, got none; call {cure} first"
        )
    return run


def _check_arguments(function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not tell

    try:
        signature.bind({}, 0)
    except TypeError as error:
        raise TypeError(
            f"`log`: expected a callable (values, step), got one that takes {signature}: {error}"
        ) from None
