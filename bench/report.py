from __future__ import annotations
from typing import Any

def terminal(results: dict[str, Any]) -> str:
    lines = []
    for cell in results["cells"]:
        lines.append(f"\n{cell['label']} objects, {cell['latency_ms']} ms of latency")
        lines.append(f"{'':27}{'':9}{'workers':>7}{'CPU us':>10}{'ratio':>8}{'CPU s/GiB':>11}{'objects/s':>11}{'MiB':>7}{'objects':>9}")
        for r in cell["rows"]:
            head = f"{r['system']:27}{r['style']:9}{r['workers']:7}"
            if "cpu_us" in r:
                mem=(r['memory_private']+r['memory_shared'])/2**20
                head += f"{r['cpu_us']:10.1f}{r['ratio']:8.2f}{r['cpu_s_per_gib']:11.3f}{r['objects_per_s']:11.0f}{mem:7.0f}{r['objects']:9}"
            if "error" in r: head += "  failed: " + r["error"]
            lines.append(head)
    return "\n".join(lines)
