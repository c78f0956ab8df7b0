"""How hosts and ports are written."""


def with_port(host: str, port: int) -> str:
    """As gRPC and URLs have it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
