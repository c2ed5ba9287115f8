"""Serves a model to many callers, on one device and with a few fixed shapes.

The path of a request, and the folders in the order in which they use each other:

- ``bodies``: the bytes of a request -> checked graphs in flat arrays;
- ``engine``: the queue, the batching, the thread that runs the model, each caller's part;
- ``http``: the web application, and the processes that read bodies for the one with the model.

In addition: the service (``service``), made from a run or from an export, and the plan for it.
"""

from staticgraph.serving.smaller_buckets import for_serving

__all__ = ["for_serving"]
