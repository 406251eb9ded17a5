from torch import nn
from torch.nn.parameter import is_lazy

from resonance_toolkit import check_module


def check_model(model: nn.Module) -> None:
    """Refuse a model that cannot be hooked into, before anything is done to it.

    Raises:
        TypeError: If it is no `nn.Module`.
        ValueError: If it runs copies of itself, or has weights that do not exist yet.
    """
    check_module(model)

    if isinstance(model, nn.DataParallel):
        raise ValueError("`model`: DataParallel runs copies; use DistributedDataParallel")

    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ValueError(f"`model`: {name} is lazy; run the model once before attaching")
        if tensor.device.type == "meta":
            raise ValueError(f"`model`: {name} is on the meta device; give it real weights first")
