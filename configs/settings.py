"""Every option of the daemon, in one frozen object.

Flags, ``TANDEM_*`` environment variables and a YAML file fill it (configs/loader.py), in that order
of precedence. It is never changed afterwards: what is learnt by probing the machine and the model
is in ``scheduler.messages.EngineFacts``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Positive = Annotated[float, Meta(gt=0, le=2**20)]
Seconds = Annotated[float, Meta(ge=0, le=2**20)]
Limit = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Origin = Annotated[
    str,
    Meta(pattern=r"^(\*|https?://[^/\s,]+)\Z", extra={"words": "an origin like https://example.org, or *"}),
]
Secret = Annotated[
    str,
    Meta(
        pattern=r"^[!-+.-~-]{1,512}\Z",
        extra={"secret": True, "words": "a key of 1 to 512 printable ASCII characters, no spaces or commas"},
    ),
]
"""Goes into a header; never printed, logged or shown."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``tandem serve``. The description of a field is its ``--help`` text."""

    # -- model
    model: Annotated[
        Text,
        Meta(
            description="Hugging Face directory, .gguf file, short name of an installed model package, "
            "or hub id"
        ),
    ] = "smollm2-135m-instruct"
    served_model_name: Annotated[
        Text | None, Meta(description="Name clients use; default: the model's short name")
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="Compute type; auto takes bfloat16 where the CPU has it, else float32"),
    ] = "auto"
    quantization: Annotated[
        Literal["auto", "none", "int8", "int4"],
        Meta(
            description="How weights are kept; auto: as the file has them, none: in the compute type, "
            "int8 and int4: float weights are quantised when loaded"
        ),
    ] = "auto"
    max_model_len: Annotated[
        Count | None, Meta(description="Context length; default: the model's own, if the KV pages hold it")
    ] = None
    chat_template: Annotated[
        Text | None, Meta(description="File with a Jinja chat template to use instead of the model's")
    ] = None

    # -- engine
    page_size: Annotated[int, Meta(ge=1, le=256, description="Tokens in a KV page")] = 16
    host_kv_pages: Annotated[
        Count | None, Meta(description="KV pages in host memory; default: as many as --host-kv-gib holds")
    ] = None
    host_kv_gib: Annotated[
        Positive | None,
        Meta(
            description="Host memory for KV pages in GiB, where --host-kv-pages is not given; "
            "default: a quarter of what is free, 8 at most"
        ),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        Meta(description="How keys and values are kept; auto is what --dtype is, int8 has a scale a token"),
    ] = "auto"
    max_batch_tokens: Annotated[
        Count, Meta(description="Tokens computed in one iteration at most (prefill chunk included)")
    ] = 512
    max_running: Annotated[Count, Meta(description="Sequences running at once at most")] = 64
    prefix_caching: Annotated[bool, Meta(description="Reuse KV pages of equal prompt prefixes")] = True
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="CPU threads of the engine; default: the cores it may use"),
    ] = None
    cpu_kernels: Annotated[
        Literal["auto", "torch", "scalar", "avx2", "avx512", "avx512_bf16", "neon"],
        Meta(description="Instruction set of the native kernels; auto is the fastest, torch does without"),
    ] = "auto"

    # -- accelerator
    device: Annotated[
        Literal["cpu", "emulated"],
        Meta(
            description="Where layers are computed; emulated is an accelerator with a memory of its own, "
            "played by the CPU"
        ),
    ] = "cpu"
    device_kv_pages: Annotated[
        Count | None, Meta(description="KV pages on the accelerator; default: a quarter of those of the host")
    ] = None
    emulate_profile: Annotated[
        Text | None, Meta(description="JSON profile whose times the emulated accelerator takes")
    ] = None
    profile: Annotated[
        Text | None,
        Meta(
            description="JSON profile, from `tandem profile`, that plans are made with; "
            "default: that of --emulate-profile, else a short measurement at the start"
        ),
    ] = None
    plan_mode: Annotated[
        Literal["auto", "accelerator-only", "asymmetric-pipeline", "async-overlap", "catch-up"],
        Meta(
            description="How sequences in host memory decode beside the accelerator; auto predicts all "
            "ways and takes the fastest"
        ),
    ] = "auto"
    tpot_limit: Annotated[
        Positive | None,
        Meta(description="Seconds between two tokens of a sequence on the accelerator that plans keep to"),
    ] = None
    host_tpot_limit: Annotated[
        Positive | None,
        Meta(description="Seconds between two tokens of a sequence in host memory that plans keep to"),
    ] = None

    # -- HTTP
    host: Annotated[Text, Meta(description="Address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one")] = 8000
    root_path: Annotated[
        Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9._~-]+)+\Z", extra={"words": "a path like /llm"})] | None,
        Meta(description="Path below which everything is found, too, as behind a proxy"),
    ] = None
    uds: Annotated[
        Text | None, Meta(description="Unix socket to listen on instead of an address and port")
    ] = None
    tls_cert: Annotated[
        Text | None, Meta(description="PEM file with the server's certificate chain; read again on SIGHUP")
    ] = None
    tls_key: Annotated[
        Text | None, Meta(description="PEM file with its key; default: it is in the certificate's file")
    ] = None
    tls_ca: Annotated[
        Text | None, Meta(description="PEM file with the authorities that clients' certificates come from")
    ] = None
    tls_client_auth: Annotated[
        Literal["none", "optional", "required"], Meta(description="Whether clients have to show certificates")
    ] = "none"
    max_queue: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        Meta(description="Requests that may wait; more get 503. Default: 4 * --max-running"),
    ] = None
    max_prompt_tokens: Annotated[
        Count | None, Meta(description="Longest prompt; longer ones get 400. Default: the context")
    ] = None
    max_queued_tokens: Annotated[
        Limit, Meta(description="Prompt tokens that may wait with them; more get 503. 0: no limit")
    ] = 0
    queue_timeout: Annotated[
        Seconds, Meta(description="Seconds a request may wait before it is computed; then 503. 0: no limit")
    ] = 60.0
    request_timeout: Annotated[
        Seconds, Meta(description="Seconds a request may take in all; then 504. 0: no limit")
    ] = 0.0
    max_body_mib: Annotated[
        Positive, Meta(description="Largest request body in MiB; larger ones get 413")
    ] = 8.0
    drain_timeout: Annotated[
        Seconds, Meta(description="Seconds running requests may still take after SIGTERM")
    ] = 30.0
    write_timeout: Annotated[
        Positive, Meta(description="Seconds a client may refuse to read before its request is aborted")
    ] = 60.0
    sse_keepalive: Annotated[
        Positive, Meta(description="Seconds without data after which a stream gets a comment line")
    ] = 15.0
    stall_timeout: Annotated[
        Positive,
        Meta(description="Seconds without progress, while there is work, after which /health answers 503"),
    ] = 20.0
    engine_restarts: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Restarts of a dead engine within ten minutes before the daemon gives up",
        ),
    ] = 5

    # -- who may ask
    api_key: Annotated[
        tuple[Secret, ...],
        Meta(
            description="Key that clients must send, as a bearer token or in X-Api-Key; "
            "may be repeated. Default: no key is asked for"
        ),
    ] = ()
    api_key_file: Annotated[
        Text | None, Meta(description="File with more keys, one a line; read again on SIGHUP")
    ] = None
    metrics_public: Annotated[bool, Meta(description="Answer /metrics without a key, too")] = False
    cors_origin: Annotated[
        tuple[Origin, ...],
        Meta(
            description="Origin of web pages that may read answers (https://example.org, or * for all); "
            "may be repeated"
        ),
    ] = ()
    max_requests_per_key: Annotated[
        Limit, Meta(description="Requests of one key served at once; more get 429. 0: no limit")
    ] = 0

    # -- operators
    expose_requests: Annotated[
        bool, Meta(description="Answer GET /requests, what is being served now, on the main listener, too")
    ] = False
    admin_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        Meta(description="Port of a second listener, for those who run the server; default: there is none"),
    ] = None
    admin_host: Annotated[Text, Meta(description="Address of that listener")] = "127.0.0.1"
    admin_key: Annotated[Secret | None, Meta(description="Key that is asked for there; default: none")] = None

    # -- logs
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe message logged")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="How log lines look; json is an object a line")
    ] = "text"

    def __repr__(self) -> str:
        """Without values: some are secrets."""
        return "Settings(...)"

    @property
    def queue_limit(self) -> int:
        """Requests that may wait for a place among the running ones."""
        return 4 * self.max_running if self.max_queue is None else self.max_queue
