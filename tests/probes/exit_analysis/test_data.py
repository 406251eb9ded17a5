"""What data and models an exit analysis takes: streams, unequal lengths, mappings, keywords."""

import numpy as np
import pytest
import torch
import transformers
import xarray as xr
from torch import nn
from torch.utils.data import IterableDataset

import probes
from tests.helpers.exit_models import BLOCKS, gpt2, sharpened, text, text_model


class Stream(IterableDataset):
    """Samples one after the other, over and over if it is endless; counts what was read."""

    def __init__(self, inputs, targets, *, endless):
        self.inputs, self.targets, self.endless = inputs, targets, endless
        self.n_read = 0

    def __iter__(self):
        while True:
            for sample in zip(self.inputs, self.targets, strict=True):
                self.n_read += 1
                yield sample
            if not self.endless:
                return


def test_samples_of_an_endless_stream_are_its_first():
    model, (ids, y) = sharpened(), text(samples=7)
    stream = Stream(ids, y, endless=True)

    record = probes.record_exits(model, stream, BLOCKS, samples=5)

    xr.testing.assert_identical(record, probes.record_exits(model, (ids[:5], y[:5]), BLOCKS))
    assert stream.n_read <= 200  # a few batches ahead at most, not as many as memory holds


def test_a_stream_that_ends_is_taken_whole():
    model, (ids, y) = sharpened(), text(samples=7)
    stream = Stream(ids, y, endless=False)

    analysis = probes.exits(model, stream, BLOCKS, thresholds=[0.3, 0.6])

    expected = probes.exits(model, (ids, y), BLOCKS, thresholds=[0.3, 0.6])
    xr.testing.assert_identical(analysis, expected)
    assert analysis.attrs["n_samples"] == 7


@pytest.mark.parametrize("batch_size", [None, 2])
def test_batches_of_unequal_length_are_recorded_as_if_each_came_alone(batch_size):
    model, short, long = sharpened(), text(samples=3, tokens=4), text(samples=5, tokens=9, seed=1)

    record = probes.record_exits(model, [short, long], BLOCKS, batch_size=batch_size)

    alone = [probes.record_exits(model, data, BLOCKS) for data in (short, long)]
    for name in ("cross_entropy", "prediction", "confidence", "position", "target"):
        expected = np.concatenate([part[name].values for part in alone], axis=-1)
        np.testing.assert_allclose(record[name], expected, rtol=1e-12)
    samples = np.repeat(range(8), [4] * 3 + [9] * 5)
    np.testing.assert_array_equal(record["sample"], samples)
    assert record.attrs["n_samples"] == 8


def test_a_mapping_with_labels_and_a_flag_is_understood():
    model, (ids, y) = gpt2(), text(samples=5)
    whole_text = torch.cat([ids, y[:, -1:]], 1)
    layers = "transformer.h.*"

    batch = {"input_ids": whole_text, "labels": whole_text, "use_cache": False}
    record = probes.record_exits(model, batch, layers)

    # Its own loss compares each position with the next label, so that the last one has none.
    expected = probes.record_exits(model, (ids, y), layers)
    np.testing.assert_array_equal(record["target"], expected["target"])
    np.testing.assert_allclose(record["cross_entropy"], expected["cross_entropy"], rtol=1e-4)


def test_targets_that_are_no_tensor_are_refused():
    ids, y = text()
    with pytest.raises(TypeError, match="expected class indices as targets, got a dict"):
        probes.record_exits(text_model(), [(ids, {"y": y})], BLOCKS)
    with pytest.raises(ValueError, match="got floating numbers"):
        probes.record_exits(text_model(), (ids, y.double()), BLOCKS)


class Rotated(nn.Module):
    """A layer that gets its input by keyword, after a pair of tensors of the same shape."""

    def forward(self, *, rotation, x):
        cosines, sines = rotation
        return x * cosines + x.roll(1, -1) * sines


class RotatedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)
        self.blocks = nn.ModuleList([Rotated(), Rotated()])

    def forward(self, ids):
        x = self.embed(ids)
        angles = torch.linspace(0, 1, x.numel(), dtype=x.dtype).view_as(x)
        for block in self.blocks:
            x = block(rotation=(angles.cos(), angles.sin()), x=x)
        return self.head(x)


def test_a_layers_input_is_its_plain_tensor_not_one_in_a_tuple():
    torch.manual_seed(0)
    model, (ids, y) = RotatedModel().double(), text()

    record = probes.record_exits(model, (ids, y), "blocks.*", batch_size=len(ids))

    x = model.embed(ids)
    angles = torch.linspace(0, 1, x.numel(), dtype=x.dtype).view_as(x)
    after = x * angles.cos() + x.roll(1, -1) * angles.sin()
    expected = nn.functional.cosine_similarity(x, after, dim=-1).clamp(min=0).flatten()
    cosine = record["confidence"].sel(measure="cosine", layer="blocks.0")
    np.testing.assert_allclose(cosine, expected.detach(), rtol=1e-12)


def test_logits_under_a_key_are_found_behind_other_tensors():
    class WithLoss(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return {"loss": torch.zeros(()), "logits": self.model(ids)}

    model, data = sharpened(), text()
    layers = [f"model.{name}" for name in BLOCKS]

    record = probes.record_exits(WithLoss(model), data, layers)

    expected = probes.record_exits(model, data, BLOCKS)
    np.testing.assert_array_equal(record["cross_entropy"], expected["cross_entropy"])
    np.testing.assert_array_equal(record["confidence"], expected["confidence"])


def small_classifier(kind, pad_id):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=3,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=pad_id,
    )
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).double().eval()


@pytest.mark.parametrize("kind", ["GPT2", "Bert"])
def test_a_classifier_of_padded_texts_gives_what_each_text_gives_alone(kind):
    # One reads the last token of a text, the other the first; both look at no padding.
    model = small_classifier(kind, pad_id=0)
    texts = [torch.tensor([ids]) for ids in ([3, 4, 5], [6, 7, 8, 9, 10], [11, 12])]
    y = torch.tensor([0, 2, 1])
    alone = [
        probes.record_exits(model, {"input_ids": ids, "labels": y[row : row + 1]})
        for row, ids in enumerate(texts)
    ]

    ids = torch.zeros(3, 9, dtype=torch.long)
    for row, text_ids in enumerate(texts):
        ids[row, : text_ids.shape[1]] = text_ids[0]
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": y}
    together = probes.record_exits(model, batch)

    for name in ("cross_entropy", "prediction", "confidence"):
        expected = np.concatenate([record[name].values for record in alone], axis=-1)
        np.testing.assert_allclose(together[name], expected, rtol=1e-9, err_msg=name)
