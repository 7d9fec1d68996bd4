"""Errors of activities, cut short before they leave: what is too large for Temporal would be sent to it for ever."""

from __future__ import annotations

from typing import Any

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from domicile.activities.refusals import DETAIL_MAX, cut


class ShortErrors(Interceptor):
    """For every activity of a worker."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Cutting(super().intercept_activity(next))


class _Cutting(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """An error whose text is long, or stands on one, is told as its type and the beginning of its text."""
        try:
            return await super().execute_activity(input)
        except Exception as error:
            if all(len(str(link)) <= DETAIL_MAX for link in _chain(error)):
                raise
            kind, final, category = type(error).__name__, False, ApplicationErrorCategory.UNSPECIFIED
            if isinstance(error, ApplicationError):
                kind, final, category = error.type or kind, error.non_retryable, error.category
            raise ApplicationError(cut(str(error)), type=kind, non_retryable=final, category=category) from None


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it came from, as a failure carries them."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain
