"""Writing whole or not at all; reading without taking damage for data."""

import os
import random
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import h5py
import numpy as np
import pytest
import torch
import xarray as xr

from resonance_toolkit import (
    check_digest,
    check_writable,
    load_tensors,
    locking,
    open_netcdf,
    tensor_writer,
    to_netcdf_bytes,
    with_digest,
    write_atomically,
)
from tests.helpers.systems import needs_posix, needs_proc


@contextmanager
def no_room_beyond(n_bytes):
    """Let no file of this process grow larger, as on a disk that is nearly full."""
    import resource  # of POSIX alone

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def text_writer(text):
    return lambda path: path.write_text(text)


def test_all_files_are_written_or_none(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")

    def fail(_path):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        write_atomically({first: text_writer("new"), second: fail})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}

    write_atomically({first: text_writer("new"), second: text_writer("more")})
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {"a": "new", "b": "more"}


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "usual").write_text("")
    write_atomically({tmp_path / "ours": text_writer("")})
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@needs_posix
def test_no_link_is_written_through(tmp_path, monkeypatch):
    # Even where the name could be known beforehand.
    precious = tmp_path / "precious"
    precious.write_text("precious")
    monkeypatch.setattr("resonance_toolkit._base.files.uuid4", lambda: type("U", (), {"hex": "0"}))
    (tmp_path / ".resonance-0.partial").symlink_to(precious)

    with pytest.raises(FileExistsError, match=r"cannot write '.*note'"):
        write_atomically({tmp_path / "note": text_writer("new")})
    assert precious.read_text() == "precious"

    # Nor is a link of the file's own name: it is replaced.
    monkeypatch.undo()
    (tmp_path / "note").symlink_to(precious)
    write_atomically({tmp_path / "note": text_writer("new")})
    assert precious.read_text() == "precious"
    assert not (tmp_path / "note").is_symlink()


def test_what_a_killed_process_left_goes_after_a_day(tmp_path):
    ages = {".resonance-old.partial": 25, ".resonance-new.partial": 1, ".other.partial": 99}
    for name, hours in ages.items():
        (tmp_path / name).write_text("")
        then = time.time() - 3600 * hours
        os.utime(tmp_path / name, (then, then))

    write_atomically({tmp_path / "note": text_writer("")})
    assert {path.name for path in tmp_path.iterdir()} == {*ages, "note"} - {
        ".resonance-old.partial"
    }


@needs_posix
@pytest.mark.parametrize("write", ["netcdf", "tensors"])
def test_a_full_disk_is_told_and_the_old_file_stays(tmp_path, write):
    path = tmp_path / "result"
    path.write_text("old")
    large = xr.Dataset({"loss": ("step", np.zeros(50_000))})
    writer = {
        "netcdf": lambda path: path.write_bytes(to_netcdf_bytes(large)),
        "tensors": tensor_writer({"weights": torch.zeros(100_000)}),
    }[write]

    with no_room_beyond(10_000), pytest.raises(OSError, match=r"cannot write '.*result': File too"):
        write_atomically({path: writer})
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@needs_proc
def test_a_folder_that_takes_no_file_is_found_out(tmp_path):
    check_writable("checkpoint", tmp_path / "plane.nc")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match=r"`checkpoint`: cannot write '/proc/plane.nc': \w+"):
        check_writable("checkpoint", type(tmp_path)("/proc/plane.nc"))  # for root as well


@needs_posix
def test_a_lock_lets_one_in_at_a_time(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")

    def add_one(_):
        with locking(tmp_path):
            number = int(counter.read_text())
            time.sleep(0.002)
            counter.write_text(str(number + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_one, range(40)))
    assert counter.read_text() == "40"


def test_a_lock_that_is_never_given_back_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("resonance_toolkit._base.files._PATIENCE", 0.05)
    with locking(tmp_path), locking(tmp_path):
        pass


@pytest.fixture
def dataset():
    return xr.Dataset(
        {
            "loss": (("layer", "step"), [[1.0, np.nan], [-0.0, np.inf]], {"units": "nat"}),
            "name": ((), "tête"),
            "right": ("step", [True, False]),
            "half": ("step", np.array([0.5, np.nan], np.float32)),
        },
        {"layer": ["a", "bc"], "step": [0, 7]},
        {"made_by": "a test", "seed": 3, "span": 0.5, "none": ""},
    )


def test_a_digest_survives_the_file(tmp_path, dataset):
    path = tmp_path / "result.nc"
    path.write_bytes(to_netcdf_bytes(with_digest(dataset)))
    with open_netcdf(path) as contents:
        xr.testing.assert_identical(check_digest(contents.load()), dataset)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["loss"].values.__setitem__((0, 0), np.nextafter(1.0, 2.0)),
        lambda data: data["loss"].values.__setitem__((1, 0), 0.0),
        lambda data: data["right"].values.__setitem__(0, False),
        lambda data: data["loss"].attrs.update(units="bit"),
        lambda data: data.attrs.update(seed=4),
        lambda data: data.attrs.pop("made_by"),
    ],
)
def test_a_digest_notices_the_smallest_change(dataset, change):
    dataset = with_digest(dataset)
    check_digest(dataset)
    change(dataset)
    with pytest.raises(ValueError, match="is damaged: its contents and its digest do not agree"):
        check_digest(dataset)


def test_a_digest_knows_layouts_and_names(dataset):
    digests = {
        with_digest(changed).attrs["digest"]
        for changed in (
            dataset,
            dataset.rename(loss="lost"),
            dataset.rename(step="stop"),
            dataset.transpose("step", "layer"),
            dataset.isel(step=[1, 0]),
            dataset.assign_coords(layer=["ab", "c"]),
            dataset.drop_vars("half"),
        )
    }
    assert len(digests) == 7


def _bomb_of_nothing(file):
    # Numbers that were never written: all are the fill value.
    file.create_dataset("loss", (10**9,), "f8")


def _bomb_of_zeros(file):
    file.create_dataset("loss", data=np.zeros(10**6), chunks=(10**6,), compression="gzip")


def _bomb_of_texts(file):
    texts = file.create_dataset("names", (1000,), h5py.string_dtype())
    texts[0] = "x" * 40_000
    first = file["names"].id.get_offset()
    size = file["names"].id.get_storage_size() // 1000
    name = file.filename
    file.close()
    with open(name, "r+b") as raw:  # all thousand are the one text
        raw.seek(first)
        reference = raw.read(size)
        raw.seek(first)
        raw.write(reference * 1000)


def _other_file(file):
    file.create_dataset("loss", (4,), "f8", external=[("/etc/hostname", 0, 32)])


def _link(file):
    file["loss"] = h5py.ExternalLink("/etc/hostname", "/x")


@pytest.mark.parametrize(
    "make", [_bomb_of_nothing, _bomb_of_zeros, _bomb_of_texts, _other_file, _link]
)
def test_a_file_holds_no_more_than_its_own_size(tmp_path, make):
    path = tmp_path / "bomb.nc"
    with h5py.File(path, "w") as file:
        make(file)
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"is damaged: '.*' is (not|larger)"), open_netcdf(path):
        pass


@pytest.mark.parametrize("kind", ["compressed", "twice"])
def test_a_state_that_is_larger_in_memory_is_refused(tmp_path, kind):
    whole, bomb = tmp_path / "state.pt", tmp_path / "bomb.pt"
    torch.save({"weights": torch.zeros(10_000)}, whole)

    if kind == "compressed":
        with zipfile.ZipFile(whole) as old, zipfile.ZipFile(bomb, "w", 8) as new:
            for part in old.infolist():
                new.writestr(part.filename, old.read(part))
    else:
        with zipfile.ZipFile(whole) as old, zipfile.ZipFile(bomb, "w") as new:
            new.writestr("state/data.pkl", old.read("state/data.pkl"))
            for part in list(new.infolist()):  # many entries for the same bytes
                new.filelist += [part] * 20
                new._didModify = True

    with pytest.raises(ValueError, match="is damaged: it is larger in memory than on the disk"):
        load_tensors(bomb)


def test_a_flipped_bit_of_a_state_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "state.pt"
    state = {"weights": torch.linspace(0, 1, 100), "step": 7}
    torch.save(state, path)
    whole = path.read_bytes()
    generator = random.Random(0)
    n_noticed = 0

    for _ in range(100):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        loaded = None
        with suppress(ValueError):
            loaded = load_tensors(path)

        n_noticed += loaded is None
        if loaded is not None:
            assert loaded["step"] == 7
            torch.testing.assert_close(loaded["weights"], state["weights"], rtol=0, atol=0)
    assert n_noticed > 40
