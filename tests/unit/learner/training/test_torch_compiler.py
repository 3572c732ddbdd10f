"""An optimizer imports torch's compiler only if something else of the program uses it."""

import subprocess
import sys

import pytest

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
