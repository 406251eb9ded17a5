"""The nudge of one sample by plain hooks and nothing else, to compare with."""

import torch
from torch import Tensor


def nudge_by_hand(model, call, loss, block, eta):
    """Return the change of a loss when one block's first tensor moves against its gradient.

    `call()` runs the model on one sample alone, without padding; `loss(outputs)` is one number.
    """
    module = model.get_submodule(block)
    points = []

    def track(_module, _args, output):
        points.append(first(output).detach().requires_grad_())
        return put_first(output, points[-1])

    model.eval()
    with module.register_forward_hook(track):
        unmoved_loss = loss(call())
    (gradient,) = torch.autograd.grad(unmoved_loss, points[-1])

    moved = points[-1].detach() - eta * gradient / gradient.square().mean().sqrt()
    with module.register_forward_hook(lambda *args: put_first(args[2], moved)), torch.no_grad():
        return float(loss(call()) - unmoved_loss)


def first(output):
    return output if isinstance(output, Tensor) else output[0]


def put_first(output, value):
    return value if isinstance(output, Tensor) else type(output)([value, *output[1:]])
