"""A real `Trainer` that trains a probe along, against a loop written by hand."""

import shutil

import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import probes
from gradients import Trace
from gradients.transformers import TraceCallback
from probes.transformers import ProbeCallback, ProbeTrainer

# transformers' own deprecations, and its advice
pytestmark = pytest.mark.filterwarnings("ignore")

N_CLASSES = 3
N_EPOCHS = 2
BATCH_SIZE = 4
N_SAMPLES = 22  # micro-batches of 4, 4 | 4, 4 | 4, 2: the last update has unequal ones
LEARNING_RATE = 0.01
WEIGHT_DECAY = 0.1


def make_bert(dropout=0.0):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=N_CLASSES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForSequenceClassification(config)


def make_vit(dropout=0.0):
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_labels=N_CLASSES,
        hidden_dropout_prob=dropout,
    )
    return ViTForImageClassification(config)


# Bert's loss is a mean over each micro-batch, that of ViT one over all samples of an update.
MODELS = {"mean": (make_bert, "bert.encoder.layer.*"), "items": (make_vit, "vit.layers.*")}


def make_samples(kind):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, N_CLASSES, (N_SAMPLES,), generator=generator)
    if kind == "mean":
        inputs = {"input_ids": torch.randint(0, 20, (N_SAMPLES, 6), generator=generator)}
    else:
        inputs = {"pixel_values": torch.randn(N_SAMPLES, 3, 8, 8, generator=generator)}
    columns = {**inputs, "labels": labels}
    return [{name: column[i] for name, column in columns.items()} for i in range(N_SAMPLES)]


def make_probe(model, kind, **options):
    sample = stack(make_samples(kind)[:2])
    del sample["labels"]
    return probes.attach(model, MODELS[kind][1], n=3, active=2, sample=sample, **options)


def make_trainer(model, probe, kind, folder, *, trace=None, make=ProbeTrainer, **settings):
    arguments = {
        "use_cpu": True,
        "num_train_epochs": N_EPOCHS,
        "per_device_train_batch_size": BATCH_SIZE,
        "gradient_accumulation_steps": 2,
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": 0.5,
        "optim": "adamw_torch",
        "eval_strategy": "epoch",
        "save_strategy": "steps",
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
        "seed": 3,
    }
    callbacks = [ProbeCallback(probe, join=None if trace is None else trace.join)]
    if trace is not None:
        callbacks.append(TraceCallback(trace))
    return make(
        model,
        TrainingArguments(str(folder), **(arguments | settings)),
        train_dataset=make_samples(kind),
        eval_dataset=make_samples(kind)[:6],
        callbacks=callbacks,
    )


def stack(samples):
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def train_by_hand(kind, *, n_updates=None, with_probe=True):
    """Train with torch alone; what `Trainer` does is written out."""
    model = MODELS[kind][0]().train()
    probe = make_probe(model, kind)
    samples = make_samples(kind)
    micro_batches = [samples[i : i + BATCH_SIZE] for i in range(0, N_SAMPLES, BATCH_SIZE)]
    updates = [micro_batches[i : i + 2] for i in range(0, len(micro_batches), 2)] * N_EPOCHS

    no_decay = ("bias", "LayerNorm", "layernorm")
    named = list(model.named_parameters())
    decayed = [p for name, p in named if not any(part in name for part in no_decay)]
    others = [p for name, p in named if any(part in name for part in no_decay)]
    branches = list(probe.parameters())
    groups = [
        {"params": [*decayed, *branches], "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)

    for step, update in enumerate(updates[:n_updates]):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (len(updates) - step) / len(updates)

        n_items = torch.tensor(sum(len(micro_batch) for micro_batch in update))
        for micro_batch in update:
            inputs = stack(micro_batch)
            labels = inputs.pop("labels")
            logits = model(**inputs).logits
            if kind == "mean":
                main = F.cross_entropy(logits, labels)
                auxiliary = probe.loss(labels)
            else:
                main = F.cross_entropy(logits, labels, reduction="sum") / n_items
                auxiliary = probe.loss(labels) * (len(labels) / n_items)
            (main + auxiliary if with_probe else main).backward()

        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_norm_(branches, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return model, probe


def assert_same_weights(module, expected):
    states = module.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        same = torch.equal(states[0][name], value) if torch.is_tensor(value) else True
        assert same, name


@pytest.mark.parametrize("kind", MODELS)
def test_a_training_equals_a_plain_loop_bit_for_bit(tmp_path, kind):
    model = MODELS[kind][0]()
    probe = make_probe(model, kind)
    before = {name: value.clone() for name, value in probe.named_parameters()}
    make_trainer(model, probe, kind, tmp_path).train()

    expected_model, expected_probe = train_by_hand(kind)
    assert_same_weights(model, expected_model)
    assert_same_weights(probe, expected_probe)
    assert probe.step == expected_probe.step == 12
    assert all(not torch.equal(before[name], p) for name, p in probe.named_parameters())


@pytest.mark.parametrize("kind", MODELS)
def test_a_resumed_training_equals_a_plain_loop_bit_for_bit(tmp_path, kind):
    # `Trainer` alone does not find the weights of a ViT again, which are saved under older names.
    first = MODELS[kind][0]()
    make_trainer(first, make_probe(first, kind), kind, tmp_path, max_steps=6).train()

    # As in a new process, from the middle of an epoch.
    model = MODELS[kind][0]()
    probe = make_probe(model, kind)
    checkpoint = str(tmp_path / "checkpoint-2")
    make_trainer(model, probe, kind, tmp_path, max_steps=6).train(checkpoint)

    expected_model, expected_probe = train_by_hand(kind)
    assert_same_weights(model, expected_model)
    assert_same_weights(probe, expected_probe)
    assert probe.step == 12


def test_a_resumed_training_with_dropout_equals_an_uninterrupted_one(tmp_path):
    whole = make_bert(dropout=0.3)
    whole_probe = make_probe(whole, "mean")
    make_trainer(whole, whole_probe, "mean", tmp_path).train()

    # As in a new process, which finds the last of the checkpoints by itself.
    shutil.rmtree(tmp_path / "checkpoint-6")
    model = make_bert(dropout=0.3)
    probe = make_probe(model, "mean")
    make_trainer(model, probe, "mean", tmp_path).train(resume_from_checkpoint=True)
    assert_same_weights(model, whole)
    assert_same_weights(probe, whole_probe)


def test_evaluation_and_prediction_are_those_of_a_trainer_without_a_probe(tmp_path):
    model = make_bert()
    probe = make_probe(model, "mean")
    trainer = make_trainer(model, probe, "mean", tmp_path)
    trainer.train()
    step = probe.step
    found = trainer.evaluate()["eval_loss"], trainer.predict(make_samples("mean")).predictions

    probe.detach()
    plain = Trainer(model, trainer.args, eval_dataset=trainer.eval_dataset)
    expected = plain.evaluate()["eval_loss"], plain.predict(make_samples("mean")).predictions
    assert found[0] == expected[0]
    assert (found[1] == expected[1]).all()
    assert probe.step == step


def test_the_auxiliary_loss_is_logged_beside_the_sum(tmp_path):
    model = make_vit()
    trainer = make_trainer(model, make_probe(model, "items"), "items", tmp_path)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]

    twin = make_vit().train()
    probe = make_probe(twin, "items")
    auxiliary_losses, main_losses = [], []
    for samples in (make_samples("items")[:4], make_samples("items")[4:8]):
        inputs = stack(samples)
        main_losses.append(twin(**inputs).loss.item())
        auxiliary_losses.append(probe.loss(inputs["labels"]).item())
    assert logged[0]["auxiliary_loss"] == pytest.approx(sum(auxiliary_losses) / 2, rel=1e-6)
    total = sum(main_losses) / 2 + sum(auxiliary_losses) / 2
    assert logged[0]["loss"] == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_a_trace_beside_it_changes_nothing_and_survives_the_checkpoint(tmp_path, kind):
    first = MODELS[kind][0]()
    probe = make_probe(first, kind)
    trace = Trace(first, every=2)
    make_trainer(first, probe, kind, tmp_path, trace=trace).train()
    expected_model, expected_probe = train_by_hand(kind)
    assert_same_weights(first, expected_model)
    assert_same_weights(probe, expected_probe)

    # The first update, by autograd alone.
    twin = MODELS[kind][0]().train()
    twin_probe = make_probe(twin, kind)
    factor = 1 if kind == "mean" else 0.5
    parameters = list(twin.base_model.parameters())
    sums = {"main": 0.0, "auxiliary": 0.0}
    for samples in (make_samples(kind)[:4], make_samples(kind)[4:8]):
        inputs = stack(samples)
        losses = {"main": twin(**inputs).loss, "auxiliary": twin_probe.loss(inputs["labels"])}
        for name, loss in losses.items():
            found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            pairs = zip(parameters, found, strict=True)
            parts = [torch.zeros_like(p) if grad is None else grad for p, grad in pairs]
            sums[name] += factor * torch.cat([part.flatten() for part in parts])
    record = trace.to_dataset()
    expected_dot = (sums["main"].double() @ sums["auxiliary"].double()).item()

    # Read are the auxiliary gradient and that of the sum, which float32 rounds relative to its own
    # size, here 200 times that of the main one (0.1 beside 23): each element of the difference is
    # off by `epsilon` of the sum's, which the inner product multiplies with the auxiliary one.
    norm_of_sum = (sums["main"] + sums["auxiliary"]).norm().item()
    rounding = torch.finfo(torch.float32).eps * norm_of_sum * sums["auxiliary"].norm().item()
    assert rounding < 1e-3 * abs(expected_dot)
    assert record["dot"][0].sum().item() == pytest.approx(expected_dot, rel=1e-6, abs=rounding)

    model = MODELS[kind][0]()
    resumed = Trace(model, every=2)
    trainer = make_trainer(model, make_probe(model, kind), kind, tmp_path, trace=resumed)
    trainer.train(str(tmp_path / "checkpoint-4"))
    xr.testing.assert_identical(resumed.to_dataset(), record)
    assert list(record["step"]) == [0, 2, 4]


def test_an_adaptive_strength_weighs_means_with_means(tmp_path):
    balance = probes.schedules.balance(0.5)
    model = make_vit()
    probe = make_probe(model, "items", alpha=balance)
    make_trainer(model, probe, "items", tmp_path, max_steps=1).train()

    twin = make_vit().train()
    expected = make_probe(twin, "items", alpha=balance)
    for samples in (make_samples("items")[:4], make_samples("items")[4:8]):
        inputs = stack(samples)
        main = twin(**inputs).loss
        expected.loss(inputs["labels"], main=main)
    found = probe._capture.strengths
    for layer, strength in expected._capture.strengths.items():
        torch.testing.assert_close(torch.as_tensor(found[layer]), torch.as_tensor(strength))


def test_labels_of_a_causal_language_model_are_one_position_ahead(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    trainer = ProbeTrainer(model, TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    labels = torch.tensor([[1, 2, 3]])
    assert trainer._labels({"labels": labels}).tolist() == [[2, 3, -100]]
    # A collator has shifted them already.
    assert trainer._labels({"labels": labels, "shift_labels": labels + 1}).tolist() == [[2, 3, 4]]


def test_what_would_leave_the_probe_untrained_is_refused(tmp_path):
    model = make_bert()
    probe = make_probe(model, "mean")
    with pytest.raises(RuntimeError, match=r"expected a probes.transformers.ProbeTrainer"):
        make_trainer(model, probe, "mean", tmp_path, make=Trainer).train()

    trainer = make_trainer(model, probe, "mean", tmp_path)
    trainer.remove_callback(ProbeCallback)
    with pytest.raises(ValueError, match="`callbacks`: expected one ProbeCallback, got 0"):
        trainer.train()

    trainer = make_trainer(model, probe, "mean", tmp_path)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(ValueError, match=r"expected 'probe.pt' in .*checkpoint-1"):
        trainer.train(str(tmp_path / "checkpoint-1"))

    with pytest.raises(TypeError, match=r"expected what probes.attach returned, got BertFor"):
        ProbeCallback(model)


def test_batches_without_labels_need_targets(tmp_path):
    model = make_bert()
    trainer = make_trainer(model, make_probe(model, "mean"), "mean", tmp_path)
    with pytest.raises(ValueError, match=r"`labels`: expected targets in the batch, got input_ids"):
        trainer.compute_loss(model.train(), {"input_ids": torch.zeros(2, 3, dtype=torch.long)})

    probe = make_probe(model, "mean")
    callback = ProbeCallback(probe, targets=lambda batch: 2 - batch["labels"])
    data = {"eval_dataset": trainer.eval_dataset}
    trainer = ProbeTrainer(model, trainer.args, callbacks=[callback], **data)
    inputs = stack(make_samples("mean")[:4])
    found = trainer.compute_loss(model, dict(inputs))
    expected = model(**inputs).loss + probe.loss(2 - inputs["labels"])
    assert torch.equal(found, expected)


class DoublingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (2 * loss, outputs) if return_outputs else 2 * loss


class MixedTrainer(ProbeTrainer, DoublingTrainer):
    pass


def test_it_is_a_mix_in_for_other_trainers(tmp_path):
    model = make_bert()
    probe = make_probe(model, "mean")
    trainer = make_trainer(model, probe, "mean", tmp_path, make=MixedTrainer)
    inputs = stack(make_samples("mean")[:4])
    found = trainer.compute_loss(model.train(), dict(inputs))
    expected = 2 * model(**inputs).loss + probe.loss(inputs["labels"])
    assert torch.equal(found, expected)
