"""`Object`: what applications subclass. One instance is one residency's view of one durable object.

The instance is only a window: what lasts is in `sql`, `kv` and the alarms. `bind` ties an instance to its node before
`__init__` runs, so `name` and `log` are there at once; the database is there from the first call on, in `on_wake` for
what is to be read into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from domicile import jsons
from domicile.context import ALARM_NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, Alarm, Context, Kv, Log, Sql
from domicile.duration import When, due_ms
from domicile.errors import BadArguments, BadName
from domicile.marks import Region
from domicile.ref import Ref, Target

O = TypeVar("O", bound="Object")  # noqa: E741 the letter every reader expects

HOOKS = ("init", "on_wake", "on_sleep", "on_alarm")


class Object:
    """A durable object: public methods are its interface, one call runs at a time, each in one transaction.

    `migrations` is a directory, relative to the file of the class, of `0001_*.sql` …, applied in name order inside the
    first call's transaction; `placement` pins the class to a region; `idle_secs` overrides `OBJECT_IDLE_SECS`.
    Attributes set on `self` last one residency: whatever must survive belongs in `self.sql` or `self.kv`.
    """

    migrations: ClassVar[str | None] = None
    placement: ClassVar[Region | None] = None
    idle_secs: ClassVar[float | None] = None

    _domicile: Context

    @property
    def sql(self) -> Sql:
        """The object's private SQLite database, inside the call's transaction."""
        return self._domicile.sql

    @property
    def kv(self) -> Kv:
        """A small durable map beside the database, in the same transaction."""
        return self._domicile.kv

    @property
    def name(self) -> str:
        return self._domicile.name

    @property
    def log(self) -> Log:
        return self._domicile.log

    def now(self) -> int:
        """Wall time in milliseconds since 1970; the same all through one call."""
        return self._domicile.now_ms()

    def set_alarm(
        self, when: When | None = None, name: str = "default", payload: Any = None, cron: str | None = None
    ) -> None:
        """Have `on_alarm` called at a time; an alarm of the same name is replaced (PROTOCOLS section 9).

        `when` is "10m", "2h30m" or "3d", a number of seconds, a timedelta, or an aware datetime (one that has passed
        means now); or `cron` is an expression of five fields in UTC, and the alarm comes again and again. Raises
        BadArguments.
        """
        if type(self).on_alarm is Object.on_alarm:
            raise BadArguments(f"{type(self).__name__} has no on_alarm, so an alarm could do nothing")
        _check_alarm_name(name)
        due = due_ms(when, cron, self._domicile.now_ms())
        self._domicile.set_alarm(name, due, _payload_json(payload), cron)

    def clear_alarm(self, name: str = "default") -> bool:
        """Whether there was such an alarm."""
        _check_alarm_name(name)
        return self._domicile.clear_alarm(name)

    def alarms(self) -> list[Alarm]:
        """The object's alarms by due time, failed ones included."""
        return self._domicile.alarms()

    def object(self, cls: type[Object] | str, name: str) -> Ref:
        """Another object of the same project. Given the class itself, results are typed by its annotations."""
        if not (isinstance(cls, str) or (isinstance(cls, type) and issubclass(cls, Object))):
            raise BadArguments(f"{cls!r} is no class of objects")
        if not isinstance(name, str) or not name:
            raise BadName("an object's name is a text of at least one character")
        return Ref(self._domicile, Target(cls), name)

    # Hooks: `def` or `async def`, and no part of the interface.

    def init(self) -> Any:
        """Once per incarnation, in the first call's transaction, after the migrations."""

    def on_wake(self) -> Any:
        """At the start of every residency."""

    def on_sleep(self) -> Any:
        """At the end of an orderly residency; a crash skips it, so nothing may depend on it."""

    if TYPE_CHECKING:
        # Either form overrides this one without a complaint of the type checker.
        on_alarm: Callable[..., Any]
    else:

        def on_alarm(self, alarm: Alarm) -> Any:
            """An alarm is due. May be declared without the parameter."""


def bind(cls: type[O], context: Context) -> O:
    """A new instance, tied to `context` before its `__init__` runs. An exception of `__init__` passes through."""
    instance = cls.__new__(cls)
    instance._domicile = context
    instance.__init__()  # type: ignore[misc] # the registry has checked that it takes no arguments
    return instance


def _check_alarm_name(name: str) -> None:
    try:
        size = len(name.encode()) if isinstance(name, str) and "\0" not in name else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= ALARM_NAME_BYTES_MAX:
        raise BadArguments(f"an alarm's name is a text of 1 to {ALARM_NAME_BYTES_MAX} bytes of UTF-8 without NUL")


def _payload_json(payload: Any) -> bytes | None:
    if payload is None:
        return None
    try:
        text = jsons.encode(payload)
    except jsons.Unencodable as error:
        raise BadArguments(f"the alarm's payload: {error}") from None
    if len(text) > PAYLOAD_BYTES_MAX:
        raise BadArguments(f"the alarm's payload is {len(text)} bytes of JSON; the limit is {PAYLOAD_BYTES_MAX}")
    return text
