"""What `attention.capture` takes as data, and how several batches are joined."""

from collections import UserDict

import numpy as np
import pytest
import torch
import transformers
import xarray as xr
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import attention
from tests.helpers.attention_models import build
from tests.helpers.small_vit import small_vit

X = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(7) % 3


class Images(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row], Y[row]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


SOURCES = {
    "tensor": X,
    "numpy": X.numpy(),
    "pair": (X, Y),
    "pair without targets": (X, None),
    "mapping": {"x": X},
    "mapping with labels": {"x": X, "labels": Y},
    "mapping with a column of no use": {"x": X, "name": ["a"] * 7, "number": Y},
    "encoding": UserDict(x=X, labels=Y),
    "loader of pairs": DataLoader(TensorDataset(X, Y), batch_size=3),
    "loader of inputs": DataLoader(TensorDataset(X), batch_size=3),
    "shuffled loader": DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
    "dataset": Images(),
    "stream": Stream(),
    "list of pairs": [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "list of inputs": [X[:3], X[3:5], X[5:]],
    "list of mappings": [{"x": X[:3]}, {"x": X[3:]}],
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_vit().double().eval()


@pytest.fixture(scope="module")
def expected(model):
    """Each image by itself."""
    singly = [attention.capture(model, X[i : i + 1], maps=True) for i in range(7)]
    return xr.concat(singly, "sample", coords="minimal", compat="override")


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_what_its_images_give_one_by_one(name, batch_size, model, expected):
    found = attention.capture(model, SOURCES[name], maps=True, batch_size=batch_size)

    assert found.attrs["n_samples"] == 7
    np.testing.assert_array_equal(found["sample"], range(7))
    for variable in expected.data_vars:
        np.testing.assert_allclose(found[variable], expected[variable], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dataset", "loader of pairs", "tensor", "mapping with labels"])
def test_samples_are_drawn_by_seed(name, model, expected):
    found = attention.capture(model, SOURCES[name], samples=3, seed=5)

    order = torch.randperm(7, generator=torch.Generator().manual_seed(5))
    rows = sorted(order[:3].tolist())
    np.testing.assert_allclose(found["entropy"], expected["entropy"].isel(sample=rows), rtol=1e-9)
    assert (found.attrs["seed"], found.attrs["n_samples"]) == (5, 3)


def test_a_batch_given_as_such_is_taken_whole_but_a_source_is_bounded():
    model = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    x = torch.randn(520, 2, 4)
    assert attention.capture(model, x).sizes["sample"] == 520
    assert attention.capture(model, (x, x[:, 0])).sizes["sample"] == 520
    loader = DataLoader(TensorDataset(x), batch_size=64)
    assert attention.capture(model, loader).sizes["sample"] == 500
    assert attention.capture(model, loader, samples=None).sizes["sample"] == 520


def test_several_arguments_are_a_tuple_in_a_pair_or_keywords():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    source, target = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    by_name = attention.capture(model, {"src": source, "tgt": target})
    assert list(by_name["n_queries"].values) == [5, 4, 4]

    targets = torch.zeros(3)
    for data in (
        ((source, target), None),
        ((source, target), targets),
        [((source[:2], target[:2]), targets[:2]), ((source[2:], target[2:]), targets[2:])],
    ):
        found = attention.capture(model, data)
        np.testing.assert_allclose(found["entropy"], by_name["entropy"], rtol=1e-4)

    # Three arrays cannot be inputs and targets.
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    alone = attention.capture(layer, (source, source, source))
    np.testing.assert_array_equal(
        alone["entropy"],
        attention.capture(layer, dict.fromkeys(("query", "key", "value"), source))["entropy"],
    )


def test_keywords_that_are_no_arrays_reach_the_model_as_they_are():
    model, x, _ = build("hf gpt2 sdpa")
    cache = transformers.DynamicCache(config=model.config)
    found = attention.capture(model, {**x, "past_key_values": cache, "use_cache": True})
    np.testing.assert_array_equal(found["entropy"], attention.capture(model, x)["entropy"])
    assert cache.get_seq_length() == x["input_ids"].shape[1]


def test_labels_of_an_encoder_decoder_become_its_decoder_s_inputs():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids, labels = torch.randint(1, 50, (2, 5)), torch.randint(1, 50, (2, 3))
    found = attention.capture(model, {"input_ids": ids, "labels": labels})

    shifted = torch.cat([torch.zeros(2, 1, dtype=torch.long), labels[:, :-1]], 1)
    expected = attention.capture(model, {"input_ids": ids, "decoder_input_ids": shifted})
    np.testing.assert_array_equal(found["entropy"], expected["entropy"])


def pieces_of_unequal_length():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, n, 16, generator=generator).double() for n in (5, 8, 3)]


@pytest.mark.parametrize("queries", ["mean", "all", [0, 4]])
def test_batches_of_unequal_length_are_joined_with_nan_after_the_shorter(queries):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).double().eval()
    pieces = pieces_of_unequal_length()
    found = attention.capture(model, pieces, queries=queries, maps=True)

    assert found["n_keys"].values.tolist() == found["n_queries"].values.tolist() == [8]
    assert found["grid_width"].values.tolist() == [8]
    assert "prediction" not in found  # of several lengths
    for index, piece in enumerate(pieces):
        part = found.isel(sample=slice(2 * index, 2 * index + 2))
        alone = attention.capture(model, piece, queries=queries, maps=True)
        for name in alone.data_vars.keys() - {"prediction"}:
            padded = alone[name].drop_vars("sample").reindex_like(part[name].drop_vars("sample"))
            np.testing.assert_allclose(part[name], padded, rtol=1e-9, atol=1e-12)


def test_capturing_joins_passes_of_unequal_length_as_capture_does():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).double().eval()
    pieces = pieces_of_unequal_length()
    with torch.no_grad(), attention.capturing(model, queries="all", maps=True) as recording:
        for piece in pieces:
            model(piece)
    found = recording.dataset()
    expected = attention.capture(model, pieces, queries="all", maps=True)
    xr.testing.assert_identical(found.drop_attrs(), expected.drop_attrs())


def test_images_of_several_sizes_have_statistics_but_no_common_grid():
    torch.manual_seed(0)
    model = small_vit(dynamic_img_size=True).double().eval()
    pieces = [(X[:2], None), (X[2:4, :, :, :16], None)]
    found = attention.capture(model, pieces)
    for index, (piece, _) in enumerate(pieces):
        part = found.isel(sample=slice(2 * index, 2 * index + 2))
        alone = attention.capture(model, piece)
        np.testing.assert_allclose(part["entropy"], alone["entropy"], rtol=1e-9)
        np.testing.assert_allclose(part["distance"], alone["distance"], rtol=1e-9)
    assert found["grid_height"].isnull().all()


def test_outputs_of_positions_are_kept_of_one_batch_only():
    model, x, _ = build("hf gpt2 sdpa")
    assert "prediction" in attention.capture(model, x)
    assert "prediction" not in attention.capture(model, x, batch_size=1)
