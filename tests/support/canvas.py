"""What a page has painted."""

from __future__ import annotations

VISIBLE_SPIKES = """() => {
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

PAINTED = """() => {
    const canvas = document.querySelector('.chart canvas');
    const { width, height } = canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
    const begin = Math.round(66 * devicePixelRatio);
    const blue = (at) => data[at + 3] > 60 && data[at + 2] - data[at] > 60;
    const colour = (x) => data.slice(4 * (8 * width + x), 4 * (8 * width + x) + 4).join();
    let [gap, last, bands, tinted] = [0, null, 0, 0];
    for (let x = begin; x < width - 16 * devicePixelRatio; x += 1) {
        for (let y = 0; y < height; y += 1) {
            if (blue(4 * (y * width + x))) {
                gap = Math.max(gap, last === null ? 0 : x - last - 1);
                last = x;
            }
        }
        tinted = colour(x) === colour(begin) ? 0 : tinted + 1;
        if (tinted === 12) bands += 1;
    }
    return { gap, bands, last };
}"""
"""JavaScript: `gap` is the most columns of pixels without the first chart's blue curve, from its
begin to its end, and `bands` how many stretches of the background are tinted."""

TELL_TEXTS = """() => {
    window.texts = new Set();
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
        window.texts.add(text);
        draw.call(this, text, ...at);
    };
}"""
"""Notes what is written on canvases from now on."""
