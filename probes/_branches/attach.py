from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, get_args

from torch import nn

from probes._branches.branches import INITS, BranchLoss, Init, InitName, Method, Settings
from probes._branches.potentials import POTENTIALS, LossName
from probes._branches.probe import Probe
from probes._branches.strength import Alpha, resolve_alpha
from probes._model.attachment_points import find_attachment_points
from probes._model.check_model import check_model
from probes._model.latest_features import Calls
from probes._model.pooling import POOL_NAMES, Pooling
from probes.schedules import Adaptive
from resonance_toolkit import check_choice, check_whole, find_blocks, find_layers, unwrap


def attach(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    n: int | None = None,
    alpha: Alpha = 1.0,
    *,
    classes: int | None = None,
    loss: LossName | BranchLoss = "bce",
    init: InitName | Init = "orthogonal",
    active: int | Literal["all"] | None = None,
    connected: bool = True,
    pool: Pooling = "auto",
    method: Method = "exact",
    calls: Calls | None = None,
    sample: Any = None,
    listen_only: bool = False,
    seed: int = 0,
) -> Probe:
    """Attach auxiliary branches to named layers of a model, for training only.

    Every layer gets `n` branches: linear heads without bias that read its pooled output. *Active*
    branches are trained; *static* branches keep their random initial weights. Gradients flow
    through both kinds into the model. The training objective is

        main loss + probe.loss(y),    probe.loss = sum over layers of alpha * sum over branches.

    The model's output, its `state_dict` and inference do not change. Keep a reference to the probe:
    when it is garbage-collected, the branches are detached.

    Args:
        model: Any `nn.Module`. It may be compiled, or in a data-parallel or averaging wrapper.
        layers: Names or shell patterns, such as `"blocks.*"`; see `resonance.find_layers`. None
            takes the model's repeated blocks or stages, without those that cannot be probed. In an
            encoder-decoder with an output for each position, it takes the decoder's. Printing the
            probe shows why they were chosen; see `resonance.find_blocks`.
        n: Branches per layer; 20 if not given, 1 with `listen_only`.
        alpha: Strength of the auxiliary loss: a number, a mapping from layers (or patterns) to
            numbers or schedules, a schedule `f(step) -> float`, or an adaptive rule; see
            `probes.schedules`.
        classes: Number of classes. If not given, it is the size of the class axis of the model's
            output: the last axis of `(sample, class)` and `(sample, token, class)`, the second of
            `(sample, class, height, width)`.
        loss: `"bce"`: sigmoid losses against one-hot labels, mean over classes and samples.
            `"ce"`: softmax cross-entropy (the homogeneous control). Or a callable
            `(logits, targets) -> scalar`, called for each branch with all rows at once.
        init: `"orthogonal"`: orthonormal rows within each branch (columns, if there are more
            classes than features). `"normal"`: Gaussian of the same variance. `"default"`: as
            `nn.Linear`. Or a callable `(weight, generator)` that fills a weight `(class, width)`
            in place.
        active: How many of the `n` branches of a layer are active: 1, 0, any number up to `n`, or
            `"all"`. The rest are static. If not given, 1; all with `listen_only`.
        connected: False leaves the branches out of the loss (the capacity control).
        pool: How a layer's output becomes features. `"auto"`: the class token if there is one,
            else the mean over positions; but if both the model's output and the targets have
            positions, as `"spatial"`. `"cls"`: the class token. `"mean"` or `"gap"`: the mean over
            positions. `"flatten"`: everything. `"spatial"`: a branch sees every position (a 1x1
            convolution), and its loss is the mean over them. Or a callable from the layer's (first)
            output tensor to `(sample, width)`, or to `(sample, ..., width)` to keep positions.
            Means leave out padding if the model is called with a padding mask.
        method: `"exact"`: all branches, fused, in bounded memory. `"compressed"`: static branches
            in closed form, an approximation whose cost does not depend on `n`; see
            `Probe.compression_error`.
        calls: Which calls count if a layer runs several times in a pass: `"last"`, `"mean"` (of the
            features) or `"all"` (sum of the losses). None takes the last and warns.
        sample: An input batch, for models whose input cannot be guessed (for images, text and
            sound, it mostly can). A tuple holds several arguments, a mapping keyword arguments.
            Only its shapes are used.
        listen_only: Attach linear probes in the usual sense. All branches are active, have a bias
            and are trained on the features, and nothing is sent back into the model, whose
            gradients are bitwise those without a probe. The same model may have other probes that
            do send gradients, or be frozen; see also `Probe.fit`.
        seed: Determines the weights of the branches, together with the layers' names.

    Returns:
        The probe, which is also a context manager.

    Raises:
        ValueError: If an argument does not fit. The model has not been changed then.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
        >>> probe = attach(model, layers=["1"], n=4)
        >>> probe
        Probe(n=4, classes=3, method='exact', attached)
        layer  width  pool    static  active  weights
        1      6      vector  3       1       72
        total                                 72
        >>> x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
        >>> total = nn.functional.cross_entropy(model(x), y) + probe.loss(y)
        >>> total.backward()
        >>> probe.detach()
    """
    check_model(model)
    if not isinstance(listen_only, bool):
        raise TypeError(f"`listen_only`: expected True or False, got {listen_only!r}")
    default_n = 1 if listen_only else 20
    n_branches = check_whole("n", default_n if n is None else n)
    if active is None:
        active = "all" if listen_only else 1
    n_active = _count_active(active, n_branches)
    n_classes = None if classes is None else check_whole("classes", classes)
    _check_choices(loss, init, pool, method, calls)
    if listen_only:
        _check_listening(n_active == n_branches, active, connected, method, alpha)
    if method == "compressed":
        _check_compressible(loss, n_branches, n_active)

    modules = find_blocks(model) if layers is None else find_layers(model, layers)
    strength = resolve_alpha(alpha, list(modules))

    root = unwrap(model)
    points, n_classes, reason = find_attachment_points(root, modules, pool, sample, n_classes)
    if isinstance(strength, dict):
        strength = {name: strength[name] for name in points}
    settings = Settings(
        n=n_branches,
        active=n_active,
        classes=n_classes,
        loss=loss,
        init=INITS[init] if isinstance(init, str) else init,
        method=method,
        seed=seed,
        listen_only=listen_only,
    )
    return Probe(
        root,
        points,
        settings,
        strength=strength,
        connected=connected,
        calls=calls,
        reason=reason,
    )


def _count_active(active: int | Literal["all"], n_branches: int) -> int:
    if active == "all":
        return n_branches

    is_whole = isinstance(active, Integral) and not isinstance(active, bool)
    if not is_whole or not 0 <= active <= n_branches:
        raise ValueError(f"`active`: expected 0 to {n_branches} or 'all', got {active!r}")
    return int(active)


def _check_choices(
    loss: LossName | BranchLoss,
    init: InitName | Init,
    pool: Pooling,
    method: Method,
    calls: Calls | None,
) -> None:
    if not callable(loss):
        check_choice("loss", loss, tuple(POTENTIALS), or_else="a callable")
    if not callable(init):
        check_choice("init", init, tuple(INITS), or_else="a callable")
    if not callable(pool):
        check_choice("pool", pool, POOL_NAMES, or_else="a callable")

    check_choice("method", method, get_args(Method))
    if calls is not None:
        check_choice("calls", calls, get_args(Calls))


def _check_compressible(loss: LossName | BranchLoss, n_branches: int, n_active: int) -> None:
    if loss != "bce":
        raise ValueError(f"`method`: 'compressed' exists for loss='bce' only, got loss={loss!r}")
    if n_active == n_branches > 1:
        raise ValueError("`method`: 'compressed' is for static branches, but all are active")


def _check_listening(
    are_all_active: bool,
    active: int | Literal["all"],
    connected: bool,
    method: Method,
    alpha: Alpha,
) -> None:
    """Refuse what means something only where branches send a gradient into the model."""
    if method == "compressed":
        raise ValueError(
            "`method`: expected 'exact' with listen_only=True, got 'compressed', which is for "
            "static branches, and a probe that only listens has none"
        )

    if not are_all_active:
        raise ValueError(
            f"`active`: expected 'all' with listen_only=True, got {active!r}: a static branch that "
            "sends nothing back does nothing"
        )

    if not connected:
        raise ValueError(
            "`connected`: expected True with listen_only=True, got False: without its loss a probe "
            "that only listens does nothing"
        )

    if isinstance(alpha, Adaptive):
        raise ValueError(
            f"`alpha`: expected a number, mapping or schedule with listen_only=True, got {alpha!r}:"
            " an adaptive rule compares gradients at the layers, and none are sent there"
        )
