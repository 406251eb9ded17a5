import sys
import warnings

from resonance_toolkit._base.frames import is_ours


def warn_user(message: str) -> None:
    """Warn at the line of the user's that called the toolkit, however deep we are.

    Examples:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("all used")
        >>> str(caught[0].message)
        'all used'
    """
    # 1 would be this function; by frame, since hops differ from verb to verb.
    depth = 1
    frame = sys._getframe()
    while frame.f_back is not None and is_ours(frame.f_globals):
        frame = frame.f_back
        depth += 1
    warnings.warn(message, stacklevel=depth)
