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


def flat_call(model, vector, x):
    weights, start = {}, 0
    for name, p in model.named_parameters():
        weights[name] = vector[start : start + p.numel()].view_as(p)
        start += p.numel()
    return functional_call(model, weights, (x,))


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def dense_hessian(model, data):
    def loss(vector):
        return F.cross_entropy(flat_call(model, vector, data[0]), data[1])

    return hessian(loss, weights_of(model)).numpy()


def dense_gauss_newton(model, data):
    x, y = data
    weights = weights_of(model)
    slopes = jacobian(lambda vector: flat_call(model, vector, x), weights)
    total = 0
    for i in range(len(x)):
        outputs = model(x[i]).detach()
        curve = hessian(lambda out, i=i: F.cross_entropy(out[None], y[i : i + 1]), outputs)
        total = total + slopes[i].T @ curve @ slopes[i] / len(x)
    return total.detach().numpy()
