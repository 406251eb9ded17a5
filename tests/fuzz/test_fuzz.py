"""Some random cases for every verb: the model is left as it was; a result, or a refusal of ours.

`python -m tests.fuzz.run --minutes 20` tries many more.
"""

from pathlib import Path

import pytest

import attention
import gradients
import landscape
import nudging
import probes
from tests.fuzz.run import try_verb
from tests.fuzz.verbs import VERBS

SEEDS = range(6)

# Known troubles, by verb and seed: those of areas that are being mended elsewhere.
KNOWN: dict[tuple[str, int], str] = {}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_gives_a_result_or_says_what_is_wrong(name):
    for seed in SEEDS:
        if (name, seed) not in KNOWN:
            assert try_verb(name, seed) in ("result", "refused"), f"seed {seed}"


@pytest.mark.parametrize(("name", "seed"), KNOWN)
@pytest.mark.xfail(strict=True, reason="see KNOWN")
def test_a_known_trouble(name, seed):
    assert try_verb(name, seed) in ("result", "refused")


# Classes that other calls return, errors, modules; and a second spelling.
NO_VERBS = {"Probe", "Exits", "Decodable", "State", "UnreadableUpdateError"}
NO_VERBS |= {"schedules", "weightings", "summarize"}
# Files of one's own, which `tests/contract/test_damaged_files.py` damages.
NO_VERBS |= {"read_trace", "saved_credit"}


@pytest.mark.parametrize("package", [probes, landscape, gradients, attention, nudging])
def test_every_public_verb_is_driven(package):
    sources = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("verbs_*.py")
    )
    verbs = [
        name
        for name in package.__all__
        if name not in NO_VERBS and not name.startswith(("plot_", "html_"))
    ]
    missing = [name for name in verbs if f"{package.__name__}.{name}" not in sources]
    assert not missing
