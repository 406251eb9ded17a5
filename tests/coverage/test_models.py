"""Every instrument on a sample of `docs/coverage.md`: it works, or says why not."""

import re

import pytest
import transformers

import probes
from coverage_instruments import INSTRUMENTS, examine
from coverage_transformers import ARCHITECTURES
from coverage_vision import timm_case, torchvision_case
from resonance_toolkit import find_blocks

TIMM = (
    "test_byobnet",
    "test_convnext",
    "test_efficientnet",
    "test_mambaout",
    "test_nfnet",
    "test_resnet",
    "test_vit",
    "beit_base_patch16_224",
    "mobilevitv2_050",
    "pvt_v2_b0",
    "samvit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
)
TORCHVISION = ("maxvit_t", "mnasnet0_5", "mvit_v1_b", "squeezenet1_1", "vit_b_16")

NO_ATTENTION = {"attention.capture": ("not applicable", r"^`model`: no attention was seen")}
# Widths grow from stage to stage, so that the head reads the last one only.
OTHER_WIDTHS = {
    "probes.exits": ("not applicable", r"^`head`: .* of another width needs head='own'")
}
# Between the last block and the logits is something of the model's own, such as another stage.
OWN_PATH = {"probes.exits": ("refused", r"^`head`: cannot follow the model from '.*to its output")}

# All else works.
EXPECTED: dict[str, dict[str, tuple[str, str]]] = {
    # Convolutions, and what stands for attention without a softmax
    **dict.fromkeys(
        (
            "test_byobnet",
            "test_convnext",
            "test_efficientnet",
            "test_mambaout",
            "test_nfnet",
            "test_resnet",
            "squeezenet1_1",
            "convnext",
            "poolformer",
            "resnet",
        ),
        OTHER_WIDTHS | NO_ATTENTION,
    ),
    **dict.fromkeys(("mnasnet0_5", "mobilevitv2_050"), OWN_PATH | NO_ATTENTION),
    **dict.fromkeys(("fnet", "mamba", "mamba2", "falcon mamba", "rwkv"), NO_ATTENTION),
    # Transformers with stages, or with a way of their own to the logits
    **dict.fromkeys(
        ("pvt_v2_b0", "swin_tiny_patch4_window7_224", "maxvit_t", "mobilevit", "mvit_v1_b"),
        OTHER_WIDTHS,
    ),
    **dict.fromkeys(("samvit_base_patch16_224", "bart, classifier"), OWN_PATH),
    # One layer that is called again and again
    "albert": {
        "probes.exits": ("not applicable", r"^`layers` at .* its passes share their weights")
    },
    # A softmax over a window beside the one over keys
    "convbert": {"attention.capture": ("refused", r"softmaxes along two .* with `layers=`")},
    # Blocks whose `forward` is called past their hooks
    "squeezebert": {
        "probes.attach": ("refused", r"^`layers` at .* never runs in eval mode"),
        "probes.exits": ("refused", r"^`layers` at .* runs 0 times"),
        "nudging.nudge": ("refused", r"^`blocks`: .* did not run in a forward pass"),
    },
    # Time comes before samples
    "xlnet": {
        "probes.attach": ("refused", r"^`layers` at .* expected one entry per sample first"),
        "probes.exits": ("refused", r"^`layers` at .* expected an output with the samples first"),
        "nudging.nudge": ("refused", r"^`blocks`: .* with 3 samples first"),
    },
    # Maps of logits
    "segformer": {"probes.exits": ("not applicable", r"expected logits \(sample, class\) or")},
}


@pytest.fixture(autouse=True)
def _quiet():
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(verbosity)


def build(name):
    if name in ARCHITECTURES:
        return ARCHITECTURES[name].build()
    return timm_case(name) if name in TIMM else torchvision_case(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*TIMM, *TORCHVISION, *ARCHITECTURES])
def test_every_instrument_works_or_says_why_not(name):
    cells = examine(build(name))
    assert list(cells) == list(INSTRUMENTS)

    for instrument, cell in cells.items():
        outcome, sentence = EXPECTED.get(name, {}).get(instrument, ("works", ""))
        assert cell.outcome == outcome, f"{instrument}: {cell}"
        assert re.search(sentence, cell.sentence), f"{instrument}: {cell}"


def test_a_path_that_only_looks_like_the_head_is_refused():
    # Its blocks return lists, and what comes after the last reads more than their first tensor.
    case = timm_case("selecsls42")
    with pytest.raises(ValueError, match=r"^`head`: cannot follow the model from"):
        probes.exits(case.model, case.data, list(find_blocks(case.model)))
