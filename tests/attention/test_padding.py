"""Padding masks: the same sentence, padded or not, has the same statistics."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import attention
from tests.attention.test_class_tokens import small_bert
from tests.helpers.attention_models import build

N_TOKENS, N_PADS = 6, 13
IDS = torch.tensor([[3, 14, 15, 9, 26, 5], [35, 8, 9, 7, 9, 3]])
PADS = torch.zeros(2, N_PADS, dtype=torch.long)
ONES = torch.ones_like(IDS)
RIGHT = {"input_ids": torch.cat([IDS, PADS], 1), "attention_mask": torch.cat([ONES, PADS], 1)}
LEFT = {"input_ids": torch.cat([PADS, IDS], 1), "attention_mask": torch.cat([PADS, ONES], 1)}

STATISTICS = [
    *("entropy", "normalised_entropy", "gini", "peak", "coverage", "mass_coverage"),
    *("participation", "head_similarity", "distance"),
]


def assert_same_statistics(found, expected, names=STATISTICS, *, rtol=1e-9):
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, err_msg=name)


@pytest.mark.parametrize("attention_way", ["eager", "sdpa"])
@pytest.mark.parametrize("queries", ["auto", "cls", "mean"])
def test_bert_with_pads(queries, attention_way):
    model = small_bert()
    model.set_attn_implementation(attention_way)
    expected = attention.capture(model, {"input_ids": IDS}, queries=queries)
    found = attention.capture(model, RIGHT, queries=queries)
    assert_same_statistics(found, expected)
    if queries != "mean":
        assert_same_statistics(found, expected, ["prefix_mass"])


def small_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5, n_positions=32
    )
    return transformers.GPT2LMHeadModel(config).double().eval()


def test_gpt2_with_pads_at_the_right():
    expected = attention.capture(small_gpt2(), {"input_ids": IDS})
    assert_same_statistics(attention.capture(small_gpt2(), RIGHT), expected)


def test_gpt2_with_pads_at_the_left():
    positions = (LEFT["attention_mask"].cumsum(1) - 1).clamp_min(0)
    expected = attention.capture(small_gpt2(), {"input_ids": IDS})
    found = attention.capture(small_gpt2(), {**LEFT, "position_ids": positions})
    assert_same_statistics(found, expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("at", ["left", "right"])
def test_encoder_of_torch_with_a_mask_of_padding(at, batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    tokens = torch.randn(2, N_TOKENS, 16).double()
    pads = torch.randn(2, N_PADS, 16).double()
    parts = [tokens, pads] if at == "right" else [pads, tokens]
    is_pad = [torch.zeros(2, N_TOKENS).bool(), torch.ones(2, N_PADS).bool()]
    hidden = torch.cat(is_pad if at == "right" else is_pad[::-1], 1)

    def arranged(x):
        return x if batch_first else x.transpose(0, 1)

    expected = attention.capture(model, {"src": arranged(tokens)})
    padded = {"src": arranged(torch.cat(parts, 1)), "src_key_padding_mask": hidden}
    found = attention.capture(model, padded)
    assert_same_statistics(found, expected)


def test_batches_padded_to_unequal_lengths_give_what_each_sentence_gives_alone():
    model = small_bert()
    lengths = [4, 6, 3, 5]
    sentences = [
        torch.randint(60, (1, n), generator=torch.Generator().manual_seed(n)) for n in lengths
    ]
    batches = [pad(sentences[:2]), pad(sentences[2:])]
    for queries in ("auto", "mean"):
        found = attention.capture(model, batches, queries=queries)
        for index, sentence in enumerate(sentences):
            alone = attention.capture(model, {"input_ids": sentence}, queries=queries)
            assert_same_statistics(found.isel(sample=[index]), alone)


def pad(sentences):
    longest = max(sentence.shape[1] for sentence in sentences)
    ids = torch.zeros(len(sentences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sentence in enumerate(sentences):
        ids[row, : sentence.shape[1]] = sentence
        mask[row, : sentence.shape[1]] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(len(sentences))}


def test_single_rows_of_padding_have_no_statistics_but_maps_stay():
    model = small_bert()
    whole = attention.capture(model, RIGHT, queries="all", keys="all", maps=True)
    some = attention.capture(model, RIGHT, queries=[2, 10], keys="all", maps=True)
    assert whole["gini"].isel(query=slice(N_TOKENS)).notnull().all()
    assert whole["gini"].isel(query=slice(N_TOKENS, None)).isnull().all()
    np.testing.assert_allclose(some["gini"], whole["gini"].isel(query=[2, 10]), rtol=1e-12)

    # Maps are the model's own.
    with torch.no_grad():
        maps = torch.stack(model(**RIGHT, output_attentions=True).attentions, 1).numpy()
    np.testing.assert_allclose(whole["weight"].fillna(0), maps, atol=1e-14)
    np.testing.assert_allclose(some["weight"].fillna(0), maps[..., [2, 10], :], atol=1e-14)


def test_the_mean_map_is_that_of_the_rows_that_count():
    model = small_bert()
    found = attention.capture(model, RIGHT, queries="mean", maps=True)["weight"]
    expected = attention.capture(model, {"input_ids": IDS}, queries="mean", maps=True)["weight"]
    np.testing.assert_allclose(found.isel(key=slice(N_TOKENS)), expected, rtol=1e-9)
    assert found.isel(key=slice(N_TOKENS, None)).isnull().all()


def test_capturing_heeds_the_mask_of_the_call():
    model = small_bert()
    with torch.no_grad(), attention.capturing(model, queries="mean") as recording:
        model(**RIGHT)
    expected = attention.capture(model, {"input_ids": IDS}, queries="mean")
    assert_same_statistics(recording.dataset(), expected)


def test_a_decoder_has_a_mask_of_its_own_even_at_the_encoder_s_length():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    model = transformers.T5Model(config).double().eval()
    second = IDS.flip(1)
    expected = attention.capture(model, {"input_ids": IDS, "decoder_input_ids": second})
    twice = {f"decoder_{name}": value for name, value in RIGHT.items()}
    twice["decoder_input_ids"] = torch.cat([second, PADS], 1)
    found = attention.capture(model, RIGHT | twice)
    assert_same_statistics(found, expected, rtol=1e-6)  # T5's softmax has been one of float32

    # Without a mask of its own, all of the decoder's rows count, as do 19 tokens that are real.
    del twice["decoder_attention_mask"]
    found = attention.capture(model, RIGHT | twice)
    whole = attention.capture(model, RIGHT | twice, queries="all")
    in_decoder = ["decoder" in name for name in whole["layer"].values]
    assert sum(in_decoder) == 2
    np.testing.assert_allclose(
        found["entropy"].values[:, in_decoder],
        whole["entropy"].mean("query").values[:, in_decoder],
        rtol=1e-12,
    )
    assert (
        whole["entropy"].values[:, in_decoder].size
        == whole["entropy"].notnull().values[:, in_decoder].sum()
    )


def test_a_decoder_without_a_mask_is_padded_behind_its_last_label():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=60,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    labels = IDS[:, :4]
    expected = attention.capture(model, {"input_ids": IDS, "labels": labels})

    # As transformers' own collator pads labels.
    padded_labels = torch.cat([labels, torch.full_like(PADS, -100)], 1)
    found = attention.capture(model, RIGHT | {"labels": padded_labels})
    assert_same_statistics(found, expected, rtol=1e-6)  # T5's softmax has been one of float32


def test_a_class_token_that_is_padding_is_refused():
    with pytest.raises(ValueError, match=r"the first position of a sample is padding; pad at the"):
        attention.capture(small_bert(), LEFT)
    assert attention.capture(small_bert(), LEFT, queries="mean")["gini"].notnull().all()


def test_a_mask_that_hides_nothing_changes_nothing():
    model, x, _ = build("hf bert eager")
    ids = x["input_ids"]
    expected = attention.capture(model, {"input_ids": ids}, queries="mean")
    found = attention.capture(
        model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, queries="mean"
    )
    np.testing.assert_array_equal(found["gini"], expected["gini"])
