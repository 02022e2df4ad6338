"""Settings of a job that few need to name: ``em.Job`` takes mappings for them, too.

Examples
--------
>>> em.settings.Members(start=4, max=8)
Members(start=4, max=8)
"""

from elasticml.specification.sections import Checkpoint as Checkpoint
from elasticml.specification.sections import Collective as Collective
from elasticml.specification.sections import Evaluate as Evaluate
from elasticml.specification.sections import Members as Members
