"""The use cases: what a person, or a program, can have dlctl do, whatever face it has.

Each is a function with typed arguments that returns a dataclass, and says what it does meanwhile
through a `Tell`. It never prints, never asks and never exits. The faces (`dlctl.cli`,
`dlctl.dashboard`) parse what was typed, call one of these, and show what it returns.
"""
