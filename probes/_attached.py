import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import nn

from probes._capture import Capture

_TRANSIENT = ("_capture", "_finalizer", "_root")


class Attached(nn.Module):
    """What listens to a model by hooks, without being part of it or keeping it alive.

    When it is `detach()`ed, its `with` block ends, or it is collected, the hooks are gone. A copy,
    also one from a pickle, is detached.
    """

    _capture: Capture
    _finalizer: Callable[[], Any] | None
    _root: Callable[[], nn.Module | None]

    @property
    def attached(self) -> bool:
        """Whether there is still a model that is listened to."""
        return self._finalizer is not None and self._root() is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Capture in eval mode and without gradients too, for measurements.

        Outside of this, a forward pass in eval mode or under `no_grad` costs nothing.
        """
        before = self._capture.listening
        self._capture.listening = True
        try:
            yield
        finally:
            self._capture.listening = before

    def detach(self) -> None:
        """Remove every hook from the model and forget its activations; calling twice is fine."""
        if self._finalizer is not None:
            self._finalizer()
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in _TRANSIENT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _new_capture(self) -> Capture:
        return Capture()

    def _hold(self, root: nn.Module, handles: list[Any]) -> None:
        self._root = weakref.ref(root)
        self._finalizer = weakref.finalize(self, _remove, handles)

    def _forget(self) -> None:
        self._capture, self._finalizer, self._root = self._new_capture(), None, _no_model


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def _no_model() -> None:
    return None
