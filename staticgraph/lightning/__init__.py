"""PyTorch Lightning with batches of fixed shape, without changes to the LightningModule.

Give a ``Trainer`` a :class:`StaticDataModule` and the callback :class:`StaticGraphs`; see
``docs/loops.md``. The extra ``lightning`` installs PyTorch Lightning.
"""

from importlib.util import find_spec

from staticgraph.errors import MissingPackage

if find_spec("lightning") is None:
    raise MissingPackage("staticgraph.lightning needs PyTorch Lightning: pip install lightning")

from staticgraph.lightning.callback import StaticGraphs as StaticGraphs
from staticgraph.lightning.data_module import StaticDataModule as StaticDataModule
