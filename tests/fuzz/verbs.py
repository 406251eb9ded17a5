"""Each public verb on a random case, with random options, some of them slightly wrong."""

from tests.fuzz import (
    verbs_attention,
    verbs_gradients,
    verbs_landscape,
    verbs_nudging,
    verbs_probes,
    verbs_toolkit,
)

_PACKAGES = (
    verbs_landscape,
    verbs_gradients,
    verbs_attention,
    verbs_nudging,
    verbs_probes,
    verbs_toolkit,
)

VERBS = {verb.__name__: verb for package in _PACKAGES for verb in package.VERBS}
