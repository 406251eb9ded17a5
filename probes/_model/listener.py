"""How a probe takes hold of a model, and lets it go."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from torch import nn
from torch.utils.hooks import RemovableHandle

from probes._model.capture import Capture, hook_into
from probes._model.pooling import Pool
from resonance_toolkit import find_layers, unwrap

# What ties a listener to one model in one process: left out of copies and pickles.
_TRANSIENT_ATTRIBUTES = ("_capture", "_finalizer", "_root")


class Listener(nn.Module):
    """Owns the hooks at some layers of a model, and what they captured, but not the model.

    The hooks go with `detach()`, at the end of the `with` block, or when the listener is collected.
    A copied or unpickled listener is detached.
    """

    _capture: Capture
    _finalizer: Callable[[], Any] | None  # removes the hooks
    _root: Callable[[], nn.Module | None]  # a weak reference to the model

    def __init__(
        self, pools: Mapping[str, Pool], *, adaptive: bool, listen_only: bool = False
    ) -> None:
        super().__init__()
        self.pools = dict(pools)
        self.adaptive = adaptive
        self.listen_only = listen_only
        self._forget()

    @property
    def layers(self) -> list[str]:
        """Names of the attachment points."""
        return list(self.pools)

    @property
    def attached(self) -> bool:
        """Whether the probe listens to a model that is still there."""
        return self._finalizer is not None and self._root() is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Capture in eval mode and without gradients too, for measurements.

        Outside of this, a forward pass in eval mode or under `no_grad` costs nothing.
        """
        was_listening = self._capture.listening
        self._capture.listening = True

        try:
            yield
        finally:
            self._capture.listening = was_listening

    @contextmanager
    def keeping_pass(self) -> Iterator[None]:
        """Run the body, and have the latest forward pass back afterwards.

        What is due of it can still be had then (a loss, measurements), whatever passes the body
        makes.
        """
        latest_pass = replace(self._capture)

        try:
            yield
        finally:
            vars(self._capture).update(vars(latest_pass))

    def detach(self) -> None:
        """Remove every hook from the model and forget its activations; calling twice is fine."""
        if self._finalizer is not None:
            self._finalizer()
        self._forget()

    def reattach(self, model: nn.Module) -> Self:
        """Hook into `model`, which must have the same layers, and leave any model before it."""
        # All layers are looked for first: if one is missing, the old hooks stay.
        modules = {name: find_layers(model, name)[name] for name in self.layers}

        self.detach()
        self._hook(modules, unwrap(model))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in _TRANSIENT_ATTRIBUTES
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _hook(self, modules: Mapping[str, nn.Module], root: nn.Module) -> None:
        points = {name: (modules[name], pool) for name, pool in self.pools.items()}
        handles = self._hooks(points, root)

        self._root = weakref.ref(root)
        self._finalizer = weakref.finalize(self, _remove_hooks, handles)

    def _hooks(
        self, points: dict[str, tuple[nn.Module, Pool]], root: nn.Module
    ) -> list[RemovableHandle]:
        return hook_into(root, points, self._capture)

    def _forget(self) -> None:
        self._capture = self._new_capture()
        self._finalizer = None
        self._root = _no_model

    def _new_capture(self) -> Capture:
        return Capture(adaptive=self.adaptive, listen_only=self.listen_only)


def _remove_hooks(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def _no_model() -> None:
    """Stand in for the weak reference to a model."""
    return None
