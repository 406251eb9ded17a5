from collections import OrderedDict, UserDict
from functools import partial

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from resonance_toolkit import (
    count_samples,
    dtype_name,
    first_tensor,
    has_class_token,
    is_compiled,
    is_sharded,
    name_of,
    sample_tensor,
    text_table,
)


def compile_wrapped(layer):
    return torch.compile(layer, backend="eager")


def compile_in_place(layer):
    layer.compile(backend="eager")
    return layer


def compile_forward(layer):
    layer.forward = torch.compile(layer.forward, backend="eager")
    return layer


@pytest.mark.parametrize("compiling", [compile_wrapped, compile_in_place, compile_forward])
def test_every_way_of_compiling_is_seen(compiling):
    compiled = compiling(nn.Linear(2, 2))
    assert is_compiled(compiled)
    assert not is_compiled(nn.Linear(2, 2))


def test_compiled_is_asked_of_one_module_not_of_those_inside():
    model = nn.Sequential(compile_in_place(nn.Linear(2, 2)))
    assert not is_compiled(model)
    assert [is_compiled(module) for module in model.modules()] == [False, True]


def test_a_whole_model_is_not_sharded():
    assert not is_sharded(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [("vit_tiny_patch16_224", True), ("cait_xxs24_224", True), ("resnet10t", False)],
)
def test_class_tokens_of_timm(architecture, expected):
    with torch.device("meta"):
        model = timm.create_model(architecture)
    assert has_class_token(model) is expected


@pytest.mark.parametrize(
    "name",
    ["cls", "cls_token", "class_token", "cls_embed", "cls_embedding", "class_embedding"],
)
def test_both_packages_class_tokens_are_known(name):
    model = nn.Module()
    model.embeddings = nn.Module()
    model.embeddings.register_parameter(name, nn.Parameter(torch.zeros(1, 1, 4)))
    assert has_class_token(model)


def test_the_first_tensor_is_found_in_any_nest():
    x = torch.ones(3, 2)
    nests = [
        x,
        (x, torch.zeros(1)),
        [None, x],
        {"hidden": x},
        OrderedDict(out=x, aux=torch.zeros(1)),
        UserDict(input_ids=x),
        (None, ({"deep": [x]},)),
    ]
    for nest in nests:
        assert first_tensor(nest) is x
        assert count_samples(nest) == 3


def test_nests_without_samples_are_told():
    assert first_tensor(("text", None)) is None
    for nest in ({}, ["a"], torch.tensor(3.0)):
        with pytest.raises(ValueError, match="`data`: expected tensors with samples first"):
            count_samples(nest)


def test_names_of_callables():
    class Objective:
        def __call__(self, outputs, targets):
            return outputs

    assert name_of(F.mse_loss) == "mse_loss"
    assert name_of(partial(partial(F.mse_loss, reduction="none"))) == "mse_loss"
    assert name_of(nn.CrossEntropyLoss()) == "CrossEntropyLoss"
    assert name_of(Objective()).endswith("Objective")
    assert dtype_name(torch.bfloat16) == "bfloat16"


def test_columns_of_a_table_are_aligned():
    rows = [("layer", "width"), ("a", "1024"), ("blocks.0", "")]
    assert text_table(rows).splitlines() == ["layer     width", "a         1024", "blocks.0"]
    assert text_table(rows, separator=" | ").splitlines()[1] == "a        | 1024"


@pytest.mark.parametrize("n_samples", [2, 3, 16])
def test_of_several_tensors_the_first_with_the_samples_first_is_taken(n_samples):
    pixels = torch.ones(n_samples * 8, 16, 3)
    patches = torch.ones(n_samples, 9, 5)
    assert sample_tensor((pixels, patches), n_samples) is patches


def test_the_last_state_of_a_recurrent_layer_is_not_taken_for_its_output():
    # As many layers as samples, time first: what has the samples first is none of the output.
    states, last_states = nn.GRU(3, 5, num_layers=2)(torch.ones(4, 2, 3))
    assert last_states.shape[:2] == (2, 2)
    assert sample_tensor((states, last_states), 2) is states
