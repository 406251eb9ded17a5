"""Curvature matrices of a small network, written out whole."""

import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn import functional as F


def make(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).to(dtype)
    x = torch.randn(20, 5, dtype=dtype)
    return model, (x, torch.arange(20) % 4)


def call_with_flat_weights(model, vector, x):
    """The outputs of a model whose parameters are the pieces of one vector."""
    weights = {}
    start = 0
    for name, parameter in model.named_parameters():
        weights[name] = vector[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return functional_call(model, weights, (x,))


def flat_weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def dense_hessian(model, data):
    x, y = data

    def loss(vector):
        return F.cross_entropy(call_with_flat_weights(model, vector, x), y)

    return hessian(loss, flat_weights(model)).numpy()


def dense_gauss_newton(model, data):
    x, y = data
    jacobians = jacobian(
        lambda vector: call_with_flat_weights(model, vector, x), flat_weights(model)
    )

    # One sample at a time: J' (d^2 loss / d outputs^2) J, then the mean.
    total = 0
    for i in range(len(x)):
        outputs = model(x[i]).detach()
        output_hessian = hessian(
            lambda logits, i=i: F.cross_entropy(logits[None], y[i : i + 1]), outputs
        )
        total = total + jacobians[i].T @ output_hessian @ jacobians[i] / len(x)
    return total.detach().numpy()
