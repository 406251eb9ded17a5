"""Two gloo processes in other people's training loops, against one with whole batches."""

from tests.helpers.launch import run_ranks


def test_two_ranks_in_trainers_equal_one_process(tmp_path):
    run_ranks("ranks_trainers.py", str(tmp_path), "accelerate", "bert", "vit", seconds=400)
