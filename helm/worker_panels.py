"""The panels of workers, and of what lies between the services: Redis and gRPC."""

from panels import ALL, BYTES, PERCENT, RATE, SECONDS, Panel, Rows, gauge, quantile, quantiles, rate

TARGET, REST = 'role="target"', 'part="rest"'

WORKERS: Rows = {
    "Workers": [
        Panel(
            "Workers that take rounds",
            "short",
            "As the coordinators see them; `/status` says which one is not ready, and why.",
            {"{{role}} {{state}}": gauge("workers", by="role,state")},
        ),
        Panel(
            "Streams lost, sequences moved",
            RATE,
            "A lost stream is a worker that ended or hung; its sequences go on elsewhere.",
            {
                "lost {{role}}": rate("worker_losses_total", by="role"),
                "moved {{role}}": rate("migrations_total", by="role"),
                "to other arithmetic": rate("numerics_changes_total"),
            },
        ),
        Panel(
            "Word of discovery",
            SECONDS,
            "Age of the oldest word of a source of workers; nothing where addresses are fixed.",
            {"{{role}} {{source}}": gauge("discovery_age_seconds", by="role,source", how="max")},
        ),
        Panel(
            "Sources that fail",
            "short",
            "1: DNS or Kubernetes does not answer; the workers known before are kept.",
            {"{{role}} {{source}}": gauge("discovery_failing", by="role,source", how="max")},
        ),
        Panel(
            "Rounds by outcome",
            RATE,
            "`resend` after a loss or an eviction is ordinary; `failed` is not.",
            {"{{role}} {{outcome}}": rate("worker_rounds_total", by="role,outcome")},
        ),
        Panel(
            "Device busy",
            PERCENT,
            "Share of the time in which a pass runs, mean of the pods.",
            {
                "{{role}}": (
                    f"avg by (role) (rate(paceline_worker_pass_seconds_total{{{ALL}}}"
                    "[$__rate_interval]))"
                )
            },
        ),
    ],
    "Passes": [
        Panel(
            "Wait for a pass",
            SECONDS,
            "Rounds in the queue of a worker.",
            {
                "p50 {{role}}": quantile(0.5, "worker_queue_seconds", by="role"),
                "p95 {{role}}": quantile(0.95, "worker_queue_seconds", by="role"),
            },
        ),
        Panel(
            "Time of a pass",
            SECONDS,
            "Mean.",
            {
                "{{role}}": (
                    f"{rate('worker_pass_seconds_total', by='role')}"
                    f" / {rate('worker_passes_total', by='role')}"
                )
            },
        ),
        Panel(
            "Sequences of a pass",
            "short",
            "Mean size of a batch.",
            {
                "{{role}}": (
                    f"{rate('worker_pass_sequences_total', by='role')}"
                    f" / {rate('worker_passes_total', by='role')}"
                )
            },
        ),
        Panel(
            "Rows of a target's pass",
            "short",
            "Mean number of tokens, drafts and chunks of prompts.",
            {"rows": (f"{rate('worker_pass_rows_total')} / {rate('worker_passes_total', TARGET)}")},
        ),
        Panel(
            "Between ranks, per pass",
            BYTES,
            "Mean of what rank 0 of a target exchanges with the others; 0 where it is alone.",
            {
                "{{direction}}": (
                    f"{rate('rank_exchange_bytes_total', by='direction')}"
                    f" / scalar({rate('worker_passes_total', TARGET)})"
                )
            },
        ),
    ],
    "KV": [
        Panel(
            "KV in use",
            PERCENT,
            "Of the fullest pod. Near 100 %: new sequences push others out.",
            {"{{role}}": gauge("kv_cache_usage_perc", by="role", how="max")},
        ),
        Panel(
            "Sequences held",
            "short",
            "Back at 0 when nothing is answered.",
            {"{{role}}": gauge("worker_sequences", by="role")},
        ),
        Panel(
            "Found in the cache",
            PERCENT,
            "Share of the tokens of new sequences whose KV was there.",
            {"hits": f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}"},
        ),
        Panel(
            "Pushed out",
            RATE,
            "Preempted sequences are computed again; evicted ones had ended.",
            {
                "preempted {{role}}": rate("num_preemptions_total", by="role"),
                "evicted": rate("kv_cache_evictions_total"),
            },
        ),
    ],
}

REDIS_AND_GRPC: Rows = {
    "Redis": [
        Panel(
            "Time of calls",
            SECONDS,
            "`ask` is what a request waits for, at most 0.1 s; `write` is behind the answers.",
            {"p95 {{operation}}": quantile(0.95, "session_store_seconds", by="operation")},
        ),
        Panel(
            "Calls that failed",
            RATE,
            "Behind one, Redis is left alone for a second; requests go on in memory.",
            {"{{reason}}": rate("session_store_errors_total", by="reason")},
        ),
        Panel(
            "Records not written yet",
            "short",
            "Grows while Redis is away, and is written when it is back.",
            {"records": gauge("session_store_unwritten_records")},
        ),
        Panel(
            "In memory only",
            "short",
            "Coordinators whose Redis is out of reach.",
            {"coordinators": gauge("session_store_degraded")},
        ),
    ],
    "gRPC": [
        Panel(
            "Calls in flight",
            "short",
            "Verify and Propose are one stream for each pair of coordinator and worker.",
            {"{{method}}": gauge("grpc_calls_in_flight", by="method")},
        ),
        Panel(
            "Calls by status",
            RATE,
            "`CANCELLED`: the caller left.",
            {"{{method}} {{code}}": rate("grpc_calls_total", by="method,code")},
        ),
        Panel(
            "Messages of rounds",
            BYTES,
            "Between coordinators and workers, without frames.",
            {
                "to {{role}}": rate("worker_sent_bytes_total", by="role"),
                "from {{role}}": rate("worker_received_bytes_total", by="role"),
            },
        ),
        Panel(
            "Coordinator and wire",
            SECONDS,
            "What a round takes beside waiting and computing in the workers.",
            quantiles("round_part_seconds", REST),
        ),
    ],
}
