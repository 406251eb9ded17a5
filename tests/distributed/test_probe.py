"""Rows 23-26 of the table of traps: two gloo processes against one with the whole batch."""

import pytest

from tests.helpers.launch import run_ranks

SCENARIOS = [
    # Attached before wrapping; to the wrapper; with unused parameters looked for; with no_sync().
    ["ddp", "ddp-after", "ddp-unused", "ddp-accumulate", "ddp-compiled", "ddp-balance"],
    ["ddp-unpickled", "ddp-assigned"],  # other parameters than those first attached
    ["fsdp", "fsdp-after", "fsdp-root-after"],  # the root keeps its own parameters whole
]


@pytest.mark.parametrize("scenarios", SCENARIOS, ids=["ddp", "other", "fsdp"])
def test_two_ranks_equal_one_process(scenarios):
    run_ranks("ranks_probe.py", *scenarios)
