"""Corpora: split by position, known by the training part, and described before they are used."""

import random
import warnings

import numpy as np
import pytest
import torch

from lab.data import text
from lab.data.text_report import LENGTHS, degenerate, report, show

PROSE = text.documentation()[:20_000]


def test_parts_are_consecutive_and_the_vocabulary_is_that_of_training():
    body = "abcaz" * 80 + "acb" * 67 + "bcy" * 67  # 400 + 201 + 201: y comes last only
    corpus = text.split(body, name="x", shares=(0.5, 0.25, 0.25))
    assert corpus.vocabulary == "abcz"
    assert corpus.decode(corpus.train) == body[:401]
    assert corpus.decode(corpus.calibration) == body[401:602].replace("y", "")
    assert corpus.decode(corpus.validation) == body[602:].replace("y", "")
    assert corpus.unknown == (0, body[401:602].count("y"), body[602:].count("y"))

    with pytest.warns(UserWarning, match="34% of validation has characters that training lacks"):
        report(corpus)


def test_windows_tile_the_text_and_targets_are_one_later():
    ids = torch.arange(1000, 1000 + 64 * 3 + 1)
    x, y = text.windows(ids)
    assert torch.equal(x.flatten(), ids[:-1])
    assert torch.equal(y.flatten(), ids[1:])
    assert len(text.windows(ids[:-1])[0]) == 2  # the last window would lack its last target


def test_report_agrees_with_sets_of_strings():
    corpus = text.split(PROSE, name="prose")
    found = report(corpus)
    parts = {p: corpus.decode(getattr(corpus, p)) for p in text.PARTS}
    for part, body in parts.items():
        for n in LENGTHS:
            grams = [body[i : i + n] for i in range(len(body) - n + 1)]
            seen = {parts["train"][i : i + n] for i in range(len(parts["train"]) - n + 1)}
            cell = found.sel(part=part, length=n)
            assert cell["contexts"] == len(set(grams))
            assert cell["overlap"] == pytest.approx(np.mean([g in seen for g in grams]), abs=1e-15)

        tiles = [body[i : i + 64] for i in range(0, len(body) - 63, 64)]
        share = np.mean([tile in parts["train"] for tile in tiles])
        assert found["window_overlap"].sel(part=part) == pytest.approx(share)

        matches = [
            np.mean([a == b for a, b in zip(body, body[k:], strict=False)]) for k in range(1, 9)
        ]
        lag, match = (found[name].sel(part=part).item() for name in ("lag", "lag_match"))
        assert match >= 0.9 * max(matches)
        assert lag > 8 or match == pytest.approx(matches[int(lag) - 1])
        assert np.isnan(found["period"].sel(part=part))

    assert "distinct characters" in show(found)


@pytest.mark.parametrize("period", [1, 7, 57])
def test_an_exact_period_is_found(period):
    block = [random.Random(period).randrange(30) for _ in range(period - 1)] + [31]
    body = "".join(chr(65 + i) for i in block) * (4000 // period)
    with pytest.warns(UserWarning, match="degenerate corpus"):
        found = report(text.split(body[:3000], name="x"))
    assert found["period"].values.tolist() == [period] * 3


def test_the_periodic_corpus_of_thirty_characters_raises_the_warning():
    corpus = text.periodic()
    assert len(corpus.vocabulary) == 30
    assert corpus.unknown == (0, 0, 0)
    with pytest.warns(UserWarning, match="train repeats itself every 57 characters"):
        report(corpus)


def test_a_nearly_periodic_text_and_a_repeated_one_raise_it_too():
    rng = random.Random(0)
    noisy = "".join(rng.choice("abcdefgh") if rng.random() < 0.2 else c for c in PROSE[:40] * 100)
    with pytest.warns(UserWarning, match="of train repeats itself after 40 characters"):
        report(text.split(noisy, name="noisy"))
    with pytest.warns(UserWarning, match="100% of the validation windows occur in training"):
        report(text.encode([PROSE, PROSE[:1000], PROSE[:1000]], name="copied"))


def test_real_text_raises_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert degenerate(report(text.split(PROSE, name="prose"))) == []


def test_the_default_corpus_keeps_a_paragraph_once():
    paragraphs = text.documentation().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs))
    assert sum(map(len, paragraphs)) > 100_000


def test_a_file_is_read_and_nothing_stands_in_for_it(tmp_path):
    path = tmp_path / "text.txt"
    with pytest.raises(FileNotFoundError, match=r"`text`: no file .*text\.txt"):
        text.load(path)

    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="got an empty text"):
        text.load(path)

    path.write_text("too short", encoding="utf-8")
    with pytest.raises(ValueError, match="expected at least 65 known characters for train"):
        text.load(path)

    path.write_text(PROSE, encoding="utf-8")
    assert text.load(path).name == "text.txt"


@pytest.mark.parametrize("shares", [(1, 0, 0), (0.5, 0.5), (0.5, 0.2, 0.2), (1.2, -0.1, -0.1)])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ValueError, match="`shares`: expected three positive numbers of sum 1"):
        text.split(PROSE, name="x", shares=shares)


def test_too_few_characters_for_a_window_are_refused():
    with pytest.raises(ValueError, match="`ids`: expected at least 65, got 64"):
        text.windows(torch.arange(64))
