"""Errors that more than one package raises, or tells apart from others."""


class NotApplicableError(ValueError):
    """A model has nothing of what a verb measures, such as a network without attention.

    No argument would change that: whoever measures many models goes on with the next.
    """


def missing_extra(module: str, extra: str) -> ImportError:
    """Make the error of a module whose optional packages are not installed.

    Examples:
        >>> print(missing_extra("probes.lightning", "lightning"))
        `probes.lightning` needs lightning; run: pip install 'resonance-toolkit[lightning]'
    """
    return ImportError(
        f"`{module}` needs {extra}; run: pip install 'resonance-toolkit[{extra}]'", name=extra
    )
