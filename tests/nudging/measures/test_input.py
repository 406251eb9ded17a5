"""What does not fit is refused in words, and the model is as it was."""

import pytest
import torch
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from tests.helpers.state import snapshot

NAN = float("nan")


class Twice(nn.Module):
    """Runs one block twice, another never, and one that gives no tensor."""

    def __init__(self):
        super().__init__()
        self.again, self.never, self.sizes = nn.Linear(12, 12), nn.Linear(12, 12), Sizes()
        self.whole, self.head = Whole(), nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.again(self.again(x)) * self.sizes(x)[0] + self.whole(x).sum())


class Sizes(nn.Module):
    def forward(self, x):
        return x.shape[1], [None, {}]


class Whole(nn.Module):
    def forward(self, x):
        return x.sum(0)


def missing(state):
    return {name: h for name, h in state.hidden.items() if name != state.blocks[-1]}


def changed(change):
    return lambda state: {name: change(h.clone()) for name, h in state.hidden.items()}


def infinite(h):
    h[3, 0] = float("inf")
    return h


def careless(state):
    """A credit that breaks half way, after it changed what is not its own."""
    state.model.embed.weight.data.zero_()
    state.model.head.bias.grad = torch.ones(5)
    state.model.train()
    torch.manual_seed(123)
    raise RuntimeError("credit failed")


def writing(state):
    state.hidden["blocks.0"].zero_()
    return state.gradient()


def over_n(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none") / len(targets)


def mean_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


BAD = {
    "unknown block": ({"blocks": ["blocks.0", "bloks.1"]}, "`blocks`: nothing is called 'bloks.1'"),
    "no blocks": ({"blocks": []}, "`blocks`: expected one or more names"),
    "eta 0": ({"eta": 0}, "`eta`: expected a positive, finite number, got 0"),
    "eta NaN": ({"eta": [0.1, NAN]}, "`eta`: expected a positive, finite number, got nan"),
    "eta negative": ({"eta": -0.1}, "`eta`: expected a positive"),
    "eta empty": ({"eta": []}, "`eta`: expected one or more"),
    "eta twice": ({"eta": [0.1, 0.1]}, "`eta`: expected one or more different"),
    "eta text": ({"eta": "0.1"}, "`eta`: expected a positive"),
    "eta bool": ({"eta": True}, "`eta`: expected a positive"),
    "normalisation": (
        {"normalisation": "l2"},
        "`normalisation`: expected one of rms, unit, none, got 'l2'",
    ),
    "credit missing": ({"credit": missing}, "`credit`: expected a tensor for block 'blocks.3'"),
    "credit shape": (
        {"credit": changed(lambda h: h[:, 1:])},
        r"expected \(10, 16\), got \(10, 15\)",
    ),
    "credit NaN": (
        {"credit": changed(lambda h: h * NAN)},
        "`credit` of 'blocks.0': expected finite",
    ),
    "credit inf": ({"credit": changed(infinite)}, "`credit` of 'blocks.0': expected finite"),
    "credit kind": (
        {"credit": lambda state: [1]},
        "`credit`: expected a mapping by block, got list",
    ),
    "no credit": ({"credit": "backprop"}, "`credit`: expected a callable .*, got str"),
    "credit None": ({"credit": None}, "`credit`: expected a callable .*, got NoneType"),
    "credit writes": (
        {"credit": writing},
        "`credit`: expected a credit that does not change",
    ),
    "credit fails": ({"credit": careless}, "credit failed"),
    "mean loss": ({"loss": mean_loss}, r"`loss`: expected one value per sample.*reduction='none'"),
    "sum loss": (
        {"loss": nn.CrossEntropyLoss(reduction="sum")},
        "`loss`: expected a mean or one value per sample, got reduction 'sum'",
    ),
    "loss per class": ({"loss": lambda o, t: o}, r"shape \(10,\), got \(10, 5\)"),
    "loss of nothing": ({"loss": lambda o, t: 1.0}, "`loss`: expected a tensor, got float"),
    "loss over N": ({"loss": over_n}, "expected a loss of each sample by itself"),
    "loss text": ({"loss": "ce"}, "`loss`: expected a callable"),
    "samples": ({"samples": 0}, "`samples`: expected a whole number"),
    "batch size": ({"batch_size": 0}, "`batch_size`: expected a whole number"),
    "dtype": ({"dtype": torch.int64}, "`dtype`: expected a floating-point"),
    "model": ({"model": len}, "`model`: expected an nn.Module, got builtin"),
    "data": ({"data": 3}, "`data`: expected"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_does_not_fit_is_refused_and_the_model_is_untouched(case):
    change, text = BAD[case]
    model = nets.make(nets.ResMLP)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = snapshot(model)
    given = {
        "model": model,
        "data": nets.batch(10),
        "credit": nudging.backprop,
        "blocks": "blocks.*",
        "samples": None,
    }
    with pytest.raises((ValueError, TypeError, RuntimeError), match=text):
        nudging.nudge(**given | change)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("sizes", "`blocks`: expected sizes to return a tensor, or a tuple or list with one, got"),
        ("again", "`blocks`: again ran more than once"),
        ("never", "`blocks`: never did not run"),
        ("whole", r"expected whole to return real numbers with 10 samples first, got .* \(12,\)"),
    ],
)
def test_blocks_without_one_output_per_sample_are_refused(block, text):
    model = nets.make(Twice)
    before = snapshot(model)
    with pytest.raises((ValueError, TypeError), match=text):
        nudging.nudge(model, nets.batch(10), nudging.backprop, ["head", block], samples=None)
    assert snapshot(model) == before


@pytest.mark.parametrize("verb", [nudging.nudge, nudging.alignment, nudging.measure])
def test_a_careless_credit_that_returns_leaves_no_trace(verb):
    def credit(state):
        for p in state.model.parameters():
            p.data.mul_(0.5)
        return state.hidden

    model = nets.make(nets.ResMLP)
    before = snapshot(model)
    verb(model, nets.batch(10), credit, "blocks.*", samples=None, dtype=None)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("verb", "options", "text"),
    [
        (nudging.alignment, {"floor": 0}, "`floor`: expected a positive"),
        (nudging.correlation, {"epsilon": NAN}, "`epsilon`: expected a positive"),
        (nudging.correlation, {"n_directions": 0}, "`n_directions`: expected a whole number"),
        (nudging.measure, {"n_directions": 1.5}, "`n_directions`: expected a whole number"),
        (nudging.measure, {"floor": -1}, "`floor`: expected a positive"),
    ],
)
def test_settings_of_the_other_measures_are_checked(verb, options, text):
    with pytest.raises(ValueError, match=text):
        verb(nets.make(nets.ResMLP), nets.batch(), nudging.backprop, "blocks.*", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"accuracy": 60.0}, "`accuracy`: expected a share between 0 and 1"),
        ({"frozen_accuracy": NAN}, "`frozen_accuracy`: expected a share"),
        ({"accuracy": "60 %"}, "`accuracy`: expected a share between 0 and 1"),
        ({"scale": NAN}, "`scale`: expected a finite number"),
        ({"scale": "large"}, "`scale`: expected a finite number"),
        ({"n_batches": 1}, "`n_batches`: expected a whole number of at least 2"),
        ({"batch_size": 0}, "`batch_size`: expected a whole number of at least 1"),
    ],
)
def test_settings_of_the_audit_are_checked(options, text):
    with pytest.raises(ValueError, match=text):
        nudging.audit(nets.make(nets.ResMLP), nets.batch(), "blocks.*", **options)


@pytest.mark.parametrize(
    "verb",
    [
        lambda **given: nudging.stability(**given, blocks="blocks.*"),
        lambda **given: nudging.StateBridge(hidden=4).fit(**given, blocks="blocks.*"),
    ],
)
def test_batches_and_models_are_checked_by_name(verb):
    data = nets.batch()
    with pytest.raises(ValueError, match="`batch_size`: expected a whole number of at least 1"):
        verb(model=nets.make(nets.ResMLP), data=data, batch_size=0)
    with pytest.raises(TypeError, match=r"`model`: expected an nn.Module, got str"):
        verb(model="ResMLP", data=data)


def test_the_state_names_what_it_has():
    state = nudging.observe(nets.make(nets.ResMLP), *nets.batch(3), "blocks.*")
    with pytest.raises(ValueError, match=r"`block`: expected one of blocks.0, .*, got 'embed'"):
        state.replay("embed", torch.zeros(3, 16))
    with pytest.raises(ValueError, match=r"`value`: expected \(3, 16\), got \(3, 4\)"):
        state.replay("blocks.0", torch.zeros(3, 4))
    assert repr(state).startswith("State(ResMLP, 3 samples, blocks.0")


def test_credits_check_what_they_are_given():
    with pytest.raises(ValueError, match="`seed`"):
        nudging.random(-1)
    with pytest.raises(TypeError, match="`loss`: expected a callable"):
        nudging.auxiliary(None)
    state = nudging.observe(nets.make(nets.ResMLP), *nets.batch(3), "blocks.*")
    with pytest.raises(ValueError, match="depends on the blocks"):
        nudging.auxiliary(lambda outputs, targets: torch.ones(3))(state)
