"""A real Lightning `Trainer` that trains a probe along, against a loop written by hand."""

import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import probes
from gradients import Trace
from gradients.lightning import TraceCallback
from probes.lightning import ProbeCallback

# Lightning's advice on workers and loggers, and torch's own
pytestmark = pytest.mark.filterwarnings("ignore")

N_EPOCHS = 3
ACCUMULATE = 2
LEARNING_RATE = 0.02


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def make_probe(model):
    return probes.attach(model, ["2", "4"], n=3, active=2, sample=torch.zeros(2, 4))


def make_loader(n=24):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator)
    y = torch.randint(0, 3, (n,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4)


class Classifier(LightningModule):
    """The recipe of the documentation."""

    def __init__(self, model, auxiliary, join=torch.add):
        super().__init__()
        self.model = model
        self.auxiliary = auxiliary
        self.join = join
        self.validation_losses = []

    def training_step(self, batch, index):
        x, y = batch
        main = F.cross_entropy(self.model(x), y)
        return self.join(main, self.auxiliary(y))

    def validation_step(self, batch, index):
        x, y = batch
        self.validation_losses.append(F.cross_entropy(self.model(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # by epoch
        return [optimizer], [schedule]


def make_trainer(folder, callbacks, *, checkpoints=None, **settings):
    checkpoints = checkpoints or ModelCheckpoint(
        dirpath=folder, filename="{step}", save_top_k=-1, save_on_train_epoch_end=True
    )
    return Trainer(
        accelerator="cpu",
        max_epochs=N_EPOCHS,
        accumulate_grad_batches=ACCUMULATE,
        gradient_clip_val=0.5,
        callbacks=[*callbacks, checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **settings,
    )


def train_by_hand():
    model = make_model()
    probe = make_probe(model)
    parameters = [*model.parameters(), *probe.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)

    for epoch in range(N_EPOCHS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5**epoch
        for index, (x, y) in enumerate(make_loader()):
            loss = F.cross_entropy(model(x), y) + probe.loss(y)
            (loss / ACCUMULATE).backward()
            if (index + 1) % ACCUMULATE == 0:
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
                optimizer.zero_grad()
    return model, probe


def assert_same_weights(module, expected):
    assert module.state_dict().keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        if torch.is_tensor(value):
            assert torch.equal(module.state_dict()[name], value), name


def test_a_training_equals_a_plain_loop_bit_for_bit(tmp_path):
    model = make_model()
    probe = make_probe(model)
    module = Classifier(model, probe.loss)
    make_trainer(tmp_path, [ProbeCallback(probe)]).fit(module, make_loader(), make_loader(8))

    expected_model, expected_probe = train_by_hand()
    assert_same_weights(model, expected_model)
    assert_same_weights(probe, expected_probe)
    assert probe.step == expected_probe.step == 18

    expected_model.eval()
    x, y = make_loader(8).dataset[4:]
    assert torch.equal(module.validation_losses[-1], F.cross_entropy(expected_model(x), y))


# At the end of an epoch: amid one, Lightning begins with the first batches of a plain DataLoader.
@pytest.mark.parametrize("step", [3, 6])
def test_a_resumed_training_equals_a_plain_loop_bit_for_bit(tmp_path, step):
    records = []
    for checkpoint in (None, tmp_path / f"step={step}.ckpt"):
        model = make_model()
        probe = make_probe(model)
        trace = Trace(model)
        module = Classifier(model, probe.loss, trace.join)
        # A second trace, which the losses do not go through: each has a name of its own.
        idle = TraceCallback(Trace(model), name="idle")
        trainer = make_trainer(tmp_path, [ProbeCallback(probe), TraceCallback(trace), idle])
        trainer.fit(module, make_loader(), make_loader(8), ckpt_path=checkpoint)
        records.append(trace.to_dataset())

    expected_model, expected_probe = train_by_hand()
    assert_same_weights(model, expected_model)
    assert_same_weights(probe, expected_probe)
    assert probe.step == expected_probe.step
    xr.testing.assert_identical(records[1], records[0])
    assert list(records[0]["step"]) == list(range(9))


class StatefulLoader:
    """Keeps its place in checkpoints, as Lightning asks of a loader that resumes amid an epoch."""

    def __init__(self):
        self.batches = list(make_loader())
        self.position = 0
        self.is_resumed = False

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.position = self.position if self.is_resumed else 0
        self.is_resumed = False
        while self.position < len(self.batches):
            self.position += 1
            yield self.batches[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.is_resumed = True


@pytest.mark.parametrize("step", [1, 5])
def test_a_training_resumed_amid_an_epoch_equals_a_plain_loop_bit_for_bit(tmp_path, step):
    records = []
    for checkpoint in (None, tmp_path / f"step={step}.ckpt"):
        model = make_model()
        probe = make_probe(model)
        trace = Trace(model)
        module = Classifier(model, probe.loss, trace.join)
        every_step = ModelCheckpoint(
            dirpath=tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1
        )
        callbacks = [ProbeCallback(probe), TraceCallback(trace)]
        trainer = make_trainer(tmp_path, callbacks, checkpoints=every_step)
        trainer.fit(module, StatefulLoader(), make_loader(8), ckpt_path=checkpoint)
        records.append(trace.to_dataset())

    expected_model, expected_probe = train_by_hand()
    assert_same_weights(model, expected_model)
    assert_same_weights(probe, expected_probe)
    xr.testing.assert_identical(records[1], records[0])
    assert list(records[0]["step"]) == list(range(9))


def test_the_weights_of_a_checkpoint_are_the_models_alone(tmp_path):
    model = make_model()
    probe = make_probe(model)
    trainer = make_trainer(tmp_path, [ProbeCallback(probe)])
    trainer.fit(Classifier(model, probe.loss), make_loader())
    checkpoint = torch.load(tmp_path / "step=9.ckpt", weights_only=False)
    assert set(checkpoint["state_dict"]) == {f"model.{name}" for name in model.state_dict()}


def test_branches_that_the_optimizer_has_are_not_added_twice(tmp_path):
    model = make_model()
    probe = make_probe(model)
    module = Classifier(model, probe.loss)
    parameters = [*model.parameters(), *probe.parameters()]
    module.configure_optimizers = lambda: torch.optim.Adam(parameters, lr=LEARNING_RATE)
    trainer = make_trainer(tmp_path, [ProbeCallback(probe)])
    trainer.fit(module, make_loader())
    (group,) = trainer.optimizers[0].param_groups
    assert len(group["params"]) == len(parameters)


def test_a_training_without_an_optimizer_is_refused(tmp_path):
    model = make_model()
    probe = make_probe(model)
    module = Classifier(model, probe.loss)
    module.configure_optimizers = lambda: None
    with pytest.raises(ValueError, match="`configure_optimizers`: expected an optimizer"):
        make_trainer(tmp_path, [ProbeCallback(probe)]).fit(module, make_loader())
    with pytest.raises(TypeError, match="`probe`: expected what"):
        ProbeCallback(model)
    assert repr(ProbeCallback(probe)) == "ProbeCallback(2, 4; step=0)"
