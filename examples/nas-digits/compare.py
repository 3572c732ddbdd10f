"""Compare evolution with random search by the table, and draw regret.svg: python compare.py

Regret is the loss of the best network that a search has found, less that of the best of all 1,008.
"""

import json
from pathlib import Path

from make_table import TABLE, name_of

from dlctl.search.load import load_search
from search.strategies import Space, Trial, TrialResult
from search.strategies.evolution import Aging, Genetic
from search.strategies.plain import Random

HERE = Path(__file__).parent
SEEDS, TRIALS, WORKERS = range(5), 120, 8
STRATEGIES = {
    "genetic": lambda space, seed: Genetic(space, seed, population=12, mutation=0.2),
    "aging evolution": lambda space, seed: Aging(space, seed, population=12, sample=4),
    "random": Random,
}
COLOURS = {"genetic": "#1f77b4", "aging evolution": "#2ca02c", "random": "#888888"}


def regrets(make, seed, table, space):
    """Return the regret after each trial; as many trials are outstanding as there are workers."""
    strategy = make(space, seed)
    best = min(row["loss"] for row in table.values())
    running, found, number = [], [], 0
    while len(found) < TRIALS:
        while len(running) < WORKERS and number < TRIALS:
            running.append(Trial(number, strategy.ask(1)[0]))
            number += 1
        trial = running.pop(0)
        loss = table[name_of(trial.point)]["loss"]
        strategy.tell(trial, TrialResult(loss))
        found.append(min(loss, found[-1] + best if found else loss) - best)
    return found


def compare():
    """Return each strategy's regrets, a list for each seed."""
    table = json.loads(TABLE.read_text())
    space = Space(load_search(HERE / "search.yml").spec.space)
    return {
        name: [regrets(make, seed, table, space) for seed in SEEDS]
        for name, make in STRATEGIES.items()
    }


def draw(found):
    """Return the picture: a thin line for each seed, a thick one for their mean."""
    width, height, left, top = 720, 400, 70, 20
    most = max(max(regret[4:]) for seeds in found.values() for regret in seeds)

    def line(values, colour, thick, faint):
        points = " ".join(
            f"{left + (width - left - 150) * at / TRIALS:.1f},"
            f"{top + (height - 70) * (1 - min(1, value / most)):.1f}"
            for at, value in enumerate(values, 1)
        )
        return (f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="{thick}" opacity="{faint}"/>')  # fmt: skip

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + (height - 70) * (1 - share)
        parts.append(f'<path d="M{left} {y:.1f}H{width - 150}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">'
                     f"{most * share:.2f}</text>")  # fmt: skip
    for trials in range(0, TRIALS + 1, 20):
        x = left + (width - left - 150) * trials / TRIALS
        parts.append(f'<text x="{x:.1f}" y="{height - 32}" text-anchor="middle">{trials}</text>')
    for place, (name, seeds) in enumerate(found.items()):
        parts += [line(regret, COLOURS[name], 1, 0.3) for regret in seeds]
        means = [sum(at) / len(seeds) for at in zip(*seeds, strict=True)]
        parts.append(line(means, COLOURS[name], 3, 1))
        y = top + 20 + 44 * place
        parts.append(f'<text x="{width - 140}" y="{y}" fill="{COLOURS[name]}">{name}</text>')
        parts.append(f'<text x="{width - 140}" y="{y + 17}" fill="#555555">'
                     f"{means[-1]:.3f} at the end</text>")  # fmt: skip
    parts += [
        f'<text x="{(left + width - 150) / 2}" y="{height - 10}" text-anchor="middle">'
        f"trials ({WORKERS} at a time, {len(SEEDS)} seeds)</text>",
        f'<text transform="translate(18 {height / 2 + 30}) rotate(-90)" text-anchor="middle">'
        "regret: loss above the best of all</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main():
    """Print how much is left to gain after 30, 60 and 120 trials, and write the picture."""
    found = compare()
    for name, seeds in found.items():
        means = [sum(each[at - 1] for each in seeds) / len(seeds) for at in (30, 60, 120)]
        print(f"{name:16}", *(f"{mean:8.4f}" for mean in means))
    (HERE / "regret.svg").write_text(draw(found))


if __name__ == "__main__":
    main()
