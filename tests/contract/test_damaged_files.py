"""No damaged file is taken for data: cut off, or with one bit flipped, for every kind of file."""

import random
import warnings
from pathlib import Path

import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn import functional as F

import gradients
import landscape
import nudging
from lab.results.files import cache_writer, read_dataset, read_state, write_atomically
from resonance_toolkit import tensor_writer

TRIALS = 12  # of each kind and damage; hundreds by hand


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    return model, (torch.randn(6, 4).double(), torch.arange(6) % 3)


def make_surface(path):
    model, data = make_model()
    return landscape.grid(model, data, samples=6, size=3, checkpoint=path)


def read_surface(path):
    return make_surface(path)


def make_credit(path):
    model, data = make_model()
    credit = nudging.direct_feedback(seed=3)
    nudging.nudge(model, data, credit, "*", samples=None)
    saved = credit.to_dataset()
    saved.to_netcdf(path, engine="h5netcdf")
    return saved


def read_credit(path):
    # Opening it is the user's; of what xarray says about damage we know nothing.
    try:
        saved = xr.load_dataset(path, engine="h5netcdf")
    except Exception as error:
        raise ValueError(f"damaged: {error}") from error
    return nudging.load_credit(saved).to_dataset()


def make_cache_entry(path):
    loss = torch.linspace(0, 1, 40).reshape(4, 10).numpy()
    layers = [f"layer {i}" for i in range(4)]
    entry = xr.Dataset({"loss": (("layer", "step"), loss)}, {"layer": layers}, {"seed": 3})
    write_atomically({path: cache_writer(entry)})
    return entry


def read_cache_entry(path):
    return refused_if_none(read_dataset(path, required="loss"))


def make_run(path):
    model, _ = make_model()
    state = {"weights": model.state_dict(), "step": 3, "note": "a run"}
    write_atomically({path: tensor_writer(state)})
    return as_dataset(state)


def read_run(path):
    return as_dataset(refused_if_none(read_state(path, required=("weights", "step", "note"))))


def make_record(path):
    model, (x, y) = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradients.Trace(model, every=1, path=path) as trace:
        for _ in range(6):
            optimizer.zero_grad()
            outputs = model(x)
            trace.backward(F.cross_entropy(outputs, y), outputs.square().mean())
            optimizer.step()
            trace.advance()
    return gradients.read_trace(path)


def read_record(path):
    return gradients.read_trace(path)


KINDS = {
    "grid checkpoint": (make_surface, read_surface),
    "credit": (make_credit, read_credit),
    "lab cache": (make_cache_entry, read_cache_entry),
    "run checkpoint": (make_run, read_run),
    "gradient record": (make_record, read_record),
}


def refused_if_none(content):
    if content is None:
        raise ValueError("damaged: to be made again")
    return content


def as_dataset(state):
    weights = {name.replace(".", "_"): tensor.numpy() for name, tensor in state["weights"].items()}
    variables = {name: ([f"{name}{i}" for i in range(w.ndim)], w) for name, w in weights.items()}
    return xr.Dataset(variables, attrs={"step": state["step"], "note": state["note"]})


def cut_off(content, generator):
    return content[: generator.randrange(len(content))]


def flip_a_bit(content, generator):
    damaged = bytearray(content)
    damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    return bytes(damaged)


def try_damage(kind, damage, path, *, n_trials, seed=0):
    """Count what comes of damaged files: refused, the same data, fewer rows, or wrong data."""
    make, read = KINDS[kind]
    expected = make(path)
    whole = path.read_bytes()
    generator = random.Random(seed)
    counts = {"refused": 0, "same": 0, "fewer rows": 0, "wrong": 0}

    for _ in range(n_trials):
        path.write_bytes(damage(whole, generator))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = read(path)
        except ValueError as error:
            assert_tells_damage(str(error))
            counts["refused"] += 1
            continue

        # The record of a killed training ends with the last row that was written whole.
        is_shorter = kind == "gradient record" and content.sizes["step"] < expected.sizes["step"]
        if content.identical(expected):
            counts["same"] += 1
        elif is_shorter and content.identical(expected.isel(step=slice(content.sizes["step"]))):
            counts["fewer rows"] += 1
        else:
            counts["wrong"] += 1
    return counts


def assert_tells_damage(message):
    # Where the first bytes are not those of netCDF, nothing shows that the file was one.
    # Where the list of settings is damaged, they are not those of this call.
    phrases = ("damaged", "not one of ours", "no whole", "a saved", "other settings")
    assert any(phrase in message for phrase in phrases)


# h5netcdf closes a damaged file a second time when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", [cut_off, flip_a_bit])
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_file_is_taken_for_data(kind, damage, tmp_path):
    counts = try_damage(kind, damage, tmp_path / "file", n_trials=TRIALS)
    assert counts["wrong"] == 0
    if damage is cut_off:
        assert counts["refused"] + counts["fewer rows"] == TRIALS


@pytest.mark.filterwarnings("ignore:.* in the cache is damaged")
def test_a_flipped_bit_of_the_numbers_is_noticed(tmp_path):
    for kind in ("grid checkpoint", "credit", "lab cache", "run checkpoint"):
        make, read = KINDS[kind]
        path = tmp_path / kind
        expected = make(path)
        whole = path.read_bytes()

        # The last bit of a number that occurs in the file as it does in the data.
        name = "loss" if "loss" in expected else next(iter(expected.data_vars))
        number = next(value for value in expected[name].values.ravel() if value not in (0.0, 1.0))
        place = whole.index(number.tobytes())
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            read(path)


if __name__ == "__main__":
    import sys
    import tempfile

    for chosen in KINDS:
        for way in (cut_off, flip_a_bit):
            with tempfile.TemporaryDirectory() as folder:
                told = try_damage(chosen, way, Path(folder, "file"), n_trials=int(sys.argv[1]))
            print(f"{chosen:16s} {way.__name__:11s} {told}", flush=True)
