import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from nudging._credits.credit import list_settings
from nudging._replay.state import State
from resonance_toolkit import check_choice, check_positive, check_whole, evaluating, first_tensor

CreditOf: TypeAlias = Literal["displacement", "error"]


class EquilibriumPropagation:
    """The credit of equilibrium propagation: how states move if the loss pulls at a network at
    rest.

    The energy of one sample is `E = sum_l |h_{l+1} - F_l(h_l)|^2 / 2`, with F_l the block between
    two states; a forward pass has energy 0. From there `steps` steps of gradient descent of size
    `rate` go down `E + beta * loss`. The credit of a block is `-(h_nudged - h) / beta`.

    At the end of the descent, for small beta, this is not the backprop gradient g_l but the sum of
    what all earlier blocks pass on, `g_l + F' g_{l-1} + F' F' g_{l-2} + ...`: nearly the same
    direction in a network of small residual branches. `of="error"` takes the prediction errors
    `-(h_{l+1} - F_l(h_l)) / beta` instead of the displacements; these do tend to g_l.

    Each block must take the output of the block before it and nothing else; otherwise the credit
    raises a ValueError. It has no state, so there is nothing to save but the arguments. In half
    precision, small displacements are lost in rounding errors: use a copy of the model in single
    precision.

    Args:
        beta: How strongly the loss pulls.
        steps: Number of steps of gradient descent.
        rate: Size of a step.
        anchored: Whether a spring holds the first state to where it was, as it holds all others.
            Without it (as published), that state drifts further with every step.
        of: `"displacement"` or `"error"`; the latter needs `anchored` for the first block.

    Reference:
        Scellier, Bengio, Equilibrium Propagation, 2017.

    Examples:
        >>> EquilibriumPropagation(steps=5)
        EquilibriumPropagation(beta=0.5, steps=5, rate=0.1, anchored=False, of='displacement')
    """

    def __init__(
        self,
        *,
        beta: float = 0.5,
        steps: int = 20,
        rate: float = 0.1,
        anchored: bool = False,
        of: CreditOf = "displacement",
    ) -> None:
        if not 0 < abs(beta) < math.inf:
            raise ValueError(f"`beta`: expected a number other than 0, got {beta!r}")
        steps = check_whole("steps", steps)
        check_positive("rate", rate)
        check_choice("of", of, ("displacement", "error"))
        if of == "error" and not anchored:
            raise ValueError(
                "`of`: 'error' needs anchored=True, because otherwise the first block has no error"
            )

        self.settings = {
            "beta": beta,
            "steps": steps,
            "rate": rate,
            "anchored": anchored,
            "of": of,
        }
        self.beta = beta
        self.steps = steps
        self.rate = rate
        self.anchored = anchored
        self.of = of

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list_settings(self.settings)})"

    def __call__(self, state: State) -> dict[str, Tensor]:
        """Let go of the states, and see where they go."""
        # Blocks are called one by one here, not through the model.
        with evaluating(state.model):
            return self._relax(state)

    def _relax(self, state: State) -> dict[str, Tensor]:
        modules = [state.model.get_submodule(block) for block in state.blocks[1:]]
        free_states = [hidden.detach() for hidden in state.hidden.values()]
        self._check_chain(state, modules, free_states)

        moved_states = [hidden.clone() for hidden in free_states]
        with torch.enable_grad():
            # Gradient descent on E + beta * loss, all states at once.
            for _ in range(self.steps):
                moved_states = [hidden.requires_grad_() for hidden in moved_states]
                errors = self._prediction_errors(modules, moved_states, free_states)
                energy = 0.5 * sum(error.square().sum() for error in errors)
                outputs = state.replay(state.blocks[-1], moved_states[-1])
                loss = state.losses(outputs).sum()

                slopes = torch.autograd.grad(energy + self.beta * loss, moved_states)
                moved_states = [
                    (hidden - self.rate * slope).detach()
                    for hidden, slope in zip(moved_states, slopes, strict=True)
                ]

        with torch.no_grad():
            if self.of == "error":
                shifts = self._prediction_errors(modules, moved_states, free_states)
            else:
                shifts = [
                    moved_state - free_state
                    for moved_state, free_state in zip(moved_states, free_states, strict=True)
                ]
        return {
            block: -shift / self.beta for block, shift in zip(state.blocks, shifts, strict=True)
        }

    def _prediction_errors(
        self, modules: list[nn.Module], states: list[Tensor], free_states: list[Tensor]
    ) -> list[Tensor]:
        """Return how far each state is from what the state before it predicts."""
        errors = [
            hidden - _call_block(module, input_state)
            for module, input_state, hidden in zip(modules, states[:-1], states[1:], strict=True)
        ]
        return [states[0] - free_states[0], *errors] if self.anchored else errors

    @staticmethod
    @torch.no_grad()
    def _check_chain(state: State, modules: list[nn.Module], free_states: list[Tensor]) -> None:
        links = zip(state.blocks[1:], modules, free_states[:-1], free_states[1:], strict=True)
        for block, module, input_state, hidden in links:
            try:
                output = _call_block(module, input_state)
            except Exception as error:
                raise ValueError(
                    f"`blocks`: {block!r} cannot run on the block before it"
                ) from error

            # Not bit by bit: a block by itself may run another kernel than inside the model.
            if output.shape != hidden.shape or not torch.allclose(
                output, hidden, rtol=1e-3, atol=1e-4
            ):
                raise ValueError(
                    "`blocks`: equilibrium propagation expects a chain of blocks, but on the "
                    f"output of the block before it, {block!r} returns something else than in "
                    "the model; name every block in between, too"
                )


def _call_block(module: nn.Module, hidden: Tensor) -> Tensor:
    output = first_tensor(module(hidden))
    assert output is not None  # the block gave one when the state was observed
    return output
