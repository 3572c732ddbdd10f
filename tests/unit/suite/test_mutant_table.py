"""The faults that tests/mutants.py plants still fit today's sources."""

import ast
from collections import Counter

import pytest
from mutant_table import AREAS, MUTANTS
from repository import REPOSITORY


def test_there_are_fifty_faults_ten_in_each_area():
    assert Counter(mutant.area for mutant in MUTANTS) == dict.fromkeys(AREAS, 10)
    assert len({mutant.name for mutant in MUTANTS}) == 50


@pytest.mark.parametrize("number", range(1, 51))
def test_a_fault_fits_one_place_of_the_product(number):
    mutant = MUTANTS[number - 1]
    text = (REPOSITORY / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: bring `old` up to date"
    assert mutant.old != mutant.new
    assert all((REPOSITORY / place).exists() for place in mutant.near)
    if mutant.file.endswith(".py"):
        ast.parse(text.replace(mutant.old, mutant.new))  # a syntax error would prove nothing
