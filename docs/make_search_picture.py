"""Draw docs/search.svg: the processes of a search, and the life of one task.

Run `python docs/make_search_picture.py` after a change of what the picture tells.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).with_name("search.svg")
WIDTH, HEIGHT = 980, 880
INK, QUIET, BLUE, GREEN, RED, AMBER = (
    "#1f2937", "#64748b", "#2563eb", "#15803d", "#b91c1c", "#a16207",
)  # fmt: skip
FILLS = {BLUE: "#dbeafe", GREEN: "#ecfdf5", AMBER: "#fef9c3", QUIET: "#f8fafc", RED: "#fef2f2"}
parts: list[str] = []
above: list[str] = []


def text(
    x: float, y: float, words: str, size: int = 12, colour: str = INK, anchor: str = "middle",
    bold: bool = False, over: bool = False,
) -> None:  # fmt: skip
    """Write a line of text; `over` lines of the picture it has a white rim."""
    weight = ' font-weight="bold"' if bold else ""
    rim = ' stroke="#ffffff" stroke-width="4" paint-order="stroke"' if over else ""
    (above if over else parts).append(
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"'
        f' text-anchor="{anchor}"{weight}{rim}>{escape(words)}</text>'
    )


def box(
    x: float, y: float, width: float, height: float, colour: str, title: str = "", *lines: str,
    dashed: bool = False,
) -> None:  # fmt: skip
    """Draw a box with a title and lines below it."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    parts.append(
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8"'
        f' fill="{FILLS[colour]}" stroke="{colour}" stroke-width="1.5"{dash}/>'
    )
    if title:
        text(x + width / 2, y + 20, title, 13, bold=True)
    for number, line in enumerate(lines):
        text(x + width / 2, y + 37 + 15 * number, line, 11)


def arrow(points: list[tuple[float, float]], colour: str, dashed: bool = False) -> None:
    """Draw a line through points, with a head at its end."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    path = " ".join(f"{'L' if n else 'M'}{x} {y}" for n, (x, y) in enumerate(points))
    parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}'
                 f' marker-end="url(#head{colour[1:]})"/>')  # fmt: skip


def processes() -> None:
    """Draw who runs where, and who calls whom."""
    text(30, 34, "The processes: calls go to brokers and to the nameserver, never to anybody else",
         15, anchor="start", bold=True)  # fmt: skip
    box(20, 60, 150, 250, QUIET, "your machine")
    box(35, 110, 120, 76, BLUE, "dlctl search", "start, scale, halt,", "watch, show, …")
    text(95, 216, "may sleep, or be", 11, QUIET)
    text(95, 231, "off: nothing of the", 11, QUIET)
    text(95, 246, "search runs here", 11, QUIET)
    box(250, 60, 330, 250, QUIET, "the hub: one small job")
    box(262, 95, 112, 64, BLUE, "model", "strategy: what to", "try next")
    box(262, 232, 112, 62, GREEN, "nameserver", "which brokers", "there are")
    box(430, 95, 135, 199, AMBER, "broker b0")
    for n, queue in enumerate(("owned", "helper", "processing", "results")):
        parts.append(f'<rect x="445" y="{128 + 39 * n}" width="105" height="30" rx="4"'
                     f' fill="#ffffff" stroke="{AMBER}"/>')  # fmt: skip
        text(497, 147 + 39 * n, queue, 12)
    box(690, 60, 270, 160, QUIET, "worker jobs: arrays")
    box(705, 95, 115, 108, BLUE, "worker w1.0", "slot: a process", "slot: a process", "outbox")
    box(832, 95, 115, 108, BLUE, "worker w1.1", "slot: a process", "slot: a process", "outbox")
    box(690, 240, 270, 70, AMBER, "a further broker", "helps when its workers are idle,",
        "adopts the log of one that is gone", dashed=True)  # fmt: skip
    arrow([(374, 115), (428, 115)], BLUE)
    text(401, 108, "Submit", 11, BLUE)
    arrow([(428, 143), (376, 143)], GREEN)
    text(401, 157, "Results", 11, GREEN)
    arrow([(703, 130), (567, 130)], BLUE)
    text(630, 123, "Exchange: results", 11, BLUE)
    arrow([(567, 152), (703, 152)], GREEN)
    text(630, 167, "tasks, under a lease", 11, GREEN)
    arrow([(703, 185), (567, 185)], BLUE)
    text(630, 200, "Renew: reports", 11, BLUE)
    arrow([(688, 275), (567, 275)], AMBER)
    text(628, 268, "Lend, Return", 11, AMBER)
    arrow([(430, 262), (376, 262)], QUIET)
    text(402, 277, "Heartbeat", 10, QUIET)
    box(20, 350, 940, 64, GREEN, "the job directory, on the cluster's shared file system",
        "spec.json · trials.jsonl: the model's log · brokers/b0/: its log, lease and status · "
        "endpoints/ · outboxes/ · tasks/<id>/: logs, checkpoints · tls/")  # fmt: skip
    arrow([(95, 312), (95, 348)], QUIET)
    text(104, 336, "SSH", 11, QUIET, "start")
    arrow([(415, 312), (415, 348)], QUIET)
    arrow([(825, 312), (825, 348)], QUIET)
    text(424, 336, "fsync before anything is acknowledged", 11, QUIET, "start")


def life() -> None:
    """Draw what becomes of one task."""
    top = 450
    text(30, top + 20, "One task's life: at each arrow, what has been written survives a kill -9",
         15, anchor="start", bold=True)  # fmt: skip
    steps = (
        ("asked", BLUE, "model", "“ask” in", "trials.jsonl"),
        ("owned", AMBER, "broker", "in its log; only", "then accepted"),
        ("processing", AMBER, "broker", "leased for 10 s,", "then renewed"),
        ("runs", BLUE, "worker's slot", "own process, limits", "and log"),
        ("outbox", BLUE, "worker", "on disk before", "it is sent"),
        ("results", AMBER, "broker", "the first valid", "lease counts"),
        ("told", BLUE, "model", "“tell” in", "trials.jsonl"),
    )
    width, gap, y = 112, 22, top + 60
    for n, (name, colour, who, *lines) in enumerate(steps):
        x = 30 + n * (width + gap)
        box(x, y, width, 92, colour, name, who)
        for line, each in enumerate(lines):
            text(x + width / 2, y + 58 + 15 * line, each, 11, QUIET)
        if n:
            arrow([(x - gap, y + 46), (x - 2, y + 46)], GREEN)

    def middle(n: int) -> float:
        return 30 + n * (width + gap) + width / 2

    below = y + 92
    arrow([(middle(3), below), (middle(3), below + 45), (middle(1) + 24, below + 45),
           (middle(1) + 24, below + 2)], RED)  # fmt: skip
    text(middle(2) + 12, below + 40, "its worker died: the lease lapses", 11, RED, over=True)
    arrow([(middle(3) + 30, below), (middle(3) + 30, below + 85), (middle(1) - 8, below + 85),
           (middle(1) - 8, below + 2)], BLUE)  # fmt: skip
    text(
        middle(2) + 12, below + 80, "its worker leaves: saved and handed back", 11, BLUE, over=True
    )
    arrow([(middle(2), below), (middle(2), below + 125), (middle(5) - 8, below + 125),
           (middle(5) - 8, below + 2)], RED)  # fmt: skip
    text(middle(4), below + 120, "three workers died of it: it has failed", 11, RED, over=True)
    arrow([(middle(4), below), (middle(4), below + 45), (middle(5) + 30, below + 45),
           (middle(5) + 30, below + 60)], QUIET, dashed=True)  # fmt: skip
    text(middle(5) + 66, below + 76, "late or twice: dropped", 11, QUIET, over=True)
    arrow([(middle(0) - 20, below), (middle(0) - 20, below + 165), (middle(6), below + 165),
           (middle(6), below + 2)], QUIET, dashed=True)  # fmt: skip
    again = ("`dlctl resume`: the strategy is asked and told again from the model's log; "
             "what has no “tell” is sent again, under the same id")  # fmt: skip
    text(middle(3), below + 160, again, 11, QUIET)
    box(30, below + 200, 918, 62, QUIET)
    text(489, below + 224, "A trial has one result, however often its task ran. Tasks run at least "
         "once; results are accepted once.", 12)  # fmt: skip
    text(489, below + 246, "In deterministic mode results are told in the order of the trials, so "
         "`dlctl search replay` can prove that the same trials come again.", 12)  # fmt: skip


def main() -> None:
    """Write the picture."""
    processes()
    life()
    heads = "".join(
        f'<marker id="head{colour[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6"'
        f' markerHeight="6" orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
        for colour in (INK, QUIET, BLUE, GREEN, RED, AMBER)
    )
    PICTURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif">'
        "<title>The processes of a search, and the life of one task</title>"
        f'<defs>{heads}</defs><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join([*parts, *above]) + "\n</svg>\n"
    )  # fmt: skip


if __name__ == "__main__":
    main()
