"""The rules for lines of well-known libraries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract.metrics import parse_line
from learner.collect.parsers.auto import AutoParser


def parse(text, parser=None):
    return [
        (line.group, line.step, line.epoch, line.values)
        for line in (parser or AutoParser()).feed(text)
    ]


def test_caffe():
    text = """\
I0101 00:00:01.000000  42 solver.cpp:218] Iteration 100 (12.3 iter/s, 1.6s/20 iters), loss = 0.5
I0101 00:00:01.000000  42 solver.cpp:237]     Train net output #0: loss3 = 0.25 (* 1 = 0.25 loss)
I0101 00:00:01.000000  42 sgd_solver.cpp:105] Iteration 100, lr = 0.01
I0101 00:00:02.000000  42 solver.cpp:330] Iteration 500, Testing net (#0)
I0101 00:00:03.000000  42 solver.cpp:397]     Test net output #0: accuracy = 0.98
I0101 00:00:03.000000  42 layer.cpp:1] something else
"""
    assert parse(text) == [
        ("train", 100, None, {"loss": 0.5}),
        ("train", 100, None, {"loss3": 0.25}),
        ("train", 100, None, {"learning_rate": 0.01}),
        ("test", 500, None, {"accuracy": 0.98}),
    ]
    assert len({line.time for line in AutoParser().feed(text)}) == 2


@pytest.mark.parametrize(
    "bar",
    [
        "938/938 [==============================] - 3s 3ms/step - {}\n",
        "\x1b[1m938/938\x1b[0m \x1b[32m━━━━━\x1b[0m \x1b[1m3s\x1b[0m 3ms/step - {}\n",
    ],
)  # fmt: skip
def test_keras(bar):
    values = "loss: 0.2500 - accuracy: 0.9200 - val_loss: 0.13 - val_accuracy: 9.6e-01"
    text = "Epoch 2/5\n" + bar.format(values)
    assert parse(text) == [
        ("train", 1876, 2, {"loss": 0.25, "accuracy": 0.92}),
        ("validation", 1876, 2, {"loss": 0.13, "accuracy": 0.96}),
    ]


def test_keras_while_an_epoch_runs():
    text = "Epoch 1/2\n 10/938 [>.............] - ETA: 2s - loss: 2.3000 - accuracy: 0.1000\n"
    assert parse(text) == [("train", 10, 1, {"loss": 2.3, "accuracy": 0.1})]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3: 100%|██████████| 938/938 [00:10<00:00, 92.11it/s, v_num=0, train_loss=0.123,"
        " val_loss=0.4]\n",
        "Epoch 3/9 ━━━━━━━━━━ 938/938 0:00:10 • 0:00:00 92.11it/s v_num: 0.000 train_loss: 0.123"
        " val_loss: 0.4\n",
    ],
)
def test_lightning(line):
    assert parse(line) == [
        ("train", 3 * 938 + 938, 3, {"loss": 0.123}),
        ("validation", 3 * 938 + 938, 3, {"loss": 0.4}),
    ]


def test_tqdm():
    text = (
        " 45%|████▌     | 450/1000 [00:05<00:06, 90.00it/s, loss=nan, lr=1e-3]\n"
        "eval:  10%|█         | 1/10 [00:05<00:06, 90.00it/s, acc=0.5]\n"
        "100%|##########| 1000/1000 [00:11<00:00]\n"
    )
    assert parse(text) == [
        ("train", 450, None, {"loss": None, "lr": 0.001}),
        ("train", 450, None, {"acc": 0.5}),
    ]


def test_hugging_face():
    parser = AutoParser()
    text = (
        " 10%|█         | 500/5000 [01:00<09:00,  8.33it/s]\n"
        "{'loss': 0.5, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.32}\n"
        "{'eval_loss': '0.4', 'eval_runtime': 1.5, 'epoch': 1.0}\n"
    )
    assert parse(text, parser) == [
        ("train", 500, 0, {"loss": 0.5, "grad_norm": None, "learning_rate": 5e-05}),
        ("validation", 500, 1, {"loss": 0.4, "runtime": 1.5}),
    ]
    other = AutoParser()
    other.remember(parser.memory())
    assert parse("{'train_loss': 0.1}\n", other) == [("train", 500, 1, {"loss": 0.1})]


PIECES = st.sampled_from([
    "Epoch ", "3", "/", "938", " ", ": ", "%|", "|", "[", "]", " - ", "loss", "=", "0.5", "nan",
    "{'", "'", "}", ",", "I0101 00:00:01.0", "] Iteration ", "━", "\x1b[1m", "\ud7ff", "\n", " • ",
])  # fmt: skip


@given(st.lists(PIECES, max_size=30))
def test_any_line_is_survived(pieces):
    for line in AutoParser().feed("".join(pieces) + "\n"):
        assert parse_line(line.encode()) is not None


def test_other_lines_are_left_out():
    text = (
        "loss: 0.5\nEpoch ten\n{'a': __import__('os')}\n{'a': [1, 2]}\n 5/7 - x\n"
        "50%| of everything - loss: 3\n{'" + "a" * 20_000 + "': 1}\n\n"
    )
    assert parse(text) == []
    AutoParser().remember("nonsense")
