"""More of ddl_program.py: states, checkpoints, local SGD, faults. Not a test by itself."""

import copy
import io

import torch
from ddl_training import (
    STEPS,
    Dense,
    Net,
    Own,
    adam,
    assert_equal,
    average,
    distributed,
    loss_of,
    own_gradients,
    refuses,
    sgd,
    weights,
)
from torch import nn

from learner import ddl
from learner.checkpoint.load import filled
from learner.ddl.reducer import _kind
from learner.errors import UserFault
from learner.training.optimizer_state import OptimizerState


def check_state_dict():
    """The state is whole on every learner, fits a plain optimizer, and training continues alike."""
    for make in (adam, sgd, lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1),
                 lambda m: Own(m.parameters(), lr=0.01)):  # fmt: skip
        through, stopped, resumed, again = Net(), Net(), Net(), Net()
        wrapper = ddl.DistributedOptimizer(make(through))
        distributed(through, wrapper, steps=range(STEPS))
        wrapper.close()

        wrapper = ddl.DistributedOptimizer(make(stopped))
        distributed(stopped, wrapper, steps=range(2))
        file = io.BytesIO()
        torch.save([stopped.state_dict(), wrapper.state_dict()], file)
        file.seek(0)
        model_state, state = torch.load(file)
        plain = make(again)
        plain.load_state_dict(copy.deepcopy(state))
        for p, entry in zip(again.parameters(), plain.state.values(), strict=False):
            assert entry, p.shape
        assert len(state["state"]) == 8 or ddl.size() == 1 or make is not adam
        distributed(stopped, wrapper, steps=(77,))  # go astray, and come back
        stopped.load_state_dict(model_state)
        wrapper.load_state_dict(copy.deepcopy(state))
        distributed(stopped, wrapper, steps=range(2, STEPS))
        assert torch.equal(weights(stopped), weights(through))
        wrapper.close()

        resumed.load_state_dict(model_state)
        wrapper = ddl.DistributedOptimizer(make(resumed))
        wrapper.load_state_dict(copy.deepcopy(state))
        distributed(resumed, wrapper, steps=range(2, STEPS))
        assert torch.equal(weights(resumed), weights(through))
        wrapper.close()
        check_wrapping_anew(make, through)


def check_scaler():
    """torch.amp's scaler with a fused step, whose own scaling it must not use on a wrapper."""
    torch.manual_seed(1)
    model, expected = nn.Linear(8, 8), nn.Linear(8, 8)
    expected.load_state_dict(model.state_dict())
    wrapper = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        wrapper.zero_grad()
        scaler.scale(model(torch.ones(2, 8)).pow(2).mean()).backward()
        scaler.step(wrapper)
        scaler.update()
        plain.zero_grad()
        expected(torch.ones(2, 8)).pow(2).mean().backward()
        plain.step()
    assert_equal(model, expected, "scaler", rtol=1e-5)
    wrapper.close()


def check_checkpoints(folder):
    """Saved by all learners, in the middle; a new model and optimizer continue to the same bits."""
    through, model = Net(), Net()
    wrapper = ddl.DistributedOptimizer(adam(through))
    with ddl.Checkpoints(folder) as checkpoints:
        assert checkpoints.load() is None
        for step in range(STEPS):
            distributed(through, wrapper, steps=(step,))
            if step == 1:
                state = {"model": through.state_dict(), "optimizer": wrapper.pieces_of_state()}
                assert checkpoints.save(2, state, wait=True)
    with ddl.Checkpoints(folder) as checkpoints:
        found = checkpoints.load()
        assert found is not None
        first, state = found
    wrapper.close()
    model.load_state_dict(state["model"])
    wrapper = ddl.DistributedOptimizer(adam(model))
    wrapper.load_state_dict(state["optimizer"])
    distributed(model, wrapper, steps=range(first, STEPS))
    wrapper.close()
    assert torch.equal(weights(model), weights(through))
    check_reading_parts(folder, weights(through))


def check_reading_parts(folder, expected):
    """As the built-in loop resumes: each learner reads the state of what it is going to step."""
    model = Net()
    wrapper = ddl.DistributedOptimizer(adam(model))

    def use(loaded):
        tree = loaded.tree()
        OptimizerState(wrapper).load_stored(tree["optimizer"])
        return filled(tree["model"])

    with ddl.Checkpoints(folder) as checkpoints:
        found = checkpoints._engine.load(use)
        assert found is not None
        model.load_state_dict(found)
    held, whole = moments(wrapper.state), moments(wrapper.state_dict()["state"])
    assert sum(ddl.api._state().exchange.collect(held)) == whole * nodes() > 0
    distributed(model, wrapper, steps=range(2, STEPS))
    wrapper.close()
    assert torch.equal(weights(model), expected)


def moments(state):
    return sum(entry["exp_avg"].numel() for entry in state.values())


def nodes():
    return ddl.api._state().exchange.topology.nodes


def check_wrapping_anew(make, through):
    """A closed one leaves weights and state whole: an optimizer continues in another wrapper."""
    model = Net()
    optimizer = make(model)
    for steps in (range(2), range(2, STEPS)):
        wrapper = ddl.DistributedOptimizer(optimizer)
        distributed(model, wrapper, steps=steps)
        wrapper.close()
        wrapper.close()
    assert torch.equal(weights(model), weights(through))
    held = {id(p) for p in optimizer.state}
    assert held <= {id(p) for p in model.parameters()}


def check_local_sgd():
    """Each learner alone for three steps; then all have the mean."""
    models = [Net() for _ in range(ddl.size())]
    plain = [sgd(model) for model in models]
    model = Net()
    wrapper = ddl.DistributedOptimizer(sgd(model), average_every=3)
    for step in range(6):
        for rank, (other, optimizer) in enumerate(zip(models, plain, strict=True)):
            optimizer.zero_grad()
            loss_of(other, rank, step).backward()
            optimizer.step()
        distributed(model, wrapper, steps=(step,))
        if step % 3 < 2:
            assert wrapper.settled == (ddl.size() == 1 and wrapper.average_every == 1)
            mine, other = weights(model), weights(models[ddl.rank()])
            assert torch.allclose(mine, other, rtol=1e-5 if step > 2 else 0.0, atol=0.0)
            continue
        assert wrapper.settled
        with torch.no_grad():
            for several in zip(*[m.parameters() for m in models], strict=True):
                mean = torch.stack([p.detach() for p in several]).mean(0)
                for p in several:
                    p.copy_(mean)
            if step == 2:  # the momentum is averaged, too
                for several in zip(*[m.parameters() for m in models], strict=True):
                    held = [o.state[p] for o, p in zip(plain, several, strict=True)]
                    buffers = [h["momentum_buffer"] for h in held if h.get("momentum_buffer")
                               is not None]  # fmt: skip
                    if len(buffers) == len(held):
                        mean = torch.stack(buffers).mean(0)
                        for buffer in buffers:
                            buffer.copy_(mean)
        assert_equal(model, models[0], f"local SGD {step}", rtol=1e-5)
    distributed(model, wrapper, steps=(6,))
    wrapper.settle()
    assert_equal(model, model, "settled")
    wrapper.close()


def check_two_optimizers():
    """Two networks that learn from each other, as in a GAN: a pass reaches both."""

    def train(makes, means):
        nets = [Net(), Dense(torch.float32, torch.contiguous_format)]
        optimizers = [makes(net) for net in nets]
        for step in range(3):
            for optimizer in optimizers:
                for each in optimizers:
                    each.zero_grad()
                means(nets, lambda rank, step=step: sum(loss_of(n, rank, step) for n in nets))
                optimizer.step()
        for optimizer in optimizers:
            getattr(optimizer, "close", lambda: None)()
        return nets

    def alone(nets, loss):
        both = nn.ModuleList(nets)
        rows = [own_gradients(both, loss(rank)) for rank in range(ddl.size())]
        for parameter, grad in zip(both.parameters(), average(rows), strict=True):
            parameter.grad = grad

    def together(nets, loss):
        loss(ddl.rank()).backward()

    expected = train(sgd, alone)
    found = train(lambda net: ddl.DistributedOptimizer(sgd(net)), together)
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other, "two optimizers")


def check_lists():
    """Lists that differ are named on every learner, also where some of them have memory for it."""
    few, many = [torch.ones(3)], [torch.ones(5), torch.ones(7)]
    reducer = ddl.api._state().reducer
    places = []
    for _ in range(2):
        for tensors in (few, many):
            ddl.allreduce_n(tensors)
            places.append(reducer._kept[_kind(tensors)][0][0].data_ptr())
    assert places[:2] == places[2:], "memory was made again"
    assert len(reducer._kept) <= 4
    last = ddl.size() - 1
    odd = ddl.rank() == last and last > 0
    for calls, text in [
        ((lambda: ddl.allreduce_n(few), lambda: ddl.allreduce_n([torch.ones(4)])),
         f"rank 0 has number 0 (3,) float32 cpu, rank {last} has number 0 (4,) float32 cpu"),
        ((lambda: ddl.allreduce_n_(few), lambda: ddl.allreduce_n_(many)), "has number 0 (5,)"),
        ((lambda: ddl.allreduce_n(few), lambda: ddl.allreduce_n([])), "has nothing"),
        ((lambda: ddl.allreduce_n(few), lambda: ddl.allreduce_n(few, "avg")), "has op='avg'"),
        ((lambda: ddl.allreduce_n({"a": few[0]}), lambda: ddl.allreduce_n({"b": few[0]})),
         f"rank 0 has a (3,) float32 cpu, rank {last} has b (3,) float32 cpu"),
        ((lambda: ddl.empty_n([(3,)]), lambda: ddl.empty_n([(4,)])), "has number 0 (4,)"),
    ]:  # fmt: skip
        refuses(text, calls[odd])
    few[0].fill_(1)
    assert ddl.allreduce_n(few)[0].tolist() == [ddl.size()] * 3


def check_faults():
    """What can't go well is said on every learner, before the first step."""
    model, last = Net(), ddl.size() - 1
    named = dict(model.named_parameters())
    odd = nn.Linear(6, 5 + (ddl.rank() == last))
    refuses("rank 0 has weight (5, 6) float32", lambda: ddl.broadcast_parameters(odd))
    refuses(f"rank {last} has weight (6, 6) float32", lambda: ddl.broadcast_parameters(odd))
    if ddl.size() > 1 and not torch.distributed.is_initialized():
        synchronized = nn.Sequential(nn.SyncBatchNorm(3))
        refuses("layer 0 is a SyncBatchNorm", lambda: ddl.broadcast_parameters(synchronized))
    short = list(named.values())[: 3 + (ddl.rank() == 0)]
    refuses("has nothing", lambda: ddl.DistributedOptimizer(torch.optim.SGD(short, lr=0.1)))
    memory = torch.channels_last if ddl.rank() else torch.contiguous_format
    images = nn.Parameter(torch.zeros(2, 3, 4, 4).contiguous(memory_format=memory))
    refuses(
        "rank 1 has number 0 (2, 3, 4, 4) float32 with strides (48, 1",
        lambda: ddl.DistributedOptimizer(torch.optim.SGD([images], lr=0.1)),
    )
    kept = nn.Parameter(torch.full((3,), float(ddl.rank())), requires_grad=False)
    ddl.DistributedOptimizer(torch.optim.SGD([kept, nn.Parameter(torch.ones(1))], lr=0.1)).close()
    assert not kept.any(), "a frozen parameter was not broadcast"
    wrapper = ddl.DistributedOptimizer(sgd(model))
    try:
        wrapper.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        raise AssertionError("a group was added")
    except UserFault as error:
        assert "before wrapping" in str(error)
    distributed(model, wrapper, steps=(0,))
    model.frozen.requires_grad_(True)
    refuses("frozen", lambda: distributed(model, wrapper, steps=(1,)))
    wrapper.close()


def check_closing():
    """After ddl.shutdown() the weights are the learner's own, equal, and can be trained on."""
    model = Net()
    wrapper = ddl.DistributedOptimizer(adam(model))
    distributed(model, wrapper, steps=(0, 1))
    before, rank = weights(model), ddl.rank()
    same = ddl.api._state().exchange.collect(float(before.sum()))
    ddl.shutdown()
    assert len(set(same)) == 1 and not ddl.is_initialized()
    assert torch.equal(weights(model), before)
    with torch.no_grad():
        model.scale += rank
    model(torch.arange(3), True).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert float(model.scale.detach()) > before[-1] - 1 + rank
