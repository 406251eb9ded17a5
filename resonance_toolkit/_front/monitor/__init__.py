"""`resonance.Monitor`: the instruments while a model trains, at chosen steps.

`instruments` measures, `record` keeps what came out as rows and lines, `scalars` picks what is
logged, and `logs` understands what a user gave to log to. `monitor` puts them together.
"""
