"""What the page says is what the tree holds; nothing else gets in, and nothing is loaded."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr

import resonance_toolkit as resonance
from resonance_toolkit._front.page import page as page_module
from tests.helpers.examined_trees import PARTS, make_tree


class Reader(HTMLParser):
    """The text of a page by section, and the numbers in it as (shown, exact)."""

    def __init__(self, html):
        super().__init__()
        self.section, self.skipped = "", 0
        self.text, self.numbers, self.links = {}, {}, []
        self.exact = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "section":
            self.section = attributes["id"]
        self.skipped += tag in ("script", "style")
        if tag == "data":
            self.exact = float(attributes["value"])
        self.links += [value for key, value in attrs if key in ("href", "src", "action")]

    def handle_endtag(self, tag):
        self.skipped -= tag in ("script", "style")

    def handle_data(self, data):
        if self.skipped:
            return
        self.text[self.section] = self.text.get(self.section, "") + " " + data.strip()
        if self.exact is not None:
            self.numbers.setdefault(self.section, []).append((data, self.exact))
            self.exact = None


@pytest.fixture(scope="module")
def tree():
    return make_tree()


@pytest.fixture(scope="module")
def html(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert resonance.page(tree, path) == path
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown(html):
    return Reader(html)


def test_the_answer_comes_first(tree, html, shown):
    top = shown.text[""]
    for name in ("verdict", "verdict_sentence", "verdict_rule", "verdict_remedy"):
        assert str(tree.attrs[name]) in top
    # An accuracy is a share in the tree, and in percentage points on the page.
    ends = [100 * tree.attrs[f"verdict_interval_{end}"] for end in ("low", "high")]
    assert "percentage points of held-out accuracy" in top
    assert [exact for _, exact in shown.numbers[""]] == ends
    assert html.index("verdict") < html.index("<table")


def test_every_part_has_its_status_time_reason_and_call(tree, shown):
    for part in PARTS:
        row = tree.dataset.sel(part=part)
        assert str(row["status"].item()) in shown.text["time"]
        assert str(row["reason"].item()) in shown.text["time"]
        assert str(row["call"].item()) in shown.text[part]
    assert [exact for _, exact in shown.numbers["time"]] == tree["seconds"].values.tolist()
    assert "stopped by the user" in shown.text["nudging"]  # there as well as in the table


def test_every_number_shown_is_one_of_the_trees(tree, shown):
    expected = numbers_by_hand(tree)
    for part in PARTS:
        exact = {number for _, number in shown.numbers[part]}
        wrong = [number for number in exact if not np.isclose(number, expected[part]).any()]
        assert not wrong, (part, wrong)
        assert len(exact) >= 4, part

    # And what is shown is what stands behind it, to three digits.
    for numbers in shown.numbers.values():
        for text, number in numbers:
            if " s" not in text and "min" not in text:
                assert as_number(text) == pytest.approx(number, rel=6e-3, abs=1e-12)


def numbers_by_hand(tree):
    """All numbers that a section may show, by numpy alone."""
    model, response, gradients, nudging = (
        tree[part].to_dataset(inherit=False)
        for part in ("model", "response", "gradients", "nudging")
    )
    final = {
        (name, arm): float(response[name].sel(arm=arm, step=300).values.mean())
        for name in ("accuracy", "loss")
        for arm in ("plain", "branches")
    }
    total = response["cosine_total"].values
    listening = response["listening_accuracy"].values
    squares = [(gradients[name].values ** 2).sum() for name in ("norm_aux", "norm_main")]
    change = nudging["loss_change"].values
    attention = tree["attention"].to_dataset(inherit=False)
    entropy = attention["normalised_entropy"].values
    surface = tree["landscape"]["loss"].values
    finite = surface[np.isfinite(surface)]
    smoothness, dilution = (tree[f"landscape/{n}"] for n in ("smoothness", "dilution"))
    return {
        "model": [float(model[name]) for name in model.data_vars if model[name].ndim == 0],
        "response": [
            *final.values(),
            *(float(response[n]) for n in response.data_vars if response[n].ndim == 0),
            *(total.mean(), total.min(), total.max()),
            *listening.mean((1, 2)),
        ],
        "gradients": [
            *(f(gradients["cosine_total"].values) for f in (np.mean, np.min, np.max)),
            gradients["conflict_share"].values.mean(),
            gradients["loss_main"].values.mean(),
            gradients["loss_aux"].values.mean(),
            np.sqrt(squares[0] / squares[1]),
        ],
        "landscape": [
            *(surface[10, 10], finite.min(), finite.max(), 0.006),
            *(smoothness["sharpness"].values),
            *(float(smoothness[name]) for name in ("mean_grad", "convex_share")),
            *(float(dilution["factor"]), float(dilution["change"][1])),
        ],
        "curvature": [9.7, -2.9, 41.5, 41.5 - 2 * 3.7, 41.5 + 2 * 3.7, 2 / 9.7, 0.31],
        "attention": [
            *(entropy.mean(), entropy.min(), entropy.max()),
            *(
                attention[n].values.mean()
                for n in ("gini", "peak", "mass_coverage", "head_similarity")
            ),
        ],
        "nudging": [
            *change.mean((1, 2)),
            *change.min((1, 2)),
            *change.max((1, 2)),
            *nudging["cosine"].values.mean(1),
        ],
    }


def as_number(text):
    text = text.replace("\u2212", "-").replace(",", "")
    digits, _, power = text.partition(" \u00d7 10")
    exponent = power.translate(
        str.maketrans(
            "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "-0123456789"
        )
    )
    return float(digits) * 10.0 ** int(exponent or 0)


def test_references_are_stated(tree, shown):
    # 16 patches of 17 keys; six batches over 8 layers of 4160 parameters each.
    assert f"uniform attention: {1 / 16:.3g}" in shown.text["attention"]
    assert f"two random directions: 0 \u00b1 {1 / np.sqrt(8 * 4160):.3g}" in shown.text["gradients"]
    assert "about 0: a random step" in shown.text["nudging"]
    for part in ("model", "response"):
        assert "chance is 0.1, for 10 equally frequent classes" in shown.text[part]
        assert f"gives ln 10 = {np.log(10):.3g}" in shown.text[part]
    # 20 branches at each of 4 layers; a coin's binary cross-entropy.
    assert f"80 of them; a branch that guesses has {np.log(2):.3g}" in shown.text["gradients"]


def test_layers_stand_side_by_side(tree, shown):
    numbers = [exact for _, exact in shown.numbers["layers"]]
    layers = tree["nudging"]["layer"].values
    rows = np.array(numbers).reshape(len(layers), -1)

    # Pooled by hand: inner products and squared norms add up inside of a block.
    part = tree["gradients"].to_dataset(inherit=False)
    pooled = [
        np.mean(
            part["dot"].values[:, [2 * i, 2 * i + 1]].sum(1)
            / np.sqrt((part["norm_main"].values[:, [2 * i, 2 * i + 1]] ** 2).sum(1))
            / np.sqrt((part["norm_aux"].values[:, [2 * i, 2 * i + 1]] ** 2).sum(1))
        )
        for i in range(len(layers))
    ]
    response = tree["response"].to_dataset(inherit=False)
    cosine = response["cosine"].values.mean((0, 1)).reshape(-1, 2).mean(1)
    listening = response["listening_accuracy"].values.mean(1)
    nudges = tree["nudging"]["loss_change"].values[..., 0]
    entropy = tree["attention"]["normalised_entropy"].values.mean((0, 2))
    expected = np.column_stack([cosine, *listening, pooled, *nudges, entropy])
    np.testing.assert_allclose(rows, expected)


def test_nothing_is_loaded_from_anywhere(html, shown):
    assert not re.search(r"https?:|[\"'(]//", html)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in shown.links)
    assert "default-src 'none'" in html
    assert len(html) < 3_000_000


def test_the_page_is_the_same_twice(tree, html, tmp_path):
    again = resonance.page(tree, tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == html


def test_parts_without_a_result_are_told_of(tree, tmp_path):
    status = tree.dataset["status"].values.astype(object)
    status[:] = "failed"
    root = tree.to_dataset().assign(
        status=("part", status.astype(str)), reason=("part", [f"reason {i}" for i in range(7)])
    )
    html = resonance.page(xr.DataTree(root), tmp_path / "x.html").read_text(encoding="utf-8")
    shown = Reader(html)
    for i, part in enumerate(PARTS):
        assert f"reason {i}" in shown.text["time"]
        assert f"reason {i}" in shown.text[part]
        assert "failed" in shown.text[part]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_with_one_variable_left_is_still_shown(tree, part, tmp_path):
    node = tree[part].to_dataset(inherit=False)
    name = "loss" if "loss" in node else next(iter(node.data_vars))
    few = xr.DataTree.from_dict({"/": tree.to_dataset(), f"/{part}": node[[name]]})
    shown = Reader(resonance.page(few, tmp_path / "x.html").read_text(encoding="utf-8"))
    assert f"{part}.measure(" in shown.text[part]


def test_runs_stand_side_by_side(tmp_path):
    runs = {f"run {i}": make_tree(seed=i, gain=0.02 * i) for i in range(2)}
    runs["run 1"].attrs["verdict"] = "synergy"
    html = resonance.page(runs, tmp_path / "runs.html").read_text(encoding="utf-8")
    shown = Reader(html)

    differences = [float(tree["response"]["accuracy_difference"]) for tree in runs.values()]
    exact = [number for _, number in shown.numbers["runs"]]
    assert set(differences) <= set(exact)
    assert "synergy" in shown.text["runs"]
    assert shown.text["landscape"].count("run 0") == shown.text["landscape"].count("run 1") == 1

    nodes = {
        f"{name}{node.path}": node.to_dataset(inherit=False)
        for name, tree in runs.items()
        for node in tree.subtree
    }
    children = xr.DataTree.from_dict(nodes)
    same = resonance.page(children, tmp_path / "tree.html").read_text(encoding="utf-8")
    assert same == html


def test_one_result_has_its_picture_numbers_and_origin(tree, tmp_path):
    result = tree["nudging"].to_dataset(inherit=False)
    html = resonance.page(result, tmp_path / "x.html").read_text(encoding="utf-8")
    shown = Reader(html)
    change = result["loss_change"].values
    exact = [number for _, number in shown.numbers["result-0"]]
    np.testing.assert_allclose(exact[:3], [change.mean(), change.min(), change.max()])
    assert html.count("<svg") == 2
    assert "nudging.measure" in shown.text["result-0"]
    assert "float32" in shown.text["result-0"]


def test_results_of_a_tree_have_a_section_each(tree, tmp_path):
    part = xr.DataTree.from_dict({"surface": tree["landscape"].to_dataset(inherit=False)})
    part["surface/rough"] = xr.DataTree(tree["landscape/smoothness"].to_dataset(inherit=False))
    shown = Reader(resonance.page(part, tmp_path / "x.html").read_text(encoding="utf-8"))
    assert "surface/rough" in shown.text["result-1"]


def test_what_is_no_result_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "x.html"
    with pytest.raises(TypeError, match=r"`tree`: expected what resonance\.examine returns"):
        resonance.page([1, 2], path)
    with pytest.raises(TypeError, match=r"`tree`: at 'a': expected a DataTree or a Dataset"):
        resonance.page({"a": 1}, path)
    with pytest.raises(ValueError, match=r"`tree`: expected at least one"):
        resonance.page({}, path)
    with pytest.raises(ValueError, match=r"`tree`: expected at least one variable"):
        resonance.page(xr.Dataset(), path)
    with pytest.raises(ValueError, match=r"`tree`: expected at least one variable"):
        resonance.page(xr.DataTree(), path)
    with pytest.raises(ValueError, match="got others: b"):
        resonance.page({"a": make_tree(), "b": xr.Dataset({"loss": 1.0})}, path)
    with pytest.raises(TypeError, match="`title`: expected a string"):
        resonance.page(xr.Dataset({"loss": 1.0}), path, title=3)
    with pytest.raises(OSError, match="`path`: cannot write"):
        resonance.page(xr.Dataset({"loss": 1.0}), tmp_path / "no such folder" / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "x.html"
    path.write_text("old")

    def fail(*_, **__):
        raise RuntimeError("no template")

    monkeypatch.setattr(page_module, "render_page", fail)
    with pytest.raises(RuntimeError, match="no template"):
        resonance.page(xr.Dataset({"loss": 1.0}), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
