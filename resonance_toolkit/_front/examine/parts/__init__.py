"""The parts of an examination, one file each: `call` says how to repeat it, `measure` does it."""

from resonance_toolkit._front.examine.parts import (
    attention,
    curvature,
    gradients,
    landscape,
    model,
    nudging,
    response,
)

MEASURES = {
    "model": model.measure,
    "response": response.measure,
    "gradients": gradients.measure,
    "landscape": landscape.measure,
    "curvature": curvature.measure,
    "attention": attention.measure,
    "nudging": nudging.measure,
}

CALLS = {
    "model": model.call,
    "response": response.call,
    "gradients": gradients.call,
    "landscape": landscape.call,
    "curvature": curvature.call,
    "attention": attention.call,
    "nudging": nudging.call,
}
