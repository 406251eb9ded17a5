"""The command `resonance`: runs a subcommand, and turns its end into a sentence and a code."""

import argparse
import sys
import traceback
from collections.abc import Sequence

from resonance_toolkit._front.command.check_fit import translate_error
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.parser import parse_arguments

DONE = 0
OUR_FAILURE = 1
USERS_MISTAKE = 2  # also argparse's own
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Its words; those of this process by default.

    Returns:
        0 if all went well, 1 if we failed, 2 for what the user can put right, 130 after Ctrl-C.
    """
    arguments = parse_arguments(argv)

    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("resonance: stopped by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        return _explain_error(error)


def _run(arguments: argparse.Namespace) -> int:
    # Each command loads what it needs when it runs: `--help` and `info` wait for nothing.
    match arguments.command:
        case "examine":
            from resonance_toolkit._front.command.run_examine import run_examine

            return run_examine(arguments)
        case "show":
            from resonance_toolkit._front.command.run_show import run_show

            return run_show(arguments)
        case _:
            from resonance_toolkit._front.command.run_info import run_info

            return run_info(arguments)


def _explain_error(error: Exception) -> int:
    code = USERS_MISTAKE
    match error:
        case Mistake():
            sentence = str(error)
        case ImportError() if error.name is not None:
            # A missing extra, or a stranger by the name of an instrument: the text has the cure.
            sentence = first_line(error)
        case OSError():
            # Of "[Errno 2] `output`: cannot write ..." the number tells a user nothing.
            words = str(error).removeprefix(f"[Errno {error.errno}] ")
            sentence = translate_error(OSError(words))
        case ValueError() | TypeError() if str(error).startswith("`"):
            # The verbs name the argument that they refuse.
            sentence = translate_error(error)
        case _:
            code = OUR_FAILURE
            sentence = (
                f"failed by {type(error).__name__}: {first_line(error)}. This should not happen: "
                "please report it, with what --debug shows"
            )

    print(f"resonance: {sentence}", file=sys.stderr)
    return code
