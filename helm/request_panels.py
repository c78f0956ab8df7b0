"""The panels of requests, and of what speculation brings them."""

from panels import ALL, PERCENT, RATE, SECONDS, Panel, Rows, gauge, quantile, quantiles, rate

OVERVIEW: Rows = {
    "What clients see": [
        Panel(
            "Time to first token",
            SECONDS,
            "From admission, the wait for a place included. Slow: look at the queue and prefill.",
            quantiles("time_to_first_token_seconds"),
        ),
        Panel(
            "Time per output token",
            SECONDS,
            "Mean of an answer without its first token. Slow: look at Speculation and Workers.",
            quantiles("time_per_output_token_seconds"),
        ),
        Panel(
            "Time of whole answers",
            SECONDS,
            "From admission to the last token.",
            quantiles("e2e_request_latency_seconds"),
        ),
        Panel(
            "Answers by how they ended",
            RATE,
            "`abort`: failed, or left by the client.",
            {"{{finished_reason}}": rate("request_success_total", by="finished_reason")},
        ),
        Panel(
            "HTTP responses",
            RATE,
            "By path and class of status; `none`: paths that are not served.",
            {"{{route}} {{status_class}}": rate("http_responses_total", by="route,status_class")},
        ),
        Panel(
            "Requests turned away",
            RATE,
            "By admission: `overloaded` is more than may wait, `unavailable` no target.",
            {"{{reason}}": rate("requests_refused_total", by="reason")},
        ),
    ],
    "Load": [
        Panel(
            "Requests",
            "short",
            "Choices that are decoded, and those that wait for a place among them.",
            {
                "running": gauge("num_requests_running"),
                "waiting": gauge("num_requests_waiting"),
            },
        ),
        Panel(
            "Wait for a place",
            SECONDS,
            "Above zero when more than `max_running_requests` come at once.",
            quantiles("request_queue_time_seconds"),
        ),
        Panel(
            "Tokens",
            "short",
            "Per second: of prompts, and of answers.",
            {
                "prompts": rate("prompt_tokens_total"),
                "answers": rate("generation_tokens_total"),
            },
        ),
        Panel(
            "Degraded",
            "short",
            "1 while the service works with less than it should have.",
            {"{{reason}}": gauge("degraded", by="reason", how="max")},
        ),
        Panel(
            "Event loops",
            SECONDS,
            "How late timers run: what every stream of that process waits.",
            {"p99 {{job}}": quantile(0.99, "event_loop_lag_seconds", by="job")},
        ),
        Panel(
            "Versions",
            "short",
            "What runs here; more than one version is an update under way.",
            {
                "{{service}} {{version}} {{model}} {{drafter}}": (
                    f"count by (service, version, model, drafter) (paceline_build_info{{{ALL}}})"
                )
            },
        ),
    ],
}

_ACCEPTED = rate("spec_decode_num_accepted_tokens_total", by="drafter")
_DRAFTED = rate("spec_decode_num_draft_tokens_total", by="drafter")
_DRAFTS = rate("spec_decode_num_drafts_total", by="drafter")
SPECULATION: Rows = {
    "Does it pay": [
        Panel(
            "Tokens per pass of the target",
            "short",
            "All passes, with and without drafts; 1 is decoding without speculation.",
            {"tokens per pass": f"{rate('target_tokens_total')} / {rate('target_passes_total')}"},
        ),
        Panel(
            "Acceptance rate",
            PERCENT,
            "Accepted of the drafts that were checked.",
            {"{{drafter}}": f"{_ACCEPTED} / {_DRAFTED}"},
        ),
        Panel(
            "Mean acceptance length",
            "short",
            "Tokens of a pass with drafts, the target's own included: 1 + accepted / passes.",
            {"{{drafter}}": f"1 + {_ACCEPTED} / {_DRAFTS}"},
        ),
        Panel(
            "Acceptance by position",
            PERCENT,
            "Share of the passes with drafts in which the draft at this place was accepted.",
            {
                "{{position}}": (
                    rate("spec_decode_num_accepted_tokens_per_pos_total", by="position")
                    + f" / scalar({rate('spec_decode_num_drafts_total')})"
                )
            },
        ),
    ],
    "What it costs": [
        Panel(
            "Time of a round, by part",
            SECONDS,
            "Mean per pass of the target. `rest` is coordinator and wire.",
            {
                "{{part}}": (
                    rate("round_part_seconds_sum", by="part")
                    + f" / {rate('round_part_seconds_count', by='part')}"
                )
            },
        ),
        Panel(
            "Draft time per accepted token",
            SECONDS,
            "Pays only while it is well under a pass of the target.",
            {
                "{{drafter}}": (
                    f"{rate('spec_decode_draft_compute_seconds_total', by='drafter')}"
                    f" / ({_ACCEPTED} > 0)"
                )
            },
        ),
        Panel(
            "Drafts: proposed, checked, accepted",
            "short",
            "Per second. Not all that are proposed are worth checking.",
            {
                "proposed": rate("spec_decode_num_proposed_tokens_total"),
                "checked": rate("spec_decode_num_draft_tokens_total"),
                "accepted": rate("spec_decode_num_accepted_tokens_total"),
            },
        ),
        Panel(
            "Drafts that failed",
            RATE,
            "They change no text: the round goes on without. See the runbook for the reasons.",
            {"{{drafter}} {{reason}}": rate("draft_failures_total", by="drafter,reason")},
        ),
    ],
}
