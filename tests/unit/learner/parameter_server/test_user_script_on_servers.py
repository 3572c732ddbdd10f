"""The parameter server for a user's own script: alone, and in a job."""

import secrets
from dataclasses import replace

import pytest
import torch
from scheduler_plan import make_plan
from torch import nn
from torch.utils.data import TensorDataset

from dlctl import contract
from dlctl.contract import ParameterServer
from learner import parameter_server
from learner.data_parallel.consistency import describe_parameters
from learner.data_parallel.flat_parameters import FlatParameters
from learner.errors import UserFault
from learner.parameter_server.rendezvous import make_parameters
from learner.system.segments import make_segment_folder, remove_segment_folder, segment_folder
from psrv.solvers.solver import Downpour

INPUTS = torch.sin(torch.arange(200.0)).reshape(50, 4)
TRAIN = TensorDataset(INPUTS, INPUTS.sum(dim=1, keepdim=True))


@pytest.fixture(autouse=True)
def _alone(monkeypatch, shm_folder):
    monkeypatch.delenv("DLCTL_JOB_DIR", raising=False)
    monkeypatch.setattr(parameter_server.api, "_SHARED_MEMORY", shm_folder)


def shared_memory():
    return [path.name for path in parameter_server.api._SHARED_MEMORY.iterdir()]


def test_a_script_alone_takes_the_steps_of_sgd():
    torch.manual_seed(0)
    model, twin = nn.Linear(4, 1), nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    with parameter_server.join(model, TRAIN, epochs=2, batch_size=20, lr=0.1) as server:
        assert not shared_memory()
        for (x,), y in server.batches():
            nn.functional.mse_loss(model(x), y).backward()
            server.step()
            optimizer.zero_grad()
            nn.functional.mse_loss(twin(x), y).backward()
            optimizer.step()
            assert torch.equal(model.weight, twin.weight)
        assert server.epoch == 1
    assert (server.rank, server.size) == (0, 1)


def step_itself(server, model):
    """Train on all batches, like a script whose own optimizer takes the steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,), y in server.batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        server.step()


@pytest.fixture
def in_job(monkeypatch, tmp_path):
    """Make this process a learner of a job with a plan."""

    def make(rank=0, **fields):
        plan = replace(make_plan(job_dir=str(tmp_path), learners=1 + rank), **fields)
        (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
        (tmp_path / contract.plan_file(1)).write_text(contract.to_json(plan))
        for name, value in (("JOB_DIR", tmp_path), ("ATTEMPT", 1)):
            monkeypatch.setenv(f"DLCTL_{name}", str(value))
        monkeypatch.setenv("RANK", str(rank))
        return plan

    return make


def test_weights_are_pushed_where_the_solver_takes_them():
    model = nn.Linear(4, 1)
    settings = ParameterServer("elastic_averaging", [0], push_every=2, moving_rate=0.25)
    with parameter_server.join(model, TRAIN, epochs=4, batch_size=5, settings=settings) as server:
        step_itself(server, model)
        own = model.weight.clone()
        with server.as_on_server():
            center = model.weight.clone()
        assert torch.equal(model.weight, own) and not torch.equal(center, own)
    assert torch.equal(model.weight, center)


@pytest.mark.parametrize("solver", ["downpour_sgd", "elastic_averaging", "diloco"])
def test_a_script_may_have_another_default_device(solver):
    """As with `torch.set_default_device("cuda")`; shared memory stays on the CPU."""
    model = nn.Linear(4, 1)
    data = [(torch.ones(4), torch.ones(1))] * 4
    settings = ParameterServer(solver, [0])
    with (
        torch.device("meta"),
        parameter_server.join(
            model, data, epochs=1, batch_size=2, lr=0.1, settings=settings
        ) as server,
    ):
        for (inputs,), targets in server.batches():
            (model(inputs) - targets).square().mean().backward()
            server.step()
        rows = server.state()["rows"]
        with server.as_on_server():
            assert {tensor.device.type for tensor in [rows, *model.parameters()]} == {"cpu"}


def test_a_script_goes_on_from_its_state():
    settings = ParameterServer("downpour_sgd", [0], momentum=0.9)

    def train(model, stop_at, **more):
        with parameter_server.join(
            model, TRAIN, epochs=2, batch_size=5, lr=0.01, settings=settings, **more
        ) as server:
            state = {}
            for number, ((x,), y) in enumerate(server.batches()):
                if number == stop_at:
                    state = server.state()
                    break
                nn.functional.mse_loss(model(x), y).backward()
                server.step()
        return state

    torch.manual_seed(0)
    whole, halves = nn.Linear(4, 1), nn.Linear(4, 1)
    halves.load_state_dict(whole.state_dict())
    train(whole, 100)
    state = train(halves, 7)
    assert state["rows"].any()
    train(halves, 100, state=state)
    assert torch.equal(whole.weight, halves.weight)


def test_a_pushed_step_is_reported_done_at_once():
    """A script saves after a step when halted; what is in the weights must not come again."""
    settings = ParameterServer("downpour_sgd", [0], push_every=2)
    with parameter_server.join(
        nn.Linear(4, 1), TRAIN, epochs=2, batch_size=5, lr=0.01, settings=settings
    ) as server:
        places = []
        for _ in server.batches():
            server.step()
            state = server.state()["cursor"]
            places.append(min([state["next"], *(start for start, _ in state["undone"])]))
    assert places == [0, *sorted(2 * list(range(10, 100, 10))), 100]


def test_a_job_of_one_learner_uses_the_manifest_s_settings(in_job):
    """Otherwise `dlctl resume --learners 1` would change the solver and the learning rate."""
    settings = ParameterServer("elastic_averaging", [0, 0], push_every=2, moving_rate=0.25)
    in_job(alone_on_server=settings)
    model = nn.Linear(4, 1)
    with parameter_server.join(model, TRAIN, epochs=1, batch_size=5) as server:
        step_itself(server, model)
        own = model.weight.clone()
        with server.as_on_server():
            assert not torch.equal(model.weight, own)


class Killed(Exception):
    """Ends a learner like a signal."""


def test_the_watchdog_removes_the_shard_of_a_killed_single_learner(monkeypatch, in_job):
    """It is most likely to be killed while making a large shard, when memory runs out."""
    plan = in_job(training_id=f"t-{secrets.token_hex(4)}")

    def be_killed(*_, **__):
        raise Killed

    monkeypatch.setattr(parameter_server.api.client, "join", be_killed)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    make_segment_folder(plan.training_id, 1)
    with pytest.raises(Killed):
        parameter_server.join(nn.Linear(4, 1), TRAIN, epochs=1, batch_size=5, lr=0.1)
    elsewhere = shared_memory()
    monkeypatch.undo()
    left = list(segment_folder(plan.training_id, 1).glob("*/shard-0"))
    remove_segment_folder(plan.training_id, 1)
    assert len(left) == 1 and not elsewhere


def test_a_learner_does_not_wait_for_an_ended_learner_0(in_job, tmp_path):
    """It would otherwise hold the job's resources until the time limit."""
    in_job(1, parameter_server=ParameterServer("downpour_sgd", [0]))
    status = tmp_path / contract.status_file(1, "learner", 0)
    status.parent.mkdir(parents=True)
    ended = contract.Status("learner", 0, 1, contract.State.COMPLETED)
    status.write_text(contract.to_json(ended))
    with pytest.raises(UserFault, match="learner 0 has ended, and never joined"):
        parameter_server.join(nn.Linear(4, 1), TRAIN, epochs=1, batch_size=5, lr=0.1)


@pytest.mark.parametrize(("epochs", "samples", "seed"), [(3, 50, 0), (2, 40, 0), (2, 50, 1)])
def test_learners_with_other_samples_are_refused(epochs, samples, seed, in_job, tmp_path):
    """In another order some samples would be trained on twice, and others never."""
    settings, model = ParameterServer("downpour_sgd", [0]), nn.Linear(4, 1)
    in_job(1, parameter_server=settings)
    others = f"{epochs} epochs of {samples} samples in the order of seed {seed}"
    said = [*describe_parameters(list(model.named_parameters())), others]
    first = make_parameters(FlatParameters(model.parameters()), Downpour(), settings, said)
    path = tmp_path / contract.parameters_file(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(contract.to_json(first))
    mine = "2 epochs of 50 samples in the order of seed 0"
    with pytest.raises(UserFault, match=f"{others}.*{mine}"):
        parameter_server.join(model, TRAIN, epochs=2, batch_size=5, lr=0.1)


def test_a_layer_that_would_join_batch_statistics_is_refused(in_job):
    in_job(1, parameter_server=ParameterServer("downpour_sgd", [0]))
    with pytest.raises(UserFault, match="layer 0 is a SyncBatchNorm"):
        model = nn.Sequential(nn.SyncBatchNorm(4))
        parameter_server.join(model, TRAIN, epochs=2, batch_size=5, lr=0.1)


def test_missing_settings_are_reported():
    with pytest.raises(UserFault, match="there is no learning rate"):
        parameter_server.join(nn.Linear(4, 1), TRAIN, epochs=1, batch_size=5)
    with (
        pytest.raises(UserFault, match=r"no server\.step\(\)"),
        parameter_server.join(nn.Linear(4, 1), TRAIN, epochs=1, batch_size=5, lr=1.0) as server,
    ):
        list(server.batches())


def train_a_batch(server, model):
    (x,), y = next(iter(server.batches()))
    nn.functional.mse_loss(model(x), y).backward()
    server.step()


@pytest.mark.parametrize("before", [False, True])
def test_a_step_belongs_to_one_batch(before):
    """A second step would push the same gradient again."""
    model = nn.Linear(4, 1)
    with parameter_server.join(model, TRAIN, epochs=1, batch_size=5, lr=0.1) as server:
        if not before:
            train_a_batch(server, model)
        with pytest.raises(UserFault, match=r"server\.step\(\) came without a batch"):
            server.step()
        train_a_batch(server, model)


def test_any_call_after_leaving_is_an_error():
    model = nn.Linear(4, 1)
    with parameter_server.join(model, TRAIN, epochs=2, batch_size=5, lr=0.1) as server:
        train_a_batch(server, model)
        batches = server.batches()
        next(batches)
        server.leave()
        uses = (
            server.step, server.pull, server.state, server.as_on_server,
            lambda: next(batches), lambda: next(server.batches()),
        )  # fmt: skip
        for use in uses:
            with pytest.raises(UserFault, match="has left the parameter server"):
                use()
    server.leave()
