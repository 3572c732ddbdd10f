"""Tasks of a user, good and bad, as they are sent with a search (there the module is `mine`)."""

import os
import pathlib
import signal
import sys
import time

from search.tasks import BaseTask, Order


class Square(BaseTask):
    def __init__(self, x, sleep_s=0.0):
        self.x, self.sleep_s = x, sleep_s

    def run(self):
        time.sleep(self.sleep_s)
        return {"value": self.x**2, "pid": os.getpid()}


class Reports(BaseTask):
    """Reports until it is told to end, and counts on from its checkpoint."""

    def __init__(self, steps=1000):
        self.steps = steps

    def run(self):
        kept = self.checkpoint / "step"
        began = int(kept.read_text()) if kept.exists() else 0
        for step in range(began, self.steps):
            order = self.report(step, loss=1.0 / (step + 1))
            if order is Order.CHECKPOINT:
                kept.write_text(str(step))
                return None
            if order is Order.STOP:
                break
            time.sleep(0.02)
        return {"value": step, "began": began}


class Guards(BaseTask):
    """Sees whether anybody else writes into its folder, and says what was there at first."""

    def __init__(self, may_end):
        self.may_end = pathlib.Path(may_end)

    def run(self):
        mine = self.checkpoint / "mine"
        found = mine.read_text() if mine.exists() else ""
        ended = False
        while not ended:
            ended = self.may_end.exists()
            mine.with_name("new").write_text(str(os.getpid()))
            mine.with_name("new").replace(mine)  # a copy sees it whole
            time.sleep(0.01)
            if mine.read_text() != str(os.getpid()):
                return {"clash": True}
        return {"clash": False, "found": found, "pid": os.getpid()}


class Sees(BaseTask):
    """Tells which GPUs it sees, and when it ran."""

    def __init__(self, sleep_s=0.0):
        self.sleep_s = sleep_s

    def run(self):
        began = time.monotonic()
        time.sleep(self.sleep_s)
        devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        return {"gpus": [gpu for gpu in devices if gpu], "ran": [began, time.monotonic()]}


class Prints(BaseTask):
    def __init__(self, text):
        self.text = text

    def run(self):
        print(self.text)
        os.system("echo a child prints, too")
        return 1


class Bad(BaseTask):
    def __init__(self, how):
        self.how = how

    def run(self):
        return getattr(self, self.how)()

    def raises(self):
        raise ValueError("no such layer")

    def raises_bytes(self):
        raise OSError("can't read " + os.fsdecode(b"photo-\xff"))

    def reports_a_step_below_0(self):
        self.report(-1, loss=1.0)
        time.sleep(5)

    def leaves(self):
        os._exit(0)

    def exits(self):
        sys.exit(3)

    def crashes(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def is_killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def never_ends(self):
        while True:
            pass

    def sleeps_deaf(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1000)

    def prints_a_gigabyte(self):
        line = "x" * (1 << 20)
        for _ in range(1024):
            print(line)
        time.sleep(5)
        return 1

    def returns_33_megabytes(self):
        return "x" * (32 << 20)

    def eats_memory(self):
        eaten = []
        while True:
            eaten.append(bytearray(64 << 20))

    def leaves_a_child(self):
        if os.fork() == 0:
            time.sleep(1000)
        return 1

    def leaves_the_folder(self):
        os.chdir("/")
        return 1

    def closes_everything(self):
        os.closerange(0, 256)
        time.sleep(1000)


class Grows(BaseTask):
    """Returns one more than the trial that it goes on from."""

    def __init__(self, x):
        self.x = x

    def run(self):
        kept = self.checkpoint / "grown"
        grown = 1 + (int(kept.read_text()) if kept.exists() else 0)
        kept.write_text(str(grown))
        return {"value": grown}
