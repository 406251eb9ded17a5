"""Trees as `resonance.examine` returns them, made in milliseconds: the numbers are drawn."""

import numpy as np
import xarray as xr

PARTS = ("model", "response", "gradients", "landscape", "curvature", "attention", "nudging")


def make_tree(
    layers=("blocks.0", "blocks.1", "blocks.2", "blocks.3"), *, seed=0, gain=0.01, text="ViT"
):
    """A tree with all parts, of which attention does not apply and nudging was interrupted.

    Args:
        layers: Attachment points.
        seed: Of the numbers.
        gain: Accuracy that branches add.
        text: Wherever a user's words may stand.
    """
    rng = np.random.default_rng(seed)
    inner = [f"{layer}.{name}" for layer in layers for name in ("attn.qkv", "mlp.fc1")]
    response = make_response(layers, inner, rng, gain)
    nodes = {
        "/": make_root(response, text),
        "/model": make_model(layers, rng, text),
        "/response": response,
        "/gradients": make_gradients(inner, rng),
        "/landscape": make_surface(text),
        "/landscape/smoothness": make_smoothness(rng),
        "/landscape/dilution": make_dilution(),
        "/curvature": make_curvature(),
        "/curvature/critical_sharpness": make_critical(),
        "/attention": make_attention([f"{layer}.attn" for layer in layers], rng),
        "/nudging": make_nudging(layers, rng),
    }
    return xr.DataTree.from_dict(nodes)


def make_root(response, text):
    status = ["done"] * 6 + ["interrupted"]
    seconds = [0.4, 61.2, 3.1, 22.8, 14.9, 0.7, 5.5]
    reasons = [""] * 6 + [f"stopped by the user after 2 of 3 credits, {text}"]
    calls = [f"{part}.measure(model, data, note={text!r}, seed=0)" for part in PARTS]
    low, high = (float(response[f"accuracy_difference_{end}"]) for end in ("low", "high"))
    return xr.Dataset(
        {
            "status": ("part", status, {"long_name": "what became of the part"}),
            "reason": ("part", reasons, {"long_name": "why it is not done"}),
            "seconds": ("part", seconds, {"long_name": "time spent", "units": "s"}),
            "call": ("part", calls, {"long_name": "how to repeat it"}),
        },
        {"part": list(PARTS)},
        {
            "made_by": "resonance.examine",
            "model": text,
            "title": text,
            "n_parameters": 202186,
            "toolkit_version": "0.1.0",
            "torch_version": "2.15.0",
            "layers": ", ".join(map(str, response["point"].values)),
            "layers_reason": "the model's repeated blocks",
            "n": 20,
            "alpha": 1.0,
            "seed": 0,
            "steps": 300,
            "seeds": 5,
            "budget": "minutes",
            "budget_seconds": 120.0,
            "loss": "cross_entropy",
            "targets": "classes",
            "n_samples": 397,
            "verdict": "undecided",
            "verdict_sentence": "Whether branches help this model is undecided: accuracy changed "
            f"by {float(response['accuracy_difference']):+.4f}, and the interval contains zero.",
            "verdict_rule": "synergy if the 95 % interval of the paired difference is above zero, "
            "conflict if it is below, else undecided",
            "verdict_interval_low": low,
            "verdict_interval_high": high,
            "verdict_measure": "accuracy",
            "verdict_remedy": "about 14 seeds would tell an effect of this size from zero",
        },
    )


def make_model(layers, rng, text):
    return xr.Dataset(
        {
            "n_layer_parameters": ("layer", np.full(len(layers), 49984)),
            "layer_kind": ("layer", ["Block"] * len(layers)),
            "output_shape": ("layer", ["(64, 17, 64)"] * len(layers)),
            "loss": 0.4321,
            "accuracy": 0.8765,
            "n_parameters": 202186,
            "n_trained_parameters": 201000,
            "forward_seconds": 0.0123,
            "forward_flops": np.nan,
            "batch_samples": 64,
        },
        {"layer": list(layers)},
        {
            "inputs": f"a tensor (1, 8, 8), {text}",
            "targets": "classes",
            "loss": "cross_entropy",
            "n_classes": 10,
            "blocks_reason": "blocks.0 to blocks.3 repeat one class",
            "device": "cpu",
            "dtype": "float32",
        },
    )


def make_response(layers, inner, rng, gain, n_seeds=5):
    arms, steps, trace = ["plain", "branches"], np.arange(0, 301, 50), np.arange(0, 300, 25)
    progress = 1 - np.exp(-steps / 90)
    shift = np.array([0.0, 1.0])[:, None, None]
    noise = rng.normal(0, 0.012, (2, n_seeds, len(steps)))
    accuracy = 0.1 + 0.8 * progress + gain * shift * progress + noise
    loss = 2.3 - 2.0 * progress - 0.03 * shift * progress + 2 * noise
    cosine = rng.normal(0.1, 0.15, (n_seeds, len(trace), len(inner)))
    coords = {
        "arm": arms,
        "seed": range(n_seeds),
        "step": steps,
        "layer": inner,
        "trace_step": trace,
        "point": list(layers),
    }
    by_step = ("arm", "seed", "step")
    train_loss = loss + 0.02
    train_loss[..., 0] = np.nan
    variables = {
        "train_loss": (by_step, train_loss),
        "loss": (by_step, loss),
        "accuracy": (by_step, accuracy),
        "cosine": (("seed", "trace_step", "layer"), np.clip(cosine, -1, 1)),
        "cosine_total": (("seed", "trace_step"), cosine.mean(-1)),
        "listening_accuracy": (
            ("arm", "seed", "point"),
            rng.uniform(0.5, 0.6, (2, n_seeds, len(layers)))
            + np.linspace(0, 0.3, len(layers))
            + 0.05 * shift,
        ),
    }
    for name, values in (("loss", loss), ("accuracy", accuracy)):
        paired = values[1, :, -1] - values[0, :, -1]
        half = 2.776 * paired.std(ddof=1) / np.sqrt(n_seeds)
        variables[f"final_{name}_difference"] = ("seed", paired)
        variables[f"{name}_difference"] = paired.mean()
        variables[f"{name}_difference_low"] = paired.mean() - half
        variables[f"{name}_difference_high"] = paired.mean() + half
    attributes = {"optimizer": "AdamW", "lr": 1e-3, "batch_size": 64, "n_train": 1400}
    attributes |= {"n_held_out": 397, "branch_loss": "bce", "made_by": "resonance.examine"}
    return xr.Dataset(variables, coords, attributes)


def make_gradients(inner, rng, n_batches=6):
    shape = (n_batches, len(inner))
    norm_main, norm_aux = rng.uniform(0.1, 1, shape), rng.uniform(1, 5, shape)
    cosine = np.clip(rng.normal(-0.1, 0.2, shape), -1, 1)
    dot = cosine * norm_main * norm_aux
    lengths = np.sqrt((norm_main**2).sum(-1) * (norm_aux**2).sum(-1))
    by_layer = ("batch", "layer")
    return xr.Dataset(
        {
            "norm_main": (by_layer, norm_main),
            "norm_aux": (by_layer, norm_aux),
            "dot": (by_layer, dot),
            "cosine": (by_layer, cosine),
            "cosine_total": ("batch", dot.sum(-1) / lengths),
            "conflict_share": ("batch", (cosine < 0).mean(-1)),
            "loss_main": ("batch", rng.uniform(0.4, 0.5, n_batches)),
            "loss_aux": ("batch", rng.uniform(50, 60, n_batches)),
        },
        {"layer": inner, "n_parameters": ("layer", np.full(len(inner), 4160))},
        {"made_by": "gradients.compare", "objectives": "main, auxiliary", "seed": 0},
    )


def make_surface(text, n=21):
    axis = np.linspace(-1, 1, n)
    loss = 0.4321 + axis[:, None] ** 2 + 0.4 * axis**2 + 0.1 * np.sin(4 * axis) * axis[:, None]
    loss[0, 0] = np.inf
    return xr.Dataset(
        {"loss": (("alpha", "beta"), loss, {"long_name": "mean loss"})},
        {
            "alpha": ("alpha", axis, {"long_name": "distance along the first direction"}),
            "beta": ("beta", axis, {"long_name": "distance along the second direction"}),
        },
        {"made_by": "landscape.grid", "model": text, "error_estimate": 0.006, "n_evaluations": 117},
    )


def make_smoothness(rng):
    values = {"std": 0.3, "mean_grad": 1.1, "convex_share": 0.83}
    sharpness = ("radius", [0.06, 0.24, 1.2])
    return xr.Dataset(
        values | {"sharpness": sharpness},
        {"radius": [0.25, 0.5, 1.0]},
        {"made_by": "landscape.smoothness"},
    )


def make_dilution():
    return xr.Dataset(
        {
            "mean_grad": ("covers", [0.9, 1.1]),
            "factor": 0.894,
            "change": ("statistic", [-0.2, -0.18]),
        },
        {"covers": ["backbone + extra", "backbone"], "statistic": ["std", "mean_grad"]},
        {"made_by": "landscape.dilution"},
    )


def make_curvature(n=201):
    eigenvalues = np.linspace(-4, 12, n)
    density = np.exp(-((eigenvalues / 0.4) ** 2)) + 1e-4 * np.exp(-(((eigenvalues - 9) / 0.4) ** 2))
    return xr.Dataset(
        {
            "largest": ("rank", [9.7, 8.1, 7.4]),
            "smallest": ("rank", [-2.9, -1.1, -0.7]),
            "trace": 41.5,
            "trace_se": 3.7,
            "density": ("eigenvalue", density, {"long_name": "spectral density"}),
        },
        {"rank": range(3), "eigenvalue": eigenvalues},
        {"made_by": "landscape.curvature", "matrix": "hessian"},
    )


def make_critical():
    matrix = ("objective", "other_objective")
    return xr.Dataset(
        {"critical_step": (matrix, [[0.31]]), "critical_sharpness": (matrix, [[6.45]])},
        {"objective": ["loss"], "other_objective": ["loss"]},
        {"made_by": "landscape.critical_sharpness"},
    )


def make_attention(layers, rng, n_samples=8, n_heads=4):
    shape = (n_samples, len(layers), n_heads)
    by_head = ("sample", "layer", "head")
    return xr.Dataset(
        {
            "normalised_entropy": (by_head, rng.uniform(0.4, 1, shape)),
            "gini": (by_head, rng.uniform(0, 0.8, shape)),
            "peak": (by_head, rng.uniform(0.07, 0.7, shape)),
            "mass_coverage": (by_head, rng.uniform(0.2, 0.9, shape)),
            "head_similarity": (("sample", "layer"), rng.uniform(0.6, 0.9, shape[:2])),
        },
        {
            "layer": layers,
            "n_keys": ("layer", np.full(len(layers), 17)),
            "n_prefix": ("layer", np.full(len(layers), 1)),
        },
        {"made_by": "attention.capture", "keys": "patches", "mass": 0.9, "threshold": 0.1},
    )


def make_nudging(layers, rng):
    credits = ["backprop", "auxiliary", "random"]
    scale = np.array([-0.065, 0.004, 0.0002])[:, None, None]
    change = scale * rng.uniform(0.7, 1.3, (3, len(layers), 1))
    by_block = ("credit", "layer", "eta")
    cosine = np.array([[1.0], [-0.08], [0.0007]]) * np.ones((3, len(layers)))
    return xr.Dataset(
        {
            "loss_change": (by_block, change),
            "loss_change_se": (by_block, np.full(change.shape, 0.0006)),
            "predicted_change": (by_block, 1.02 * change),
            "cosine": (("credit", "layer"), cosine),
            "loss": 0.4321,
        },
        {"credit": credits, "layer": list(layers), "eta": [0.01]},
        {"made_by": "nudging.measure", "dtype": "float32"},
    )
