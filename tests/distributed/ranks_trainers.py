"""Two ranks inside other people's training loops, against one process that sees whole batches.

usage: ranks_trainers.py FOLDER SCENARIO ...    (started by launch.run_ranks)
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import probes
import probes.accelerate
from gradients import Trace
from tests.helpers.launch import leave

N_SAMPLES = 24
LEARNING_RATE = 0.1
ACCUMULATE = 2


def samples(make_inputs):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (N_SAMPLES,), generator=generator)
    return {**make_inputs(generator), "labels": labels}


def train_alone(model, probe, columns, kind, trace):
    """Whole batches of 8, two of them an update, by torch alone."""
    parameters = [*model.parameters(), *probe.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    batches = [
        {name: column[start : start + 8] for name, column in columns.items()}
        for start in range(0, N_SAMPLES, 8)
    ]
    # The last update of an epoch has one batch alone.
    for update in (batches[:2], batches[2:]) * 2:
        optimizer.zero_grad()
        # Of a model that returns a mean, `Trainer` sums the losses of an update, times processes.
        factor = 2 if kind == "bert" else 1 / len(update)
        for index, batch in enumerate(update):
            labels = batch["labels"]
            main = F.cross_entropy(_logits(model, batch), labels) * factor
            auxiliary = probe.loss(labels) * factor
            trace.backward(main, auxiliary, update=index == len(update) - 1)
        optimizer.step()


def compare(name, model, probe, trace, alone):
    for module, expected in zip((model, probe), alone[:2], strict=True):
        state = module.state_dict()
        for key, value in expected.state_dict().items():
            if torch.is_tensor(value):
                torch.testing.assert_close(
                    state[key],
                    value,
                    rtol=1e-4,
                    atol=1e-6,
                    msg=lambda text, key=key: f"{name}{key}: {text}",
                )
    assert probe.step == alone[1].step, (name, probe.step, alone[1].step)

    record, expected = trace.to_dataset(), alone[2].to_dataset()
    assert list(record["step"]) == list(expected["step"]), name
    for variable in ("dot", "gradient_norm"):
        found = torch.from_numpy(record[variable].values)
        torch.testing.assert_close(
            found,
            torch.from_numpy(expected[variable].values),
            rtol=1e-3,
            atol=1e-6,
            equal_nan=True,
            msg=lambda text, variable=variable: f"{name}{variable}: {text}",
        )


def run_transformers(folder, kind):
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        TrainingArguments,
        ViTConfig,
        ViTForImageClassification,
    )

    from gradients.transformers import TraceCallback
    from probes.transformers import ProbeCallback, ProbeTrainer

    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_labels": 3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }

    def make():
        torch.manual_seed(0)
        if kind == "bert":
            config = BertConfig(**sizes, vocab_size=20, max_position_embeddings=8)
            model = BertForSequenceClassification(config)
        else:
            model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))
        model.train()
        probe = probes.attach(model, n=3, active=2)
        return model, probe

    if kind == "bert":
        columns = samples(
            lambda g: {"input_ids": torch.randint(0, 20, (N_SAMPLES, 6), generator=g)}
        )
    else:
        columns = samples(lambda g: {"pixel_values": torch.randn(N_SAMPLES, 3, 8, 8, generator=g)})
    data = [{name: column[i] for name, column in columns.items()} for i in range(N_SAMPLES)]

    def train(checkpoint=None):
        model, probe = make()
        trace = Trace(model)
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=ACCUMULATE,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=0.0,
            optim="sgd",
            eval_strategy="epoch",
            save_strategy="steps",
            save_steps=1,
            report_to="none",
            disable_tqdm=True,
            train_sampling_strategy="sequential",
        )
        callbacks = [ProbeCallback(probe, join=trace.join), TraceCallback(trace)]
        trainer = ProbeTrainer(
            model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=callbacks
        )
        trainer.train(checkpoint)
        assert arguments.world_size == 2
        return model, probe, trace

    trained = train()
    dist.barrier()
    # From amid an epoch, as in new processes.
    resumed = train(f"{folder}/checkpoint-1")
    model, probe = make()
    alone = (model, probe, Trace(model, group=None))
    train_alone(model, probe, columns, kind, alone[2])
    compare(f"{kind}: ", *trained, alone)
    compare(f"{kind}, resumed: ", *resumed, alone)


def _logits(model, batch):
    return model(**{name: column for name, column in batch.items() if name != "labels"}).logits


def run_accelerate(folder):
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    import gradients.accelerate

    columns = samples(lambda g: {"x": torch.randn(N_SAMPLES, 4, generator=g)})

    def make():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)]
        model = nn.Sequential(*layers)
        return model, probes.attach(model, ["1", "3"], n=3, active=2)

    def start():
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
        model, probe = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        loader = DataLoader(TensorDataset(*columns.values()), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        probes.accelerate.prepare(accelerator, probe, optimizer)
        trace = Trace(model)
        accelerator.register_for_checkpointing(trace)
        assert accelerator.num_processes == 2
        return accelerator, model, probe, optimizer, loader, trace

    def train_epoch(accelerator, model, probe, optimizer, loader, trace):
        for x, y in loader:
            with accelerator.accumulate(model):
                main = F.cross_entropy(model(x), y)
                gradients.accelerate.backward(accelerator, trace, main, probe.loss(y))
                optimizer.step()
                optimizer.zero_grad()

    first = start()
    train_epoch(*first)
    first[0].save_state(folder)
    train_epoch(*first)
    resumed = start()
    resumed[0].load_state(folder)
    train_epoch(*resumed)

    # Accelerate divides by the number of an update's batches, though the last may have fewer.
    model, probe = make()
    trace = Trace(model, group=None)
    optimizer = torch.optim.SGD([*model.parameters(), *probe.parameters()], lr=LEARNING_RATE)
    batches = list(zip(columns["x"].split(8), columns["labels"].split(8), strict=True))
    for update in (batches[:2], batches[2:]) * 2:
        optimizer.zero_grad()
        for index, (x, y) in enumerate(update):
            main = F.cross_entropy(model(x), y) / ACCUMULATE
            trace.backward(main, probe.loss(y) / ACCUMULATE, update=index == len(update) - 1)
        optimizer.step()
    for name, run in (("accelerate: ", first), ("accelerate, resumed: ", resumed)):
        compare(name, run[1].module, run[2], run[5], (model, probe, trace))


def main(folder, scenarios):
    warnings.simplefilter("ignore")  # advice of these libraries and of torch
    for scenario in scenarios:
        own_folder = os.path.join(folder, scenario)
        if scenario == "accelerate":
            run_accelerate(own_folder)
        else:
            run_transformers(own_folder, scenario)
        print(f"rank {os.environ['RANK']}: {scenario} is right", flush=True)
    dist.barrier()
    leave()


if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    main(sys.argv[1], sys.argv[2:])
