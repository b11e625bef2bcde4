"""Pictures: every token is drawn where there is room, and curves and masks are those of the numbers given."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import FancyBboxPatch

import t5xpg
from t5xpg.inspection import pictures
from t5xpg.inspection.readable import Token

ROW = [Token(f" word{i}", i, "noise" if i % 5 == 0 else "text") for i in range(40)]


def boxes(figure) -> list[FancyBboxPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def drawn(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_each_token_has_a_box_its_text_and_its_id():
    figure = pictures.tokens({"text": ROW, "none": [], "end": [Token("</s>", 1, "special")]})
    assert len(boxes(figure)) == 41
    assert [drawn(figure).count(word) for word in ("text", "none", "end", "␣word7", "7", "</s>")] == [1, 1, 1, 1, 1, 1]


def test_boxes_do_not_overlap_and_stay_in_the_picture():
    figure = pictures.tokens({"text": ROW, "inputs": ROW[:9]})
    left, right = figure.axes[0].get_xlim()
    bottom, top = figure.axes[0].get_ylim()
    places = [(box.get_y(), box.get_x(), box.get_width(), box.get_height()) for box in boxes(figure)]
    assert all(left <= x and x + width <= right for _, x, width, _ in places)
    assert all(top <= y and y + height <= bottom for y, _, _, height in places)
    for y in {y for y, *_ in places}:
        line = sorted((x, width) for other, x, width, _ in places if other == y)
        assert all(x + width <= after for (x, width), (after, _) in itertools.pairwise(line))


def test_kinds_have_the_pages_colours_and_shades_take_their_place():
    css = (Path(t5xpg.__file__).parent / "pages" / "style.css").read_text(encoding="utf-8")
    assert f"--noise: {pictures.FILLS['noise']};" in css and f"--sentinel: {pictures.FILLS['sentinel']};" in css
    colours = [box.get_facecolor() for box in boxes(pictures.tokens({"a": ROW[:6]}))]
    assert colours[0] == colours[5] != colours[1]
    shaded = [box.get_facecolor() for box in boxes(pictures.tokens({"a": ROW[:3]}, {"a": [0.0, 0.5, 1.0]}))]
    assert sum(shaded[0][:3]) > sum(shaded[1][:3]) > sum(shaded[2][:3])


def test_masks_are_the_noise_and_end_with_the_text():
    (image,) = pictures.masks([ROW, ROW[:10]]).axes[0].images
    data = np.ma.filled(image.get_array().astype(float), np.nan)
    np.testing.assert_array_equal(data[0], [token.kind == "noise" for token in ROW])
    assert np.isnan(data[1, 10:]).all() and not np.isnan(data[1, :10]).any()


@pytest.mark.parametrize("names", [["loss"], ["train", "validation"]])
def test_a_curve_goes_through_its_numbers(names):
    (axes,) = pictures.curve({name: [3.0, 2.0, i] for i, name in enumerate(names)}, y="nats").axes
    for i, line in enumerate(axes.lines):
        np.testing.assert_array_equal(line.get_xydata(), [[0, 3], [1, 2], [2, i]])
    assert axes.get_ylabel() == "nats" and (axes.get_legend() is not None) == (len(names) > 1)
