"""How chips are joined: rings and lines, and JAX meshes over them."""

from ringline.topology._chips import Chip as Chip
from ringline.topology._chips import Cluster as Cluster
from ringline.topology._chips import chip as chip
from ringline.topology._chips import chips as chips
from ringline.topology._chips import cluster as cluster
from ringline.topology._hosts import Ladder as Ladder
from ringline.topology._hosts import Rails as Rails
from ringline.topology._mesh import make_mesh as make_mesh
from ringline.topology._mover import Mover as Mover
from ringline.topology._mover import mover as mover
from ringline.topology._mover import movers as movers
from ringline.topology._order import AxisLinks as AxisLinks
from ringline.topology._order import axis_links as axis_links
from ringline.topology._order import ring_order as ring_order
from ringline.topology._shapes import Line as Line
from ringline.topology._shapes import Ring as Ring
from ringline.topology._shapes import TopologyName as TopologyName
from ringline.topology._shapes import topology as topology
