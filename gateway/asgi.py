"""`app`: the application for an external ASGI server, configured from the environment.

``uvicorn gateway.asgi:app`` or ``granian --interface asgi gateway.asgi:app``. The environment is read and the
database opened when the server starts the lifespan, so importing this module does nothing. ``stateroom
serve`` does the same and also drains on SIGTERM; other servers stop when they are told to. A deployment with a folder
of state schemas has a module of its own that says ``app = FromEnvironment(state_schemas=Path(...))``.
"""

import os
from pathlib import Path
from typing import Any

from gateway.app import Gateway, open_app
from gateway.settings import Settings
from gateway.telemetry import Metrics, MetricsServer, configure_logging
from migrations.state.worker.confinement import make_undumpable


class FromEnvironment:
    """Opens the application with the lifespan, and serves it."""

    def __init__(self, *, state_schemas: Path | None = None) -> None:
        """``state_schemas``: as ``stateroom serve --state-schemas``."""
        self._state_schemas = state_schemas
        self._app: Gateway | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request, or the lifespan.

        Raises:
            SettingsError: a setting is missing or wrong.
            RuntimeError: the server does not run the lifespan.
        """
        if scope["type"] != "lifespan":
            if self._app is None:
                raise RuntimeError("run this application with the lifespan protocol on")
            await self._app(scope, receive, send)
            return
        settings = Settings.from_environment(os.environ)
        configure_logging(settings.log_level)
        if not settings.traceable:
            make_undumpable()
        metrics = Metrics()
        listener = MetricsServer(metrics, settings.metrics_listen) if settings.metrics_listen else None
        try:
            async with open_app(settings, metrics=metrics, state_schemas=self._state_schemas) as app:
                self._app = app
                if listener is not None:
                    listener.answer_probes(app.services.readiness.probe)
                await app(scope, receive, send)
        finally:
            self._app = None
            if listener is not None:
                listener.close()


app = FromEnvironment()
