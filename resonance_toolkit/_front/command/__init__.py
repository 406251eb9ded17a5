"""The command line: `python -m resonance examine`, `show` and `info`.

    main             options, exit codes, one sentence for a mistake
      run_examine    load_model + load_data -> resonance.examine -> report.html, result.nc
      run_show       a saved result, drawn by what made it
      run_info       versions, devices, and whose files our names lead to

Nothing but this room prints.
"""

from resonance_toolkit._front.command.main import main

__all__ = ["main"]
