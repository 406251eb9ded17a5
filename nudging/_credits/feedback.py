from nudging._credits.credit import credit_factory
from nudging._credits.feedback_matrices import Feedback


@credit_factory
def feedback(*, seed: int = 0, scale: float | None = None) -> Feedback:
    """Feedback alignment: the output error through fixed random matrices, block after block.

    From the last block back, `a_L = e B_L^T` and `a_l = a_{l+1} B_l^T`, with Gaussian matrices
    drawn at the first call, as in `direct_feedback`. They stand for whatever lies between two
    blocks; several positions (tokens, pixels) share them.

    Args:
        seed: Determines the matrices.
        scale: Their standard deviation; 1 / sqrt(numbers that go in) by default, which keeps
            the length of a credit.

    Returns:
        A credit, with `matrices`, `state_dict`, `load_state_dict`, `to_dataset`.

    Raises:
        ValueError: If the scale is not a positive, finite number.

    Reference:
        Lillicrap et al., Random synaptic feedback weights support error backpropagation, 2016.

    Examples:
        >>> feedback(seed=1)
        Feedback(seed=1, scale=None)
    """
    return Feedback(seed=seed, scale=scale)
