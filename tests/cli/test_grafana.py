"""The dashboard of deploy/grafana: it asks for what `millrace stat --prometheus` prints, and knows each cause."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.serve import StartServe

FILE = ROOT / "deploy" / "grafana" / "millrace.json"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def queries(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return asked + [each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


def test_every_name_is_printed(dashboard: dict[str, Any], millrace_bin: Path, serve: StartServe, config: Path) -> None:
    server = serve(config)
    server.wait_settled()
    shown = subprocess.run(
        [millrace_bin, "stat", "--prometheus", "--socket", server.socket], capture_output=True, text=True, check=True
    ).stdout
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", shown, re.M))
    # Write workers come with the first checkpoint, and have the counters of the others.
    workers = {name: kind for name, kind in kinds.items() if name.startswith("millrace_fetch_")}
    kinds |= {name.replace("fetch", "write", 1): kind for name, kind in workers.items()}
    asked = set()
    for query in queries(dashboard):
        for rate, name in re.findall(r"(rate\()?\b(millrace_\w+)", query):
            assert name in kinds, f"{name} is not printed: {query}"
            assert not rate or kinds[name] == "counter", query
            asked.add(name)
    assert len(asked) > 40, asked


def walk(value: Any) -> Iterator[Any]:
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from walk(each)


def test_the_file(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert not re.search(r"https?:|localhost|\d+\.\d+\.\d+\.\d+", FILE.read_text())
    sources = {each["datasource"]["uid"] for each in walk(panels) if isinstance(each, dict) and "datasource" in each}
    assert sources == {"${datasource}"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["title"] and panel["description"].endswith("."), panel
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs), panel["title"]
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    for query in queries(dashboard):
        assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval"}, query


def test_each_cause_has_its_line(dashboard: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "waiting.md").read_text().split("## Causes")[1].split("\n## ")[0]
    causes = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    maps = [each["options"] for each in walk(dashboard) if isinstance(each, dict) and each.get("type") == "value"]
    assert len(maps) == 1 and set(maps[0]) == causes | {"none"}
    assert all(result["text"].startswith(f"{cause}: ") for cause, result in maps[0].items() if cause != "none")
