"""What every page of an examination says beside its numbers: its words, and how calls begin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

INTRODUCTION = (
    "A branch is a linear head that predicts the targets from the output of one layer. During "
    "training, the losses of all branches are added to the loss of the model. Does that make the "
    "model better, and do the two losses pull its weights the same way?"
)

WORDS = (
    (
        "main loss, auxiliary loss",
        "The main loss is the model's own; the auxiliary loss is that of all branches together, "
        "times their strength alpha. A training step follows the sum of both.",
    ),
    (
        "attachment point",
        "A layer whose output branches read. At each, one branch is trained with the model; the "
        "others keep the random weights they were drawn with.",
    ),
    (
        "plain, with branches",
        "The two arms of the training experiment: copies of the model, trained on the same "
        "batches, once without branches and once with them.",
    ),
    ("held-out", "Of samples that the copies were not trained on."),
    (
        "listening head",
        "A linear head that is fitted to a layer's output and sends nothing back: a linear probe. "
        "It says what can be read there, not whether the model uses it.",
    ),
    (
        "cosine",
        "Of the angle between the gradients of both losses: 1 if they ask for the same direction, "
        "0 if they are unrelated, \u22121 if they ask for opposite directions.",
    ),
    (
        "credit, nudge",
        "A credit is a direction for the output of one block that claims to be the gradient of the "
        "loss. A nudge is a small step against it; a good credit lowers the loss.",
    ),
)

_PACKAGES = ("attention", "gradients", "landscape", "nudging", "probes", "resonance")

# Losses of torch that calls name, as `--loss` takes them.
_LOSS = re.compile(r"(?:\bloss=|main_loss = lambda model, x, y: )([a-z_]+)\b(?!\.)")


def write_setup(call: str, attributes: Mapping[Any, Any]) -> str:
    """Write what comes before a call: imports, and what the command line loaded.

    Examples:
        >>> print(write_setup("landscape.grid(model, data)", {"command": "examine digits"}))
        import landscape, resonance
        model, data, held_out = resonance.from_command('examine digits')
        >>> write_setup("nudging.nudge(model, data, loss=mse_loss)", {}).splitlines()[:2]
        ['import nudging', 'from torch.nn.functional import mse_loss']
    """
    from torch.nn import functional

    command = attributes.get("command")
    begins = f"resonance.from_command({command!r})"
    text = f"{call}\n{begins}" if command else call
    packages = [name for name in _PACKAGES if re.search(rf"\b{name}\.", text)]

    lines = [f"import {', '.join(packages)}"] if packages else []
    losses = sorted({name for name in _LOSS.findall(call) if hasattr(functional, name)})
    if losses:
        lines.append(f"from torch.nn.functional import {', '.join(losses)}")
    if command:
        lines.append(f"model, data, held_out = {begins}")
    else:
        names = "model, data, held_out" if re.search(r"=held_out\b", call) else "model, data"
        lines.append(f"# {names}: as given to resonance.examine")
    return "\n".join(lines)
