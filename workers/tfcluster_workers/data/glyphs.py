"""Draws digits with NumPy: five-by-seven glyphs under shift, rotation, scale, thickness, noise."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZE = 28
_ROWS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_FINE = 8  # template pixels for each pixel of a glyph
_MARGIN = 2

Array = Any  # NumPy's typed arrays are not subscriptable in the oldest supported NumPy


def draw(count: int, *, seed: int) -> tuple[Array, Array]:
    """Return images (count×28×28×1, uint8) and labels (count, int64), the same for one seed."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = np.empty((count, SIZE, SIZE, 1), np.uint8)
    templates = _templates()
    for start in range(0, count, 500):  # keeps the working set near 30 MB
        part = labels[start : start + 500]
        images[start : start + 500, :, :, 0] = _draw_batch(templates, part, rng)
    return images, labels.astype(np.int64)


def _templates() -> Array:
    """Return the ten glyphs, enlarged and blurred, so that a threshold sets the stroke width."""
    bitmaps = [[[int(bit) for bit in row] for row in glyph.split()] for glyph in _ROWS]
    padded = np.pad(np.array(bitmaps, float), ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)))
    fine = padded.repeat(_FINE, axis=1).repeat(_FINE, axis=2)
    kernel = np.hanning(2 * _FINE + 1)
    kernel /= kernel.sum()
    for axis in (1, 2):
        fine = np.apply_along_axis(np.convolve, axis, fine, kernel, mode="same")
    return fine


def _draw_batch(templates: Array, labels: Array, rng: np.random.Generator) -> Array:
    rows, columns = _template_positions(len(labels), templates.shape[1:], rng)
    field = templates[labels[:, None, None], rows, columns]
    level = rng.uniform(0.3, 0.6, (len(labels), 1, 1))  # low level: thick strokes
    ink = 1 / (1 + np.exp(-(field - level) * 14))
    ink *= rng.uniform(0.7, 1.0, (len(labels), 1, 1))
    ink += rng.normal(0, 0.08, ink.shape)
    return (np.clip(ink, 0, 1) * 255).astype(np.uint8)


def _template_positions(
    count: int, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return, for each pixel of each image, row and column of the nearest template pixel."""

    def each(low: float, high: float) -> Array:
        return rng.uniform(low, high, (count, 1, 1))

    angle, shear = each(-0.3, 0.3), each(-0.2, 0.2)
    zoom_y, zoom_x = each(2.2, 3.0), each(2.4, 3.4)  # image pixels for each pixel of a glyph
    middle = (SIZE - 1) / 2
    grid_y, grid_x = np.mgrid[0:SIZE, 0:SIZE] - middle
    y, x = grid_y - each(-3, 3), grid_x - each(-3, 3)
    turned_y = (np.cos(angle) * y - np.sin(angle) * x) / zoom_y
    turned_x = (np.sin(angle) * y + np.cos(angle) * x + shear * y) / zoom_x
    places = [
        np.clip(np.rint(part * _FINE + extent / 2), 0, extent - 1).astype(np.intp)
        for part, extent in ((turned_y, shape[0]), (turned_x, shape[1]))
    ]
    return places[0], places[1]
