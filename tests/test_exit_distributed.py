from launch import run_ranks


def test_two_ranks_equal_one_process():
    run_ranks("ranks_exits.py", "model", "own")
