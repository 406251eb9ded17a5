"""The laboratory's loop under `accelerate launch`: two processes, shards, half precision."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import xarray as xr
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState

import lab.training.train as module
from lab.studies.sweep import key_of
from lab.training.recipe import Recipe
from lab.training.sharding import prepare
from lab.training.train import train
from tests.distributed.train_launched import interrupt, noting_precision

ROOT = Path(__file__).parents[2]
# Batches of 33, the last of 18: unequal parts. SGD, which a wrong scale would not escape.
RECIPE = Recipe(
    backbone="vit6",
    per_class=15,
    test_per_class=3,
    batch=33,
    epochs=2,
    n=3,
    trace_every=2,
    optimizer="sgd",
    lr=0.01,
    clip=20.0,
    attention_epochs=(2,),
)
# 29 test images: twice 7 for each process, and in the last pass one has none.
ADAPTIVE = replace(RECIPE, optimizer="adamw", lr=1e-3)  # its steps hang on what it remembers
PLAIN = replace(RECIPE, n=0, trace_every=0, attention_epochs=(), held_out=0.02, test_per_class=None)
SHARDS = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"]
SHARDS += ["--fsdp_min_num_params", "10000"]  # every block by itself
LAUNCHES = {
    "data parallel": (
        ["--multi_gpu"],
        {"branches": (RECIPE, {}), "adamw, resumed": (ADAPTIVE, {"interrupted": True})},
    ),
    "sharded": (
        [*SHARDS, "--mixed_precision", "bf16"],
        {
            "branches, resumed": (RECIPE, {"sharded": True, "interrupted": True}),
            "adamw, resumed": (ADAPTIVE, {"sharded": True, "interrupted": True}),
            "adamw, begun alone": (ADAPTIVE, {"sharded": True}),
            "plain": (PLAIN, {"sharded": True, "evaluated": 7}),
            "half, whole": (RECIPE, {"precision": "bf16"}),
            "half, sharded": (RECIPE, {"precision": "bf16", "sharded": True}),
        },
    ),
}
MEASURED = ("train_loss", "test_loss", "auxiliary_loss", "gradient_norm", "cosine_total", "entropy")


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder of a launch, which is made when it is first asked for, and a run in it."""
    folders = {}

    def find(kind, case):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("launched")
            launch(folders[kind], *LAUNCHES[kind])
        return folders[kind], xr.load_dataset(folders[kind] / f"{case}.nc", engine="h5netcdf")

    return find


def launch(folder, options, cases):
    texts = {
        name: {"precision": "no", **settings, "recipe": asdict(recipe)}
        for name, (recipe, settings) in cases.items()
    }
    (folder / "cases.json").write_text(json.dumps(texts))

    for name, (recipe, _) in cases.items():
        if name.endswith("begun alone"):
            interrupt(recipe, folder / f"{name}.pt")

    paths = os.pathsep.join([str(ROOT / "examples"), str(ROOT)])
    script = ROOT / "tests" / "distributed" / "train_launched.py"

    # `--cpu --num_processes 2` starts one process unless there is an mpirun; this starts two.
    command = [sys.executable, "-m", "accelerate.commands.launch", *options]
    command += ["--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    command += [] if "--mixed_precision" in options else ["--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", str(script), str(folder)]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment |= {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def single():
    return train(RECIPE)


@pytest.fixture(scope="module")
def adaptive():
    return train(ADAPTIVE)


@pytest.fixture
def precision(monkeypatch):
    """Choose as `accelerate launch --mixed_precision` does."""

    def choose(name):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", name)
        AcceleratorState._reset_state()

    yield choose
    AcceleratorState._reset_state()


@pytest.mark.parametrize(
    ("kind", "case"), [("data parallel", "branches"), ("sharded", "branches, resumed")]
)
def test_two_processes_train_as_one(launched, single, kind, case):
    _, both = launched(kind, case)
    assert both.attrs["processes"] == 2
    assert both.attrs["shards"] == (2 if kind == "sharded" else 1)
    assert both.attrs["computed_in"] == "torch.float32"
    assert both.attrs["trained"] == (1 if "resumed" in case else 2)
    compare(both, single)


def test_a_sharded_plain_network_trains_as_one(launched):
    (_, both), alone = launched("sharded", "plain"), train(PLAIN)
    assert both.attrs["shards"] == 2
    assert int(both.attrs["test_images"]) == 29
    for name in (*MEASURED[:2], "test_accuracy"):
        np.testing.assert_allclose(both[name], alone[name], rtol=2e-4, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("data parallel", "adamw, resumed"),
        ("sharded", "adamw, resumed"),
        ("sharded", "adamw, begun alone"),
    ],
)
def test_an_interrupted_run_goes_on(launched, adaptive, kind, case):
    _, both = launched(kind, case)
    assert both.attrs["shards"] == (2 if kind == "sharded" else 1)
    assert both.attrs["trained"] == 1  # of two epochs: the other was in the file
    compare(both, adaptive)


def test_a_sharded_run_goes_on_alone(launched, adaptive, tmp_path):
    folder, _ = launched("sharded", "adamw, resumed")
    path = shutil.copy(folder / "adamw, resumed.pt", tmp_path)
    with patch.object(module, "train_epoch", wraps=module.train_epoch) as trained:
        compare(train(ADAPTIVE, checkpoint=Path(path)), adaptive)
    assert trained.call_count == 1


@pytest.mark.parametrize("case", ["half, whole", "half, sharded"])
def test_two_processes_in_half_precision(launched, single, case):
    _, both = launched("sharded", case)
    assert both.attrs["shards"] == (2 if "sharded" in case else 1)
    assert both.attrs["computed_in"] == "torch.bfloat16"
    compare_halves(both, single)


def test_half_precision_alone(single, precision):
    precision("bf16")
    with noting_precision() as seen:
        half = train(RECIPE)
    assert seen == {"torch.bfloat16"}
    assert half.attrs["mixed_precision"] == "bf16"
    compare_halves(half, single)


@pytest.mark.parametrize("trace_every", [0, 2])
def test_fp16_with_its_loss_scaler(monkeypatch, trace_every):
    """Accelerate has no scaler on processors, torch has: the loop must unscale before it clips."""
    recipe = Recipe(per_class=4, test_per_class=2, epochs=2, batch=20, n=2, optimizer="sgd", lr=0.1)
    recipe, scalers = replace(recipe, trace_every=trace_every, clip=0.5), []
    full = train(recipe)

    def accelerator():
        made = Accelerator()
        made.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        made.state._mixed_precision, made.native_amp = "fp16", True
        scalers.append(made.scaler)
        return made

    with monkeypatch.context() as replaced, noting_precision() as seen:
        replaced.setattr(module, "Accelerator", accelerator)
        try:
            half = train(recipe)
        finally:
            AcceleratorState._reset_state()

    assert seen == {"torch.float16"}
    assert scalers[0].get_scale() == 1024  # no update was skipped

    for name in (*MEASURED[:3], *(["gradient_norm"] if trace_every else [])):
        np.testing.assert_allclose(half[name], full[name], rtol=5e-3, err_msg=name)

    if trace_every:
        np.testing.assert_allclose(half["cosine_total"], full["cosine_total"], atol=5e-3)


def test_a_precision_that_would_be_left_out_is_refused(precision):
    precision("fp16")
    with pytest.raises(ValueError, match="expected bf16 or no on cpu, got fp16"):
        train(RECIPE)


def test_precision_is_part_of_the_key(precision):
    full = key_of(RECIPE)
    precision("bf16")
    assert key_of(RECIPE) != full


def compare(found, expected):
    for name in MEASURED:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, err_msg=name)
    np.testing.assert_allclose(found["test_accuracy"], expected["test_accuracy"])


def compare_halves(half, single):
    """A rounding to 8 bits is 0.4 %; the main loss is far smoother than its gradients."""
    assert not np.array_equal(half["train_loss"], single["train_loss"])
    for name, bound in {"train_loss": 0.01, "test_loss": 0.01, "auxiliary_loss": 0.01}.items():
        np.testing.assert_allclose(half[name], single[name], rtol=bound, err_msg=name)
    np.testing.assert_allclose(half["gradient_norm"], single["gradient_norm"], rtol=0.05)
    np.testing.assert_allclose(half["cosine_total"], single["cosine_total"], atol=0.05)


def test_the_first_version_of_fsdp_is_refused():
    first = SimpleNamespace(
        mixed_precision="no", distributed_type=DistributedType.FSDP, is_fsdp2=False
    )
    with pytest.raises(ValueError, match=r"FSDP: expected .*--fsdp_version 2.*got version 1"):
        prepare(first, torch.nn.Linear(1, 1), None, [])
