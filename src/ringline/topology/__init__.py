"""How chips are joined: rings and lines, and JAX meshes over them."""

from ringline.topology._shapes import Line as Line
from ringline.topology._shapes import Ring as Ring
from ringline.topology._shapes import TopologyName as TopologyName
from ringline.topology._shapes import topology as topology
