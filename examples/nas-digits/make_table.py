"""Train all 1,008 networks of the space once, and write table.json: python make_table.py

The table says what any search of this space would find, so tests and pictures need no training.
"""

import itertools
import json
import sys
from pathlib import Path

from network import KERNELS, Network

TABLE = Path(__file__).with_name("table.json")


def points():
    """Yield each point of search.yml's space."""
    for layers, repeats, width, skip, lr in itertools.product(
        (2, 3, 4), (2, 4, 8), (4, 8), (True, False), (0.003, 0.01, 0.03)
    ):
        for kernels in itertools.product((3, 5), repeat=layers):
            yield {
                "layers": layers, "repeats": repeats, "width": width, "skip": skip, "lr": lr,
                **dict(zip(KERNELS, kernels, strict=False)),
            }  # fmt: skip


def name_of(point):
    """Return the key of a point in the table: `3x4 353 w8 skip 0.01`."""
    kernels = "".join(str(point[name]) for name in KERNELS if name in point)
    skip = "skip" if point["skip"] else "plain"
    return f"{point['layers']}x{point['repeats']} {kernels} w{point['width']} {skip} {point['lr']}"


def main():
    """Train what the table lacks; it may be stopped and started again."""
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    share, of = (int(word) for word in sys.argv[1:3]) if sys.argv[2:] else (0, 1)
    target = TABLE if of == 1 else TABLE.with_name(f"table-{share}.json")
    for number, point in enumerate(points()):
        if name_of(point) in table or number % of != share:
            continue
        found = Network(**point).run()
        table[name_of(point)] = {
            "loss": round(found["loss"], 5), "accuracy": round(found["accuracy"], 4),
            "cpu_s": round(found["cpu_s"], 2),
        }  # fmt: skip
        if number % 50 == 0:
            target.write_text(json.dumps(table))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    target.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
