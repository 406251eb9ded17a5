from nudging._credits.credit import credit_factory
from nudging._credits.feedback_matrices import DirectFeedback


@credit_factory
def direct_feedback(
    *, seed: int = 0, scale: float | None = None, reuse_last: bool = True
) -> DirectFeedback:
    """Direct feedback alignment: the output error through a fixed random matrix for every block.

    `a_l = e B_l^T`, with `e` the gradient of a sample's loss with respect to the outputs (softmax
    minus one-hot under cross-entropy) and Gaussian `B_l` of shape `(feature, class)`. The matrices
    are drawn at the first call, for the blocks seen there, and stay: a network trained with them
    aligns with these and no others, so save them with it.

    Token sequences and feature maps have one matrix for all positions. Every position gets the
    error at its own place if the outputs have as many (a language model), else the same
    credit (a classifier: class token and patches alike). Feature maps must have channels first;
    those of a Swin transformer do not.

    Args:
        seed: Determines the matrices.
        scale: Their standard deviation; `1 / sqrt(classes)` by default.
        reuse_last: The last two blocks share a matrix, if they are equally wide. In the credit
            audit block l is trained by the credit of its input, so that the last state has none.

    Returns:
        A credit, with `matrices`, `state_dict`, `load_state_dict`, `to_dataset`.

    Raises:
        ValueError: If the scale is not a positive, finite number.

    Reference:
        Nokland, Direct Feedback Alignment Provides Learning in Deep Neural Networks, 2016.

    Examples:
        >>> direct_feedback(seed=1)
        DirectFeedback(seed=1, scale=None, reuse_last=True)
    """
    return DirectFeedback(seed=seed, scale=scale, reuse_last=reuse_last)
