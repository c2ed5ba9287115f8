"""The parts of a runner, in the order in which they are made."""

from __future__ import annotations

from dataclasses import dataclass

from staticgraph.checking.comparison import Comparer
from staticgraph.checking.padding_check import PaddingCheck
from staticgraph.distributed.smallest_budget import smallest_budget
from staticgraph.memory.budget import MemoryBudget
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.execution.commitments import Commitments
from staticgraph.runner.execution.data_fields import DataFields
from staticgraph.runner.execution.execution import Execution
from staticgraph.runner.execution.steps import Steps
from staticgraph.runner.intake import Intake
from staticgraph.runner.reporting.account import Account
from staticgraph.runner.warmup.first_steps import FirstSteps
from staticgraph.runner.warmup.preparation import Preparation
from staticgraph.runner.warmup.warmup import Warming
from staticgraph.steps.computation.model_setup import Subject


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """The parts of one runner.

    Attributes:
        steps: run its batches, each in its bucket's way.
        preparation: compiles and records the steps.
        fields: the fields of the data, as far as they are known.
        warming: prepares all steps before the first one runs.
        account: counts and reports what ran.
        intake: takes the batches in.
    """

    steps: Steps
    preparation: Preparation
    fields: DataFields
    warming: Warming
    account: Account
    intake: Intake

    @classmethod
    def of(
        cls,
        subject: Subject,
        plan: BucketPlan,
        execution: Execution,
        budget: MemoryBudget | None,
    ) -> RunnerParts:
        """Makes the parts; the model's layers become static.

        Args:
            subject: the model, and how it is run.
            plan: the buckets.
            execution: how the steps are executed.
            budget: a cap on what torch holds; None for no cap.

        Raises:
            BudgetExceeded: the plan needs more than the budget; nothing was compiled yet.
            NotStatic: the model, or its optimizer's step, cannot be static.
        """
        steps = Steps(subject, plan.capacities, execution)
        preparation = Preparation(subject, steps)
        fields = DataFields(plan.schema)
        padding = None
        if subject.check_padding:
            compiled = execution.mode.compiled and execution.auto is None
            padding = PaddingCheck(Comparer(subject, steps.computation, compiled))
        commitments = budget and Commitments.of(
            subject, plan, smallest_budget(budget, execution.ranks), execution.records_gradients
        )
        first_steps = FirstSteps(subject, steps)
        warming = Warming(
            subject, plan, execution, steps, preparation, commitments, padding, fields, first_steps
        )
        account = Account(subject, plan, execution.mode, steps, warming, commitments)
        intake = Intake(steps, account.statistics, warming, commitments, padding, first_steps)
        return cls(steps, preparation, fields, warming, account, intake)
