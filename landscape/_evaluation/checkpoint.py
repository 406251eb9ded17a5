"""Finished points on disk: written atomically, read back only for the same work."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Checkpoint:
    """The table of values of a run, on disk.

    Args:
        path: The file; made if it does not exist.
        identity: What the run is made of. A file with another identity is refused.
        shape: `(points, values)`.
    """

    def __init__(self, path: str | Path, identity: dict[str, Any], shape: tuple[int, int]) -> None:
        self.path = Path(path)
        self.identity = {key: _digest(str(value)) for key, value in identity.items()}
        self.table = np.full(shape, np.nan)
        self.done: NDArray[np.bool_] = np.zeros(shape[0], bool)

        if not self.path.parent.is_dir():
            raise ValueError(f"`checkpoint`: there is no folder {str(self.path.parent)!r}")
        if self.path.exists():
            self._load()

    def save(self) -> None:
        """Replace the file in one step: a kill leaves the old one or the new one."""
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("wb") as file:
            identity = json.dumps(self.identity)
            np.savez(file, table=self.table, done=self.done, identity=np.array(identity))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def _load(self) -> None:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                identity = json.loads(str(file["identity"]))
                table = file["table"]
                done = file["done"]
        except Exception as error:
            raise ValueError(f"`checkpoint`: {str(self.path)!r} is not one of ours") from error

        keys = sorted(identity.keys() | self.identity.keys())
        differences = [key for key in keys if identity.get(key) != self.identity.get(key)]
        if differences or table.shape != self.table.shape:
            raise ValueError(
                f"`checkpoint`: {str(self.path)!r} was made with other settings or another model; "
                f"it differs in {', '.join(differences) or 'shape'}. Delete it or give another path"
            )
        self.table = table
        self.done = done


def fingerprint(tensors: Iterable[Any]) -> str:
    """A digest of the bytes, shapes and types of tensors, nested or not."""
    digest = hashlib.sha256()

    # A generator: directions that are written out when asked for are so one at a time.
    for leaf in (leaf for tree in tensors for leaf in tree_leaves(tree)):
        if isinstance(leaf, Tensor):
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().data)

    return digest.hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
