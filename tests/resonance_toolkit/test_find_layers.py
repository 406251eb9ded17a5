import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from resonance_toolkit import find_layers, provenance, select, unwrap


def network():
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(2, 2))
    model.add_module("blocks", nn.Sequential(block, nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    model.add_module("head", nn.Linear(2, 2))
    return model


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("head", ["head"]),
        (["head", "stem"], ["stem", "head"]),
        ("blocks.*", ["blocks.0", "blocks.1"]),
        ("blocks.*.0", ["blocks.0.0", "blocks.1.0"]),
        ("blocks.[1-9]", ["blocks.1"]),
        ("*", ["stem", "blocks", "head"]),
        ("**.0", ["blocks.0", "blocks.0.0", "blocks.1.0"]),
        ("blocks.**", ["blocks", "blocks.0", "blocks.0.0", "blocks.0.1"]),
        (["s?em", "stem"], ["stem"]),
    ],
)
def test_patterns_work_as_in_a_shell(patterns, expected):
    model = network()
    found = find_layers(model, patterns)
    assert list(found)[: len(expected)] == expected
    assert all(dict(model.named_modules())[name] is module for name, module in found.items())


@pytest.mark.parametrize("wrap", [torch.compile, AveragedModel, checkpoint_wrapper])
def test_wrappers_are_looked_through_by_either_spelling(wrap):
    model = network()
    wrapped = wrap(model)
    inner = unwrap(wrapped)
    plain = find_layers(inner, "blocks.*")
    assert find_layers(wrapped, "blocks.*") == plain
    raw = [name for name, m in wrapped.named_modules() if m in plain.values()]
    if raw != list(plain):
        assert find_layers(wrapped, raw) == plain


def test_wrappers_inside_the_model_are_looked_through():
    model = network()
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    found = find_layers(model, ["blocks.*", "blocks.1.0"])
    assert list(found) == ["blocks.0", "blocks.1", "blocks.1.0"]
    assert isinstance(found["blocks.1"], nn.Sequential)


def test_a_users_module_called_module_is_no_wrapper():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(1, 1)

    model = Mine()
    assert unwrap(model) is model
    assert list(find_layers(model, "module")) == ["module"]


def test_a_shared_layer_is_found_once_and_by_either_name():
    model = nn.Sequential(nn.ReLU(), nn.Linear(1, 1))
    model.add_module("again", model[1])
    assert list(find_layers(model, "*")) == ["0", "1"]
    assert list(find_layers(model, "again")) == ["again"]


def test_unknown_names_raise_with_close_matches_and_all_layers():
    with pytest.raises(ValueError, match=r"'block\.0'; did you mean 'blocks\.0'") as error:
        find_layers(network(), "block.0")
    assert "Known: stem, blocks, blocks.0, blocks.0.0" in str(error.value)
    for nothing in ([], "", [3]):
        with pytest.raises(ValueError, match="`layers`"):
            find_layers(network(), nothing)


def test_select_names_its_argument():
    assert select(["a.weight", "b.weight"], "*.weight", argument="over") == ["a.weight", "b.weight"]
    with pytest.raises(ValueError, match="`over`: nothing is called 'c'"):
        select(["a"], "c", argument="over")


def test_all_layers_of_a_model_without_any_and_a_wrong_name_beside_all():
    with pytest.raises(ValueError, match=r"nothing is called '\*\*'"):
        find_layers(nn.Linear(1, 1), "**")
    with pytest.raises(ValueError, match="nothing is called 'typo'"):
        find_layers(nn.Sequential(nn.Linear(1, 1)), ["**", "typo"])


def test_the_argument_is_called_as_the_user_calls_it():
    with pytest.raises(ValueError, match="`blocks`: nothing is called 'nowhere'"):
        find_layers(network(), "nowhere", argument="blocks")


def test_a_large_model_s_names_do_not_fill_the_terminal():
    model = nn.Sequential(*(nn.ReLU() for _ in range(500)))
    with pytest.raises(ValueError, match=r"Known: 0, 1, 2, 3, .* 9, \.\.\. \(500 in all\)$"):
        find_layers(model, "blocks")


def test_a_model_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        model = network()
        find_layers(model, "**")
        provenance("test", model)
        reference = weakref.ref(model)
        del model
        assert reference() is None
    finally:
        gc.enable()
