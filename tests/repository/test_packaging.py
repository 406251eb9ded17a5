import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTRUMENTS = {"probes", "landscape", "gradients", "attention", "nudging"}
PACKAGES = INSTRUMENTS | {"resonance", "resonance_toolkit"}


def test_the_wheel_has_the_packages_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("resonance_toolkit-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == PACKAGES
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        assert sources <= set(names)


def test_instruments_do_not_import_one_another():
    instruments = INSTRUMENTS
    for package in PACKAGES:
        for path in (ROOT / package).glob("**/*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                words = line.split()
                if words[:1] in (["import"], ["from"]):
                    top = words[1].split(".")[0]
                    assert top not in instruments - {package}, f"{path.name}: {line}"
