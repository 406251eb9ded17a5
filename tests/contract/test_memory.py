"""What no verb may keep: the model, or a little more memory with every call."""

import gc
import tempfile
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import attention
import landscape
import nudging
import probes
import resonance
from tests.contract.test_contract import VERBS, make_data, make_model
from tests.contract.verbs_landscape import path


@pytest.fixture
def without_collector():
    """Reference counts alone decide; what exists already is out of the way, and not counted."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


def _capture_in_a_pass(model, data):
    with attention.capturing(model) as captured, torch.no_grad():
        model(data[0])
    return captured.dataset()


def _watch_training(model, data):
    monitor = resonance.Monitor(
        model, every=1, layers=["norm", "blocks.*"], data=data, samples=6, sharpness_every=1
    )
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    for _ in range(2):
        logits = model(data[0])
        monitor.backward(F.cross_entropy(logits, data[1]), logits.square().mean())
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    return monitor.tree()


def _draw_page(model, data):
    result = probes.similarity(model, model, data, layers=["norm", "blocks.*"], samples=12)
    with tempfile.TemporaryDirectory() as folder:
        return resonance.page(result, Path(folder, "page.html")).name


def _write_text(model, data):
    maps = attention.capture(model, data[0][:4], queries="all", keys="all", maps=True)
    return attention.html_text(maps, [str(key) for key in maps["key"].values])


def _observe(model, data):
    with resonance.preserving(model), resonance.evaluating(model):
        return sorted(nudging.observe(model, *data, ["blocks.0"]).hidden)


# Those without a row in the contract: some give no Dataset.
OTHERS = {
    "resonance.Monitor": _watch_training,
    "resonance.page": _draw_page,
    "attention.html_text": _write_text,
    "nudging.observe": _observe,
    "resonance.examine": lambda model, data: resonance.examine(
        model, data, parts=["model", "response", "gradients"], budget=0.2, n=2, steps=2, seeds=1
    ),
    "landscape.eigenvectors": lambda model, data: landscape.eigenvectors(
        model, data, k=1, samples=12, max_products=10
    ),
    "landscape.principal_directions": lambda model, data: landscape.principal_directions(
        model, path(model)
    ),
    "attention.capturing": _capture_in_a_pass,
}


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("verb", {**VERBS, **OTHERS}.values(), ids=[*VERBS, *OTHERS])
def test_a_verb_keeps_neither_the_model_nor_more_memory_with_every_call(verb):
    data = make_data()
    model = make_model()
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]

    result = verb(model, data)
    del model
    assert not [reference for reference in references if reference() is not None]
    del result

    # The first calls fill caches, of ours and of torch's.
    for _ in range(2):
        verb(make_model(), data)
    n_tensors, n_objects = _count_alive()

    n_calls = 4
    for _ in range(n_calls):
        verb(make_model(), data)
    n_tensors_later, n_objects_later = _count_alive()

    assert n_tensors_later == n_tensors
    # One object kept by each call would show; caches of others may still move a little.
    assert n_objects_later - n_objects < n_calls


def _count_alive() -> tuple[int, int]:
    gc.collect()
    objects = gc.get_objects()

    # By type: `isinstance` asks objects for their class, and some of torch's answer by a warning.
    return sum(issubclass(type(item), torch.Tensor) for item in objects), len(objects)
