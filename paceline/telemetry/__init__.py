"""Spans of requests and rounds, for whoever sets OpenTelemetry's own variables (`OTEL_…`).

Services begin a span where something comes in from outside (`Tracer`), and children where it takes
its time (`Span`). The only package that imports `opentelemetry`, and that only in a process that
has somewhere to send spans; in every other one a request costs a look at an empty variable. Knows
no service. Nothing in a span may be text, tokens or keys of a user.
"""
