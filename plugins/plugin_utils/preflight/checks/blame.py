# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Who is to blame when connections fail: one host or chip whose every connection is bad, rather than each pair of it."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

Node = t.TypeVar("Node", bound=t.Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class Blame(t.Generic[Node]):
    """node is at fault for these connections, or None: then they are all between the same two."""

    node: Node | None
    edges: tuple[tuple[Node, Node], ...]


def blame(tested: t.Collection[tuple[Node, Node]], bad: t.Collection[tuple[Node, Node]]) -> list[Blame[Node]]:
    """Explain directed bad connections by as few places as possible.

    A node is to blame when every connection it was tested on is bad and it was tested with at least two others. Nodes
    whose others are well are blamed first; what they explain speaks against nobody else. Then those to blame are found
    whose every connection in one direction is bad. What no node explains is left as pairs.
    """
    remaining = dict.fromkeys(bad)
    total: collections.Counter[Node] = collections.Counter()
    others: dict[Node, set[Node]] = collections.defaultdict(set)
    edges_of: dict[Node, list[tuple[Node, Node]]] = collections.defaultdict(list)
    fine: set[Node] = set()
    for a, b in tested:
        total[a] += 1
        total[b] += 1
        others[a].add(b)
        others[b].add(a)
        if (a, b) not in remaining:
            fine |= {a, b}
    for a, b in remaining:
        edges_of[a].append((a, b))
        edges_of[b].append((a, b))
    wholly = [node for node, edges in edges_of.items() if len(edges) == total[node] and len(others[node]) > 1]
    # Those whose partners work with others first, and of these the ones with most bad connections.
    wholly.sort(key=lambda node: (-sum(other in fine for other in others[node]), -len(edges_of[node])))
    out: list[Blame[Node]] = []
    for node in wholly:
        own = tuple(edge for edge in edges_of[node] if edge in remaining)
        # What others already explain says nothing about this one.
        if len(own) == len(edges_of[node]) or len({*own}) > 2:
            out.append(Blame(node, own))
            for edge in own:
                del remaining[edge]
    out += _one_way(tested, remaining)
    pairs: dict[frozenset[Node], list[tuple[Node, Node]]] = collections.defaultdict(list)
    for edge in remaining:
        pairs[frozenset(edge)].append(edge)
    return [*out, *(Blame(None, tuple(edges)) for edges in pairs.values())]


def _one_way(
    tested: t.Collection[tuple[Node, Node]], remaining: dict[tuple[Node, Node], None]
) -> t.Iterator[Blame[Node]]:
    """Nodes from which, or to which, every connection is bad; takes what they explain out of remaining.

    What is bad in the other direction too is theirs as well.
    """
    for end in (0, 1):
        total: collections.Counter[Node] = collections.Counter(edge[end] for edge in tested)
        edges_of: dict[Node, list[tuple[Node, Node]]] = collections.defaultdict(list)
        for edge in remaining:
            edges_of[edge[end]].append(edge)
        for node, edges in edges_of.items():
            left = [edge for edge in edges if edge in remaining]
            if len(left) == total[node] and len({edge[1 - end] for edge in left}) > 1:
                own = tuple(edge for edge in remaining if node in edge)
                yield Blame(node, own)
                for edge in own:
                    del remaining[edge]
