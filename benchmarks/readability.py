"""How does the source read? Blank lines, comments and long signatures, over function bodies.

    python benchmarks/readability.py [probes landscape ...]

A thermometer, not a gate: nothing fails by it. A body is what follows a function's docstring. A
comment counts if it has a line to itself. Where a function has more than six parameters and is not
public (no package lists it, its class or one that derives from that in `__all__`, nor is it one of
the front door), its values probably want to be one small dataclass.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("resonance_toolkit", "probes", "landscape", "gradients", "attention", "nudging")
SCRIPTS = ("examples", "benchmarks")

LONG_BODY = 20  # lines from which a body without a paragraph is hard to read
MOST_PARAMETERS = 6
N_SHOWN = 12  # functions listed under each heading


@dataclass(frozen=True)
class Function:
    """One function: where it is, the lines of its body, and its parameters."""

    place: str
    body: list[str]
    n_parameters: int
    is_private: bool

    @property
    def is_dense(self) -> bool:
        """Whether it is long and has no paragraphs."""
        return len(self.body) >= LONG_BODY and all(self.body)


def main(argv: list[str] | None = None) -> None:
    """Print a row per folder, then the functions that stand out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", default=[*PACKAGES, *SCRIPTS])
    args = parser.parse_args(argv)

    print(f"{'per 100 lines of body':20} {'lines':>6} {'blank':>6} {'comment':>8}   long bodies")
    functions: list[Function] = []
    for folder in args.folders:
        functions_of_folder = [
            function
            for path in sorted((ROOT / folder).rglob("*.py"))
            for function in read_functions(path)
        ]
        print_row(folder, functions_of_folder)
        functions += functions_of_folder

    print_row("all", functions)
    print_largest_folders(args.folders)

    dense = [(len(f.body), f.place) for f in functions if f.is_dense]
    print_list("lines without a blank one", dense)

    wide = [
        (f.n_parameters, f.place)
        for f in functions
        if f.is_private and f.n_parameters > MOST_PARAMETERS
    ]
    print_list("parameters of a private function", wide)


def read_functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file that has a body beside its docstring."""
    text = path.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    relative = path.relative_to(ROOT)
    exported_names = read_exported_names(relative.parts[0])
    tree = ast.parse(text)

    public_functions: set[ast.AST] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in exported_names:
            public_functions.add(node)
            public_functions.update(node.body if isinstance(node, ast.ClassDef) else ())

    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue

        has_docstring = ast.get_docstring(node) is not None
        if has_docstring and len(node.body) == 1:
            continue

        is_underscored = node.name.startswith("_") and not node.name.endswith("__")
        yield Function(
            place=f"{relative}:{node.lineno} {node.name}",
            body=_body_lines(node, lines, has_docstring=has_docstring),
            n_parameters=_count_parameters(node),
            is_private=is_underscored or node not in public_functions,
        )


@cache
def read_exported_names(package: str) -> frozenset[str]:
    """The strings of `__all__` in a package's `__init__.py`, and the names of its front door."""
    init = ROOT / package / "__init__.py"
    if not init.is_file():
        return frozenset()

    names: set[str] = set()
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names.update(ast.literal_eval(node.value))

        # A dictionary from names to the files that they are loaded from, on first use.
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_FRONT_DOOR":
            names.update(ast.literal_eval(node.value))

    # What a public class inherits is public as well.
    bases = read_bases(package)
    pending = sorted(names)
    while pending:
        new_names = set(bases.get(pending.pop(), ())) - names
        names |= new_names
        pending += sorted(new_names)
    return frozenset(names)


def read_bases(package: str) -> dict[str, list[str]]:
    """The names of the classes that each class of a package derives from."""
    return {
        node.name: [ast.unparse(base) for base in node.bases]
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def _body_lines(
    node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], *, has_docstring: bool
) -> list[str]:
    if not has_docstring:
        return lines[node.body[0].lineno - 1 : node.end_lineno]

    # From the line after the docstring, so that a comment before the first statement counts.
    body = lines[node.body[0].end_lineno : node.end_lineno]
    while body and not body[0]:
        body = body[1:]
    return body


def _count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def print_row(title: str, functions: list[Function]) -> None:
    """Lines, blank lines and comments, and how many long bodies lack a paragraph."""
    lines = [line for function in functions for line in function.body]
    per_hundred = 100 / max(len(lines), 1)
    blank = per_hundred * sum(not line for line in lines)
    comments = per_hundred * sum(line.startswith("#") for line in lines)

    n_long = sum(len(function.body) >= LONG_BODY for function in functions)
    n_dense = sum(function.is_dense for function in functions)
    print(
        f"{title:20} {len(lines):7} {blank:6.1f} {comments:8.1f}   "
        f"{n_dense} of {n_long} without a blank line"
    )


def print_largest_folders(folders: list[str]) -> None:
    """The five folders with most source files."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    n_files = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    print_list("files in a folder", [(count, place) for place, count in n_files.most_common(5)])


def print_list(title: str, rows: list[tuple[int, str]]) -> None:
    """Numbers with their places, largest first."""
    print(f"\n{title}: {len(rows)}")
    for number, place in sorted(rows, reverse=True)[:N_SHOWN]:
        print(f"  {number:4}  {place}")


if __name__ == "__main__":
    main()
