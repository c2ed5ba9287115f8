# The front door: every public name once, with the module it lives in; __init__.py reads this.

from . import atoms as atoms
from . import datasets as datasets
from . import errors as errors
from . import models as models
from . import outofcore as outofcore
from .batches.batch.own_class import unpad as unpad
from .batches.batch.static_batch import StaticBatch as StaticBatch
from .batches.loading.loader import StaticLoader as StaticLoader
from .batches.padding.padder import Padder as Padder
from .checking.check import check as check
from .dryrun.compiled_probe import probe as probe
from .errors import BadGraph as BadGraph
from .errors import BudgetExceeded as BudgetExceeded
from .errors import DamagedFile as DamagedFile
from .errors import NonFiniteLoss as NonFiniteLoss
from .errors import NotStatic as NotStatic
from .errors import PlanMismatch as PlanMismatch
from .errors import ResultsDiffer as ResultsDiffer
from .errors import StaticGraphError as StaticGraphError
from .memory.budget import MemoryBudget as MemoryBudget
from .nn.convert import convert as convert
from .nn.custom_loop import bound as bound
from .plans.choose_capacities import plan_buckets as plan_buckets
from .plans.plan import BucketPlan as BucketPlan
from .plans.stream_plan import plan_stream as plan_stream
from .recording.recording_keys import Recording as Recording
from .runner.exported import load_exported as load_exported
from .runner.runner import StaticGraphRunner as StaticGraphRunner
from .runner.runner import prepare as prepare
from .schema import Schema as Schema
from .serving.server import Server as Server
from .sizes.capacity import Capacity as Capacity
from .steps.loss.mean_loss import masked_mean as masked_mean
from .store.graph_store import GraphStore as GraphStore

__version__: str
