"""Imports between our own files, read from the source.

Every file is parsed, none is run, so imports inside functions and under `TYPE_CHECKING` count like
those at the top. `source_files` has all files by dotted name, `all_imports` all imports between
them.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

INSTRUMENTS = ("probes", "landscape", "gradients", "attention", "nudging")
GROUND = "resonance_toolkit._base"
FRONT = "resonance_toolkit._front"

# Where each top-level package lies; scripts are modules without a package.
PACKAGES = {name: ROOT / name for name in (*INSTRUMENTS, "resonance_toolkit", "resonance")}
PACKAGES["lab"] = ROOT / "examples" / "lab"
SCRIPTS = (ROOT / "examples", ROOT / "benchmarks")


@dataclass(frozen=True)
class Import:
    """One imported name, and where."""

    importer: str  # dotted name of the file
    module: str  # dotted name of the file or package that is imported
    name: str | None  # what is taken from it; None for the module itself
    is_deferred: bool  # inside a function, or for the type checker only
    place: str  # path and line

    def __str__(self) -> str:
        verb = f" takes `{self.name}` from" if self.name else " imports"
        return f"{self.place}{verb} {self.module}"


@cache
def source_files() -> dict[str, Path]:
    """All files by the dotted name under which they are imported."""
    files: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            dotted = ".".join((package, *parts)).removesuffix(".__init__")
            files[dotted] = path

    for folder in SCRIPTS:
        files |= {path.stem: path for path in sorted(folder.glob("*.py"))}
    return files


@cache
def all_imports() -> tuple[Import, ...]:
    """Every import of one of our own files by another."""
    return tuple(
        edge for module, path in source_files().items() for edge in read_imports(module, path)
    )


def imports_of(package: str) -> list[Import]:
    """Imports made by a package or a room."""
    return [edge for edge in all_imports() if is_within(edge.importer, package)]


def read_imports(importer: str, path: Path) -> Iterator[Import]:
    """The imports of our own files that one file makes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    deferred_nodes = set(find_deferred_nodes(tree))

    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue

        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        for module, name in imported_names(importer, path, node):
            if module in source_files() and module != importer:
                yield Import(importer, module, name, node in deferred_nodes, place)


def imported_names(
    importer: str, path: Path, node: ast.Import | ast.ImportFrom
) -> Iterator[tuple[str, str | None]]:
    """Module and name of each thing that a statement imports; a submodule has no name."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, None) for alias in node.names)
        return

    # One dot is the folder of the file, each further dot a folder above it.
    base = importer.split(".")
    n_up = node.level - (path.name == "__init__.py")
    folder = base[: len(base) - n_up] if node.level else []
    module = ".".join([*folder, *([node.module] if node.module else [])])

    for alias in node.names:
        submodule = f"{module}.{alias.name}"
        if submodule in source_files():
            yield submodule, None
        else:
            yield module, alias.name


def find_deferred_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """What does not run when the file is imported."""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_function or is_for_types:
            yield from ast.walk(node)


@cache
def public_names_by_file(package: str) -> dict[str, set[str]]:
    """The names that a package re-exports, by the file that they come from."""
    names: dict[str, set[str]] = {}
    for edge in imports_of(package):
        if edge.importer == package and edge.name:
            names.setdefault(edge.module, set()).add(edge.name)
    return names


@cache
def verb_files_of(package: str) -> set[str]:
    """The files that define a public function.

    On the ground floor, files such as `checks.py` hold facts about one topic; there, a verb's file
    is one that has the verb's name.
    """
    files = set()
    for module, names in public_names_by_file(package).items():
        tree = ast.parse(source_files()[module].read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        is_topic = is_within(module, GROUND) and module.rpartition(".")[2] not in names
        if functions & names and not is_topic:
            files.add(module)
    return files


def import_chains(start: str) -> dict[str, list[str]]:
    """For every file that `start` needs, a shortest chain of imports to it.

    Packages' `__init__` files are not followed: they list public names, whoever needs them.
    """
    imported: dict[str, list[str]] = {}
    for edge in all_imports():
        if source_files()[edge.module].name != "__init__.py":
            imported.setdefault(edge.importer, []).append(edge.module)

    chains = {start: [start]}
    queue = [start]
    for module in queue:
        for needed in imported.get(module, []):
            if needed not in chains:
                chains[needed] = [*chains[module], needed]
                queue.append(needed)
    return chains


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def top(module: str) -> str:
    return module.partition(".")[0]
