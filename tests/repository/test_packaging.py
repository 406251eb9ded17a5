import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import resonance_toolkit

ROOT = Path(__file__).parents[2]
INSTRUMENTS = {"probes", "landscape", "gradients", "attention", "nudging"}
PACKAGES = INSTRUMENTS | {"resonance", "resonance_toolkit"}

# Of the clone, what only git needs.
NOT_SHIPPED = {".gitattributes", ".gitignore"}


@pytest.fixture(scope="module")
def tracked_files():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a clone: git does not know which files belong to it")
    names = listing.stdout.splitlines()
    return {name for name in names if (ROOT / name).is_file()} - NOT_SHIPPED


@pytest.fixture(scope="module")
def sdist(tracked_files, tmp_path_factory):
    """The source distribution, made from a copy of the clone: building leaves things behind."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "clone"
    for name in tracked_files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())

    build("sdist", copy, folder)
    (archive,) = folder.glob("resonance_toolkit-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, made from the source distribution as an installer would."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()

    build("wheel", source, folder)
    (path,) = folder.glob("resonance_toolkit-*.whl")
    return path


def build(kind: str, source: Path, folder: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_the_source_distribution_is_the_clone(sdist, tracked_files):
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}

    assert tracked_files <= names
    made = {"PKG-INFO", "setup.cfg"}
    assert not [name for name in names - tracked_files - made if ".egg-info/" not in name]


def test_the_wheel_has_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == PACKAGES
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert sources <= set(names)

        # What pages are made of lies beside the code.
        templates = (ROOT / package).rglob("templates/*")
        assert {path.relative_to(ROOT).as_posix() for path in templates} <= set(names)


def test_the_page_of_a_package_index_has_no_dead_links(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    page = metadata.get_payload()

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "pip install resonance-toolkit" in page
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", page)
    assert {"examples", "lightning", "logging", "transformers"} <= set(
        metadata.get_all("Provides-Extra")
    )


def test_the_version_of_a_clone_is_that_of_the_project(monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (ROOT / "resonance_toolkit" / "_base" / "provenance.py").read_text(encoding="utf-8")
    assert f'_SOURCE_VERSION = "{project["version"]}"' in source
    assert resonance_toolkit.__version__.partition("+")[0] == project["version"]


def test_the_lowest_versions_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"]]
    for extra in ("examples", "lightning", "logging", "peers", "transformers"):
        requirements += extras[extra]
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))

    for requirement in requirements:
        name, bound = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()
        assert as_numbers(pins[name]) == as_numbers(bound), name


def test_an_installed_torch_for_processors_is_not_replaced():
    # Exact versions are of other builds than those that somebody without a GPU has.
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    bounds = dict(re.findall(r"^(torch|torchvision)\b(.*)$", text, re.MULTILINE))
    assert set(bounds) == {"torch", "torchvision"}
    assert all(re.fullmatch(r">=[\d.]+,<[\d.]+", bound) for bound in bounds.values())


def test_the_workflow_calls_the_commands_of_the_clone():
    workflow = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    commands = re.findall(r"run: (\S+)", workflow)
    assert set(commands) == {".ci/run", ".ci/versions", ".ci/package"}
    assert all((ROOT / command).is_file() for command in commands)
    if os.name == "posix":
        assert all((ROOT / command).stat().st_mode & 0o100 for command in commands)

    runs = set(re.findall(r"os: (\w+)-latest, python: \"([\d.]+)\", kind: (\w+)", workflow))
    script = (ROOT / ".ci/versions").read_text(encoding="utf-8")
    assert {kind for *_, kind in runs} == {"lowest", "tested", "newest"}
    assert all(f"  {kind}) constraints=" in script for *_, kind in runs)
    assert {system for system, *_ in runs} == {"ubuntu", "macos", "windows"}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert {python for _, python, _ in runs} == set(promised)
    assert project["requires-python"] == f">={promised[0]}"
    assert (promised[0], "lowest") in {(python, kind) for _, python, kind in runs}


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("probes.transformers", "transformers"),
        ("probes.lightning", "lightning"),
        ("gradients.transformers", "transformers"),
        ("gradients.lightning", "lightning"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(module, package):
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert process.stderr.splitlines()[-1] == (
        f"ImportError: `{module}` needs {package}; run: pip install 'resonance-toolkit[{package}]'"
    )


def test_an_example_without_its_packages_ends_with_one_sentence():
    # As on a machine without timm: the finder does not know it.
    code = (
        "import sys, runpy, importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'timm' else find(name, *rest)\n"
        "sys.path.insert(0, 'examples')\n"
        "runpy.run_path('examples/quickstart.py', run_name='__main__')"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 1
    assert process.stderr.strip() == (
        "The examples need packages that are not installed (timm); "
        "run: pip install 'resonance-toolkit[examples]'"
    )


def as_numbers(version: str) -> list[int]:
    """`2025.8` and `2025.8.0` are one version."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def test_instruments_do_not_import_one_another():
    instruments = INSTRUMENTS
    for package in PACKAGES:
        for path in (ROOT / package).glob("**/*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                words = line.split()
                if words[:1] in (["import"], ["from"]):
                    top = words[1].split(".")[0]
                    assert top not in instruments - {package}, f"{path.name}: {line}"
