"""What the states of trainings are: the list, live too, and the story of one.

Each module imports what it draws with only when it runs. It parses, calls one function, and prints.
"""
