"""Slips with data that users make: a sentence each, and never an error of torch's own."""

import pytest
import torch
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from tests.helpers import text_models
from tests.helpers.state import snapshot

X, Y = nets.batch(10)
NAN = float("nan")

SLIPS = {
    "real numbers": (
        (X, X[:, 0]),
        r"real numbers, .* such as loss=torch.nn.functional",
    ),
    "NaN targets": ((X, X[:, :5] * NAN), "`data`: expected targets that are numbers, got NaN"),
    "logits as labels": ((X, X[:, :5]), "`data`: targets are real numbers"),
    "out of range": ((X, Y + 3), "`data`: expected classes 0 to 4 .*, got 7"),
    "negative": ((X, Y - 1), "`data`: expected classes of at least 0 .*, got -1"),
    "none counts": ((X, torch.full_like(Y, -100)), "`data`: expected a target that counts"),
    "wrong shape": ((X, Y[:, None].expand(-1, 3)), r"targets of shape \(\d+, 3\) fit no loss"),
    "double inputs": ((X.double(), Y), "inputs of float64 for weights of float32; convert"),
    "uint8 images": ((X.byte()[:, None, None], Y), "inputs of uint8 for weights of float32"),
    "NaN inputs": ((X * NAN, Y), "`data`: expected inputs that are numbers, got NaN"),
    "one NaN": ((X.index_fill(0, torch.tensor([3]), NAN), Y), "`data`: expected inputs that are"),
    "unequal": ((X, Y[:7]), "`data`: expected as many targets as inputs, got 10, 7"),
    "text": ((["a", "b"], Y[:2]), "`data`: expected batches of tensors, got str"),
    "no labels": ({"x": X}, "`data`: expected a mapping with 'labels'"),
    "three things": (
        [(X, X, Y)],
        r"put several inputs into a tuple of their own, \(\(x1",
    ),
}
VERBS = {
    "nudge": lambda model, data: nudging.nudge(model, data, nudging.backprop()),
    "correlation": lambda model, data: nudging.correlation(
        model, data, nudging.random(), n_directions=1, dtype=None
    ),
    "audit": lambda model, data: nudging.audit(model, data, n_batches=2, batch_size=5),
    "fit": lambda model, data: nudging.StateBridge(hidden=4).fit(model, data, epochs=1),
}


@pytest.mark.parametrize("verb", list(VERBS))
@pytest.mark.parametrize("slip", list(SLIPS))
def test_slips_with_data_get_their_sentence(slip, verb):
    data, text = SLIPS[slip]
    model = nets.make(nets.ResMLP)
    before = snapshot(model)
    with pytest.raises((ValueError, TypeError), match=text):
        VERBS[verb](model, data)
    assert snapshot(model) == before


def test_a_loss_of_torch_names_classes_out_of_range():
    with pytest.raises(ValueError, match="`data`: expected classes 0 to 4, got 7"):
        nudging.nudge(nets.make(nets.ResMLP), (X, Y + 3), nudging.backprop(), loss=nn.NLLLoss())


def test_inputs_with_nan_are_fine_where_the_model_knows_them():
    model = nn.Sequential(Filling(), nn.Linear(12, 8), nn.Linear(8, 5))
    result = nudging.nudge(model, (X.index_fill(1, torch.tensor([2]), NAN), Y), nudging.backprop())
    assert (result["loss_change"] < 0).all()


class Filling(nn.Module):
    def forward(self, x):
        return x.nan_to_num()


class Graph(nn.Module):
    """Two layers over one graph, whose matrix is known to the model."""

    def __init__(self, n_nodes):
        super().__init__()
        self.register_buffer("adjacency", torch.eye(n_nodes) + torch.ones(n_nodes, n_nodes))
        self.first, self.second, self.head = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        hidden = self.first(self.adjacency @ x).relu()
        return self.head(self.second(self.adjacency @ hidden))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {},
            "batch of 10 samples, but not on 2 of them .* neither `samples` nor `batch_size`",
        ),
        (
            {"batch_size": 4},
            r"failed on a part .*`samples` \(now 1024\) and `batch_size` \(now 4",
        ),
        ({"samples": 6}, r"failed on a part .*`samples` \(now 6\) and `batch_size` \(now 256\)"),
    ],
)
def test_the_nodes_of_one_graph_are_no_samples(options, text):
    model = nets.make(lambda: Graph(10))
    before = snapshot(model)
    with pytest.raises(ValueError, match=text):
        nudging.nudge(model, (X, Y), nudging.backprop(), **options)
    assert snapshot(model) == before


def test_graphs_are_samples():
    graphs = nets.batch(6, (10, 12))[0]
    targets = torch.randint(0, 5, (6, 10), generator=torch.Generator().manual_seed(0))
    model = nets.make(lambda: Graph(10))
    result = nudging.nudge(model, (graphs, targets), nudging.backprop(), ["first", "second"])
    assert (result["loss_change"] < 0).all()


def test_an_error_of_the_model_s_own_on_all_data_stays_what_it_is():
    model = nn.Sequential(nn.Linear(11, 4), nn.Linear(4, 5))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        nudging.nudge(model, (X, Y), nudging.backprop())


@pytest.mark.parametrize("name", ["nudge", "alignment", "correlation", "measure"])
def test_blocks_may_be_left_out(name):
    model, data = text_models.gpt2(), text_models.texts()
    data["labels"] = data["input_ids"]
    verb = getattr(nudging, name)
    result = verb(model, data, nudging.backprop())
    named = verb(model, data, nudging.backprop(), "transformer.h.*")
    assert result.attrs["blocks"] == "transformer.h.0, transformer.h.1"
    assert result.attrs["blocks_reason"] == "2 modules of class GPT2Block"
    assert named.attrs["blocks_reason"] == "named in the call"
    assert result.equals(named)


@pytest.mark.parametrize("name", ["audit", "stability"])
def test_blocks_may_be_left_out_without_a_credit(name):
    model, data = nets.make(nets.ResMLP), nets.batch(8)
    verb = getattr(nudging, name)
    result = verb(model, data, n_batches=2, batch_size=4)
    assert result.attrs["blocks"] == "blocks.0, blocks.1, blocks.2, blocks.3"
    assert result.equals(verb(model, data, "blocks.*", n_batches=2, batch_size=4))


class Shared(nn.Module):
    """Repeats one block, and has another of its kind that never runs."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nets.Block(12) for _ in range(4))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        h = self.blocks[0](self.blocks[1](self.blocks[1](x)))
        return self.head(self.blocks[2](h))


def test_found_blocks_that_cannot_be_nudged_are_left_out_and_named():
    model = nets.make(Shared)
    result = nudging.nudge(model, (X, Y), nudging.backprop(), batch_size=4)
    expected = nudging.nudge(
        model, (X, Y), nudging.backprop(), ["blocks.0", "blocks.2"], batch_size=4
    )
    assert result.equals(expected)
    assert "; without blocks.1, blocks.3, which" in result.attrs["blocks_reason"]
