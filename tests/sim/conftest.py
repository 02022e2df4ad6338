"""Every story of a simulated job is compared with its frozen digest."""

from __future__ import annotations

from tests.frozen_behaviour import watch_simulations

watch_simulations()
