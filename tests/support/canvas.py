"""What a page has painted."""

from __future__ import annotations

SPIKES_SEEN = """() => {
    const canvas = document.querySelector('.chart canvas');
    const context = canvas.getContext('2d');
    const row = Math.round(canvas.height * 0.4);
    const { data } = context.getImageData(0, row, canvas.width, 1);
    let [runs, inside] = [0, false];
    for (let x = Math.round(63 * devicePixelRatio); x < canvas.width; x += 1) {
        const [r, g, b] = data.slice(4 * x, 4 * x + 3);
        const blue = data[4 * x + 3] > 60 && b - r > 60;
        if (blue && !inside) runs += 1;
        inside = blue;
    }
    return runs;
}"""
"""JavaScript: how often the first chart's curve crosses a line at two fifths of its height."""
