"""Slow decoding without caches, and a small model that is not the laboratory's."""

import torch
from torch import Tensor, nn


class Averager(nn.Module):
    """Each layer adds a mix of the running mean of what came before: one thing to remember."""

    def __init__(self, vocabulary: int = 7, width: int = 5, depth: int = 3):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Averaging(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.table(ids) + self.places(positions)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids, torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Averaging(nn.Module):
    """One layer of an `Averager`; what it remembers of a position is the mix of its input."""

    def __init__(self, width: int):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.turn = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, self.mix(x))

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self.mix(x),)

    def attend(self, x: Tensor, positions: Tensor, mixed: Tensor) -> Tensor:
        counts = torch.arange(1, mixed.shape[1] + 1, device=mixed.device)[:, None]
        running_mean = mixed.cumsum(1) / counts
        return x + torch.tanh(self.turn(x) + running_mean[:, -x.shape[1] :])


def decoding(classifier: nn.Module, images: Tensor) -> nn.Module:
    """A language model whose four tokens are pictures that a classifier sees."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Averager(vocabulary=4, width=4, depth=2).to(images.device)

    model.classifier = classifier
    model.embed = lambda ids, positions: classifier(images[ids[0]])[None]
    return model


def layer_states(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """Outputs of every layer in one plain pass, `(layer, sample, position, width)`."""
    states = []

    def keep_output(_module, _args, output):
        states.append(output)

    hooks = [layer.register_forward_hook(keep_output) for layer in model.layers]
    model(ids)
    for hook in hooks:
        hook.remove()

    return states


def full_decoding(model, ids, tokens, *, depth=None, exits=(), threshold=2.0):
    """Greedy: a plain pass over the whole text for each token, read at the first sure exit."""
    rows = []
    for _ in range(tokens):
        states = layer_states(model, ids)[:depth]
        for passed, state in enumerate(states, 1):
            p = model.head(state)[0, -1].softmax(0)
            if passed == len(states) or (passed in exits and p.max() >= threshold):
                break

        token = int(p.argmax())
        rows.append((token, passed, float(p.max()), -float(p[token].log())))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)

    return rows


def propagated_decoding(model, ids, tokens, *, exits, threshold):
    """Greedy, from scratch for each token: every layer's inputs so far are kept as plain lists."""
    n_layers = len(model.layers)
    layers_passed = {}  # by position, of tokens that left early
    rows = []

    for _ in range(tokens):
        end = ids.shape[1]
        inputs = [[] for _ in range(n_layers)]

        for t in range(end):
            x = model.embed(ids[:, t : t + 1], torch.tensor([t]))
            is_last = t == end - 1

            for d, layer in enumerate(model.layers):
                # Beyond its exit, a token's state there stands in for the input of every layer.
                inputs[d].append(x)
                if d < layers_passed.get(t, n_layers):
                    inputs_so_far = torch.cat(inputs[d], 1)
                    cache = layer.project(inputs_so_far, torch.arange(t + 1))
                    x = layer.attend(x, torch.tensor([t]), *cache)
                    p = model.head(x)[0, -1].softmax(0)
                    if is_last and d + 1 in exits and p.max() >= threshold:
                        layers_passed[t] = d + 1

                if is_last and d + 1 == layers_passed.get(t, n_layers):
                    row = (int(p.argmax()), d + 1, float(p.max()), -float(p.max().log()))

        rows.append(row)
        ids = torch.cat([ids, torch.tensor([[row[0]]])], 1)

    return rows
