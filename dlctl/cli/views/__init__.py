"""What the states of trainings are: the list, live too, the story of one, and its log as it grows.

Each module imports what it draws with only when it runs. It parses, calls one function, and prints.
"""
