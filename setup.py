"""Everything but the page that package indexes show is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup


def describe_package() -> str:
    """Make README.md fit to be read away from its files: no pictures, and paths for links."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- gallery -->.*?<!-- end of gallery -->\n*", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)]*)\)", r"\1 (`\2`)", text)


setup(long_description=describe_package(), long_description_content_type="text/markdown")
