"""Every table and figure from one command, on one page.

    python examples/reproduce.py [--scale smoke] [--only table1 figure5] [--list] [--resume]

Runs the scripts one after another; they share finished runs (`<folder>/cache`). One that fails, or
whose table cannot be read, is reported, the others go on, and the command ends with an error.
`<folder>/index.html` then has every figure, table, budget and verdict, and needs no network.
`--keep` copies the small files to results/published, and `--results-page docs/results.md` writes
the page of the documentation from what is kept there and what was run.
"""

import argparse
import sys
import time
from pathlib import Path

from lab.results.catalogue import find_scripts, question
from lab.results.kept import keep, write_results
from lab.results.options import SCALES, at_least_one
from lab.results.page import write_page
from lab.results.running import has_result, options_of, run_script


def main(argv: list[str] | None = None) -> None:
    """Run what was asked for, then write the page."""
    args = parse_args(argv)
    scripts = find_scripts(Path(__file__).parent, args.only)
    titles = {name: question(path) for name, path in scripts.items()}
    if args.list:
        print("\n".join(f"{name:26} {title}" for name, title in titles.items()))
        return

    if args.page_only:
        write_documentation(args, titles)
        return

    args.folder.mkdir(parents=True, exist_ok=True)
    failed = run_scripts(scripts, args)
    damaged = write_page(args.folder, titles, failed)
    print(f"wrote {args.folder / 'index.html'}")
    if args.keep:
        copies = keep(args.folder, args.kept, [name for name in titles if name not in failed])
        print(f"kept {len(copies)} files in {args.kept}")
    write_documentation(args, titles)

    # The page is written in any case; a failure is still a failure.
    troubles = {"failed": failed, "left a damaged result": damaged}
    complaints = [
        f"{len(names)} of {len(scripts)} {words}: {', '.join(names)}"
        for words, names in troubles.items()
        if names
    ]
    if complaints:
        sys.exit("; ".join(complaints))


def run_scripts(scripts: dict[str, Path], args: argparse.Namespace) -> list[str]:
    """Run the scripts one after another, saying so, and return the names of those that failed."""
    failed = []
    for number, (name, path) in enumerate(scripts.items(), start=1):
        label = f"[{number}/{len(scripts)}] {name}"
        output = args.folder / f"{name}.nc"
        options = options_of(name, args)
        if args.resume and has_result(output, options):
            print(f"{label}: there already", flush=True)
            continue

        start = time.monotonic()
        has_succeeded = run_script(path, output, options, cache=args.folder / "cache")
        seconds = time.monotonic() - start

        outcome = "done" if has_succeeded else f"FAILED, see {output.with_suffix('.log')}"
        print(f"{label}: {outcome} ({seconds:.0f} s)", flush=True)
        if not has_succeeded:
            failed.append(name)
    return failed


def write_documentation(args: argparse.Namespace, titles: dict[str, str]) -> None:
    """Write the page of the documentation, if it is asked for: kept results, and those of today."""
    if args.results_page is None:
        return

    # Of all scripts: the page has whatever is kept, not only what was run now.
    everything = find_scripts(Path(__file__).parent)
    all_titles = {name: question(path) for name, path in everything.items()} | titles
    pictures = args.results_page.parent / "pictures" / "results"
    folders = [args.kept] if args.page_only else [args.kept, args.folder]
    write_results(args.results_page, folders, all_titles, pictures=pictures)
    print(f"wrote {args.results_page}")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--folder", type=Path, default=Path("results"), help="where all is put")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="table1, figure5, ...")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--resume", action="store_true", help="skip what these options made")
    parser.add_argument("--data", help="as each script has it, and so what follows")
    parser.add_argument("--seeds", type=at_least_one)

    parser.add_argument("--keep", action="store_true", help="copy what is small to --kept")
    parser.add_argument("--kept", type=Path, default=Path("results/published"))
    parser.add_argument("--results-page", type=Path, help="docs/results.md, say")
    parser.add_argument(
        "--page-only", action="store_true", help="run nothing: --results-page, from --kept alone"
    )

    executors = parser.add_mutually_exclusive_group()
    executors.add_argument("--processes", type=at_least_one)
    executors.add_argument("--dask", metavar="ADDRESS")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
