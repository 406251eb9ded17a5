"""A monitor in other people's training loops: the same training, rows, and checkpoints."""

import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import gradients.accelerate
import probes
import probes.accelerate
from gradients.lightning import TraceCallback as LightningTraceCallback
from gradients.transformers import TraceCallback
from probes.lightning import ProbeCallback as LightningProbeCallback
from probes.transformers import ProbeCallback, ProbeTrainer
from resonance_toolkit import Monitor, preserving_rng
from tests.resonance_toolkit.front.monitor.training import (
    assert_same_bits,
    make_batch,
    make_model,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' advice and deprecations

LOADER_SIZES = {"batch_size": 4}


def state_of(model, probe):
    return {
        name: value.clone() if torch.is_tensor(value) else value
        for name, value in {**model.state_dict(), **probe.state_dict()}.items()
    }


# transformers


def make_bert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16, "num_labels": 3}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 8}
    return BertForSequenceClassification(BertConfig(**sizes, **layers))  # dropout: 0.1


def bert_columns(n=24):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 20, (n, 6), generator=generator)
    return {"input_ids": ids, "labels": torch.randint(0, 3, (n,), generator=generator)}


def train_bert(folder, *, is_watched, resume=False):
    model = make_bert()
    probe = probes.attach(model, "bert.encoder.layer.*", n=3)
    monitor, callbacks = None, [ProbeCallback(probe)]
    if is_watched:
        data = {name: column[:5] for name, column in bert_columns().items()}
        monitor = Monitor(model, probe=probe, every=2, data=data, sharpness_every=4)
        callbacks = [ProbeCallback(probe, join=monitor.join), TraceCallback(monitor)]

    columns = bert_columns()
    arguments = TrainingArguments(
        str(folder),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        report_to="none",
        save_strategy="steps",
        save_steps=3,
        disable_tqdm=True,
    )
    samples = [{name: column[i] for name, column in columns.items()} for i in range(24)]
    trainer = ProbeTrainer(model, arguments, train_dataset=samples, callbacks=callbacks)
    with preserving_rng():
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3") if resume else None)
    return state_of(model, probe), monitor


def test_transformers(tmp_path):
    plain, _ = train_bert(tmp_path / "plain", is_watched=False)
    state, monitor = train_bert(tmp_path / "watched", is_watched=True)
    assert_same_bits(state, plain)

    tree = monitor.tree()
    steps = {part: node["step"].values.tolist() for part, node in tree.children.items()}
    assert steps == {
        "gradients": [0, 2, 4],
        "branches": [0, 2, 4],
        "attention": [0, 2, 4],
        "sharpness": [0, 4],
    }
    assert tree["gradients"]["cosine"].notnull().all()
    assert not [name for name in tree.attrs if name.endswith("_reason")]

    # From the checkpoint at update 3, whose record ends there.
    resumed_state, resumed = train_bert(tmp_path / "watched", is_watched=True, resume=True)
    assert_same_bits(resumed_state, state)
    xr.testing.assert_identical(resumed.tree(), tree)


# Lightning


class Classifier(LightningModule):
    def __init__(self, model, auxiliary, join):
        super().__init__()
        self.model = model
        self.auxiliary = auxiliary
        self.join = join

    def training_step(self, batch, index):
        x, y = batch
        return self.join(F.cross_entropy(self.model(x), y), self.auxiliary(y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train_lightning(folder, *, is_watched):
    model = make_model()
    probe = probes.attach(model, "blocks.*", n=3)
    logged = []
    monitor, callbacks = None, [LightningProbeCallback(probe)]
    if is_watched:
        monitor = Monitor(
            model,
            probe=probe,
            every=2,
            data=make_batch(9),
            log=lambda values, step: logged.append(step),
        )
        callbacks.append(LightningTraceCallback(monitor))
    with preserving_rng():
        seed_everything(3, verbose=False)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=2,
            accumulate_grad_batches=2,
            callbacks=callbacks,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        loader = DataLoader(TensorDataset(*make_batch(0, 24)), **LOADER_SIZES)
        module = Classifier(model, probe.loss, torch.add if monitor is None else monitor.join)
        trainer.fit(module, loader)
        trainer.save_checkpoint(folder / "last.ckpt")
    return state_of(model, probe), monitor, logged


def test_lightning(tmp_path):
    (tmp_path / "plain").mkdir()
    plain, _, _ = train_lightning(tmp_path / "plain", is_watched=False)
    state, monitor, logged = train_lightning(tmp_path, is_watched=True)
    assert_same_bits(state, plain)
    assert logged == [0, 2, 4]
    tree = monitor.tree()
    for part in ("gradients", "branches", "attention"):
        assert tree[part]["step"].values.tolist() == [0, 2, 4]

    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    again = Monitor(make_model(), layers="blocks.*", every=2)
    again.load_state_dict(checkpoint["callbacks"]["resonance"])
    for part, node in tree.children.items():
        xr.testing.assert_identical(again.tree()[part].to_dataset(), node.to_dataset())


# Accelerate


def train_accelerate(folder, *, is_watched):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    probe = probes.attach(model, "blocks.*", n=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(*make_batch(0, 24)), **LOADER_SIZES)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    probes.accelerate.prepare(accelerator, probe, optimizer)
    monitor = None
    if is_watched:
        monitor = Monitor(model, probe=probe, every=2, data=make_batch(9), log=accelerator.log)
        accelerator.register_for_checkpointing(monitor)

    with preserving_rng():
        torch.manual_seed(3)
        for x, y in loader:
            with accelerator.accumulate(model):
                losses = F.cross_entropy(model(x), y), probe.loss(y)
                if monitor is None:
                    accelerator.backward(sum(losses))
                else:
                    gradients.accelerate.backward(accelerator, monitor, *losses)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.save_state(str(folder))
    return state_of(model, probe), monitor, accelerator


def test_accelerate(tmp_path):
    plain, _, _ = train_accelerate(tmp_path / "plain", is_watched=False)
    state, monitor, accelerator = train_accelerate(tmp_path / "watched", is_watched=True)
    for name, value in plain.items():
        # `accelerator.backward` divides the sum, a trace each loss.
        if torch.is_tensor(value):
            torch.testing.assert_close(state[name], value, msg=name)

    before = monitor.tree()
    assert before["gradients"]["step"].values.tolist() == [0, 2]
    assert before["attention"]["step"].values.tolist() == [0, 2]
    assert "log_reason" not in before.attrs
    monitor.step = 50
    accelerator.load_state(str(tmp_path / "watched"))
    assert monitor.step == 3
    xr.testing.assert_identical(monitor.tree(), before)
