from importlib.metadata import PackageNotFoundError, version

# The number of pyproject.toml, which a clone that is not installed cannot ask for.
_SOURCE_VERSION = "0.1.0"


def find_version() -> str:
    """Return the installed version; of a clone that is not installed, the source's, and say so.

    Examples:
        >>> find_version().split("+")[0]
        '0.1.0'
    """
    try:
        return version("resonance-toolkit")
    except PackageNotFoundError:
        return f"{_SOURCE_VERSION}+not-installed"


__version__ = find_version()
