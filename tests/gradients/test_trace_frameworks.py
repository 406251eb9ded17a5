"""Real training loops of other libraries, against a loop written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import xarray as xr
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer as HuggingFaceTrainer
from transformers import TrainingArguments

import gradients.accelerate
import gradients.lightning
import gradients.transformers
from gradients import Trace
from tests.helpers.small_network import make_network, two_losses


def make_data(n=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def new_network():
    return make_network(dtype=torch.float32, dropout=0.0)


def by_hand(traced, accumulate=2):
    model = new_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trace = Trace(model)
    loader = DataLoader(TensorDataset(*make_data()), batch_size=4)
    for index, (x, y) in enumerate(loader):
        last = (index + 1) % accumulate == 0
        losses = [loss / accumulate for loss in two_losses(model, x, y)]
        trace.backward(*losses, update=last) if traced else sum(losses).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return model, trace.to_dataset() if traced else None


def assert_same(model, trace):
    plain, _ = by_hand(traced=False)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    found, (_, expected) = trace.to_dataset(), by_hand(traced=True)
    assert list(found["step"]) == list(expected["step"]) == [0, 1, 2]
    xr.testing.assert_allclose(found.drop_attrs(), expected.drop_attrs(), rtol=1e-5)


def test_accelerate():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = new_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*make_data()), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    trace = Trace(model)
    for x, y in loader:
        with accelerator.accumulate(model):
            gradients.accelerate.backward(accelerator, trace, *two_losses(model, x, y))
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, trace)


class Refusing:
    distributed_type = "DEEPSPEED"


def test_accelerate_with_its_own_backward_is_refused():
    with pytest.raises(ValueError, match="trains with torch alone, got DEEPSPEED"):
        gradients.accelerate.backward(Refusing(), Trace(new_network()), torch.zeros(()))


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def begin_lightning(trace, step, world_size):
    trainer = SimpleNamespace(global_step=step, world_size=world_size, precision_plugin=None)
    gradients.lightning.TraceCallback(trace).on_train_start(trainer, None)


def begin_transformers(trace, step, world_size):
    arguments = SimpleNamespace(world_size=world_size, output_dir="")
    state = SimpleNamespace(global_step=step)
    gradients.transformers.TraceCallback(trace).on_train_begin(arguments, state, None)


@pytest.mark.filterwarnings("ignore:TraceCallback. no earlier record")
@pytest.mark.parametrize("begin", [begin_lightning, begin_transformers])
def test_steps_made_and_processes_are_taken_over(world, begin):
    model = new_network()
    resumed, own, single = Trace(model), Trace(model, group=None), Trace(model)
    begin(resumed, step=7, world_size=2)
    begin(own, step=0, world_size=2)
    begin(single, step=0, world_size=1)
    assert resumed.step == 7
    assert resumed.group is world
    assert own.group is None  # asked for
    assert single.group == "auto"


class Lit(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = new_network()
        self.trace = Trace(self.network)

    def training_step(self, batch, index):
        return self.trace.join(*two_losses(self.network, *batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers, loggers and torch's own
def test_lightning(tmp_path):
    module = Lit()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        callbacks=[gradients.lightning.TraceCallback(module.trace)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(TensorDataset(*make_data()), batch_size=4))
    assert_same(module.network, module.trace)


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_a_grad_scaler(tmp_path):
    states, traces = [], []
    for traced in (True, False):
        module = Lit()
        if not traced:
            module.trace.join = lambda *losses: sum(losses[1:], losses[0])
        callback = gradients.lightning.TraceCallback(module.trace)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        trainer = Trainer(
            accelerator="cpu",
            # Asked for by name Lightning would take bfloat16 on a CPU, without a scaler.
            plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
            max_epochs=1,
            callbacks=[callback] if traced else [],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, DataLoader(TensorDataset(*make_data()), batch_size=4))
        states.append(module.network.state_dict())
        traces.append(module.trace.to_dataset())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    model = new_network()
    expected = Trace(model)
    expected.backward(*two_losses(model, *(part[:4] for part in make_data())))
    first = expected.to_dataset().isel(step=0)
    for name in ("loss_main", "norm_main", "norm_aux", "dot"):  # unscaled: to half precision
        wanted = first[name].values
        found = traces[0][name].isel(step=0).values
        assert np.isfinite(found).sum() == np.isfinite(wanted).sum()
        np.testing.assert_allclose(found, wanted, rtol=0.03, atol=1e-3)


class Wrapped(torch.nn.Module):
    """As transformers models are called: by keyword, with a dict for an answer."""

    def __init__(self):
        super().__init__()
        self.network = new_network()

    def forward(self, x, labels=None):
        logits, side = self.network(x)
        return {"logits": logits, "side": side}


@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
@pytest.mark.parametrize("eval_strategy", ["no", "epoch"])
def test_transformers_trainer(tmp_path, eval_strategy):
    model = Wrapped()
    trace = Trace(model.network)

    def loss(outputs, labels, num_items_in_batch):
        share = len(labels) / num_items_in_batch  # `Trainer` leaves accumulation to this function
        if not model.training:
            return F.cross_entropy(outputs["logits"], labels) * share
        target = F.one_hot(labels, 3).float()
        auxiliary = 0.3 * F.binary_cross_entropy_with_logits(outputs["side"], target)
        main = F.cross_entropy(outputs["logits"], labels)
        return trace.join(main * share, auxiliary * share)

    x, y = make_data()
    samples = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    trainer = HuggingFaceTrainer(
        model,
        TrainingArguments(
            str(tmp_path),
            use_cpu=True,
            max_steps=3,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            report_to="none",
            save_strategy="no",
            eval_strategy=eval_strategy,
            disable_tqdm=True,
            train_sampling_strategy="sequential",
        ),
        train_dataset=samples,
        eval_dataset=samples[:8],
        compute_loss_func=loss,
        callbacks=[gradients.transformers.TraceCallback(trace)],
    )
    trainer.train()
    assert_same(model.network, trace)
    evaluations = [row for row in trainer.state.log_history if "eval_loss" in row]
    assert len(evaluations) == (eval_strategy == "epoch")


def test_a_checkpoint_without_a_record_is_told(tmp_path):
    trace = Trace(new_network())
    callback = gradients.transformers.TraceCallback(trace)
    arguments = SimpleNamespace(world_size=1, output_dir=str(tmp_path))
    with pytest.warns(UserWarning, match=r"no earlier record in .*-7.*trace_parameter\.pt"):
        callback.on_train_begin(arguments, SimpleNamespace(global_step=7), None)
    assert trace.step == 7

    # One that the user has loaded from elsewhere stays.
    callback.on_train_begin(arguments, SimpleNamespace(global_step=7), None)
