"""Numbers over numbers: lines, curves, ratios, bars, distributions."""

import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import CURVES, HEAD_COLORS, NEUTRAL


def draw_curves(x: Array, curves: dict[str, Array], ax: Axes) -> Axes:
    """Draw curves over powers of two, each with the marker by which a legend names it."""
    draw_lines(x, curves, ax)
    for number, line in enumerate(ax.lines):
        line.set(marker=CURVES[number % len(CURVES)][2], markersize=5)
    ax.legend()
    ax.set_xscale("log", base=2)
    ax.set_xticks(x, [f"{tick:g}" for tick in x])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    return ax


def draw_lines(x: Array, lines: dict[str, Array], ax: Axes) -> Axes:
    """Draw lines over one quantity, each with the dashes by which a legend names it."""
    for number, (name, y) in enumerate(lines.items()):
        color, dashes, _ = CURVES[number % len(CURVES)]
        ax.plot(x, y, color=color, linestyle=dashes, label=name)
    ax.legend()
    return ax


def draw_bars(values: dict[str, float], ax: Axes) -> Axes:
    """Draw one horizontal bar for each name, with its value beside it."""
    names = list(values)
    ax.barh(names, [values[name] for name in names], color=HEAD_COLORS[0], height=0.6)
    for place, name in enumerate(names):
        ax.annotate(
            f"{values[name]:.1f}", (values[name], place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    ax.invert_yaxis()
    ax.margins(x=0.12)
    return ax


def draw_ratios(series: dict[str, dict[str, dict[str, float]]], ax: Axes) -> Axes:
    """Draw ratios as points with their quartiles, a line for each name, on a logarithmic axis on which 1 is marked.

    Parameters
    ----------
    series
        For each series, named in a legend, the ``low``, ``median`` and ``high`` of each name, the same in all.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ratio = {"low": 1.9, "median": 2.0, "high": 2.4}
    >>> ax = draw_ratios({"causal": {"by hand": ratio}}, plt.figure().add_subplot())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['by hand']
    """
    for number, (label, ratios) in enumerate(series.items()):
        color, _, marker = CURVES[number % len(CURVES)]
        medians = np.array([ratio["median"] for ratio in ratios.values()])
        reach = [
            [abs(ratio[end] - median) for ratio, median in zip(ratios.values(), medians, strict=True)]
            for end in ("low", "high")
        ]
        places = np.arange(len(ratios)) + 0.36 * ((number + 0.5) / len(series) - 0.5)
        ax.errorbar(medians, places, xerr=reach, fmt=marker, color=color, markersize=4, linewidth=1.2, label=label)
    ax.axvline(1, color=NEUTRAL, linewidth=0.6)
    ax.set_xscale("log", base=2)
    ax.set_xticks([0.5, 1, 2, 4, 8], ["½", "1", "2", "4", "8"])
    ax.set_yticks(range(len(ratios)), list(ratios))
    ax.set_ylim(len(ratios) - 0.5, -0.5)
    return ax


def draw_weights(weights: dict[str, Array], labels: list[str], axes: Array) -> Array:
    """Draw the weights of one query as bars from 0 to 1, once for each name.

    Parameters
    ----------
    weights
        ``(m,)`` for each name.
    labels
        What to write below the bars, one for each key.
    axes
        As many Axes as names.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> (ax,) = draw_weights({"T = 1": np.array([0.25, 0.75])}, ["a", "b"], [plt.figure().add_subplot()])
    >>> [bar.get_height() for bar in ax.patches]
    [np.float64(0.25), np.float64(0.75)]
    """
    for ax, (name, of_keys) in zip(axes, weights.items(), strict=True):
        ax.bar(labels, of_keys, color=CURVES[0][0], width=0.7)
        for place, weight in enumerate(of_keys):
            ax.annotate(f"{weight:.2f}", (place, weight), xytext=(0, 2), textcoords="offset points", ha="center")
        ax.set(ylim=(0, 1.12), yticks=[0, 0.5, 1], title=name)
    for ax in axes[1:]:
        ax.set_yticklabels([])
    return axes


def draw_distributions(samples: dict[str, Array], ax: Axes, reach: float, bins: int = 80) -> Axes:
    """Draw how often each value occurs in several samples, as outlines over one axis from -reach to reach.

    The area below each outline is one, if nothing lies outside.
    """
    edges = np.linspace(-reach, reach, bins + 1)
    for number, (name, sample) in enumerate(samples.items()):
        color, dashes, _ = CURVES[number % len(CURVES)]
        share, _ = np.histogram(sample, edges)
        ax.stairs(share / (len(sample) * np.diff(edges)), edges, color=color, linestyle=dashes, label=name, lw=1.8)
    ax.axvline(0, color=NEUTRAL, linewidth=0.6)
    ax.set(xlim=(-reach, reach), ylim=(0, None), yticks=[])
    ax.spines["left"].set_visible(False)
    ax.legend()
    return ax
