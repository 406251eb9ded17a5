"""Branches in an optimizer that a framework has made."""

from typing import Any

from torch import nn


def add_to_optimizer(optimizer: Any, module: nn.Module) -> None:
    """Let an optimizer train a module's parameters too; those that it has already stay as they are.

    They join its first group, and so its learning rate and weight decay. A group of their own
    would not fit a scheduler that exists already, which has a learning rate for each group.

    Args:
        optimizer: A `torch.optim.Optimizer`, or a framework's wrapper of one.
        module: Such as a probe.
    """
    groups = optimizer.param_groups
    present = {id(parameter) for group in groups for parameter in group["params"]}
    first_group = groups[0]

    for name, parameter in module.named_parameters():
        if id(parameter) in present:
            continue

        first_group["params"].append(parameter)
        # There if the optimizer was made from `named_parameters()`.
        if "param_names" in first_group:
            first_group["param_names"].append(f"probe.{name}")
