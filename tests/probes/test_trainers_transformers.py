"""A real `Trainer` that trains a probe along, against a loop written by hand."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import probes
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
