"""Wheels that pip really installs: ours, and over it one of a stranger with two of our names."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import resonance_toolkit

ROOT = Path(__file__).parents[4]
PACKAGES = ["resonance_toolkit", "resonance", "probes", "landscape", "gradients", "attention"]
SCRIPT = "[console_scripts]\nresonance = resonance_toolkit._front.command:main\n"


def write_wheel(folder, name, version, files):
    """Pack files by path into a wheel, with the lists that pip reads."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = files | {
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": tags.encode(),
    }
    rows = [f"{path},sha256={digest(content)},{len(content)}" for path, content in files.items()]
    record = "\n".join([*rows, f"{stem}.dist-info/RECORD,,", ""])

    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, content in (files | {f"{stem}.dist-info/RECORD": record}).items():
            archive.writestr(name_inside, content)
    return path


def digest(content):
    value = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def write_our_wheel(folder):
    files = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    version = resonance_toolkit.__version__.partition("+")[0]
    points = f"resonance_toolkit-{version}.dist-info/entry_points.txt"
    return write_wheel(folder, "resonance-toolkit", version, files | {points: SCRIPT.encode()})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with ours and, installed afterwards, theirs."""
    folder = tmp_path_factory.mktemp("installed")
    stranger = {
        "attention/__init__.py": b"__version__ = '5.0.0'\n",
        "resonance/__init__.py": b"raise SystemExit('a stranger ran')\n",
    }
    for wheel in (write_our_wheel(folder), write_wheel(folder, "attention", "5.0.0", stranger)):
        options = "--no-index --no-deps --no-compile --quiet --disable-pip-version-check --prefix"
        command = [sys.executable, "-m", "pip", "install", *options.split(), folder, wheel]
        process = subprocess.run(command, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr

    (site,) = folder.glob("[Ll]ib/**/site-packages")
    return site


@pytest.fixture
def run(site, tmp_path):
    """Run Python in an empty folder, with what is installed first on the path."""

    def run_words(*words):
        command = [sys.executable, *map(str, words)]
        path = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)

    return run_words


def test_what_was_overwritten_is_named_with_its_culprit(run, site):
    code = (
        "from resonance_toolkit._front.command import main\n"
        "try:\n"
        "    from resonance_toolkit import attention\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "main(['info'])"
    )
    process = run("-c", code)
    assert process.returncode == 0, process.stderr
    sentence, first_line, *others = process.stdout.splitlines()
    assert sentence == (
        "`attention` of resonance-toolkit was overwritten by the distribution attention "
        f"({site}/attention/__init__.py); pip uninstall attention, then pip install "
        "--force-reinstall --no-deps resonance-toolkit"
    )
    assert first_line.endswith(f" in {site}")
    troubles = [line[2:] for line in others if line.startswith("! ")]
    assert troubles == [
        sentence,
        sentence.replace("attention`", "resonance`").replace(
            "attention/__init__", "resonance/__init__"
        ),
    ]


def test_the_console_script_and_the_unique_name_work_all_the_same(run, site):
    assert "a stranger ran" in run("-m", "resonance").stderr

    version = resonance_toolkit.__version__.partition("+")[0]
    assert run("-m", "resonance_toolkit", "--version").stdout.strip() == version
    (script,) = [*site.parents[2].glob("bin/resonance"), *site.parents[1].glob("Scripts/reson*")]
    assert run(script, "--version").stdout.strip() == version
