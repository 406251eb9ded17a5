"""DATA on the command line, looked at before there is a model."""

from pathlib import Path

from resonance_toolkit._front.command.inputs.arrays import ArraySource
from resonance_toolkit._front.command.inputs.digits_vit import load_digits
from resonance_toolkit._front.command.inputs.image_folder import FolderSource
from resonance_toolkit._front.command.inputs.source import Source
from resonance_toolkit._front.command.inputs.text_file import TextSource
from resonance_toolkit._front.command.mistake import Mistake

FORMS = "a folder of images with one folder per class, an .npz, a .txt or digits"


def find_source(text: str, *, window: int) -> Source:
    """Look at DATA.

    Raises:
        Mistake: If it is not there, or none of the forms.
    """
    if text == "digits":
        images, labels = load_digits()
        return ArraySource("digits", (images.numpy(), labels.numpy()))

    path = Path(text).expanduser()
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        raise Mistake(f"--data: no file or folder {text}; expected {FORMS}")
    if path.suffix == ".npz":
        return ArraySource.read(path)
    if path.suffix == ".txt":
        return TextSource(path, window)
    raise Mistake(f"--data: {path} is in none of the forms that can be read: {FORMS}")
