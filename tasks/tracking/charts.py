"""Small charts as inline SVG: no script, no font, no image and no address is fetched."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 320, 216
LEFT, RIGHT, TOP, BOTTOM = 54, 22, 12, 44
MAX_POINTS = 400
MAX_MARKED_POINTS = 40
NUM_BINS = 20
NUM_INTERVALS = 5
BLUE, GRID, AXIS, TEXT = "#2563eb", "#e5e7eb", "#94a3b8", "#475569"


@dataclass(frozen=True)
class Frame:
    """The rectangle of a chart: which values its edges stand for."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    whole_x: bool
    whole_y: bool

    def x(self, value: float) -> float:
        """Return the pixel column of a value."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return the pixel row of a value; rows count downwards."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def line_chart(points: Sequence[tuple[int, float]], *, x_label: str, y_label: str) -> str:
    """Return a curve through `(step, value)` points; non-finite values are left out.

    Of more than 400 points every n-th is drawn, and always the last.
    """
    finite = _thin([point for point in points if math.isfinite(point[1])])
    if not finite:
        return _empty("no data yet", y_label)
    steps, values = zip(*finite, strict=True)
    x_range = _widened(min(steps), max(steps))
    frame = Frame(*x_range, *_rounded(min(values), max(values)), whole_x=True, whole_y=False)
    places = [(frame.x(step), frame.y(value)) for step, value in finite]
    path = " ".join(f"{x},{y}" for x, y in places)
    curve = f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    marked = places if len(places) <= MAX_MARKED_POINTS else places[-1:]
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{BLUE}"/>' for x, y in marked)
    return _svg(_axes(frame, x_label, y_label) + curve + dots, f"{y_label} over {x_label}")


def histogram(
    values: NDArray[np.floating] | NDArray[np.integer], *, x_label: str, y_label: str
) -> str:
    """Return counts of the values in at most 20 bins; non-finite values are left out.

    Bins of integers have a whole width, so that none is empty for lack of an integer in it.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return _empty("no data", x_label)
    edges = bin_edges(finite)
    counts, _ = np.histogram(finite, edges)
    x_range = float(edges[0]), float(edges[-1])
    y_range = _rounded(0, int(counts.max()), whole=True)
    whole = np.issubdtype(finite.dtype, np.integer)
    frame = Frame(*x_range, *y_range, whole_x=whole, whole_y=True)
    bars = "".join(
        _bar(frame, low, high, int(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    )
    return _svg(_axes(frame, x_label, y_label) + bars, f"histogram of {x_label}")


def bin_edges(values: NDArray[np.floating] | NDArray[np.integer]) -> NDArray[np.float64]:
    """Return ascending bin edges that hold all of the (finite, at least one) values.

    >>> [float(edge) for edge in bin_edges(np.array([3, 5, 4]))]
    [2.5, 3.5, 4.5, 5.5]
    """
    low, high = float(values.min()), float(values.max())
    if np.issubdtype(values.dtype, np.integer):
        width = math.ceil((high - low + 1) / NUM_BINS)
        num_bins = math.ceil((high - low + 1) / width)
        return low - 0.5 + width * np.arange(num_bins + 1, dtype=np.float64)
    low, high = _widened(low, high)
    return np.linspace(low, high, NUM_BINS + 1)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return up to six round numbers within `[low, high]`; integers only if `whole`.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(0.5, 2.5, whole=True)
    [1.0, 2.0]
    """
    step = _tick_step(low, high, whole=whole)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def _tick_step(low: float, high: float, *, whole: bool) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that cuts the range into at most five."""
    raw = (high - low) / NUM_INTERVALS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw * (1 - 1e-9)), 10 * power)
    return max(1.0, step) if whole else step


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return the range, or one around it where it is a single value (or nearly)."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = max(0.5, 0.05 * abs(low))
    return low - margin, high + margin


def _rounded(low: float, high: float, *, whole: bool = False) -> tuple[float, float]:
    """Return a range that ends on ticks and holds the given one."""
    low, high = _widened(low, high)
    step = _tick_step(low, high, whole=whole)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _thin(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    return list(points[::-1][::stride])[::-1]


def _bar(frame: Frame, low: float, high: float, count: int) -> str:
    x, y = frame.x(low), frame.y(count)
    width, height = round(frame.x(high) - x, 1), round(frame.y(0) - y, 1)
    return (
        f'<rect x="{x + 0.5}" y="{y}" width="{max(width - 1, 1)}" height="{height}" fill="{BLUE}"'
        f' fill-opacity="0.8"><title>{low:.4g} to {high:.4g}: {count:,}</title></rect>'
    )


def _axes(frame: Frame, x_label: str, y_label: str) -> str:
    return "".join([*_x_ticks(frame), *_y_ticks(frame), *_labels(x_label, y_label)])


def _x_ticks(frame: Frame) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    yield f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="{AXIS}"/>'
    for value in ticks(frame.x_low, frame.x_high, whole=frame.whole_x):
        x = frame.x(value)
        yield f'<path d="M{x} {bottom}v4" stroke="{AXIS}"/>'
        yield _text(x, bottom + 16, f"{value:,.6g}", "middle")


def _y_ticks(frame: Frame) -> Iterator[str]:
    for value in ticks(frame.y_low, frame.y_high, whole=frame.whole_y):
        y = frame.y(value)
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield _text(LEFT - 6, y + 4, f"{value:,.6g}", "end")


def _labels(x_label: str, y_label: str) -> Iterator[str]:
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f' transform="rotate(-90 13 {middle})"'
    yield _text(13, middle, y_label, "middle", turned)


def _text(x: float, y: float, text: str, anchor: str, extra: str = "") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="{TEXT}"{extra}>'
        f"{escape(text)}</text>"
    )


def _empty(note: str, label: str) -> str:
    return _svg(_text(WIDTH / 2, HEIGHT / 2, note, "middle"), f"{label}: {note}")


def _svg(body: str, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
        f' aria-label="{escape(title)}">{body}</svg>'
    )
