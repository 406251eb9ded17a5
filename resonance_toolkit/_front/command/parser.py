"""The options of the command line, and what `--help` says about them."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

_EXAMINE = """\
examples:
  python -m resonance examine digits
  python -m resonance examine timm:vit_tiny_patch16_224 --data images/
  python -m resonance examine timm:resnet18 --data cifar.npz --checkpoint weights.pt
  python -m resonance examine model.py:build --data arrays.npz --loss mse_loss
  python -m resonance examine transformers:./my-gpt2 --data book.txt --budget 600

MODEL is one of
  timm:NAME, torchvision:NAME     with random weights (see --seed), or with --pretrained
  transformers:NAME or a folder   what save_pretrained wrote; a NAME if it was downloaded before
  file.py:NAME                    your function or class, called without arguments, or a model;
                                  the code of the file is run
  digits                          a small vision transformer for the bundled digits

DATA is one of
  a folder     of images, with one folder per class; resized and standardised as the model expects
  FILE.npz     with x and y, or x_train and y_train; images of uint8 are scaled, channels put first
  FILE.txt     for causal language models; split by the tokenizer in the model's folder, or else
               into characters or bytes, depending on the size of the vocabulary
  digits       the 1797 digits that come with scikit-learn

exit codes: 0 done; 1 a bug in the toolkit, or nothing could be measured; 2 a mistake in the
command, explained in one sentence; 130 Ctrl-C: finished parts are saved, and the same command
continues from there.
"""

_SHOW = """\
examples:
  python -m resonance show surface.nc
  python -m resonance show surface.nc --output surface.png
  python -m resonance show seed0/result.nc seed1/result.nc --output both.html

Open only files that you trust, as with any HDF5 file.
"""

_INFO = """\
example:
  python -m resonance info

If a file of yours or another installed package has one of our names (probes, landscape, gradients,
attention, nudging, resonance), it is listed with a remedy.
"""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the words of the command line; `command` of the result names the subcommand.

    Raises:
        SystemExit: For help, and with code 2 for words that are no options.
    """
    parser = _Parser(
        prog="resonance",
        description="How does this architecture respond to this training signal?",
        epilog="`python -m resonance COMMAND --help` has examples. If another package is "
        "called `resonance`, use `python -m resonance_toolkit`.",
    )
    parser.add_argument("--version", action=_PrintVersion, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser.commands = commands.choices

    _add_examine(commands)
    _add_show(commands)
    _add_info(commands)
    return parser.parse_args(argv)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence: a list of twenty options above it hides it."""

    commands: Any = ()

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ")
        if words != message and not words.startswith("-"):
            message += "; data are given by --data"
        if message.startswith("argument COMMAND: invalid choice"):
            command = message.split("'")[1]
            message = f"COMMAND: expected {', '.join(self.commands)}, got {command!r}"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _PrintVersion(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from resonance_toolkit import __version__

        print(__version__)
        parser.exit()


def _add_examine(commands: Any) -> None:
    parser = _add_command(
        commands, "examine", "examine a model on data: one page with all instruments", _EXAMINE
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="the model, see below; needless if DATA is digits"
    )
    parser.add_argument(
        "--data", metavar="DATA", help="the data, see below; needless if MODEL is digits"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path("resonance-report"),
        help="folder for report.html and result.nc (default: %(default)s)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start over instead of continuing a run that was stopped",
    )

    model = parser.add_argument_group("the model")
    model.add_argument(
        "--checkpoint",
        metavar="FILE",
        type=Path,
        help="weights to load, of torch or safetensors; only tensors are read, no code is run",
    )
    model.add_argument(
        "--pretrained",
        action="store_true",
        help="use the published weights, which may be downloaded",
    )
    model.add_argument(
        "--classes",
        metavar="N",
        type=_whole_number_from(1),
        help="number of classes (default: those of the data)",
    )
    model.add_argument("--device", help="such as cpu or cuda:1 (default: the GPU if there is one)")
    model.add_argument(
        "--threads", metavar="N", type=_whole_number_from(1), help="number of CPU threads for torch"
    )

    data = parser.add_argument_group("the data")
    data.add_argument(
        "--image-size",
        type=_whole_number_from(1),
        metavar="PIXELS",
        help="width and height (default: the model's)",
    )
    data.add_argument(
        "--mean",
        type=_read_numbers,
        metavar="R,G,B",
        help="of the channels, where black is 0 and white is 1",
    )
    data.add_argument(
        "--std", type=_read_numbers, metavar="R,G,B", help="likewise (defaults: the model's)"
    )
    data.add_argument(
        "--window",
        metavar="N",
        type=_whole_number_from(2),
        default=64,
        help="tokens in a sample of text (default: %(default)s)",
    )
    data.add_argument(
        "--loss",
        metavar="NAME",
        help="a loss of torch.nn.functional, such as mse_loss; by default, the targets decide",
    )

    measurements = parser.add_argument_group("what is measured")
    measurements.add_argument(
        "--layers",
        type=_read_words,
        metavar="NAMES",
        help='layers that get branches, such as "blocks.*" or blocks.2,blocks.5',
    )
    measurements.add_argument(
        "--n", type=_whole_number_from(1), help="branches per layer (default: 20)"
    )
    measurements.add_argument(
        "--alpha", type=_read_strength, help="strength of their loss (default: 1)"
    )
    measurements.add_argument(
        "--budget",
        help="a number of seconds, or a word: seconds (30 s), minutes (3 min, the default), hour",
    )
    measurements.add_argument(
        "--steps",
        metavar="N",
        type=_whole_number_from(1),
        help="updates of each training run; by default what the budget allows",
    )
    measurements.add_argument(
        "--seeds",
        metavar="N",
        type=_whole_number_from(1),
        help="training runs of each kind; by default what the budget allows",
    )
    measurements.add_argument(
        "--parts",
        type=_read_words,
        metavar="NAMES",
        help="such as response,landscape (default: all)",
    )
    measurements.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="seed of everything random (default: 0)",
    )
    measurements.add_argument("--title", help="title of the page")


def _add_show(commands: Any) -> None:
    parser = _add_command(commands, "show", "draw a saved result by what made it", _SHOW)
    parser.add_argument(
        "results", metavar="RESULT.nc", type=Path, nargs="+", help="several are shown side by side"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help=".html for a page (the default, beside the result), .png, .pdf or .svg for a picture",
    )


def _add_info(commands: Any) -> None:
    _add_command(
        commands, "info", "versions, devices, and whether other files have our names", _INFO
    )


def _add_command(commands: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _whole_number_from(smallest: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        number = int(text)
        if number < smallest:
            raise argparse.ArgumentTypeError(f"expected at least {smallest}, got {number}")
        return number

    whole_number.__name__ = "whole number"
    return whole_number


def _read_strength(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0, got {text}")
    return number


# argparse tells the name of what refuses a word.
_read_strength.__name__ = "number"


def _read_numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


_read_numbers.__name__ = "list of numbers"


def _read_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
