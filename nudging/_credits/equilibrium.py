from typing import Literal

import torch
from torch import Tensor, nn

from nudging._replay.state import State
from resonance_toolkit import evaluating


class EquilibriumPropagation:
    """How hidden states move when the loss pulls at a network that has come to rest.

    The energy of one sample is `E = sum_l |h_{l+1} - F_l(h_l)|^2 / 2`, with F_l the block between
    two states; a forward pass has energy 0. From there `steps` steps of gradient descent of size
    `rate` go down `E + beta * loss`. The credit of a block is `-(h_nudged - h) / beta`.

    At the end of the descent, for small beta, this is not the backprop gradient g_l but the sum of
    what all earlier blocks pass on, `g_l + F' g_{l-1} + F' F' g_{l-2} + ...`: nearly the same
    direction in a network of small residual branches. `of="error"` takes the prediction errors
    `-(h_{l+1} - F_l(h_l)) / beta` in place of the displacements, which do tend to g_l.

    Each block must take the output of the block before it and nothing else, or the credit raises
    ValueError. It needs no memory of its own: there is nothing to save but the arguments. In half
    precision the small displacements drown in rounding; give it a copy of the model in single one.

    Args:
        beta: How strongly the loss pulls.
        steps: Of gradient descent.
        rate: Their size.
        anchored: Whether the first state is held by a spring to where it was, like all others.
            Without it (as published) that state drifts for as long as there are steps.
        of: `"displacement"` or `"error"`; the latter needs `anchored` for the first block.

    Reference:
        Scellier, Bengio, Equilibrium Propagation, 2017.
    """

    def __init__(
        self,
        *,
        beta: float = 0.5,
        steps: int = 20,
        rate: float = 0.1,
        anchored: bool = False,
        of: Literal["displacement", "error"] = "displacement",
    ) -> None:
        if not (abs(beta) > 0 and abs(beta) < float("inf")):
            raise ValueError(f"`beta`: expected a number other than 0, got {beta!r}")
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"`steps`: expected a whole number of at least 1, got {steps!r}")
        if not 0 < rate < float("inf"):
            raise ValueError(f"`rate`: expected a positive number, got {rate!r}")
        if of not in ("displacement", "error"):
            raise ValueError(f"`of`: expected 'displacement' or 'error', got {of!r}")
        if of == "error" and not anchored:
            raise ValueError("`of`: 'error' needs anchored=True, else the first block has none")
        self.settings = {
            "beta": beta, "steps": steps, "rate": rate, "anchored": anchored, "of": of
        }  # fmt: skip
        self.beta, self.steps, self.rate = beta, steps, rate
        self.anchored, self.of = anchored, of

    def __call__(self, state: State) -> dict[str, Tensor]:
        """Let go of the states, and see where they go."""
        with evaluating(state.model):  # blocks are called one by one here
            return self._relax(state)

    def _relax(self, state: State) -> dict[str, Tensor]:
        modules = [state.model.get_submodule(block) for block in state.blocks[1:]]
        free = [h.detach() for h in state.hidden.values()]
        self._check_chain(state, modules, free)
        moved = [h.clone() for h in free]
        with torch.enable_grad():
            for _ in range(self.steps):
                moved = [h.requires_grad_() for h in moved]
                energy = 0.5 * sum(e.square().sum() for e in self._errors(modules, moved, free))
                loss = state.losses(state.rest(state.blocks[-1], moved[-1])).sum()
                slopes = torch.autograd.grad(energy + self.beta * loss, moved)
                pairs = zip(moved, slopes, strict=True)
                moved = [(h - self.rate * slope).detach() for h, slope in pairs]
        with torch.no_grad():
            gone = [h - start for h, start in zip(moved, free, strict=True)]
            errors = self._errors(modules, moved, free) if self.of == "error" else gone
        return {b: -e / self.beta for b, e in zip(state.blocks, errors, strict=True)}

    def _errors(
        self, modules: list[nn.Module], states: list[Tensor], free: list[Tensor]
    ) -> list[Tensor]:
        """How far each state is from what the state before it predicts."""
        pairs = zip(modules, states[:-1], states[1:], strict=True)
        errors = [after - module(before) for module, before, after in pairs]
        return [states[0] - free[0], *errors] if self.anchored else errors

    @staticmethod
    @torch.no_grad()
    def _check_chain(state: State, modules: list[nn.Module], free: list[Tensor]) -> None:
        for block, module, before, after in zip(
            state.blocks[1:], modules, free[:-1], free[1:], strict=True
        ):
            try:
                found = module(before)
            except Exception as error:
                raise ValueError(f"`blocks`: {block!r} cannot run on the block before") from error
            if found.shape != after.shape or not torch.allclose(found, after, rtol=1e-3, atol=1e-4):
                raise ValueError(
                    f"`blocks`: equilibrium propagation expects a chain, but {block!r} gives "
                    "something else than in the model when it runs on the output of the block "
                    "before; name every block in between, too"
                )
