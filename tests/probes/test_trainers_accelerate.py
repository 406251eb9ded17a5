"""A loop with a real `Accelerator` that trains a probe along, against one with torch alone."""

import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from accelerate import Accelerator
from torch import nn

import gradients.accelerate
import probes.accelerate
from gradients import Trace
from tests.probes.test_trainers_lightning import (
    LEARNING_RATE,
    assert_same_weights,
    make_loader,
    make_model,
    make_probe,
)


def start(traced):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    probe = make_probe(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, make_loader())
    probes.accelerate.prepare(accelerator, probe, optimizer)

    trace = Trace(model) if traced else None
    if traced:
        accelerator.register_for_checkpointing(trace)
    return accelerator, model, probe, optimizer, loader, trace


def train_epoch(accelerator, model, probe, optimizer, loader, trace):
    for x, y in loader:
        with accelerator.accumulate(model):
            main = F.cross_entropy(model(x), y)
            if trace is None:
                accelerator.backward(main + probe.loss(y))
            else:
                gradients.accelerate.backward(accelerator, trace, main, probe.loss(y))
            optimizer.step()
            optimizer.zero_grad()


def train_by_hand(n_epochs):
    model = make_model()
    probe = make_probe(model)
    optimizer = torch.optim.Adam([*model.parameters(), *probe.parameters()], lr=LEARNING_RATE)
    for _ in range(n_epochs):
        for index, (x, y) in enumerate(make_loader()):
            main = F.cross_entropy(model(x), y)
            (main / 2 + probe.loss(y) / 2).backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
    return model, probe


@pytest.mark.parametrize("traced", [False, True])
def test_a_training_that_resumes_equals_a_plain_loop_bit_for_bit(tmp_path, traced):
    first = start(traced)
    train_epoch(*first)
    first[0].save_state(str(tmp_path))
    train_epoch(*first)

    resumed = start(traced)
    resumed[0].load_state(str(tmp_path))
    assert resumed[2].step == 6
    train_epoch(*resumed)

    expected_model, expected_probe = train_by_hand(2)
    for _, model, probe, *_ in (first, resumed):
        assert_same_weights(model, expected_model)
        assert_same_weights(probe, expected_probe)
        assert probe.step == expected_probe.step == 12
    if traced:
        record = first[-1].to_dataset()
        xr.testing.assert_identical(resumed[-1].to_dataset(), record)
        assert list(record["step"]) == list(range(6))


def test_branches_with_names_join_an_optimizer_made_from_names():
    accelerator = Accelerator(cpu=True)
    model = make_model()
    probe = make_probe(model)
    optimizer = torch.optim.Adam(model.named_parameters(), lr=LEARNING_RATE)
    probes.accelerate.prepare(accelerator, probe, optimizer)
    probes.accelerate.prepare(accelerator, probe, optimizer)  # twice adds nothing
    (group,) = optimizer.param_groups
    assert len(group["params"]) == len(group["param_names"]) == 6 + 2 + len([*probe.parameters()])
    optimizer.load_state_dict(optimizer.state_dict())


class Refusing:
    distributed_type = "DEEPSPEED"


def test_what_cannot_train_a_probe_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="trains with torch alone, got DEEPSPEED"):
        probes.accelerate.prepare(Refusing(), make_probe(model), None)
    with pytest.raises(TypeError, match="`probe`: expected what"):
        probes.accelerate.prepare(Accelerator(cpu=True), nn.Linear(1, 1), None)
