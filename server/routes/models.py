"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter

from server.http.errors import model_not_found
from server.schemas.openapi import error_responses
from server.schemas.responses import Model, ModelList
from server.services import Services


def models_router(services: Services) -> APIRouter:
    """The routes that tell what is served."""
    router = APIRouter()
    served = Model(id=services.model_name, object="model", created=int(services.now()), owned_by="tandem")

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The served models, also while they are being loaded."""
        return ModelList(object="list", data=[served])

    @router.get("/v1/models/{model_id:path}", responses=error_responses(404))
    async def retrieve_model(model_id: str) -> Model:
        """One served model."""
        if model_id != served.id:
            raise model_not_found(model_id)
        return served

    return router
