import torch.nn.functional as F
from torch import Tensor

# Logits of a vocabulary are large: so many are compared at once, 64 MB in float32.
_LOGITS_AT_ONCE = 2**24


def mean_divergence(logits: Tensor, reference: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return the mean over places of KL(reference || logits), in nat.

    Args:
        logits: `(sample, class)` or `(sample, token, class)`.
        reference: Likewise; what the other is measured by, without gradient.
        counts: True at places that count, `(sample,)` or `(sample, token)`; None: all do.

    Examples:
        >>> import torch
        >>> even, certain = torch.zeros(1, 2), torch.tensor([[0.0, -100.0]])
        >>> round(mean_divergence(even, certain).item(), 4)  # 1 * ln(1 / 0.5)
        0.6931
    """
    rows = logits.flatten(0, -2)
    reference_rows = reference.detach().flatten(0, -2).to(rows.device)
    if counts is not None:
        places = counts.to(rows.device).flatten().nonzero()[:, 0]
        rows = rows[places]
        reference_rows = reference_rows[places]

    n_rows = max(1, _LOGITS_AT_ONCE // rows.shape[1])
    total = rows.new_zeros(()).float()
    chunks = zip(rows.split(n_rows), reference_rows.split(n_rows), strict=True)
    for pair_of_chunks in chunks:
        precise, reference_precise = (x.float() if x.itemsize < 4 else x for x in pair_of_chunks)
        total = total + F.kl_div(
            precise.log_softmax(1),
            reference_precise.log_softmax(1),
            reduction="sum",
            log_target=True,
        )
    return total / len(rows)
