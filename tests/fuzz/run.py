"""Run random cases for a while and list all that went wrong, each with the seed that shows it.

python -m tests.fuzz.run --minutes 20 [--seed 0] [--verb grid]
"""

import argparse
import time
import traceback
import warnings
from collections import defaultdict

import torch

from resonance_toolkit import showing_progress
from tests.fuzz.cases import make_case
from tests.fuzz.references import check_result
from tests.fuzz.verbs import VERBS
from tests.helpers.state import snapshot


def try_verb(name: str, seed: int) -> str:
    """Run one verb on one case: `result`, `refused`, or what went wrong."""
    case = make_case(seed)
    data = [case.x, case.y]
    before = snapshot(case.model)
    copies = [tensor.clone() for tensor in data]

    trouble = "result"
    try:
        with warnings.catch_warnings(), showing_progress("off"):
            warnings.simplefilter("ignore")
            result = VERBS[name](case)
            check_result(name, case, result)
    except (ValueError, TypeError) as error:
        trouble = "refused" if is_ours(error) else _describe(error)
    except Exception as error:
        trouble = _describe(error)

    if snapshot(case.model) != before:
        moved = [key for key, value in snapshot(case.model).items() if value != before[key]]
        return f"the model or the process has changed: {', '.join(moved)} ({trouble})"
    pairs = zip(data, copies, strict=True)
    if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs):
        return f"the data have changed ({trouble})"
    return trouble


def is_ours(error: Exception) -> bool:
    """Tell a refusal, which names an argument, from an error of torch or numpy."""
    return str(error).startswith("`") or "`" in str(error).split(":")[0]


def _describe(error: Exception) -> str:
    # The last line of ours says more than the one of torch that raised.
    lines = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
    ]
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__} at {lines[-1]}: {message[:150]}"


def main() -> None:
    """Run, and print each trouble once, with its count and its first seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verb", choices=list(VERBS))
    args = parser.parse_args()

    counts: dict[str, int] = defaultdict(int)
    troubles: dict[tuple[str, str], list[int]] = defaultdict(list)
    end = time.monotonic() + 60 * args.minutes
    seed = args.seed
    while time.monotonic() < end:
        for name in [args.verb] if args.verb else VERBS:
            trouble = try_verb(name, seed)
            if trouble in ("result", "refused"):
                counts[trouble] += 1
            else:
                if not troubles[name, trouble]:
                    print(f"{name} {seed}: {trouble}", flush=True)
                troubles[name, trouble].append(seed)
        seed += 1

    print(f"seeds {args.seed} to {seed - 1}: {dict(counts)}, {len(troubles)} kinds of trouble")
    for (name, trouble), seeds in sorted(troubles.items()):
        print(f"{name}, {len(seeds)} times, first at seed {seeds[0]}: {trouble}")


if __name__ == "__main__":
    main()
