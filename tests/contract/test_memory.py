"""What no verb may keep: the model, or a little more memory with every call."""

import gc
import weakref

import pytest
import torch

from tests.contract.test_contract import VERBS, make_data, make_model


@pytest.fixture
def without_collector():
    """Reference counts alone decide; what exists already is out of the way, and not counted."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_a_verb_keeps_neither_the_model_nor_more_memory_with_every_call(verb):
    data = make_data()
    model = make_model()
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]

    result = verb(model, data)
    del model
    assert not [reference for reference in references if reference() is not None]
    assert result.attrs  # the result is still there
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
