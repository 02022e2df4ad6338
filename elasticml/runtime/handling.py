"""Have the driver machine handle an event; what it cannot handle ends the job."""

from __future__ import annotations

import logging

from elasticml.control import events as ev
from elasticml.control.commands import Command
from elasticml.control.driver import Driver
from elasticml.errors import ElasticmlError

logger = logging.getLogger(__name__)


def commands_after(driver: Driver, event: ev.Event, now_s: float, job: str) -> list[Command]:
    """Return what the machine commands; after an error of its own, the job's orderly end."""
    try:
        return driver.handle(event, now_s)
    except ElasticmlError as error:
        # A broken invariant must not be summed into a model.
        logger.exception("job %s: broken invariant", job)
        return driver.handle(ev.Failed(reason=error.message), now_s)
    except Exception as error:
        # What is wrong with a suggestion may show only when it is carried out; a job that nobody
        # drives any more must not hang.
        logger.exception("job %s: the driver failed", job)
        reason = f"the driver failed: {type(error).__name__}: {error}"
        return driver.handle(ev.Failed(reason=reason), now_s)
