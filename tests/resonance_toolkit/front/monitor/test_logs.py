"""What is logged arrives: read back by the libraries' own means."""

import importlib
import subprocess
import sys
import types

import numpy as np
import pytest
from torch import nn

from resonance_toolkit import Monitor
from resonance_toolkit._front.monitor.logs import understand_log
from tests.resonance_toolkit.front.monitor.training import Run, make_batch, make_model
from tests.resonance_toolkit.front.monitor.wandb_file import read_rows

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


def library(name):
    return pytest.importorskip(name, reason=f"{name} is in the extra `logging`")


def train(log, **settings):
    """Three rows, at steps 0, 2 and 4; what should have arrived, by step."""
    run, expected = Run(), {}
    monitor = Monitor(run.model, probe=run.probe, every=2, data=make_batch(9), log=log, **settings)
    for step in range(5):
        run.train(1, monitor.backward, first=step)
        name = settings.get("name", "resonance")
        values = {f"{name}/{key}": v for key, v in monitor.latest.items() if key != "step"}
        expected[monitor.latest["step"]] = values
    assert list(expected) == [0, 2, 4]
    assert "log_reason" not in monitor.tree().attrs
    return expected


def test_tensorboard(tmp_path):
    library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        expected = train(writer)

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(expected[0]) | set(expected[4])
    for tag in expected[4]:
        found = {event.step: event.value for event in events.Scalars(tag)}
        # An event holds single precision.
        assert found == {s: np.float32(v[tag]) for s, v in expected.items() if tag in v}


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    library("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return importlib.import_module("wandb")


def rows_of(folder):
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return read_rows(path)


def without_own(row):
    return {name: value for name, value in row.items() if not name.startswith("_")}


@pytest.mark.parametrize("gives_module", [False, True])
def test_wandb(wandb, tmp_path, gives_module):
    with wandb.init(project="test", mode="offline", dir=tmp_path) as run:
        expected = train(wandb if gives_module else run)

    rows = [without_own(row) for row in rows_of(tmp_path)]
    assert rows == [{**values, "resonance/step": step} for step, values in expected.items()]


@pytest.mark.parametrize("counts", ["updates", "nothing"])
def test_wandb_beside_rows_of_the_users_own(wandb, tmp_path, counts):
    """W&B drops what comes for an earlier step than the latest: neither may drop the other's."""
    with wandb.init(project="test", mode="offline", dir=tmp_path) as run:
        training = Run()
        monitor = Monitor(training.model, probe=training.probe, every=1, log=run)
        for update in range(6):
            training.train(1, monitor.backward, first=update)
            if update % 2 == 0:
                settings = {"step": update} if counts == "updates" else {}
                run.log({"loss": update / 10}, **settings)

    rows = rows_of(tmp_path)
    assert [row["loss"] for row in rows if "loss" in row] == [0.0, 0.2, 0.4]
    assert [row["resonance/step"] for row in rows if "resonance/step" in row] == [0, 1, 2, 3, 4, 5]


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    library("mlflow")
    # Its file store is finished, but not gone; a database needs more than `mlflow-skinny`.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = importlib.import_module("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield mlflow
    mlflow.set_tracking_uri(before)


@pytest.mark.parametrize("gives_module", [False, True])
def test_mlflow(mlflow, gives_module):
    with mlflow.start_run() as run:
        expected = train(mlflow if gives_module else run, name="here")

    client = mlflow.MlflowClient()
    metrics = client.get_run(run.info.run_id).data.metrics
    assert set(metrics) == set(expected[0]) | set(expected[4])
    for key in expected[4]:
        history = client.get_metric_history(run.info.run_id, key)
        found = {metric.step: metric.value for metric in history}
        assert found == {s: v[key] for s, v in expected.items() if key in v}


def test_mlflow_takes_no_other_letters(mlflow):
    with mlflow.start_run() as run:
        understand_log(run, "r")({"attention/gini/attn#2": 1.0, **dict.fromkeys("abc", 2.0)}, 3)
    metrics = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    assert metrics["r/attention/gini/attn_2"] == 1.0


def test_a_server_that_is_away_stops_nothing(mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with mlflow.start_run() as run:
        pass
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    training = Run()
    monitor = Monitor(training.model, probe=training.probe, every=1, log=run)
    with pytest.warns(UserWarning, match="`log` failed; the training continues"):
        training.train(2, monitor.backward)
    assert monitor.tree()["gradients"].sizes["step"] == 2
    assert "step 0" in monitor.tree().attrs["log_reason"]


# What is understood, without any library


class Writer:
    """Has what torch's and tensorboardX's have."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, global_step=None):
        self.scalars.append((tag, value, global_step))


def test_whatever_has_add_scalar_is_a_writer():
    writer = Writer()
    understand_log(writer, "r")({"a/b": 1.5}, 7)
    assert writer.scalars == [("r/a/b", 1.5, 7)]


def test_a_method_and_a_builtin_are_callables():
    seen = []
    understand_log(lambda values, step: seen.append((values, step)), "r")({"a": 1.0}, 2)
    assert seen == [({"r/a": 1.0}, 2)]
    understand_log(print, "r")


def one_argument(values):
    pass


def keyword_only(values, *, step):
    pass


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("runs/here", r"got str; for a folder: SummaryWriter\(folder\)"),
        (3, "got int"),
        ({}, "got dict"),
        ([print], "got list"),
        (Writer, "got the class Writer: call it first"),
        (nn.Linear(1, 1), "got the model Linear"),
        (types, "got the module types"),
        (one_argument, r"\(values, step\), got one that takes \(values\)"),
        (keyword_only, r"got one that takes \(values, \*, step\)"),
    ],
)
def test_a_wrong_log_is_refused(log, message):
    with pytest.raises(TypeError, match=f"^`log`: expected.*{message}"):
        Monitor(make_model(), log=log)


def test_a_library_without_a_run_is_refused(monkeypatch):
    module = types.ModuleType("wandb")
    module.run = None
    with pytest.raises(
        ValueError, match=r"`log`: expected wandb with a run.*wandb\.init\(\) first"
    ):
        Monitor(make_model(), log=module)

    module = types.ModuleType("mlflow")
    module.active_run = lambda: None
    with pytest.raises(ValueError, match=r"mlflow\.start_run\(\) first"):
        Monitor(make_model(), log=module)


def test_no_library_is_loaded_that_nobody_asked_for():
    code = """
import sys, torch
from resonance_toolkit import Monitor
model = torch.nn.Linear(1, 1)
monitor = Monitor(model, level="parameter", log=lambda values, step: None)
monitor.backward(model(torch.ones(1, 1)).sum())
loaded = {"wandb", "mlflow", "tensorboard", "transformers", "lightning", "accelerate"}
print(sorted(loaded & set(sys.modules)))
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
