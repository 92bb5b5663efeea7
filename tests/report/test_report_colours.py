"""Colours of the page: text and curves have enough contrast in the light and the dark scheme."""

import re
from pathlib import Path

import pytest

import adamas.report


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Returns the contrast ratio that the Web Content Accessibility Guidelines define."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_known_colours_is_right():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_have_enough_contrast_in_both_schemes(scheme):
    style = (Path(adamas.report.__file__).parent / "style.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", part)) for part in style.split("@media")[:2])
    assert light.keys() == dark.keys()
    colours = light if scheme == "light" else dark
    for name in ("ink", "muted", "link", "red"):
        for ground in ("paper", "card"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for i in range(10):
        assert contrast(colours[f"s{i}"], colours["card"]) >= 3, i
