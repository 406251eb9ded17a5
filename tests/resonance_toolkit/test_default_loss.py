"""The loss that targets ask for, beside numpy, and the targets that ask for none."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from resonance_toolkit import call_model, default_loss, leave_out_uncounted, name_of, take


def softmax_losses(logits, classes):
    """Cross-entropies by a loop over positions, the class axis last; NaN where none counts."""
    losses = np.full(classes.shape, np.nan)
    for place in np.ndindex(classes.shape):
        if classes[place] != -100:
            row = logits[place]
            losses[place] = np.log(np.exp(row - row.max()).sum()) + row.max() - row[classes[place]]
    return np.nanmean(losses.reshape(len(losses), -1), axis=1)


def draw(*shape, classes=3, ignored=()):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, classes, shape, generator=generator)
    for place in ignored:
        targets[place] = -100
    return logits, targets


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("column", [False, True])
def test_classes_of_every_whole_dtype_and_in_a_column(dtype, column):
    logits, targets = draw(5)
    given = targets.to(dtype)[:, None] if column else targets.to(dtype)
    losses = default_loss([given])(logits, given)
    np.testing.assert_allclose(losses, softmax_losses(logits.numpy(), targets.numpy()))


@pytest.mark.parametrize("class_axis", [1, -1])
@pytest.mark.parametrize("shape", [(4, 7), (4, 5, 6), (2, 2, 3, 4)])
def test_positions_are_averaged_over_those_that_count(shape, class_axis):
    logits, targets = draw(*shape, ignored=[(0, 0), (1, 1)])
    output = logits.movedim(-1, class_axis)
    losses = default_loss([targets])(output, targets)
    np.testing.assert_allclose(losses, softmax_losses(logits.numpy(), targets.numpy()))


def test_pixels_of_torchvision_s_segmentation_models():
    logits, targets = draw(2, 4, 5)
    output = {"out": logits.movedim(-1, 1), "aux": torch.zeros(2, 3, 4, 5)}
    losses = default_loss([targets])(output, targets)
    np.testing.assert_allclose(losses, softmax_losses(logits.numpy(), targets.numpy()))


def test_an_axis_that_could_be_either_is_refused():
    logits, targets = draw(2, 3)
    with pytest.raises(ValueError, match=r"class axis of outputs \(2, 3, 3\) could be the second"):
        default_loss([targets])(logits, targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64])
def test_several_labels_are_sigmoid_losses(dtype):
    logits = draw(4)[0]
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    loss = default_loss([labels.to(dtype)])

    losses = loss(logits, labels.to(dtype))

    probabilities = 1 / (1 + np.exp(-logits.numpy()))
    terms = np.where(labels.numpy() == 1, np.log(probabilities), np.log(1 - probabilities))
    np.testing.assert_allclose(losses, -terms.mean(1), rtol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_one_hot_rows_are_classes(dtype):
    logits, targets = draw(5)
    rows = F.one_hot(targets, 3).to(dtype)
    losses = default_loss([rows])(logits, rows)
    np.testing.assert_allclose(losses, softmax_losses(logits.numpy(), targets.numpy()))


def test_distributions_are_soft_cross_entropies():
    logits = draw(5)[0]
    shares = torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    shares /= shares.sum(1, keepdim=True)
    losses = default_loss([shares])(logits, shares)
    log_softmax = logits.numpy() - np.log(np.exp(logits.numpy()).sum(1, keepdims=True))
    np.testing.assert_allclose(losses, -(shares.numpy() * log_softmax).sum(1))


def test_the_meaning_is_settled_by_all_targets_together():
    # By itself the first batch could be classes, one-hot.
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    loss = default_loss([first, second])
    assert name_of(loss) == "binary_cross_entropy_with_logits"
    torch.testing.assert_close(loss(torch.zeros(1, 2), first), torch.tensor([np.log(2)]).float())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0.5, 8.4]), r"real numbers.*loss=torch.nn.functional.mse_loss"),
        (torch.tensor([[0.3, 0.3]]), "real numbers"),
        (torch.tensor([1.5, torch.nan]), "got NaN"),
        (torch.tensor([0, -1]), "classes of at least 0 .* got -1"),
        (torch.randn(4, 3), "real numbers"),
    ],
)
def test_targets_that_ask_for_no_loss_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        default_loss([targets])


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), r"expected classes 0 to 2 .* got 3"),
        (torch.zeros(2, 1), torch.tensor([0, 1]), "one output per sample is not a choice"),
        (torch.zeros(2, 3), torch.zeros(2, 5).long(), r"shape \(2, 5\) fit no loss .* \(2, 3\)"),
        (torch.zeros(2, 3), torch.ones(2, 4), r"shape \(2, 4\) fit no loss"),
    ],
)
def test_targets_that_do_not_fit_the_output_are_refused(logits, targets, message):
    loss = default_loss([targets])
    with pytest.raises(ValueError, match=message):
        loss(logits, targets)


def test_nested_targets_need_a_loss():
    with pytest.raises(TypeError, match="expected targets in one tensor, got tuple; give a `loss`"):
        default_loss([(torch.zeros(1), torch.zeros(1))])


def test_samples_without_a_target_that_counts_are_left_out():
    x = torch.arange(4)
    y = torch.tensor([[1, -100], [-100, -100], [-100, 2], [-100, -100]])
    ((inputs, targets),) = leave_out_uncounted([({"ids": x}, y), (x[:0], y[:0])][:1])
    assert inputs["ids"].tolist() == [0, 2]
    assert targets.tolist() == [[1, -100], [-100, 2]]
    with pytest.raises(ValueError, match="expected a target that counts, all are -100"):
        leave_out_uncounted([(x[1:2], y[1:2])])


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(intermediate_size=32, **SMALL)
    ),
    "mamba": lambda: transformers.MambaForCausalLM(
        transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=40)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=16,
            d_ff=32,
            d_kv=8,
            num_layers=1,
            num_heads=2,
            vocab_size=40,
            decoder_start_token_id=0,
        )
    ),
    "bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            vocab_size=40,
        )
    ),
    "masked bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(intermediate_size=32, **SMALL)
    ),
    "tagging bert": lambda: transformers.BertForTokenClassification(
        transformers.BertConfig(intermediate_size=32, num_labels=40, **SMALL)
    ),
    "bert": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(intermediate_size=32, num_labels=40, **SMALL)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(MODELS))
def test_the_labels_of_transformers_give_the_model_s_own_loss(name):
    torch.manual_seed(0)
    model: nn.Module = MODELS[name]().eval().double()
    ids = torch.randint(3, 40, (4, 6), generator=torch.Generator().manual_seed(1))
    labels = ids[:, 0] if name == "bert" else ids.clone()
    if name != "bert":
        labels[:, 4] = -100  # as many in every sample, or means over tokens and samples differ
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    ((inputs, targets),) = take(batch, samples=None, model=model)
    with torch.no_grad():
        own_loss = model(**batch).loss
        losses = default_loss([targets])(call_model(model, inputs), targets)

    assert losses.shape == (4,)
    torch.testing.assert_close(losses.mean().float(), own_loss.float())  # theirs in float32


def test_outputs_settle_what_zeros_and_ones_mean():
    one_hot = torch.eye(3).long()
    loss = default_loss([one_hot])
    assert loss.settle_meaning(torch.zeros(3, 3), one_hot) == "distributions"
    assert loss.settle_meaning({"logits": torch.zeros(3, 3, 2)}, one_hot) == "classes"
    assert loss.meaning == "classes"
