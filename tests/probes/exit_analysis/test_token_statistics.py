import numpy as np
import pytest
import torch
from scipy.stats import entropy

from probes._exit_analysis.token_statistics import (
    _statistics_of_chunk,
    cosine_of_states,
    logits_in_chunks,
    patience,
    token_statistics,
)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("classes", [2, 7, 300_000])  # the last is wider than what is seen at once
def test_numbers_are_those_of_scipy(classes, dtype, rtol):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(9, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, classes, (9,), generator=generator)
    (loss, top, margin, sure), guess = token_statistics(logits.to(dtype), targets)
    p = torch.softmax(logits, -1).numpy()
    ordered = np.sort(p, axis=-1)
    np.testing.assert_allclose(loss, -np.log(p[range(9), targets]), rtol=rtol, atol=1e-7)
    np.testing.assert_allclose(top, ordered[:, -1], rtol=rtol)
    np.testing.assert_allclose(margin, ordered[:, -1] - ordered[:, -2], rtol=rtol, atol=1e-7)
    np.testing.assert_allclose(
        sure, 1 - entropy(p, axis=-1) / np.log(classes), rtol=rtol, atol=1e-6
    )
    assert guess.tolist() == p.argmax(-1).tolist()


def test_half_precision_is_counted_in_float32(monkeypatch):
    monkeypatch.setattr(
        "probes._exit_analysis.token_statistics._LOGITS_PER_CHUNK", 1000
    )  # two rows of 500 at a time
    seen = []
    monkeypatch.setattr(
        "probes._exit_analysis.token_statistics._statistics_of_chunk",
        lambda x, y: seen.append(x.numel()) or _statistics_of_chunk(x, y),
    )
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 500, generator=generator).bfloat16()
    targets = torch.randint(0, 500, (9,), generator=generator)
    numbers, _ = token_statistics(logits, targets)
    expected, _ = token_statistics(logits.double(), targets)
    torch.testing.assert_close(numbers.double(), expected, rtol=1e-5, atol=1e-6)
    assert max(seen) == 1000


def test_impossible_classes_and_certainty():
    logits = torch.tensor([[0.0, -torch.inf, 0.0], [1e4, 0.0, 0.0]], dtype=torch.float64)
    (loss, top, margin, sure), _ = token_statistics(logits, torch.tensor([1, 0]))
    assert loss.tolist() == [np.inf, 0]
    assert top.tolist() == [0.5, 1]
    assert margin.tolist() == [0, 1]
    assert sure.tolist() == pytest.approx([1 - np.log(2) / np.log(3), 1])


def test_patience_counts_agreement_in_a_row():
    guesses = torch.tensor([[1, 1, 1], [1, 2, 2], [1, 2, 1], [1, 3, 1]])
    expected = torch.tensor([[1, 1, 1], [2, 1, 1], [3, 2, 1], [4, 1, 2]]) / 4
    torch.testing.assert_close(patience(guesses), expected.double())


def test_cosine_of_places():
    a = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]])
    b = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]])
    torch.testing.assert_close(
        cosine_of_states(a, b, by_token=True), torch.tensor([[1.0, 0.5**0.5, 0.0]])
    )
    whole = torch.tensor([(2 + 3 - 1) / (4**0.5 * 14**0.5)])
    torch.testing.assert_close(cosine_of_states(a, b, by_token=False), whole)
    assert cosine_of_states(a[..., :1], b, by_token=True).isnan().all()
    assert cosine_of_states(None, b, by_token=True).shape == (1, 3)


@pytest.mark.parametrize("by_token", [True, False])
def test_chunks_are_small_and_in_order(by_token, monkeypatch):
    monkeypatch.setattr("probes._exit_analysis.token_statistics._LOGITS_PER_HEAD_CALL", 20)
    hidden = torch.randn(5, 4, 3)
    kept = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)) > 0.4
    sizes = []

    def head(x):
        sizes.append(x[..., :1].numel() * 5)
        return torch.cat([x, x[..., :2]], -1)

    found = torch.cat(list(logits_in_chunks(hidden, kept, 5, head, by_token=by_token)))
    assert torch.equal(found, torch.cat([hidden, hidden[..., :2]], -1)[kept])
    assert len(sizes) > 1
    assert max(sizes) <= 20
