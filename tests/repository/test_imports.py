"""The floor plan, proved from the source: who may import whom.

When a test fails, its message names the line and says what to do. A new room of a package is
entered in `ROOMS`, below the rooms that it needs.
"""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import pytest

import resonance_toolkit
from tests.helpers.source_imports import (
    FRONT,
    GROUND,
    INSTRUMENTS,
    all_imports,
    import_chains,
    imports_of,
    is_within,
    public_names_by_file,
    source_files,
    top,
    verb_files_of,
)

# The rooms of each package from the first to the last: a room imports those before it, and itself.
# A set is one room of several files that lie in the package's own folder; `OTHERS` stands for all
# files there that are in no such set. Packages that are not listed have no rooms.
OTHERS = "the package's own folder"
ROOMS: dict[str, list[str | set[str]]] = {
    "resonance_toolkit": ["_base", "_front", {"__main__"}],
    "probes": [
        "_model",
        {"schedules", "weightings"},
        "_branches",
        "_features",
        "_exit_training",
        "_exit_analysis",
        "_decoding",
        "_plots",
        {"accelerate", "lightning", "transformers"},
    ],
    "landscape": ["_directions", "_evaluation", "_curvature", "_surfaces", "_plots"],
    "gradients": [{"_checks", "_layer_names", "_settings"}, "_recorders", OTHERS, "_plots"],
    "attention": [OTHERS, "_plots"],
    "nudging": ["_replay", "_credits", "_measures", "_plots"],
    "resonance_toolkit._front": ["page", "monitor", "examine", "command"],
    "lab": ["backbones", "data", "results", "training", "studies"],
}

# Rooms that are neighbours, not floors: the first never imports the second, though it comes later.
APART = [
    ("probes._exit_training", "probes._branches"),
    ("probes._exit_analysis", "probes._branches"),
    ("probes._decoding", "probes._branches"),
    ("resonance_toolkit._front.examine", "resonance_toolkit._front.page"),
    ("resonance_toolkit._front.examine", "resonance_toolkit._front.monitor"),
    ("resonance_toolkit._front.monitor", "resonance_toolkit._front.page"),
]


def test_no_file_imports_itself_in_a_circle():
    imported_files: dict[str, set[str]] = {module: set() for module in source_files()}
    for edge in all_imports():
        # The front door may be loaded on first use: that is what keeps it out of the circle.
        is_front_door = edge.importer == "resonance_toolkit" and is_within(edge.module, FRONT)
        if not (is_front_door and edge.is_deferred):
            imported_files[edge.importer].add(edge.module)

    try:
        TopologicalSorter(imported_files).prepare()
    except CycleError as error:
        # `graphlib` lists a module before those that import it.
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(
            f"import cycle: {circle}\nMove what both sides need to a file that neither imports."
        )


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_an_instrument_imports_the_ground_floor_only(instrument):
    allowed = {instrument, "resonance_toolkit"}
    expect_none(
        (edge for edge in imports_of(instrument) if top(edge.module) not in allowed),
        cure="Instruments meet through plain values; what two of them need is on the ground floor, "
        "and is imported from `resonance_toolkit`.",
    )


def test_the_ground_floor_imports_only_itself():
    expect_none(
        (edge for edge in imports_of(GROUND) if not is_within(edge.module, GROUND)),
        cure=f"`{GROUND}` is below everything: no instrument, nothing of the front door, and not "
        "the package itself, which is made of it.",
    )


def test_nobody_imports_the_front_door():
    names = set(resonance_toolkit._FRONT_DOOR)
    expect_none(
        (
            edge
            for package in (GROUND, *INSTRUMENTS)
            for edge in imports_of(package)
            if is_within(edge.module, FRONT)
            or (edge.module == "resonance_toolkit" and edge.name in names)
        ),
        cure="The front door uses the instruments, never the other way round.",
    )


def test_every_public_name_of_the_front_door_is_in_its_place():
    for name, place in resonance_toolkit._FRONT_DOOR.items():
        assert is_within(place, FRONT)
        assert getattr(resonance_toolkit, name).__module__ == place
        assert name in dir(resonance_toolkit)


def test_the_front_door_is_loaded_on_first_use():
    expect_none(
        (
            edge
            for edge in imports_of("resonance_toolkit")
            if edge.importer == "resonance_toolkit"
            and is_within(edge.module, FRONT)
            and not edge.is_deferred
        ),
        cure="The front uses the instruments, which import `resonance_toolkit`: load it inside "
        "`__getattr__`.",
    )


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_rooms_above_it(package):
    rooms = ROOMS[package]
    wrong = []

    for edge in imports_of(package):
        # The package's own `__init__` lists the names of all rooms.
        if package in (edge.importer, edge.module) or not is_within(edge.module, package):
            continue

        importing_room = room_of(edge.importer, package)
        imported_room = room_of(edge.module, package)
        if imported_room > importing_room:
            wrong.append(f"{edge}: {rooms[imported_room]} is below {rooms[importing_room]}")

    wrong += [
        f"{edge}: these rooms have nothing to do with each other"
        for room, other_room in APART
        for edge in imports_of(package)
        if is_within(edge.importer, room) and is_within(edge.module, other_room)
    ]
    expect_none(
        wrong,
        cure=f"The rooms of {package}, from above: {', '.join(map(str, rooms))}. What is needed on "
        "both sides belongs in the upper one.",
    )


def test_private_files_and_names_are_imported_by_their_own_package_only():
    wrong = []
    for edge in all_imports():
        path = edge.module if edge.name is None else f"{edge.module}.{edge.name}"
        is_private = any(
            part.startswith("_") and not part.endswith("__") for part in path.split(".")
        )
        if is_private and top(edge.importer) != top(edge.module):
            wrong.append(edge)

    expect_none(wrong, cure="Use the public name, or make one.")


def test_an_underscored_name_stays_in_its_file():
    expect_none(
        (
            edge
            for edge in all_imports()
            if edge.name and edge.name.startswith("_") and not edge.name.endswith("__")
        ),
        cure="Files of a private room need no underscores: a name that others import has none.",
    )


@pytest.mark.parametrize("package", [*INSTRUMENTS, "resonance_toolkit"])
def test_a_verbs_file_exports_its_verb_and_nothing_else(package):
    names_by_file = public_names_by_file(package)
    verb_files = verb_files_of(package)

    expect_none(
        (
            edge
            for edge in imports_of(package)
            if edge.module in verb_files and edge.name not in names_by_file[edge.module]
        ),
        cure="What two files share is neither's own: move it to a file of its own, in the same "
        "room or one above.",
    )


@pytest.mark.parametrize("package", INSTRUMENTS)
def test_machinery_does_not_import_a_verb(package):
    names_by_file = public_names_by_file(package)
    verb_files = verb_files_of(package)

    def is_machinery(module: str) -> bool:
        # A file such as `gradients/lightning.py` is public as a whole.
        is_public_file = not any(part.startswith("_") for part in module.split("."))
        return module not in names_by_file and not is_public_file

    expect_none(
        (
            edge
            for edge in imports_of(package)
            if edge.module in verb_files and is_machinery(edge.importer)
        ),
        cure="A file without public names serves verbs; it does not call them.",
    )


def test_analysing_exits_loads_no_branches():
    (exits,) = [
        module for module, names in public_names_by_file("probes").items() if "exits" in names
    ]
    chains = import_chains(exits)

    branches = [
        " -> ".join(chain) for module, chain in chains.items() if "probes._branches" in module
    ]
    expect_none(
        branches, cure="Exits and branches share `probes._model`; move what they share there."
    )


def room_of(module: str, package: str) -> int:
    """The number of a file's room in its package's list."""
    room = module.removeprefix(f"{package}.").partition(".")[0]
    rooms = ROOMS[package]

    for number, candidate in enumerate(rooms):
        if room == candidate or (isinstance(candidate, set) and room in candidate):
            return number

    is_file = source_files()[f"{package}.{room}"].name != "__init__.py" if room else True
    if OTHERS in rooms and is_file:
        return rooms.index(OTHERS)

    kind = "a file outside the rooms" if is_file else "a room"
    pytest.fail(f"{module}: {kind} that `ROOMS[{package!r}]` does not list; say where it belongs")


def expect_none(wrong: Iterable[object], *, cure: str) -> None:
    lines = [str(line) for line in wrong]
    assert not lines, "\n  ".join([f"{len(lines)} imports. {cure}", *lines])
