"""The commands that show how a training goes: metrics, watch in the terminal, dashboard.

Each imports what it draws with only when it runs, so that no other command gets slower. It parses,
calls one function, and prints.
"""
