"""Batches of every form that users have, understood by `take` and passed on by `call_model`."""

from collections import UserDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from resonance_toolkit import call_model, positions_that_count, reads_class_token, take

X = torch.arange(12.0).view(6, 2)
Y = torch.arange(6)


class Adder(nn.Module):
    """Two inputs, by position or by keyword."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, first, second, *, negate=False):
        return self.scale * (first - second if negate else first + second)


class Texts(Dataset):
    """Items as tokenizers leave them: dicts of lists, with a column of text."""

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return {"first": [row, row], "second": [1, 1], "label": row, "text": "words"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Texts()[row] for row in range(6))


def whole(data, model=None):
    ((inputs, targets),) = take(data, samples=None, model=model)
    return inputs, targets


@pytest.mark.parametrize(
    "data",
    [
        ((X, X + 1), Y),
        [(X, X + 1), Y],
        [((X, X + 1), Y)],
        [((X[:4], X[:4] + 1), Y[:4]), ((X[4:], X[4:] + 1), Y[4:])],
        ({"first": X, "second": X + 1}, Y),
        (UserDict(first=X, second=X + 1), Y),
        {"first": X, "second": X + 1, "labels": Y},
        {"first": X, "second": X + 1, "label": Y},
        UserDict(first=X, second=X + 1, targets=Y),
        [
            {"first": X[:4], "second": X[:4] + 1, "labels": Y[:4]},
            ({"first": X[4:], "second": X[4:] + 1}, Y[4:]),
        ],
        ((X.numpy(), X.numpy() + 1), Y.numpy()),
    ],
)
def test_two_inputs_in_every_form(data):
    inputs, targets = whole(data, Adder())
    assert torch.equal(targets, Y)
    assert torch.equal(call_model(Adder(), inputs), 2 * X + 1)


@pytest.mark.parametrize(
    "source", [Texts(), Stream(), DataLoader(Stream(), 2, collate_fn=lambda items: items[0])]
)
def test_columns_that_the_model_does_not_take_are_left_out(source):
    if isinstance(source, DataLoader):
        source.collate_fn = lambda items: {
            "first": torch.tensor([item["first"] for item in items]),
            "second": torch.tensor([item["second"] for item in items]),
            "label": torch.tensor([item["label"] for item in items]),
            "text": [item["text"] for item in items],
        }
    inputs, targets = whole(source, Adder())
    assert set(inputs) == {"first", "second"}
    assert torch.equal(targets, Y)
    assert torch.equal(call_model(Adder(), inputs), Y[:, None] + torch.ones(6, 2))


def test_text_is_refused_by_the_name_of_its_column_where_no_model_tells():
    with pytest.raises(TypeError, match="`data` at 'text': expected a tensor, got list of str"):
        take(Texts(), samples=None)


def test_settings_of_the_call_are_passed_along():
    inputs, _ = whole({"first": X, "second": X, "negate": True, "labels": Y}, Adder())
    assert not call_model(Adder(), inputs).any()


def test_batches_padded_to_unequal_lengths_stay_apart():
    batches = [
        {"ids": torch.ones(3, 5), "labels": Y[:3]},
        {"ids": torch.ones(2, 4), "labels": Y[3:5]},
        {"ids": torch.ones(1, 4), "labels": Y[5:]},
    ]
    shapes = [tuple(inputs["ids"].shape) for inputs, _ in take(batches, None, batch_size=2)]
    assert shapes == [(2, 5), (1, 5), (2, 4), (1, 4)]
    shapes = [tuple(inputs["ids"].shape) for inputs, _ in take(batches, 4, batch_size=None)]
    assert shapes == [(3, 5), (1, 4)]


def test_samples_of_unequal_length_in_a_dataset_are_told_to_be_padded():
    class Ragged(Texts):
        def __getitem__(self, row):
            return {"first": [0] * row, "label": row}

    with pytest.raises(ValueError, match=r"`data` at 'first': expected samples of one shape.*pad"):
        take(Ragged(), None)


def test_numpy_inputs_get_the_model_s_dtype_and_tensors_keep_theirs():
    doubles = np.random.default_rng(0).random((4, 2))
    labels = np.arange(4)
    assert whole((doubles, labels), nn.Linear(2, 2))[0].dtype == torch.float32
    assert whole((doubles, labels), nn.Linear(2, 2).double())[0].dtype == torch.float64
    assert whole((torch.from_numpy(doubles), Y[:4]), nn.Linear(2, 2))[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [(torch.ones(3, 2).double(), "float64"), (torch.ones(3, 2, 2).byte(), "uint8")],
)
def test_inputs_of_another_dtype_get_a_sentence(inputs, dtype):
    with pytest.raises(ValueError, match=f"inputs of {dtype} for weights of float32; convert"):
        call_model(nn.Linear(2, 2), inputs)


def test_other_failures_of_a_forward_pass_are_the_model_s_own():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        call_model(nn.Linear(2, 2), torch.ones(3, 5))


def test_inputs_may_come_alone_where_targets_are_not_needed():
    # Two arrays are a pair, so that lists of two batches without targets need a third.
    pieces = [X[:2], X[2:4], X[4:]]
    for data in (X, X.numpy(), {"first": X}, pieces, [{"first": X}], (X, Y)):
        ((inputs, targets),) = take(data, None, needs_targets=False)
        tensor = inputs["first"] if isinstance(inputs, dict) else inputs
        assert torch.equal(tensor, X)
        assert targets is None or torch.equal(targets, Y)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"first": X}, r"a mapping with 'labels' or 'label' or 'targets', got the keys first"),
        ([(X, X, Y)], r"tuple of length 3; put several inputs into a tuple of their own"),
        (iter([(X, Y)]), r"can be read twice, got list_iterator; give a list"),
        (((X, Y) for _ in range(2)), "can be read twice, got generator"),
        (zip(X, Y, strict=True), "can be read twice, got zip"),
        ("images", "got str"),
    ],
)
def test_what_cannot_be_understood_is_told_its_cure(data, message):
    with pytest.raises(TypeError, match=message):
        take(data, None)


def test_masks_say_which_positions_are_real():
    kept = torch.tensor([[True, True, False]])
    added = torch.zeros(1, 3).masked_fill(~kept, -1e4)  # to logits of attention
    for mask in (kept, kept.long(), kept.int(), kept.float(), added, kept[None], added[None]):
        assert torch.equal(positions_that_count({"attention_mask": mask}), kept)
    assert torch.equal(positions_that_count({"src_key_padding_mask": ~kept}), kept)
    for nothing in (X, (X, kept), {"ids": X}, {"attention_mask": kept[0]}):
        assert positions_that_count(nothing) is None


def test_an_encoder_and_a_decoder_have_masks_of_their_own():
    first = torch.tensor([[True, True, False]])
    second = torch.tensor([[True, False, False]])
    of_transformers = {"attention_mask": first.long(), "decoder_attention_mask": second.long()}
    of_torch = {"src_key_padding_mask": ~first, "tgt_key_padding_mask": ~second}
    for inputs in (of_transformers, of_torch):
        assert torch.equal(positions_that_count(inputs), first)
        assert torch.equal(positions_that_count(inputs, of_decoder=True), second)
    assert positions_that_count({"attention_mask": first.long()}, of_decoder=True) is None


def test_where_targets_are_not_needed_a_tuple_that_is_no_pair_is_arguments():
    for data in ((X,), (X, X, X)):
        ((inputs, targets),) = take(data, None, needs_targets=False)
        assert isinstance(inputs, tuple)
        assert all(torch.equal(tensor, X) for tensor in inputs)
        assert (len(inputs), targets) == (len(data), None)

    ((inputs, targets),) = take(((X, X), None), None, needs_targets=False)
    assert (len(inputs), targets) == (2, None)
    ((inputs, targets),) = take([(X[:2], None), (X[2:], None)], None, needs_targets=False)
    assert torch.equal(inputs, X)
    assert targets is None

    ((inputs, targets),) = take([{"x": X[:2]}, {"x": X[2:]}], None, needs_targets=False)
    assert torch.equal(inputs["x"], X)
    assert targets is None


def test_a_list_of_two_batches_without_targets_is_told_from_a_pair():
    with pytest.raises(TypeError, match=r"could be two batches or a pair; .* \[\(x1, None\)"):
        take([X, X], None, needs_targets=False)


def test_arguments_that_do_not_fit_a_forward_get_a_sentence():
    x = torch.ones(3, 2)
    with pytest.raises(TypeError, match=r"fit Bilinear\.forward: missing .* 'input2'; several"):
        call_model(nn.Bilinear(2, 2, 2), x)
    with pytest.raises(TypeError, match=r"fit Linear\.forward: got an unexpected .* 'other'"):
        call_model(nn.Linear(2, 2), {"input": x, "other": x})


class Failing(nn.Module):
    def forward(self, x):
        return x + "text"


def test_a_type_error_inside_a_forward_is_the_model_s_own():
    with pytest.raises(TypeError, match=r"unsupported operand|must be"):
        call_model(Failing(), torch.ones(2))


@pytest.mark.parametrize(
    ("model_type", "is_decoder", "expected"),
    [
        ("bert", False, True),
        ("bert", True, False),
        ("gpt2", False, False),
        ("hubert", False, False),
    ],
)
def test_text_encoders_read_a_class_token_also_inside_another_module(
    model_type, is_decoder, expected
):
    encoder = nn.Linear(2, 2)
    encoder.config = SimpleNamespace(model_type=model_type, is_decoder=is_decoder)
    assert reads_class_token(encoder) is expected
    assert reads_class_token(nn.Sequential(nn.Linear(2, 2), encoder)) is expected
    assert not reads_class_token(nn.Linear(2, 2))


def test_a_decoder_has_a_padding_mask_of_its_own():
    mask, other = torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0, 0]])
    inputs = {"attention_mask": mask, "decoder_attention_mask": other}
    assert torch.equal(positions_that_count(inputs), mask == 1)
    assert torch.equal(positions_that_count(inputs, of_decoder=True), other == 1)
    assert torch.equal(
        positions_that_count({"tgt_key_padding_mask": other}, of_decoder=True), other == 0
    )
    assert positions_that_count({"attention_mask": mask}, of_decoder=True) is None


class Remembering(nn.Module):
    def __init__(self, *, by_default):
        super().__init__()
        self.config = SimpleNamespace(use_cache=by_default)

    def forward(self, x, use_cache=None):
        return x, self.config.use_cache if use_cache is None else use_cache


def test_a_language_model_keeps_nothing_for_a_next_token_unless_asked():
    assert call_model(Remembering(by_default=True), {"x": 1}) == (1, False)
    assert call_model(Remembering(by_default=False), {"x": 1}) == (1, False)
    assert call_model(Remembering(by_default=True), {"x": 1, "use_cache": True}) == (1, True)
    assert call_model(Remembering(by_default=True), 1) == (1, True)
