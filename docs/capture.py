#!/usr/bin/env python3
"""Draws docs/top.svg: `penstock top` as a terminal shows it, in front of `penstock demo`.

    cargo build --package penstock && python3 docs/capture.py target/debug/penstock docs/top.svg

Needs tmux, which is the terminal here, and nothing else.
"""

import html
import os
import re
import subprocess
import sys
import time

COLUMNS, ROWS = 124, 28
WARM_UP_S = 12
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.0, 17, 14
INK, PAPER = "#d8dee9", "#1c2128"
COLORS = {31: "#ff7b72", 32: "#7ee787", 33: "#f2cc60", 37: "#ffffff", 41: "#8e2a2a"}


def tmux(name, *arguments):
    return subprocess.run(["tmux", "-L", name, *arguments], check=True, capture_output=True, text=True).stdout


def cells(line, style):
    """The letters of a line of `tmux capture-pane -e`, each with its style, which goes on in the next line."""
    place = 0
    for match in re.finditer(r"\x1b\[([0-9;]*)m|\x1b[()][A-Z0-9]|([^\x1b])", line):
        codes, letter = match.group(1), match.group(2)
        if letter is not None:
            yield place, letter, dict(style)
            place += 1
            continue
        # One of 256 colours; those that are used are among the first eight.
        codes = re.sub(r"([34])8;5;([0-7])(?![0-9])", r"\g<1>\g<2>", codes or "") if codes is not None else None
        for code in (int(it or 0) for it in (codes or "").split(";") if codes is not None):
            if code == 0:
                style.clear()
            elif code in (1, 2, 4, 7):
                style[{1: "bold", 2: "dim", 4: "underline", 7: "reverse"}[code]] = True
            elif code in COLORS:
                style["ink" if code < 40 else "paper"] = COLORS[code]
            elif code == 39:
                style.pop("ink", None)
            elif code == 49:
                style.pop("paper", None)


def runs(line, styles):
    """Letters of one style that stand side by side, as (place, text, style)."""
    start, text, last = 0, "", None
    for place, letter, style in cells(line, styles):
        if style != last and text:
            yield start, text, last
            text = ""
        if not text:
            start = place
        text, last = text + letter, style
    if text:
        yield start, text, last


def draw(lines):
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, len(lines) * CELL_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13">',
        "<title>penstock top in front of penstock demo</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
    ]
    styles = {}
    for row, line in enumerate(lines):
        y = MARGIN + row * CELL_HEIGHT
        for place, text, style in runs(line, styles):
            ink, paper = style.get("ink", INK), style.get("paper")
            if style.get("reverse"):
                ink, paper = paper or PAPER, ink
            x, length = MARGIN + place * CELL_WIDTH, len(text) * CELL_WIDTH
            if paper:
                parts.append(f'<rect x="{x:.0f}" y="{y}" width="{length:.0f}" height="{CELL_HEIGHT}" fill="{paper}"/>')
            if not text.strip():
                continue
            looks = "".join(
                word
                for name, word in (
                    ("bold", ' font-weight="bold"'),
                    ("dim", ' opacity="0.6"'),
                    ("underline", ' text-decoration="underline"'),
                )
                if style.get(name)
            )
            parts.append(
                f'<text x="{x:.0f}" y="{y + 13}" textLength="{length:.0f}" xml:space="preserve" '
                f'fill="{ink}"{looks}>{html.escape(text)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main(penstock, target):
    name = f"penstock-capture-{os.getpid()}"
    demo = subprocess.Popen(
        [penstock, "--log", "error", "demo", "--for", "60s"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        url = next(line.split()[1].rstrip("/") for line in demo.stdout if line.startswith("dashboard"))
        command = f"exec env -u NO_COLOR {os.path.abspath(penstock)} top --url {url}"
        tmux(name, "-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command)
        time.sleep(WARM_UP_S)
        lines = tmux(name, "capture-pane", "-e", "-p").rstrip("\n").split("\n")
        tmux(name, "send-keys", "q")
    finally:
        subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True)
        demo.terminate()
        demo.wait()
    with open(target, "w", encoding="utf-8") as file:
        file.write(draw(lines))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
