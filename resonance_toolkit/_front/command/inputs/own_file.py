"""A model from the user's own file: `file.py:function`, whose code is run."""

import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from resonance_toolkit._base.instruments import INSTRUMENTS
from resonance_toolkit._front.command.mistake import Mistake, closest, first_line


def load_from_file(text: str) -> nn.Module:
    """Run a file and call a function or class of it, which gives the model.

    Args:
        text: `path/to/file.py:name`; the name of a function, a class, or a model.

    Raises:
        Mistake: If there is no such file or name, its code fails, or no model comes of it.
    """
    path_text, _, name = text.rpartition(":")
    path = Path(path_text).expanduser()
    if not path.is_file():
        raise Mistake(f"MODEL: no file {path}")

    with importing_from(path.resolve().parent):
        module = _run_file(path)
        if not hasattr(module, name):
            names = [key for key, value in vars(module).items() if callable(value)]
            raise Mistake(f"MODEL: {path} has no {name!r}{closest(name, names)}")
        model = _make_model(getattr(module, name), text, path)

    if not isinstance(model, nn.Module):
        raise Mistake(f"MODEL: {text} gave {type(model).__name__}; expected an nn.Module")
    return model


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Run the body as if the program lay in `folder`, whose modules may be called like ours.

    A model's file often has a neighbour `attention.py`, and means that. It gets it; afterwards the
    instruments are found again, and the neighbours stay with those who have imported them.
    """
    ours = _take_out(_is_an_instruments)
    sys.path.insert(0, str(folder))

    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _take_out(_is_an_instruments)
        sys.modules.update(ours)

        # Last: what the model imports when it is called.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _take_out(is_meant: Any) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if is_meant(name)]
    return {name: sys.modules.pop(name) for name in names}


def _is_an_instruments(name: str) -> bool:
    return name.partition(".")[0] in INSTRUMENTS


def _run_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Mistake(f"MODEL: {path} is not a Python file")
    module = module_from_spec(spec)

    # Dataclasses and pickling look a class's module up by name. A file may be called like a module
    # that others need.
    is_new = path.stem not in sys.modules
    if is_new:
        sys.modules[path.stem] = module

    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if is_new:
            del sys.modules[path.stem]
        raise Mistake(_say_failed(f"{path} cannot be run", path, error)) from error
    return module


def _make_model(value: Any, text: str, path: Path) -> Any:
    if isinstance(value, nn.Module) or not callable(value):
        return value

    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise Mistake(
            f"MODEL: {text} is called without arguments, and has some without a default "
            f"({error}); write a function that calls it with them"
        ) from error
    except ValueError:
        pass  # some callables have no signature

    try:
        return value()
    except Exception as error:
        raise Mistake(_say_failed(f"{text}() failed", path, error)) from error


def _say_failed(failure: str, path: Path, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    place = f" at line {lines[-1]}" if lines else ""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        place = f" at line {error.lineno}"
    return f"MODEL: {failure}{place}: {type(error).__name__}: {first_line(error)}"
