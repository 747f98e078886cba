"""``tandem serve`` as a contender."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.served import Launch, Served, free_port


class TandemContender(Served):
    """A running ``tandem serve``."""

    def __init__(self, command: Sequence[str], model: str, dtype: str, serve_options: Sequence[str]) -> None:
        """Start the server and wait until it is ready.

        Args:
            command: what runs ``tandem``.
            model: as for ``tandem serve``.
            dtype: compute type.
            serve_options: more flags for ``tandem serve``.

        Raises:
            BenchmarkError: it does not get ready; the message has the end of its output.
        """
        launch = tandem_launch(command, model, ["--dtype", dtype, *serve_options], free_port())
        super().__init__("tandem", dtype, launch, tandem=command)


def tandem_launch(command: Sequence[str], model: str, serve_options: Sequence[str], port: int) -> Launch:
    """How ``tandem serve`` is started."""
    arguments = ["serve", model, "--port", str(port), *serve_options]
    return Launch(name="tandem serve", command=[*command, *arguments], port=port, ready="/ready")
