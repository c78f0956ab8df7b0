"""What a panel of the Grafana dashboards is, and the queries that they are made of."""

from dataclasses import dataclass

ALL = 'namespace=~"$namespace",pod=~"$pod"'
SECONDS, PERCENT, RATE, BYTES = "s", "percentunit", "reqps", "binBps"


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: expressions by their legends; `{}` in an expression is the choice of pods."""

    title: str
    unit: str
    description: str
    expressions: dict[str, str]


Rows = dict[str, list[Panel]]


def rate(name: str, labels: str = "", by: str = "") -> str:
    """The rate of a counter, summed."""
    choice = f"{labels},{ALL}" if labels else ALL
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate(paceline_{name}{{{choice}}}[$__rate_interval]))"


def quantile(share: float, name: str, labels: str = "", by: str = "") -> str:
    """A quantile of a histogram over all pods."""
    group = f"le,{by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', labels, group)})"


def gauge(name: str, labels: str = "", by: str = "", how: str = "sum") -> str:
    """A gauge over all pods."""
    choice = f"{labels},{ALL}" if labels else ALL
    group = f" by ({by})" if by else ""
    return f"{how}{group} (paceline_{name}{{{choice}}})"


def quantiles(name: str, labels: str = "") -> dict[str, str]:
    """Median, and what one in twenty and one in a hundred exceed."""
    return {f"p{share * 100:.0f}": quantile(share, name, labels) for share in (0.5, 0.95, 0.99)}
