"""A probe inside a loop written with Hugging Face's Accelerate."""

from typing import Any

from probes._branches.probe import Probe
from probes._exit_training.losses import Exits
from probes._model.add_to_optimizer import add_to_optimizer


def prepare(accelerator: Any, probe: Probe | Exits, optimizer: Any) -> None:
    """Do for a probe what `accelerator.prepare` does for its model.

    The branches move to the accelerator's device, join the optimizer's first group (unless the
    optimizer has them already), and are a part of what `accelerator.save_state` saves and
    `accelerator.load_state` restores:

        probe = probes.attach(model, "blocks.*")
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        probes.accelerate.prepare(accelerator, probe, optimizer)

        for x, y in loader:
            with accelerator.accumulate(model):
                main = cross_entropy(model(x), y)
                accelerator.backward(main + probe.loss(y))
                optimizer.step()
                optimizer.zero_grad()

    With a trace, call `gradients.accelerate.backward(accelerator, trace, main, probe.loss(y))`
    instead of `accelerator.backward`.

    Args:
        accelerator: An `accelerate.Accelerator`.
        probe: A probe attached to the model that is trained, before or after the model was
            prepared.
        optimizer: The optimizer of the model, prepared or not.

    Raises:
        TypeError: If `probe` is not a probe.
        ValueError: If the accelerator does not leave training to torch (DeepSpeed, Megatron).
    """
    if not isinstance(probe, Probe | Exits):
        raise TypeError(
            "`probe`: expected what probes.attach or attach_exits returned, got "
            f"{type(probe).__name__}"
        )
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("DEEPSPEED", "MEGATRON_LM"):
        raise ValueError(f"`accelerator`: expected one that trains with torch alone, got {kind}")

    # Before a state is loaded: that of the optimizer goes where the parameters are.
    probe.to(accelerator.device)
    add_to_optimizer(optimizer, probe)
    accelerator.register_for_checkpointing(probe)
