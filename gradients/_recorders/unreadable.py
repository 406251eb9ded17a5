class UnreadableUpdateError(ValueError):
    """The gradients of an update cannot be read; raised before any of its gradients has come.

    A layer did not run, say, or its losses share a computation. With `Trace.backward` the graph is
    whole still: `(main + auxiliary).backward()` may be called instead.
    """
