"""Where the latest forward pass of an attached model stands.

     attach            model(x) begins        forward returns        probe.loss(y)
    NO_PASS  ------------->  RUNNING  ------------->  READY  ------------->  USED
                                ^                       |                      |
                                +-----------------------+----------------------+
                                             the next model(x) begins

A pass that raises stays RUNNING. Outside of `listening()`, a pass in eval mode or without gradients
goes to EVAL_MODE or NO_GRADIENTS instead of RUNNING. `detach()` leads to DETACHED from everywhere,
and a copied or unpickled probe begins there.
"""

from enum import Enum

UNCHECKED_COMPILED_CODE = (
    "code that was compiled or recorded without a check for hooks ignores them: attach first, or "
    "call torch.compiler.reset(), or use torch.compiler.set_stance('force_eager')"
)


class PassState(Enum):
    """A state of the latest pass; its value is the message of the error that is raised then."""

    DETACHED = (
        "expected an attached model, but this is detached (by detach(), by the end of its "
        "`with` block, or as a copy): attach again, or call reattach(model), then model(x)"
    )
    NO_PASS = (
        "expected a forward pass of the attached model first, but no forward pass was seen: "
        "call model(x) in train mode, the model itself and not a method such as model.forward(x). "
        f"If you did that: {UNCHECKED_COMPILED_CODE}"
    )
    EVAL_MODE = (
        "the latest forward pass ran in eval mode, in which branches do not run: call "
        "model.train(), or run the pass inside `with probe.listening():`"
    )
    NO_GRADIENTS = (
        "the latest forward pass ran without gradients: enable them, or run the pass inside "
        "`with probe.listening():`"
    )
    RUNNING = "the latest forward pass did not finish"
    READY = ""
    USED = (
        "the latest forward pass has given its loss already: run the model again first (for "
        "mixup, pass soft targets of shape (sample, class))"
    )

    @property
    def refusal(self) -> str:
        """Why there are no features to take a loss of, and the cure; empty if there are some."""
        return self.value
