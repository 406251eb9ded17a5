"""One pass and its tables against routing token by token, in plain Python."""

import math

import numpy as np
import pytest
import torch

import probes
from tests.helpers.exit_models import BLOCKS, sharpened, text
from tests.helpers.exit_records import sure_share

THRESHOLDS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.8, 1.01)


def logits_by_hand(model, ids):
    """`(layer, sample, token, class)` in float64, and the states before and after each block."""
    x, logits, states = model.embed(ids), [], []
    for block in model.blocks:
        states.append((x, block(x)))
        x = states[-1][1]
        logits.append(model.head(x))
    return torch.stack(logits).detach(), [(a.detach(), b.detach()) for a, b in states]


def one_token(layers, before_after, goal):
    """Loss, prediction and confidences of one token at every layer, with math alone."""
    rows, row_count, previous = [], 0, None
    for logits, (a, b) in zip(layers, before_after, strict=True):
        z = [float(v) for v in logits]
        top = max(z)
        total = math.fsum(math.exp(v - top) for v in z)
        p = [math.exp(v - top) / total for v in z]
        order = sorted(p, reverse=True)
        entropy = -math.fsum(q * math.log(q) for q in p if q > 0)
        guess = z.index(top)
        row_count = row_count + 1 if guess == previous else 1
        previous = guess
        dot = math.fsum(float(u) * float(v) for u, v in zip(a, b, strict=True))
        norms = math.sqrt(sum(float(u) ** 2 for u in a)) * math.sqrt(sum(float(v) ** 2 for v in b))
        sure = {
            "max softmax": order[0],
            "margin": order[0] - order[1],
            "entropy": 1 - entropy / math.log(len(p)),
            "cosine": max(0.0, dot / norms),
            "patience": row_count / len(layers),
        }
        rows.append((-math.log(p[goal]), guess, sure))
    return rows


def brute_force(model, ids, y):
    logits, states = logits_by_hand(model, ids)
    return [
        (
            one_token(
                logits[:, i, t],
                [(a[i, t], b[i, t]) for a, b in states],
                int(y[i, t]),
            ),
            int(y[i, t]),
            i,
        )
        for i in range(len(ids))
        for t in range(ids.shape[1])
    ]


@pytest.mark.parametrize(("batch_size", "logits"), [(None, 2**20), (1, 2**20), (3, 40)])
def test_tables_equal_routing_token_by_token(batch_size, logits, monkeypatch):
    monkeypatch.setattr(
        "probes._exit_analysis.token_statistics._LOGITS_PER_HEAD_CALL", logits
    )  # 40: three tokens at a time
    monkeypatch.setattr("probes._exit_analysis.token_statistics._LOGITS_PER_CHUNK", logits // 2)
    model, (ids, y) = sharpened(), text(samples=5)
    found = probes.exits(model, (ids, y), BLOCKS, thresholds=THRESHOLDS, batch_size=batch_size)
    tokens = brute_force(model, ids, y)
    opened = {"blocks.0": [0], "blocks.1": [1], "any": [0, 1]}
    spread = set()
    for measure in found["measure"].values:
        for name, exits in opened.items():
            for tau in THRESHOLDS:
                losses, hits, agreed, left = [], [], [], []
                for rows, goal, _ in tokens:
                    at = next((e for e in exits if rows[e][2][measure] >= tau), 2)
                    losses.append(rows[at][0])
                    hits.append(rows[at][1] == goal)
                    agreed.append(rows[at][1] == rows[2][1])
                    left.append(at)
                n = len(tokens)
                row = found.sel(measure=measure, exit=name, threshold=tau)
                mean = math.fsum(losses) / n
                assert row["cross_entropy"] == pytest.approx(mean, rel=1e-12)
                assert row["perplexity"] == pytest.approx(math.exp(mean), rel=1e-12)
                assert row["accuracy"] == pytest.approx(sum(hits) / n)
                assert row["agreement"] == pytest.approx(sum(agreed) / n)
                assert row["shallow"] == pytest.approx(sum(at < 2 for at in left) / n)
                assert row["compute"] == pytest.approx(sum((at + 1) / 3 for at in left) / n)
                spread.add(round(float(row["shallow"]), 3))
    assert len(spread) > 10  # the thresholds do divide the tokens


def test_fixed_random_and_oracle_rows():
    model, (ids, y) = sharpened(), text(samples=5)
    found = probes.exits(model, (ids, y), BLOCKS, thresholds=THRESHOLDS)
    tokens = brute_force(model, ids, y)
    losses = np.array([[row[0] for row in rows] for rows, _, _ in tokens])
    fixed = losses.mean(0)
    np.testing.assert_allclose(found["fixed_cross_entropy"], fixed, rtol=1e-12)
    np.testing.assert_allclose(found["fixed_perplexity"], np.exp(fixed), rtol=1e-12)
    np.testing.assert_allclose(
        found["oracle_cross_entropy"],
        [losses[:, [0, 2]].min(1).mean(), losses[:, [1, 2]].min(1).mean(), losses.min(1).mean()],
        rtol=1e-12,
    )
    right = np.array([[row[1] == goal for row in rows] for rows, goal, _ in tokens])
    for exit_, opened in (("blocks.0", [0, 2]), ("blocks.1", [1, 2]), ("any", [0, 1, 2])):
        row = found.sel(exit=exit_)
        assert row["oracle_accuracy"] == pytest.approx(right[:, opened].any(1).mean())
        earlier = losses[:, opened[:-1]].min(1) <= losses[:, 2]
        assert row["oracle_shallow"] == pytest.approx(earlier.mean())
        expected = row["left"].values @ right.mean(0)
        np.testing.assert_allclose(row["random_accuracy"], expected, rtol=1e-12)
    s = found["shallow"].sel(exit="blocks.1")
    closed_form = s * np.log(np.exp(fixed[1])) + (1 - s) * np.log(np.exp(fixed[2]))
    log_random = np.log(found["random_perplexity"].sel(exit="blocks.1"))
    np.testing.assert_allclose(log_random, closed_form, rtol=1e-12)
    # All ways in which as many tokens could leave, on average: simulated.
    row = found.sel(measure="max softmax", exit="any", threshold=0.5)
    rng = np.random.default_rng(0)
    left = rng.choice(3, p=row["left"].values, size=(2000, len(losses)))
    simulated = losses[np.arange(len(losses)), left].mean(1)
    error = simulated.std() / math.sqrt(len(simulated))
    assert abs(simulated.mean() - float(row["random_cross_entropy"])) < 4 * error


def test_ends_are_exact_and_the_oracle_is_best():
    found = probes.exits(sharpened(), text(), BLOCKS, thresholds=[-1, 0, 1.0000001, 7])
    for kind in ("cross_entropy", "perplexity", "accuracy", "cross_entropy_se"):
        fixed = found[f"fixed_{kind}"]
        for exit_, layer in (("blocks.0", 0), ("blocks.1", 1), ("any", 0)):
            row = found[kind].sel(exit=exit_)
            assert (row[:2] == fixed[layer]).all()
            assert (row[2:] == fixed[2]).all()
    assert (found["shallow"][:2] == 1).all()
    assert (found["shallow"][2:] == 0).all()
    assert (found["compute_with_head"].sel(measure="cosine")[2:] == 1).all()
    best = found["oracle_cross_entropy"]
    assert (best <= found["cross_entropy"]).all()
    assert (best <= found["fixed_cross_entropy"][[0, 1, 0]].values).all()
    assert (best <= found["fixed_cross_entropy"][2]).all()


def test_patience_asks_every_head_on_its_way():
    record = sure_share(1.0, exit_at=1, head=1.0).assign_coords(measure=["patience"])
    row = probes.route_exits(record, thresholds=[0.9]).sel(exit="h.1").squeeze()
    # Two layers and two heads of three layers and one; a confidence would skip the first head.
    assert float(row["compute_with_head"]) == 4 / 4
    assert float(row["compute"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("shallow", "percent"), [(0.524, 65.1), (0.72, 52.0), (0.863, 42.5)])
def test_published_compute(shallow, percent):
    row = probes.route_exits(sure_share(shallow), thresholds=[0.9]).sel(exit="h.0").squeeze()
    assert float(row["compute"]) == pytest.approx(1 - shallow * (1 - 1 / 3))
    assert round(100 * float(row["compute"]), 1) == percent


def test_a_confidence_equal_to_the_threshold_is_enough():
    # 300 tokens have a confidence of 1, all others of 0.
    routes = probes.route_exits(sure_share(0.3), thresholds=[0, 1, np.nextafter(1, 2)])
    assert routes["shallow"].sel(exit="h.0").values.ravel().tolist() == [1, 0.3, 0]


def test_a_head_worth_68_layers_makes_exits_dearer_than_the_model():
    # Width 64 and 69,830 classes: 16 d^2 operations a layer, V d for the head; exit 2 of 4.
    layer, head = 16 * 64**2, 69_830 * 64
    assert round(head / layer) == 68
    record = sure_share(0.704, layers=4, exit_at=1, body=layer, head=head)
    routes = probes.route_exits(record, thresholds=[0.9])
    fixed = [(depth * layer + head) / (4 * layer + head) for depth in (1, 2, 3, 4)]
    np.testing.assert_allclose(routes["fixed_compute_with_head"], fixed)
    row = routes.sel(exit="h.1").squeeze()
    assert float(row["compute"]) == pytest.approx(0.648)
    assert float(row["compute_with_head"]) == pytest.approx(1.26, abs=0.002)
    by_hand = (2 * layer + head + 0.296 * (2 * layer + head)) / (4 * layer + head)
    assert float(row["compute_with_head"]) == pytest.approx(by_hand)


def test_standard_errors_are_those_over_samples():
    model, (ids, y) = sharpened(), text(samples=40)
    found = probes.exits(model, (ids, y), BLOCKS, thresholds=[0.5])
    record = probes.record_exits(model, (ids, y), BLOCKS)
    rng = np.random.default_rng(0)
    drawn = {"cross_entropy": [], "gain": []}
    for _ in range(300):
        chosen = rng.integers(0, 40, 40)
        tokens = np.concatenate([np.flatnonzero(record["sample"] == i) for i in chosen])
        again = record.isel(token=tokens).assign_coords(sample=("token", np.repeat(range(40), 9)))
        row = probes.route_exits(again, thresholds=[0.5])
        row = row.sel(measure="max softmax", exit="any")
        for name, values in drawn.items():
            values.append(float(row[name].item()))
    row = found.sel(measure="max softmax", exit="any")
    for name, values in drawn.items():  # 300 resamples know a deviation to 4 %
        assert float(row[f"{name}_se"].item()) == pytest.approx(np.std(values), rel=0.15)
