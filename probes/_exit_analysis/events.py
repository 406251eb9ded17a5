"""What a confidence may be asked to foretell of a prediction at an exit."""

from typing import Literal, get_args

# It is right; it is what the whole model says; its cross-entropy is at most the whole model's.
Event = Literal["correct", "agrees", "as good"]
EVENTS: tuple[Event, ...] = get_args(Event)
