"""`resonance info`: what is here, for a report of a fault or before a long run."""

import argparse
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import resonance_toolkit
from resonance_toolkit import all_accelerators, text_table
from resonance_toolkit._front.command.names import Name, look_up_names

_REQUIRED = (
    "torch",
    "numpy",
    "scipy",
    "xarray",
    "h5netcdf",
    "h5py",
    "jinja2",
    "matplotlib",
    "tqdm",
)

# By the extra that installs them.
_OPTIONAL = {
    "examples": ("timm", "torchvision", "scikit-learn", "accelerate", "dask"),
    "transformers": ("transformers",),
    "lightning": ("lightning",),
    "logging": ("tensorboard", "wandb", "mlflow"),
}


def run_info(_arguments: argparse.Namespace) -> int:
    """Print versions, devices, threads, and where our names lead."""
    place = Path(resonance_toolkit.__file__).parents[1]
    print(f"resonance-toolkit {resonance_toolkit.__version__} in {place}")
    print(f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}")

    print()
    rows = [_package_row(name) for name in _REQUIRED]
    rows += [_package_row(name, extra) for extra, names in _OPTIONAL.items() for name in names]
    print(text_table(rows))

    print()
    print(text_table(_machine_rows()))

    print()
    names = look_up_names(Path.cwd())
    print(text_table([_name_row(name) for name in names]))
    for name in names:
        for trouble in name.troubles:
            print(f"! {trouble}")
    return 0


def _package_row(name: str, extra: str = "") -> tuple[str, str]:
    try:
        return name, version(name)
    except PackageNotFoundError:
        distribution = f"resonance-toolkit[{extra}]" if extra else name
        return name, f"missing; pip install '{distribution}'"


def _machine_rows() -> list[tuple[str, str]]:
    threads = f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()}"
    devices = [(str(device), _device_name(device)) for device in all_accelerators()]
    return [("processors", threads), *(devices or [("devices", "cpu only")])]


def _device_name(device: torch.device) -> str:
    describe = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(describe(device)) if describe is not None else device.type


def _name_row(name: Name) -> tuple[str, str]:
    if not name.place.is_file():
        return name.name, f"missing at {name.place.parent}"
    return name.name, "in the way: see below" if name.troubles else "ours"
