"""How the names of layers are shown to a reader."""

# The root's own name in `named_modules()` is the empty string, which a picture cannot show.
_ROOT_LABEL = "(the model's own)"


def layer_label(layer: str) -> str:
    """Return a layer's name for a picture or a message."""
    return layer or _ROOT_LABEL
