import numpy as np
from PIL import Image

from paddle_ernie.monitor import plots
from paddle_ernie.monitor.plots import Curve, Reference

STEPS = np.arange(1, 101)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def has_colour(path, colour: str) -> bool:
    pixels = np.asarray(Image.open(path).convert("RGB"), dtype=np.int64)
    return bool((np.abs(pixels - rgb(colour)).max(axis=-1) <= 3).sum() > 20)


def curves(number: int) -> list[Curve]:
    return [Curve(f"curve {i}", STEPS, np.exp(-STEPS / 30) + i) for i in range(number)]


def labels() -> dict[str, str]:
    return {"title": "Loss", "x_label": "steps", "y_label": "bits a byte"}


def test_every_curve_and_no_other_colour_is_drawn(tmp_path):
    path = tmp_path / "loss.png"
    plots.line_plot(path, curves(3), **labels(), references=[Reference("bigram", 1.5)])
    image = Image.open(path)
    assert image.size == (900, 480)
    drawn = [has_colour(path, colour) for colour in plots.PALETTE[:4]]
    assert drawn == [True, True, True, False]


def test_same_data_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        plots.line_plot(tmp_path / name, curves(2), **labels(), smooth=0.05)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_smoothing_is_a_centred_average_that_skips_gaps():
    values = np.array([2.0, np.nan, 2.0, np.inf, 2.0])
    np.testing.assert_allclose(plots._smoothed(values, 0.2), [2.0, np.nan, 2.0, np.nan, 2.0])
    # By hand, radius 1, weights 1 2 1: (2*4 + 8) / 3, (4 + 2*8 + 0) / 4, (8 + 2*0) / 3.
    np.testing.assert_allclose(plots._smoothed(np.array([4.0, 8.0, 0.0]), 0.34), [16 / 3, 5, 8 / 3])
    # No lag: a straight line stays where it is, away from its ends.
    line = np.linspace(0, 1, 50)
    np.testing.assert_allclose(plots._smoothed(line, 0.1)[5:-5], line[5:-5])


def test_curves_of_one_point_gaps_and_nothing_but_gaps(tmp_path):
    one = Curve("one", np.array([3]), np.array([1.0]))
    gaps = Curve("gaps", STEPS, np.where(STEPS % 2, np.nan, 1.0))
    empty = Curve("empty", np.array([1, 2]), np.array([np.nan, np.inf]))
    for name, group in {"one": [one], "gaps": [gaps, one], "empty": [empty]}.items():
        plots.line_plot(tmp_path / name, group, **labels())
    assert has_colour(tmp_path / "one", plots.PALETTE[0])


def test_an_extreme_start_does_not_squeeze_the_rest(tmp_path):
    values = np.full(100, 2.0) + np.linspace(0, 0.5, 100)
    values[0] = 1e6
    path = tmp_path / "x.png"
    plots.line_plot(path, [Curve("loss", STEPS, values)], **labels())
    pixels = np.asarray(Image.open(path).convert("RGB"), dtype=np.int64)
    rows = np.where((np.abs(pixels - rgb(plots.PALETTE[0])).max(axis=-1) <= 3).any(axis=1))[0]
    assert rows.max() - rows.min() > 200


def test_bars_and_heatmap(tmp_path):
    plots.bar_plot(
        tmp_path / "bars.png", ["a", "b"], [1.0, 2.0], title="T", x_label="bits", highlight=[0]
    )
    assert has_colour(tmp_path / "bars.png", plots.PALETTE[0])
    plots.heatmap(
        tmp_path / "heat.png",
        np.array([[1.0, 1.0, np.nan], [0.0, 2.0, 1.0]]),
        title="T",
        x_label="expert",
        y_label="layer",
        row_labels=["1", "2"],
        colour_label="share",
        centre=1.0,
    )
    # Both ends of the diverging map, equally far from the centre.
    assert has_colour(tmp_path / "heat.png", "#67001f")
    assert has_colour(tmp_path / "heat.png", "#053061")
