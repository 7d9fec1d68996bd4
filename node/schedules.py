"""The schedules of the app this node loaded: each is seen to be there, armed with its expression (PROTOCOLS section 9).

The script's scope is a project, created where the app is loaded first. Every node says the same at its start; who comes
second changes nothing. A schedule that somebody paused or deleted by hand: paused stays paused, deleted comes again.
"""

from __future__ import annotations

import msgspec

from domicile.errors import DomicileError
from domicile.node.host import Host
from domicile.node.values import Call
from domicile.placement.projects import Projects
from domicile.placement.records import ObjectKey
from domicile.registry import Registry
from domicile.schedule import Cron, CronSpec

RETRY_SECS = 2.0
SCOPE = "s."


class Schedules:
    """Run `run` once the node serves."""

    def __init__(self, host: Host, registry: Registry, projects: Projects) -> None:
        self._host = host
        self._registry = registry
        self._projects = projects

    async def run(self) -> None:
        """Until every schedule is there; what is in the way is tried again."""
        waiting = list(self._registry.crons)
        while waiting:
            waiting = [spec for spec in waiting if not await self._is_there(spec)]
            if waiting:
                await self._host.clock.sleep(self._host.jitter(RETRY_SECS))

    async def _is_there(self, spec: CronSpec) -> bool:
        scope = SCOPE + self._registry.script
        body = msgspec.json.encode([spec.mark.crontab.text])
        deadline = self._host.clock.monotonic() + self._host.config.call_deadline_secs
        try:
            await self._projects.ensure(scope)
            await self._host.call_out(Call(ObjectKey(scope, Cron.__name__, spec.name), "schedule", body, deadline))
        except DomicileError as error:
            self._host.log.warning("schedule.unarmed", script=scope, schedule=spec.name, error=error.detail)
            return False
        return True
