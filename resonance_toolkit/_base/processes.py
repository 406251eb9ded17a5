import torch.distributed as dist


def is_first_process() -> bool:
    """Tell whether this is the process that writes and tells for all; also if it is alone."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
