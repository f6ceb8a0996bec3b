"""Results of the sections as lines for the terminal and as one Markdown page."""

from __future__ import annotations

from typing import Any


def has_failed(section: dict[str, Any]) -> bool:
    return section["exit_status"] != 0 or any(check["status"] == "failed" for check in section["checks"])


def counts(section: dict[str, Any]) -> str:
    numbers = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for check in section["checks"]:
        numbers[check["status"]] += 1
    for group in section.get("groups", {}).values():  # tests: their failures are among the checks already
        numbers["passed"] += group["passed"]
        numbers["skipped"] += group["skipped"]
    text = ", ".join(f"{count} {status}" for status, count in numbers.items() if count)
    return text or "nothing was checked"


def section_line(name: str, section: dict[str, Any]) -> str:
    mark = "FAILED" if has_failed(section) else "ok"
    ended = "" if section["exit_status"] == 0 else f", ended with {section['exit_status']}"
    return f"{name:<10} {mark:<7} {counts(section)}{ended} ({section['seconds']:.0f} s)"


def environment_lines(environment: dict[str, Any]) -> str:
    return "\n".join(f"{key:<14} {value}" for key, value in environment.items())


def markdown(results: dict[str, Any]) -> str:
    environment = results["environment"]
    title = "# Check on the CPU (dry run: says nothing about a GPU)" if environment["dry_run"] else "# Check on a GPU"
    lines = [title, "", "| | |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in environment.items()]
    lines += ["", "| section | | seconds |", "| --- | --- | --- |"]
    for name, section in results["sections"].items():
        mark = "**failed**: " if has_failed(section) else ""
        lines.append(f"| {name} | {mark}{counts(section)} | {section['seconds']:.0f} |")
    for name, section in results["sections"].items():
        lines += ["", f"## {name}", ""]
        if section["exit_status"] != 0:
            lines += [
                f"Ended with {section['exit_status']}; the end of its output:",
                "",
                block(section["log_tail"]),
                "",
            ]
        if "rows" in section:
            lines += benchmark_lines(section)
        elif "groups" in section:
            lines += ["| group | passed | failed | skipped | test seconds |", "| --- | --- | --- | --- | --- |"]
            for group, n in section["groups"].items():
                lines.append(f"| {group} | {n['passed']} | {n['failed']} | {n['skipped']} | {n['seconds']} |")
        else:
            lines += ["| check | | detail |", "| --- | --- | --- |"]
            lines += [
                f"| {check['name']} | {check['status']} | {one_line(check)} |"
                for check in section["checks"]
                if check["status"] != "failed"
            ]
        for check in section["checks"]:
            if check["status"] == "failed":
                lines += ["", f"**{check['name']}** failed:", "", block(check["detail"])]
    return "\n".join(lines) + "\n"


def one_line(check: dict[str, Any]) -> str:
    text = check.get("detail", "").strip().replace("|", "/")
    return text.splitlines()[-1][:160] if text else ""


def block(text: str) -> str:
    return f"```\n{text.strip()}\n```"


def benchmark_lines(section: dict[str, Any]) -> list[str]:
    """A table per cell. The rate counts what has a value per pixel only (tools/gpu/operations.py)."""
    copy = section.get("copy_bytes_per_s")
    lines = []
    if copy:
        lines.append(f"Device copy: {copy / 1e9:.0f} GB/s, read and written. nvdiffrast: {section.get('nvdiffrast')}.")
    if "unfinished" in section:
        lines.append(section["unfinished"] + ".")
    groups: dict[tuple, list[dict]] = {}
    for row in section["rows"]:
        groups.setdefault((row["mesh"], row["size"], row["batch"]), []).append(row)
    for (mesh, size, batch), rows in groups.items():
        lines += ["", f"{mesh} triangles, {size} x {size}, batch {batch}:", ""]
        lines += ["| stage | ms | as a graph | nvdiffrast ms | ratio | of the copy's rate |", "| --- |" + " --- |" * 5]
        for row in rows:
            peer, graph = row.get("nvdiffrast_ms"), row.get("graph_ms")
            best = graph or row["ms"]
            share = f"{100 * row['bytes'] / (best / 1e3) / copy:.1f} %" if copy else ""
            ratio = f"{peer / row['ms']:.2f}" if peer else ""
            lines.append(
                f"| {row['name']} | {row['ms']:.3f} | {f'{graph:.3f}' if graph else ''} | "
                f"{f'{peer:.3f}' if peer else ''} | {ratio} | {share} |"
            )
    for check in section["checks"]:
        if check["status"] == "skipped":
            lines.append(f"\nNot measured: {check['name']}: {one_line(check)}.")
    return lines
