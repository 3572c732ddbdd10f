"""The rules for lines of well-known libraries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract.metrics import parse_line
from learner.collect.parsers.auto import AutoParser


def as_tuples(lines):
    return [(line.group, line.step, line.epoch, line.values) for line in lines]


def parse(text, parser=None):
    return as_tuples((parser or AutoParser()).feed(text))


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
        ("train", 450, None, {"loss": None, "learning_rate": 0.001}),
        ("validation", 450, None, {"acc": 0.5}),
    ]


def bar(done, of, name="", tail=""):
    return f"{name}{100 * done // of:3}%|##  | {done}/{of} [00:05<00:06, 90.0it/s{tail}]\n"


@pytest.mark.parametrize(("name", "first", "steps"), [
    ("", 1, [1, 2, 3, 4, 5, 6]), ("Epoch {}/3: ", 1, [1, 2, 3, 4, 5, 6]),
    ("Epoch {}/3: ", 0, [1, 2, 3, 4, 5, 6]), ("Epoch {} [train]: ", 1, [3, 4, 5, 6, 7, 8]),
])  # fmt: skip
def test_a_bar_for_each_epoch_goes_on_where_the_last_one_ended(name, first, steps):
    """The steps began anew, so that each epoch took the place of the one before."""
    text = bar(60000, 60000)  # a download
    for epoch in range(first, first + 3):
        text += "".join(bar(n, 2, name.format(epoch), ", loss=0.5" if n else "") for n in range(3))
        text += bar(1, 7) + bar(7, 7, "valid: ", ", loss=0.7")
    found = parse(text)
    assert [step for group, step, _, _ in found if group == "train"] == steps
    assert [step for group, step, _, _ in found if group == "validation"] == steps[1::2]


def test_what_tqdm_writes_above_its_bar_is_of_the_step_of_that_bar():
    """transformers' progress: a bar of the training, and one for each evaluation."""
    parser = AutoParser()
    text = bar(9, 20) + "{'loss': 1.5, 'epoch': 0.5}\n" + bar(10, 20)
    text += bar(19, 20) + "{'loss': 1.2, 'epoch': 1.0}\n" + bar(20, 20) + bar(0, 4) + bar(4, 4)
    text += "{'eval_loss': 1.1, 'epoch': 1.0}\n" + bar(20, 20) + bar(4, 4)
    text += "{'train_runtime': 12.3, 'train_loss': 1.35, 'epoch': 1.0}\n"
    assert parse(text, parser) == [
        ("train", 10, 0, {"loss": 1.5}), ("train", 20, 1, {"loss": 1.2}),
        ("validation", 20, 1, {"loss": 1.1}),
    ]  # fmt: skip
    other = AutoParser()
    other.remember(parser.memory())
    assert as_tuples(other.finish()) == [("train", 20, 1, {"runtime": 12.3, "mean_loss": 1.35})]
    assert parse(bar(10, 20).strip() + "{'loss': 1.5, 'epoch': 0.5}\n") == [
        ("train", 10, 0, {"loss": 1.5})
    ]


def test_hugging_face():
    parser = AutoParser()
    text = (
        " 10%|█         | 500/5000 [01:00<09:00,  8.33it/s]\n"
        "{'loss': 0.5, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.32}\n"
        "{'eval_loss': '0.4', 'eval_runtime': 1.5, 'epoch': 1.0}\n"
    )
    assert parse(f"{text}\ndone\n", parser) == [
        ("train", 500, 0, {"loss": 0.5, "grad_norm": None, "learning_rate": 5e-05}),
        ("validation", 500, 1, {"loss": 0.4, "runtime": 1.5}),
    ]
    other = AutoParser()
    other.remember(parser.memory())
    other.feed("{'train_loss': 0.1}\n")
    assert as_tuples(other.finish()) == [("train", 500, 1, {"loss": 0.1})]


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


OWN_LOOPS = {
    "the word language model of PyTorch's examples": (
        "| epoch   3 |   200/ 2983 batches | lr 20.00 | ms/batch 474.93 | loss  6.84 | "
        "ppl   933.74\n"
        "| end of epoch   3 | time: 88.21s | valid loss  5.11 | valid ppl   165.9\n",
        [("train", 6166, 3,
          {"learning_rate": 20.0, "ms/batch": 474.93, "loss": 6.84, "ppl": 933.74}),
         ("validation", 6166, 3, {"loss": 5.11, "ppl": 165.9})]),
    "nanoGPT": (
        "step 100: train loss 1.2000, val loss 1.3000\n"
        "iter 185: loss 3.1547, time 12.3ms, mfu 4.2%\n",
        [("train", 100, None, {"loss": 1.2}), ("validation", 100, None, {"loss": 1.3}),
         ("train", 185, None, {"loss": 3.1547})]),
    "MNIST of PyTorch's examples": (
        "Train Epoch: 2 [640/60000 (1%)]\tLoss: 2.135\n\n"
        "Test set: Average loss: 0.0469, Accuracy: 9850/10000 (98%)\n",
        [("train", 60640, 2, {"loss": 2.135}),
         ("test", 60640, 2, {"loss": 0.0469, "accuracy": 0.985})]),
    "ImageNet of PyTorch's examples": (
        "Epoch: [0][  10/5005]\tTime  0.5 ( 0.9)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.00 (  0.21)\n"
        "Epoch: [1][  10/5005]\tTime  0.5 ( 0.9)\tLoss 5.5e+00 (7.0e+00)\tAcc@1   1.00 (  0.21)\n",
        [("train", 10, 0, {"loss": 6.9, "acc@1": 0.0}),
         ("train", 5015, 1, {"loss": 5.5, "acc@1": 1.0})]),
    "PyTorch's quick start": (
        "Epoch 1\n-------\nloss: 2.30  [   64/60000]\nloss: 2.10  [57664/60000]\n"
        "Test Error: \n Accuracy: 44.7%, Avg loss: 2.15 \n\nEpoch 2\nloss: 1.9  [   64/60000]\n",
        [("train", 64, 1, {"loss": 2.3}), ("train", 57664, 1, {"loss": 2.1}),
         ("test", 57664, 1, {"accuracy": 44.7, "loss": 2.15}),
         ("train", 60064, 2, {"loss": 1.9})]),
    "a loop that counts the batches of each epoch": (
        "[1,  2000] loss: 2.173\n[1, 12000] loss: 1.5\n[2,  2000] loss: 1.2\n",
        [("train", 2000, 1, {"loss": 2.173}), ("train", 12000, 1, {"loss": 1.5}),
         ("train", 14000, 2, {"loss": 1.2})]),
    "a loop that prints epochs only": (
        "Epoch 1/5 - loss: 0.4 - acc 0.9\nEpoch 2/5 - loss: nan - acc 0.8\n",
        [("train", 1, 1, {"loss": 0.4, "acc": 0.9}), ("train", 2, 2, {"loss": None, "acc": 0.8})]),
    "Megatron": (
        " iteration     100/  500000 | elapsed time per iteration (ms): 500.0 | "
        "learning rate: 1.5E-04 | lm loss: 9.5E+00 |\n",
        [("train", 100, None, {"learning_rate": 1.5e-4, "lm_loss": 9.5})]),
    "timm": (
        "Train: 1 [   0/1251 (  0%)]  Loss: 6.94 (6.94)  Time: 3.1s,   82.2/s  LR: 1.0e-06\n",
        [("train", 0, 1, {"loss": 6.94, "learning_rate": 1e-6})]),
    "OpenMMLab": (
        "2026-11-29 10:00:00,123 - mmdet - INFO - Epoch [1][50/3298]\tlr: 1.9e-03, eta: 3:00, "
        "time: 0.5, loss_cls: 0.6, loss: 1.2\n",
        [("train", 50, 1, {"learning_rate": 0.0019, "loss_cls": 0.6, "loss": 1.2})]),
    "a line of JSON": (
        '{"step": 30, "loss": 0.5, "eval_loss": 0.7}\n',
        [("train", 30, None, {"loss": 0.5}), ("validation", 30, None, {"loss": 0.7})]),
    "ImageNet's validation, whose batches are no steps": (
        "Epoch: [0][  10/40]\tLoss 6.9e+00 (7.0e+00)\n"
        "Test: [ 5/10]\tLoss 6.0e+00 (6.5e+00)\tAcc@1  30.00 ( 28.10)\n"
        " *   Acc@1 30.000 Acc@5 60.000\nEpoch: [1][  10/40]\tLoss 5.9e+00 (7.0e+00)\n",
        [("train", 10, 0, {"loss": 6.9}), ("test", 10, 0, {"loss": 6.5, "acc@1": 28.1}),
         ("test", 10, 0, {"acc@1": 30.0, "acc@5": 60.0}), ("train", 50, 1, {"loss": 5.9})]),
    "numbers with commas": (
        "Step 1,000/10,000 | loss=1.4331 | tokens/s: 12,345.5\n",
        [("train", 1000, None, {"loss": 1.4331, "tokens/s": 12345.5})]),
    "DCGAN of PyTorch's examples": (
        "[0/2][10/30]\tLoss_D: 1.43\tLoss_G: 1.57\n[1/2][10/30]\tLoss_D: 1.2\tLoss_G: 1.5\n",
        [("train", 10, 0, {"loss_d": 1.43, "loss_g": 1.57}),
         ("train", 40, 1, {"loss_d": 1.2, "loss_g": 1.5})]),
    "a loop that prints CSV": (
        "epoch,train_loss,val_loss,acc\n1,0.5,0.6,0.7\n2,0.4,nan,0.8\n",
        [("train", 1, 1, {"loss": 0.5, "acc": 0.7}), ("validation", 1, 1, {"loss": 0.6}),
         ("train", 2, 2, {"loss": 0.4, "acc": 0.8}), ("validation", 2, 2, {"loss": None})]),
    "fastai": (
        "epoch     train_loss  valid_loss  accuracy  time    \n"
        "0         0.527000    0.321000    0.912000  00:12     \n",
        [("train", 0, 0, {"loss": 0.527, "accuracy": 0.912}),
         ("validation", 0, 0, {"loss": 0.321})]),
    "ultralytics": (
        "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size\n"
        "        1/3      2.12G      1.254      1.532         23        640: 100%|##| 8/8 [0:02]\n",
        [("train", 1, 1, {"box_loss": 1.254, "cls_loss": 1.532})]),
    "XGBoost": (
        "[10]\ttrain-rmse:0.5\teval-rmse:0.6\n",
        [("train", 10, None, {"rmse": 0.5}), ("validation", 10, None, {"rmse": 0.6})]),
    "OpenMMLab's engine": (
        "11/29 10:00:00 - mmengine - INFO - Epoch(train)  [1][ 50/100]  lr: 1.0000e-02  loss: 0.5\n"
        "11/29 10:00:10 - mmengine - INFO - Epoch(val) [1][10/10]    accuracy/top1: 78.5\n",
        [("train", 50, 1, {"learning_rate": 0.01, "loss": 0.5}),
         ("validation", 50, 1, {"accuracy/top1": 78.5})]),
    "a dict behind its epoch, and a word with a full stop": (
        "INFO - epoch 1: {'accuracy': 0.9}\nEpoch: 2 | Train Loss: 0.3 | Val. Acc: 81.3%\n",
        [("train", -1, 1, {"accuracy": 0.9}), ("train", 2, 2, {"loss": 0.3}),
         ("validation", 2, 2, {"acc": 81.3})]),
    "steps that count on from epoch to epoch, as ignite's": (
        "Epoch[1] Iteration[100/200] Loss: 0.8\nEpoch[1] Iteration[200/200] Loss: 0.7\n"
        "Epoch[2] Iteration[300/200] Loss: 0.4\nEpoch[3] Iteration[600/200] Loss: 0.1\n",
        [("train", 100, 1, {"loss": 0.8}), ("train", 200, 1, {"loss": 0.7}),
         ("train", 300, 2, {"loss": 0.4}), ("train", 600, 3, {"loss": 0.1})]),
    "several fits one after the other": (
        "Epoch 1/3 - loss: 0.9\nEpoch 3/3 - loss: 0.5\n=== Fold 2 ===\nEpoch 1/3 - loss: 0.8\n"
        "Epoch 2/3 - loss: 0.6\n",
        [("train", 1, 1, {"loss": 0.9}), ("train", 3, 3, {"loss": 0.5}),
         ("train", 4, 1, {"loss": 0.8}), ("train", 5, 2, {"loss": 0.6})]),
    "LightGBM, and a number before a comma": (
        "[10]\tvalid_0's auc: 0.9\nEpoch 11: loss 1,231.5 -> samples/s 12,000, ppl 1.2e+03\n",
        [("validation", 10, None, {"0_auc": 0.9}),
         ("train", 10, 11, {"loss": 1231.5, "samples/s": 12000.0, "ppl": 1200.0})]),
    "a logger that names an evaluation": (
        "10:01 | INFO | __main__:train:42 - step=600 epoch=3 loss=0.1\n"
        "10:02 | INFO | __main__:eval:77 - eval step=600 loss=0.3 ppl=4.1\nval epoch 4 loss 0.2\n",
        [("train", 600, 3, {"loss": 0.1}), ("validation", 600, 3, {"loss": 0.3, "ppl": 4.1}),
         ("validation", 600, 4, {"loss": 0.2})]),
    "a second number of a name": (
        "Epoch 003 | loss 0.61 (best 0.6 @ epoch 3) | val_loss 0.5 (best 0.4) | EMA val_loss 0.4\n",
        [("train", 3, 3, {"loss": 0.61}), ("validation", 3, 3, {"loss": 0.5})]),
    "JSON in JSON": (
        '{"step": 3, "train": {"loss": 1.0}, "val": {"loss": 1.5}, "lr": 0.001}\n',
        [("train", 3, None, {"loss": 1.0, "learning_rate": 0.001}),
         ("validation", 3, None, {"loss": 1.5})]),
    "what is said of the best epoch": (
        "Epoch 5/9 - val_loss: 0.97\nBest val_loss: 0.9 at epoch 4\nBest val Acc: 0.75\n"
        "Loading best model from epoch 4\nTest loss: 1.2\n",
        [("validation", 5, 5, {"loss": 0.97}), ("test", 5, 5, {"loss": 1.2})]),
    "groups before a slash": (
        "10:01:00,123 INFO trainer.py:80 epoch=0 eval/loss=0.378 eval/f1=0.5\n",
        [("validation", 0, 0, {"loss": 0.378, "f1": 0.5})]),
    "an epoch's line below its bar": (
        "Epoch 1/3:  36%|##  | 9/25 [00:00<00:00, 9.0it/s, loss=0.7865]\n"
        "Val: 37%|##  | 3/8 [00:00<00:00, 9.0it/s]\nepoch 1: train_loss 0.37 val_loss 0.47\n"
        "Epoch 2/3:  36%|##  | 9/25 [00:00<00:00, 9.0it/s, loss=0.5]\n",
        [("train", 9, 1, {"loss": 0.7865}), ("train", 9, 1, {"epoch_loss": 0.37}),
         ("validation", 9, 1, {"loss": 0.47}), ("train", 34, 2, {"loss": 0.5})]),
    "Keras with verbose=2": (
        "Epoch 2/5\n938/938 - 3s - 3ms/step - loss: 0.2500 - val_loss: 0.13\n",
        [("train", 1876, 2, {"loss": 0.25}), ("validation", 1876, 2, {"loss": 0.13})]),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_LOOPS)
def test_the_lines_of_own_loops(name):
    text, records = OWN_LOOPS[name]
    assert parse(text) == records
    first, second = AutoParser(), AutoParser()
    before = first.feed(text)
    second.remember(first.memory())
    again = [(line.step, line.epoch) for line in second.feed(text.splitlines()[-1] + "\n")]
    assert again == [(line.step, line.epoch) for line in before[-len(again) :]]


@pytest.mark.parametrize(("text", "shares"), [
    ("Epoch 14/300 - loss: 0.4\nEpoch 15/300 - loss: 0.4\n", [14 / 300, 15 / 300]),
    ("Epoch 0/2 [5/10] loss 1\nEpoch 1/2 [5/10] loss 1\nEpoch 1/2 loss 1\n", [0.25, 0.75, 0.999]),
    ("step 250/1000 loss 1\n", [0.25]), ("epoch 3 step 5/10 loss 1\n", [None]),
    ("epoch 3 of 4: loss 1\nval epoch 4 of 4: loss 2\n", [0.75, 0.75]),
    ("epoch 3 loss 1\n", [None]),
])  # fmt: skip
def test_how_much_is_done_is_known_where_lines_tell_of_how_many(text, shares):
    assert [line.done for line in AutoParser().feed(text)] == pytest.approx(shares)


@pytest.mark.parametrize("line", [
    "using lr 0.1 with 4 workers", "retry 3: error 404", "Downloading 3/10 files", "loss: 0.5",
    "dlctl: WARNING: no line such as 'epoch 1 step 10: loss 0.5'", "Epoch 3 begins",
    "saved accuracy.png", "step 5 done in 0.3 s",
    "Namespace(lr=0.1, epochs=20, batch_size=64)", "{'lr': 0.1, 'epochs': 20, 'loss': 'mse'}",
    "epochs: 20, lr: 0.1", "max_steps=1000 lr=0.1", "iters=100 lr=0.1", "20 epochs at lr 0.1",
])  # fmt: skip
def test_a_line_without_a_metric_or_a_place_is_none(line):
    assert parse(f"{line}\n") == []


def test_a_short_program_whose_lines_are_not_understood_is_told_so_at_its_end():
    complaints = []
    parser = AutoParser("", complaints.append)
    parser.feed("1 2 3 4 5 6\nloss: 0.5, acc: 90%\n")
    assert parser.finish() == [] and len(complaints) == 1
    assert "'loss: 0.5, acc: 90%'" in complaints[0]
    quiet = AutoParser("", complaints.append)
    quiet.feed("1 2 3 4 5 6\n")
    assert quiet.finish() == [] and len(complaints) == 1


def test_a_program_whose_lines_are_not_understood_is_told_so_once_with_the_nearest():
    now, complaints = [0.0], []
    parser = AutoParser("", complaints.append, lambda: now[0])
    for now[0] in (0.0, 30.0, 61.0, 200.0):
        parser.feed("hello\nfortschritt 17 verlust 0.25 rate 1e-3\n")
    assert len(complaints) == 1
    assert "'fortschritt 17 verlust 0.25 rate 1e-3'" in complaints[0]
    silent = AutoParser("", complaints.append, lambda: now[0])
    for now[0] in (300.0, 400.0):
        silent.feed("hello\n")
    known = AutoParser("", complaints.append, lambda: now[0])
    for now[0] in (300.0, 400.0):
        known.feed("step 3: loss 0.5\nanother 1 2 3 4\n")
    assert len(complaints) == 1, "one without numbers has no metrics; one was understood"
