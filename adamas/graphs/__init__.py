"""Node classification on graphs, private for each node.

In the order of the data:

    graph       `Graph`: features, labels, edges and training nodes, checked
    edges       bounds the number of nodes that receive a node's messages
    trees       gathers neighbourhoods as batch-first tensors
    terms       `NodeTerms`: one example for each training node, for `make_private`
    samplers    draws terms, and states what a draw is worth to privacy
    calibrate   from a budget for nodes to noise or steps, and back
    guard       refuses graphs that were not made terms

`docs/graphs.md` explains what is protected.
"""

from adamas.graphs.graph import Graph
from adamas.graphs.terms import Neighborhoods, NodeTerms

__all__ = ["Graph", "Neighborhoods", "NodeTerms"]
