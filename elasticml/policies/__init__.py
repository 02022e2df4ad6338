"""Policies: rules that change a job between rounds, as ``policies`` of a job names them.

Examples
--------
>>> rules = [em.policies.Rebalance(), em.policies.ScaleInAtKnee(factor=4)]
>>> [rule.name for rule in rules]
['rebalance', 'knee']
"""

from elasticml.policies.background_shuffle import GlobalShuffle as GlobalShuffle
from elasticml.policies.elastic_scaling import ElasticScaling as ElasticScaling
from elasticml.policies.gap_per_container_second import (
    GapPerContainerSecond as GapPerContainerSecond,
)
from elasticml.policies.inner_iterations import ChooseInnerIterations as ChooseInnerIterations
from elasticml.policies.knee import ScaleInAtKnee as ScaleInAtKnee
from elasticml.policies.rebalance import Rebalance as Rebalance
from elasticml.policies.reshuffle import Redeal as Redeal
from elasticml.policies.straggler import Straggler as Straggler
from elasticml.policies.tune_local_work import TuneLocalWork as TuneLocalWork
