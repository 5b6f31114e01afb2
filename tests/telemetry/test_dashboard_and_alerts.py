"""The dashboard and the alerts ask for metrics that exist, by labels that these have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import Millpond
from millpond.telemetry.prometheus import Collector

DOCS = Path(__file__).parents[2] / "docs"
RULES = (DOCS / "telemetry/prometheus-alerts.yml").read_text("utf-8")
PAGE = (DOCS / "how-to/alert-on-pools.md").read_text("utf-8")
DASHBOARD = json.loads((DOCS / "telemetry/grafana-dashboard.json").read_text("utf-8"))
RESERVED = {"le"}


def exported() -> dict[str, set[str]]:
    """Every series the collector may have, and its labels."""
    found: dict[str, set[str]] = {}
    for family in Collector(Millpond()).describe():
        labels = set(getattr(family, "_labelnames", ()))
        match family.type:
            case "counter":
                found[f"{family.name}_total"] = labels
            case "histogram":
                found |= {f"{family.name}_{part}": labels for part in ("bucket", "sum", "count")}
            case _:
                found[family.name] = labels
    return found


EXPORTED = exported()


def expressions() -> Iterator[str]:
    """Whatever is asked of Prometheus."""
    yield from re.findall(r"expr: (.*?)\n        (?:for|labels):", RULES, re.DOTALL)
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize("metric", EXPRESSIONS)
def test_every_metric_of_the_dashboard_exists(metric: str) -> None:
    """Each metric is exported, each label it is picked or grouped by is one of its own."""
    names = re.findall(r"\bmillpond_\w+", metric)
    assert names
    assert [] == [name for name in names if name not in EXPORTED]
    labels = set().union(*(EXPORTED[name] for name in names)) | RESERVED
    grouped = re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", metric)
    picked = re.findall(r'(\w+)=~?"', metric)
    used = {label.strip() for group in grouped for label in group.split(",")} | set(picked)
    assert set() == used - labels


def test_every_value_that_is_picked_can_occur() -> None:
    """A state, a status or an outcome that is misspelt would never fire."""
    picked = set(re.findall(r'(state|status|outcome)=~?"([^"]+)"', " ".join(EXPRESSIONS)))
    values = {name: set(given.split("|")) for name, given in picked}
    assert {"state", "status", "outcome"} == values.keys()
    known = {"ready", "scheduled", "parked", "claimed", "running"}
    known |= {"completed", "failed", "cancelled", "rejected", "retry", "released", "stale"}
    assert set() == set().union(*values.values()) - known


def test_every_alert_has_its_reason_and_every_reason_its_alert() -> None:
    """The page and the rules list the same."""
    alerts = re.findall(r"- alert: (\w+)", RULES)
    explained = re.findall(r"^- \*\*(Millpond\w+)\*\*: ", PAGE, re.MULTILINE)
    assert len(alerts) == len(set(alerts))
    assert sorted(alerts) == sorted(explained)
    assert len(alerts) == RULES.count("summary: ") == RULES.count("severity: ")


def test_every_metric_of_the_collector_is_of_use_somewhere() -> None:
    """On the dashboard, in an alert, or named on a page as one that is neither."""
    metric = set(re.findall(r"\bmillpond_\w+", " ".join(EXPRESSIONS)))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in EXPORTED}
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metric}
    unused = {"millpond_pools_left_out", "millpond_pool_wait_seconds", "millpond_pool_run_seconds"}
    unused.add("millpond_detours_total")
    assert unused == families - used


def test_panels_do_not_overlap() -> None:
    """Each stands where no other does, within the width of the page."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len(DASHBOARD["panels"]) == len({panel["id"] for panel in DASHBOARD["panels"]})
