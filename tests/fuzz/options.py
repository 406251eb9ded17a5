"""Options that verbs share: those that fit the case, and seldom wrong ones."""

import torch.nn.functional as F
from torch import nn

from tests.fuzz.cases import Case


def mostly(case: Case, fitting: list, wrong: list):
    """Choose an option that fits, or seldom a wrong one: one is enough for a refusal."""
    return case.choose.choice(wrong if case.choose.random() < 0.04 else fitting)


def samples_for(case: Case):
    return mostly(case, [None, None, 1, case.words["n"]], [100, 0, -1, 2.5, True])


def batch_size_for(case: Case):
    return mostly(case, [None, None, 1, 2, 100], [0, -1, 2.5])


def seed_for(case: Case):
    return mostly(case, [0, 1, 7], ["x", -1])


def layers_for(case: Case):
    own = {"conv": ["stem", "norm"], "mlp": ["0", ["0", "2"]]}
    blocks = own.get(case.words["model"], ["blocks", "blocks*"])
    return mostly(case, ["*", None, *blocks], ["no such", [], "head", 3])


def loss_for(case: Case):
    # A loss of the user's own may fail in its own words, so only those that fit.
    fits = [None, None]
    returns_tensor = case.words["model"] in ("mlp", "conv", "transformer", "rnn")
    if returns_tensor and case.words["targets"] in ("classes", "ignored"):
        fits.append(F.cross_entropy)
    if returns_tensor and case.words["targets"] == "numbers":
        fits += [F.mse_loss, nn.MSELoss()]
    return case.choose.choice(fits)
