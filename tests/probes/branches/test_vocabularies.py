"""Memory at a vocabulary of 50,000: what is made never holds the logits of all positions."""

import pytest
import torch
from torch import nn

import probes
from tests.helpers.largest_tensor import LargestTensor

N_CLASSES = 50_000
N_TEXTS, N_TOKENS = 4, 256
N_BYTES_OF_LOGITS = N_TEXTS * N_TOKENS * N_CLASSES * 4

# The model's own logits of one text; and what branches make at once, 64 MB.
MOST_BYTES = max(N_BYTES_OF_LOGITS // N_TEXTS, 4 * 2**24)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(N_CLASSES, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(4, N_CLASSES)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("verb", ["measure", "evaluate", "exits"])
def test_no_tensor_holds_all_logits(verb):
    torch.manual_seed(0)
    model = Tagger()
    ids, y = torch.randint(0, N_CLASSES, (2, N_TEXTS, N_TOKENS))
    if verb == "exits":
        with LargestTensor() as largest:
            probes.exits(model, (ids, y), batch_size=1)
    else:
        probe = probes.attach(model, "blocks.1", n=1, active=1, sample=ids)
        if verb == "measure":
            model(ids)
        with LargestTensor() as largest:
            probe.measure(y) if verb == "measure" else probe.evaluate((ids, y), batch_size=1)

    # Tables of weights are small here: what is left are logits.
    assert N_CLASSES * 4 * 4 < largest.n_bytes <= 1.1 * MOST_BYTES
    assert largest.n_bytes < N_BYTES_OF_LOGITS / 3
