"""`Endpoints`: which function answers what, and what the API's document says of it.

The routes are Starlette's. FastAPI is asked for the document alone (`openapi/`), when somebody
reads it: its import and its own routes would take two fifths of a server's start, and handlers here
read and check their bodies themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

if TYPE_CHECKING:
    from pydantic import BaseModel

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """What answers one method of one path. `body` and `parameters` (OpenAPI's objects) are for the
    document.
    """

    method: str
    path: str
    handler: Handler
    body: type[BaseModel] | None = None
    parameters: Sequence[dict[str, Any]] = ()
    in_document: bool = True


@dataclass
class Endpoints:
    """Collects endpoints by decorators, whose keywords are the further fields of `Endpoint`."""

    all: list[Endpoint] = field(default_factory=list)

    def get(self, path: str, **fields: Any) -> Callable[[Handler], Handler]:
        return self._adder("GET", path, fields)

    def post(self, path: str, **fields: Any) -> Callable[[Handler], Handler]:
        return self._adder("POST", path, fields)

    def routes(self) -> list[Route]:
        """Starlette's routes for all endpoints. What answers GET answers HEAD too."""
        return [NamedRoute(e.path, e.handler, methods=[e.method]) for e in self.all]

    def _adder(
        self, method: str, path: str, fields: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.all.append(Endpoint(method, path, handler, **fields))
            return handler

        return add


class NamedRoute(Route):
    """A route that puts itself into the request's scope, so that requests can be counted by route.

    It also matches a path with a slash at the end. Starlette would redirect, but a redirect names
    host and scheme as they look from behind a proxy, and not every client repeats its body and its
    key when it follows one.
    """

    def matches(self, scope: Scope) -> tuple[Match, Any]:
        match, found = super().matches(scope)
        if match is Match.NONE and scope["path"].endswith("/"):
            match, found = super().matches({**scope, "path": scope["path"].rstrip("/")})
        return match, {**found, "route": self}
