"""The application of one server process: routes, errors, limits, metrics, log around an engine.

    access log -> key, size, gate, deadline -> chat, completions | control | observation -> worker

Called by processes/run.py with a worker that was started; whoever made the worker closes it.
"""

from fastapi import FastAPI

from paddle_ernie import __version__
from paddle_ernie.serve.api import chat_completions, completions, control, errors, openapi
from paddle_ernie.serve.api.chat_template import load_chat_template
from paddle_ernie.serve.api.openapi import DESCRIPTION, TAGS
from paddle_ernie.serve.api.service import Service
from paddle_ernie.serve.api.settings import RouteStoreKind, ServerSettings
from paddle_ernie.serve.api.token_texts import TokenTexts
from paddle_ernie.serve.api.tool_calls import THINK_END
from paddle_ernie.serve.engine.worker import EngineWorker
from paddle_ernie.serve.middleware import access_log, limits, metrics
from paddle_ernie.serve.route_store import RouteStore, StoreFormat
from paddle_ernie.utils.errors import InputError


def create_app(worker: EngineWorker, settings: ServerSettings) -> FastAPI:
    """The application. InputError if the model's chat template or the settings cannot be used."""
    app = FastAPI(
        title="paddle_ernie",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        redoc_url=None,
    )
    service = make_service(worker, settings)
    errors.install(app)
    for router in (
        chat_completions.router(service),
        completions.router(service),
        control.control_router(service),
        control.observation_router(service),
    ):
        app.include_router(router)
    openapi.install(app)
    metrics.install(app, worker, worker.options.max_num_seqs)
    limits.install(app, settings)
    access_log.install(app, settings.access_log)
    return app


def make_service(worker: EngineWorker, settings: ServerSettings) -> Service:
    """What the handlers share."""
    template = load_chat_template(worker.tokenizer, settings.model_dir, settings.chat_template)
    reasoning = settings.parse_reasoning
    if reasoning is None:
        reasoning = template.knows_reasoning or THINK_END in worker.tokenizer.added_tokens
    return Service(
        worker=worker,
        settings=settings,
        template=template,
        texts=TokenTexts(worker.tokenizer),
        parse_reasoning=reasoning,
        route_store=_route_store(worker, settings),
    )


def _route_store(worker: EngineWorker, settings: ServerSettings) -> RouteStore | None:
    replay, info = settings.routing_replay, worker.info
    if replay is None:
        return None
    if not info.num_moe_layers:
        raise InputError("--routing-replay-config: the model has no experts; leave it out")
    if replay.store is RouteStoreKind.RESPONSE:
        return None
    form = StoreFormat(
        info.num_moe_layers, info.moe_k, info.num_experts, info.max_model_len, replay.fused
    )
    return RouteStore(replay.local_store_dir, form, only_last_turn=replay.only_last_turn)
