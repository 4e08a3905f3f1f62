"""`language_deployment`: the server of a language model behind Ray Serve, a scheduler in each replica."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..llm.server import ServerOptions


def language_deployment(
    model: str | os.PathLike[str],
    *,
    name: str = "language-model",
    server: ServerOptions | None = None,
    num_threads: int = 0,
    options: Mapping[str, Any] | None = None,
    **deployment_options: Any,
) -> Any:
    """Return an application for ``ray.serve.run`` with OpenAI's interface, as ``mgx-numba-driver serve`` has it.

    Each replica has the model, a batch that requests join and leave, and its own known beginnings of prompts.

    Args:
        model: a path that exists on every node with a replica; see `llm.Model`.
        name: name of the deployment.
        server: options of each replica's server.
        num_threads: threads of a run; 0 for the CPUs of a replica (``ray_actor_options={"num_cpus": ...}``).
        options: options of ``program.compile``.
        deployment_options: options of ``serve.deployment``: ``num_replicas``, ``ray_actor_options``,
            ``request_router_config``, ...
    """
    from ray import serve

    path, given = os.fspath(model), dict(options or {})

    def application() -> Any:
        import ray

        from mgx_numba.llm import Model
        from mgx_numba.llm.server import make_app

        context: Any = ray.get_runtime_context()
        granted = context.get_assigned_resources().get("CPU", 1)
        return make_app(Model(path, num_threads=num_threads or max(1, int(granted)), **given), server)

    replica = serve.deployment(**{"name": name, **deployment_options})(serve.ingress(application)())
    return replica.bind()
