"""Two gloo processes against one with the whole batch."""

import pytest

from tests.helpers.launch import run_ranks

# Each block and the root; all in the root; the head alone; the root split again after its pass; a
# final norm that another module holds, or that is sharded with the head; a head tied to the
# embedding; gradient accumulation.
SHARDED = ["blocks", "blocks-before", "whole", "blocks-head", "blocks-freed", "body-inner"]
SHARDED += ["tied", "blocks-pieces"]


@pytest.mark.parametrize("head", ["model", "own"])
def test_two_ranks_equal_one_process(head):
    ways = ("accumulate", "unused", "compiled", "unpickled")
    run_ranks("ranks_exits.py", head, *(f"{head}-{way}" for way in ways))


@pytest.mark.parametrize(
    ("head", "more"), [("model", ["body-joint"]), ("own", [])], ids=["model", "own"]
)
def test_two_sharded_ranks_equal_one_process(head, more):
    run_ranks("ranks_exits_sharded.py", head, *SHARDED, *more)


def test_sharded_exits_in_half_precision_joined_recorded_and_by_functions():
    run_ranks("ranks_exits_checks.py")
