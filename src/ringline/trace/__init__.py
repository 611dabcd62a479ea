"""Timelines as pictures: an HTML page, an SVG, a Chrome trace, a terminal grid. No JAX needed."""

from ringline.trace._chrome import chrome as chrome
from ringline.trace._html import html as html
from ringline.trace._svg import svg as svg
from ringline.trace._terminal import summary as summary
from ringline.trace._terminal import terminal as terminal
