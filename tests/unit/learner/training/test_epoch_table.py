"""The lines that the built-in loop prints: aligned, narrow, with the best value marked."""

import subprocess
import sys

import pytest

from learner.training.epoch_table import EpochTable, duration


def table(names, losses, epochs=20, validated=True, first=0):
    """Return the lines of a training whose epochs take 3 s each."""
    now = [100.0]
    made = EpochTable(epochs, names, validated=validated, clock=lambda: now[0])
    made.begin(first)
    history, lines = [], []
    for epoch, loss in enumerate(losses, first + 1):
        now[0] += 3
        values = {name: 0.5 for name in names} | {"loss": 1.0, "samples_per_s": 6094.2}
        values |= {f"validation_{name}": 0.25 for name in names} if validated else {}
        history.append(
            {"epoch": epoch, **values, ("validation_loss" if validated else "loss"): loss}
        )
        lines += made.lines(epoch, history)
    return lines


def test_lines_are_aligned_and_the_best_is_marked():
    assert table(["loss", "accuracy"], [0.7, 0.3, 0.31, float("nan"), 0.0002], 10) == [
        "* marks the best val loss so far",
        "                 loss  val loss   accuracy  val accuracy      left",
        "epoch 1/10     1.0000    0.7000*    0.5000        0.2500       27s",
        "epoch 2/10     1.0000    0.3000*    0.5000        0.2500       24s",
        "epoch 3/10     1.0000    0.3100     0.5000        0.2500       21s",
        "epoch 4/10     1.0000       nan     0.5000        0.2500       18s",
        "epoch 5/10     1.0000    0.0002*    0.5000        0.2500       15s",
    ]  # fmt: skip


def test_a_header_comes_every_20_lines():
    lines = table(["loss"], [1.0] * 45, epochs=100)
    assert [n for n, line in enumerate(lines) if "val loss " in line and "*" not in line] == [
        1, 22, 43,
    ]  # fmt: skip


@pytest.mark.parametrize("names", [
    ["loss"],
    ["loss", "accuracy", "top5_accuracy", "f1"],
    ["loss", "a_metric_with_a_name_as_long_as_it_takes_to_fill_a_whole_terminal", "f1"],
])  # fmt: skip
@pytest.mark.parametrize("validated", [True, False])
def test_lines_fit_80_columns_behind_their_source(names, validated):
    lines = table(names, [12345678.9, -1.23456e-7], 10000, validated, first=9000)
    assert all(len(f"learner-0 | {line}") <= 80 for line in lines)
    assert "loss" in lines[1] and lines[1].endswith("left")
    assert "a_metric" not in lines[1]


def test_an_epoch_without_validation_has_no_value():
    made = EpochTable(4, ["loss"], validated=True)
    (*_, line) = made.lines(1, [{"loss": 0.5}])
    assert line.split()[:4] == ["epoch", "1/4", "0.5000", "-"]


@pytest.mark.parametrize(("seconds", "text"), [
    (0.4, "0s"), (59.6, "1m00s"), (200, "3m20s"), (3900, "1h05m"), (172800 + 10800, "2d03h"),
])  # fmt: skip
def test_the_time_left_is_short(seconds, text):
    assert duration(seconds) == text


PROGRAM = """
import sys, torch
from learner.training import torch_compiler
torch_compiler.import_late()
model = torch.nn.Linear(2, 1)
def step(forward):
    optimizer.zero_grad()
    forward(torch.ones(2)).sum().backward()
    optimizer.step()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
step(model)
torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.ones(1))]}})
print("torch._dynamo.config" in sys.modules)
torch_compiler.import_late()
{use}
print("torch._dynamo.config" in sys.modules, torch._dynamo is sys.modules["torch._dynamo"])
print(type(torch._dynamo).__name__, torch._dynamo.__file__.endswith("__init__.py"))
step(model)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "use"),
    [
        ("SGD", 'step(torch.compile(model, backend="eager"))'),
        ("Adam", "import torch._dynamo.config"),
        ("AdamW", "from torch._dynamo import config"),
        ("RMSprop", "torch._dynamo.reset()"),
    ],
)
def test_the_compiler_is_imported_when_something_uses_it(optimizer, use):
    program = PROGRAM.format(optimizer=optimizer, use=use)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False", "True True", "module True"]


def test_a_listing_of_all_modules_does_not_import_it():
    program = (
        "import inspect, sys; from learner.training import torch_compiler\n"
        "torch_compiler.import_late()\n"
        "inspect.getmodule(compile('1', 'x', 'exec'))\n"
        "print('torch._dynamo.config' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
