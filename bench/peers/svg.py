"""Shapes of SVG pictures, as elements of xml.etree. Coordinates keep a tenth of a pixel."""

import math
import xml.etree.ElementTree as ET

INK = "#222222"


def picture(width, height, title):
    """The <svg> element, on white."""
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "width": str(width),
            "height": str(height),
            "font-family": "system-ui, sans-serif",
            "font-size": "11",
            "role": "img",
        },
    )
    node(root, "title", title)
    node(root, "rect", width=width, height=height, fill="white")
    return root


def node(parent, tag, content=None, **attributes):
    """Attributes are named as in SVG, with _ for -, and _ behind a word of Python's."""
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    made = ET.SubElement(parent, tag, {names[name]: _attribute(value) for name, value in attributes.items()})
    made.text = content
    return made


def text(parent, x, y, content, anchor="start", size=11, weight="normal"):
    return node(
        parent, "text", content, x=x, y=y, text_anchor=anchor, font_size=size, font_weight=weight, fill=INK
    )


def line(parent, x1, y1, x2, y2, colour, dash="none"):
    return node(parent, "line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_dasharray=dash)


def path(parent, points, colour, class_="series", dash="none", width=1.5):
    return node(
        parent,
        "polyline",
        class_=class_,
        points=" ".join(f"{_attribute(float(x))},{_attribute(float(y))}" for x, y in points),
        fill="none",
        stroke=colour,
        stroke_width=width,
        stroke_dasharray=dash,
    )


def marker(parent, kind, x, y, colour):
    if kind == "circle":
        return node(parent, "circle", cx=float(x), cy=float(y), r=3.5, fill=colour)
    if kind == "square":
        return node(parent, "rect", x=x - 3.0, y=y - 3.0, width=6, height=6, fill=colour)
    corners = {
        "triangle": ((0, -4), (4, 3), (-4, 3)),
        "diamond": ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)),
    }[kind]
    return node(
        parent,
        "polygon",
        points=" ".join(f"{_attribute(float(x + dx))},{_attribute(float(y + dy))}" for dx, dy in corners),
        fill=colour,
    )


def grid_step(span):
    """A round distance of grid lines: three to seven of them in the span."""
    power = 10 ** math.floor(math.log10(span))
    return next(step * power for step in (0.2, 0.5, 1, 2) if span / (step * power) <= 7)


def _attribute(value):
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
