class UnreadableUpdateError(ValueError):
    """The gradients of an update cannot be read; raised before any of its gradients has come.

    For example, a layer did not run, or its losses share a computation. With `Trace.backward` the
    graph is still whole: `(main + auxiliary).backward()` may be called instead.
    """
