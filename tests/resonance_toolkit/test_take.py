import inspect
import random

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import gradients
import landscape
import nudging
import probes
from resonance_toolkit import AtMost, call_model, device_of, take

X, Y = torch.arange(20.0)[:, None], torch.arange(20)


def joined(batches):
    return torch.cat([y for _, y in batches]).tolist()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Augmented(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        noise = torch.rand(1) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return X[index] + noise, Y[index]


FORMS = {
    "tensors": (X, Y),
    "dataset": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=3),
    "shuffling loader": DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("samples", [1, 7, 20, None])
def test_the_same_samples_whatever_the_form_the_batch_size_and_the_global_seed(form, samples):
    expected = joined(take((X, Y), samples, seed=3, batch_size=20))
    assert len(expected) == (samples or 20)
    assert len(set(expected)) == len(expected)
    for batch_size in (1, 6, 50):
        torch.manual_seed(batch_size)
        batches = take(FORMS[form], samples, seed=3, batch_size=batch_size)
        assert joined(batches) == expected
        assert [len(x) for x, _ in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert all(torch.equal(x[:, 0], y.float()) for x, y in batches)


def test_seeds_differ_and_every_sample_has_its_chance():
    draws = [joined(take((X, Y), 5, seed=seed)) for seed in range(40)]
    assert len({tuple(draw) for draw in draws}) > 30
    assert set().union(*draws) == set(range(20))


def test_streams_lists_and_own_samplers_give_their_first_samples():
    picky = DataLoader(TensorDataset(X, Y), batch_size=4, sampler=SubsetRandomSampler([3, 5, 8]))
    assert sorted(joined(take(picky, None))) == [3, 5, 8]
    batches = DataLoader(TensorDataset(X, Y), batch_sampler=[[3, 5], [8]])
    assert joined(take(batches, None)) == [3, 5, 8]
    few = RandomSampler(TensorDataset(X, Y), num_samples=4)
    assert len(joined(take(DataLoader(TensorDataset(X, Y), sampler=few), None))) == 4
    assert joined(take(Stream(), 5, batch_size=2)) == [0, 1, 2, 3, 4]
    assert joined(take([(X[:4], Y[:4]), (X[4:6], Y[4:6])], 5)) == [0, 1, 2, 3, 4]
    assert joined(take(Subset(TensorDataset(X, Y), [7, 2]), None)) == [7, 2]


def test_augmentation_is_drawn_by_the_seed_alone():
    random.seed(0)
    first = take(Augmented(), 6, seed=1)[0][0]
    random.seed(1)
    second = take(Augmented(), 6, seed=1)[0][0]
    assert torch.equal(first, second)
    assert not torch.equal(first, take(Augmented(), 6, seed=2)[0][0])


def test_no_generator_moves():
    own = torch.Generator().manual_seed(5)
    loader = DataLoader(
        TensorDataset(X, Y),
        batch_size=4,
        sampler=SubsetRandomSampler(range(20), own),
        generator=own,
    )
    before, mine = torch.get_rng_state(), own.get_state()
    take(loader, 5)
    take(Augmented(), 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(own.get_state(), mine)


def test_nested_inputs_keep_their_structure():
    data = [({"ids": X, "mask": Y}, Y)]
    batches = take(data, 6, batch_size=4)
    assert [len(x["ids"]) for x, _ in batches] == [4, 2]
    assert torch.equal(batches[0][0]["mask"], batches[0][1])


def test_batches_go_where_the_model_is():
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    (inputs, targets), *_ = take((X, Y), 3, model=nn.Linear(1, 1, device="meta"))
    assert inputs.device.type == targets.device.type == "meta"


def test_too_many_samples_are_said_and_all_are_used():
    with pytest.warns(UserWarning, match="up to 500 are drawn, data has 20: all used"):
        assert len(joined(take((X, Y), 500))) == 20


def test_a_default_is_not_said():
    assert len(joined(take((X, Y)))) == len(joined(take((X, Y), AtMost(21)))) == 20
    assert len(joined(take((X, Y), AtMost(19)))) == 19


def is_exception(thing):
    return isinstance(thing, type) and issubclass(thing, Exception)


@pytest.mark.parametrize("package", [gradients, landscape, nudging, probes])
def test_no_verb_warns_of_a_number_that_nobody_gave(package):
    public = [getattr(package, name) for name in package.__all__]
    verbs = [thing for thing in public if callable(thing) and not is_exception(thing)]
    parameters = [inspect.signature(verb).parameters for verb in verbs]
    defaults = [named["samples"].default for named in parameters if "samples" in named]
    assert defaults
    assert all(default is None or isinstance(default, AtMost) for default in defaults)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((X, Y[:3]), ValueError, "as many targets as inputs, got 20, 3"),
        ((X[:0], Y[:0]), ValueError, "at least one sample"),
        ([], ValueError, "at least one sample"),
        (X, TypeError, "got Tensor"),
        (iter([(X, Y)]), TypeError, "got list_iterator"),
        ([X], TypeError, r"pairs \(inputs, targets\), got a Tensor"),
        ([(X, Y, Y)], TypeError, "got a tuple of length 3"),
        ([("a", "b")], TypeError, "batches of tensors, got str"),
        ([(X, Y[:3])], ValueError, "as many targets as inputs"),
        ([(X, Y), ({"x": X}, Y)], ValueError, "that can be joined"),
    ],
)
def test_bad_data_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        take(data, None)


@pytest.mark.parametrize("name", ["samples", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bad_counts_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}`: expected a whole number"):
        take((X, Y), **{name: value})


class Counting(torch.utils.data.IterableDataset):
    """An endless stream that knows how many samples were asked of it."""

    def __init__(self):
        self.served = 0

    def __iter__(self):
        while True:
            self.served += 1
            yield torch.full((2,), float(self.served)), self.served


def test_all_samples_come_in_one_batch_without_a_batch_size():
    x = torch.arange(10.0)
    (batch,) = take((x, x), samples=7, batch_size=None)
    assert len(batch[0]) == 7
    (batch,) = take([(x, x), (x + 10, x)], samples=None, batch_size=None)
    assert torch.equal(batch[0], torch.arange(20.0))


@pytest.mark.parametrize("batch_size", [None, 4, 1000])
def test_no_more_is_read_of_a_stream_than_is_wanted(batch_size):
    stream = Counting()
    batches = take(stream, samples=8, batch_size=batch_size)
    inputs = torch.cat([inputs for inputs, _ in batches])
    assert torch.equal(inputs[:, 0], torch.arange(1.0, 9.0))
    assert stream.served <= 16  # one batch ahead at most


def test_numpy_s_whole_numbers_are_whole_numbers():
    x = torch.arange(6.0)
    batches = take((x, x), samples=np.int64(4), batch_size=np.int32(3))
    assert [len(inputs) for inputs, _ in batches] == [3, 1]


@pytest.mark.parametrize(
    "measure",
    [
        lambda model, data: landscape.grid(model, data, samples=99, size=3),
        lambda model, data: nudging.nudge(model, data, nudging.backprop(), "0", samples=99),
        lambda model, data: take(data, samples=99),
    ],
)
def test_the_warning_names_the_line_of_the_user(measure):
    model = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 20))
    with pytest.warns(UserWarning, match="up to 99 are drawn") as caught:
        measure(model, (X, Y))
    assert caught[0].filename == __file__


def test_a_model_that_hears_gets_the_labels_shifted_as_its_own_loss_has_them():
    config = transformers.WhisperConfig(
        vocab_size=20,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        num_mel_bins=4,
        max_source_positions=5,
        max_target_positions=8,
        pad_token_id=2,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=3,
    )
    model = transformers.WhisperForConditionalGeneration(config).double().eval()
    features = torch.randn(2, 4, 10, dtype=torch.float64)
    labels = torch.tensor([[5, 6, 7], [8, 9, -100]])
    batch = {"input_features": features, "labels": labels}

    ((inputs, targets),) = take(batch, None, model=model)
    assert inputs["decoder_input_ids"].tolist() == [[3, 5, 6], [3, 8, 9]]

    # All positions at once, as the model's own loss takes its mean.
    logits = call_model(model, inputs).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, model(**batch).loss, rtol=1e-12, atol=0)
