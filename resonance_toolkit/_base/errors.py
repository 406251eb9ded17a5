def missing_extra(module: str, extra: str) -> ImportError:
    """Make the error of a module whose optional packages are not installed.

    Examples:
        >>> print(missing_extra("probes.lightning", "lightning"))
        `probes.lightning` needs lightning; run: pip install 'resonance-toolkit[lightning]'
    """
    return ImportError(
        f"`{module}` needs {extra}; run: pip install 'resonance-toolkit[{extra}]'", name=extra
    )
