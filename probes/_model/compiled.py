"""Compiled code that does not look for hooks is never run on an attached model."""

import torch._dynamo


def heed_hooks() -> None:
    """Let all compiled code of this process check for hooks before it runs.

    By default `torch.compile` does not look whether hooks were added since, or whether another
    model of the same structure has some: a probe would miss such a pass and take an older one for
    the latest. Code compiled without that check is dropped, once, and compiled again when needed.
    """
    if torch._dynamo.config.skip_nnmodule_hook_guards:
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch._dynamo.reset_code_caches()
