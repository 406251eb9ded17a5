"""Every table and figure from one command, on one page.

    python examples/reproduce.py [--scale smoke] [--only table1 figure5] [--list] [--resume]

Runs the scripts one after another; they share finished runs (`<folder>/cache`). One that fails, or
whose table cannot be read, is reported, the others go on, and the command ends with an error.
`<folder>/index.html` then has every figure, table, budget and verdict, and needs no network.
"""

import argparse
import sys
import time
from pathlib import Path

from lab.results.catalogue import find_scripts, question
from lab.results.page import write_page
from lab.results.publish import SCALES, at_least_one
from lab.results.running import is_there, options_of, run


def main(argv: list[str] | None = None) -> None:
    """Run what was asked for, then write the page."""
    args = parse_args(argv)
    scripts = find_scripts(Path(__file__).parent, args.only)
    titles = {name: question(path) for name, path in scripts.items()}
    if args.list:
        print("\n".join(f"{name:26} {title}" for name, title in titles.items()))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for place, (name, path) in enumerate(scripts.items(), start=1):
        output = args.folder / f"{name}.nc"
        options = options_of(name, args)
        if args.resume and is_there(output, options):
            print(f"[{place}/{len(scripts)}] {name}: there already", flush=True)
            continue
        start = time.monotonic()
        good = run(path, output, options, cache=args.folder / "cache")
        state = "done" if good else f"FAILED, see {output.with_suffix('.log')}"
        spent = f"{time.monotonic() - start:.0f} s"
        print(f"[{place}/{len(scripts)}] {name}: {state} ({spent})", flush=True)
        failed += [] if good else [name]
    damaged = write_page(args.folder, titles, failed)
    print(f"wrote {args.folder / 'index.html'}")
    told = {"failed": failed, "left a damaged result": damaged}
    if failed or damaged:
        words = (f"{len(n)} of {len(scripts)} {w}: {', '.join(n)}" for w, n in told.items() if n)
        sys.exit("; ".join(words))


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
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--processes", type=at_least_one)
    where.add_argument("--dask", metavar="ADDRESS")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
