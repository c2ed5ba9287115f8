"""Answering requests: many callers, one device, a few fixed shapes.

The way of a request, and the folders in the order in which they use each other:

- ``bodies``: the bytes of a request -> checked graphs in flat arrays;
- ``engine``: what waits, what goes together, the thread that runs it, each caller's part;
- ``http``: one application over it, its routes, its page and its metrics;
- ``processes``: others that read bodies, and the line between them and the model's.

Beside them: what is served (``service``), made of a run or of an export, and the plan for it.
"""

from staticgraph.serving.bodies import compact_format as compact
from staticgraph.serving.smaller_buckets import for_serving

__all__ = ["compact", "for_serving"]
