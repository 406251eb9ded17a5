"""A trace inside a loop written with Hugging Face's Accelerate."""

from typing import Any

from torch import Tensor

from gradients._like_trace import LikeTrace


def backward(accelerator: Any, trace: LikeTrace, *losses: Tensor) -> None:
    """Backpropagate and record; call it instead of `accelerator.backward(main + auxiliary)`.

    Gradient accumulation (inside `accelerator.accumulate`) and mixed precision are supported. To
    save the record with `accelerator.save_state`, and to continue it after
    `accelerator.load_state`, call `accelerator.register_for_checkpointing(trace)` once.

    Args:
        accelerator: An `accelerate.Accelerator`.
        trace: The trace of the model that `accelerator.prepare` returned; or a
            `resonance.Monitor`.
        losses: Scalars of one forward pass: the main loss, then the auxiliary ones.

    Raises:
        ValueError: If the accelerator does not leave `backward` to torch (DeepSpeed, Megatron).
    """
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("DEEPSPEED", "MEGATRON_LM"):
        raise ValueError(f"`accelerator`: expected one that trains with torch alone, got {kind}")

    trace.scaler = accelerator.scaler
    # As `Accelerator.backward` divides: the gradients come out the same, bit for bit.
    shares = [loss / accelerator.gradient_accumulation_steps for loss in losses]
    trace.backward(*shares, update=accelerator.sync_gradients)
