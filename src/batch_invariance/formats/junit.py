"""JUnit XML: a test suite for each cell, a test case for each of its checks.

Written to what Jenkins (its `junit-10.xsd`: no attribute and no element beyond those), GitLab and
the GitHub actions that read such files have in common. Properties stand at the suite, where all of
them allow any. Jenkins takes what precedes the last dot of a class name as its package, so
the dots of a cell's name become underscores there.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from batch_invariance.invariance_diff.cell_checks import Check, CheckedCell, Mark

TOOL = "batch-invariance"
# What XML 1.0 allows: https://www.w3.org/TR/xml/#charsets
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENT = {Mark.FAILED: "failure", Mark.ERROR: "error", Mark.SKIPPED: "skipped"}


def junit_xml(cells: Sequence[CheckedCell]) -> bytes:
    """The file's bytes, UTF-8. Characters that XML 1.0 cannot hold are dropped."""
    root = ElementTree.Element(
        "testsuites",
        {
            "name": TOOL,
            "tests": str(sum(len(cell.checks) for cell in cells)),
            "failures": str(sum(cell.count(Mark.FAILED) for cell in cells)),
            "errors": str(sum(cell.count(Mark.ERROR) for cell in cells)),
            "time": _seconds(sum(cell.seconds for cell in cells)),
        },
    )
    for cell in cells:
        _suite(root, cell)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _suite(root: ElementTree.Element, cell: CheckedCell) -> None:
    attributes = {
        "name": xml_text(cell.name),
        "tests": str(len(cell.checks)),
        "failures": str(cell.count(Mark.FAILED)),
        "errors": str(cell.count(Mark.ERROR)),
        "skipped": str(cell.count(Mark.SKIPPED)),
        "time": _seconds(cell.seconds),
        "file": xml_text(cell.file),
    }
    if cell.timestamp is not None:
        # JUnit's times have no zone.
        attributes["timestamp"] = xml_text(cell.timestamp.removesuffix("Z"))
    suite = ElementTree.SubElement(root, "testsuite", attributes)
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in cell.properties:
        attributes = {"name": xml_text(name), "value": xml_text(value)}
        ElementTree.SubElement(properties, "property", attributes)
    class_name = f"{TOOL}.{cell.name.replace('.', '_')}"
    for index, check in enumerate(cell.checks):
        # The whole cell was run at once: its time stands with the first check.
        _case(suite, check, class_name, cell.seconds if index == 0 else 0.0)


def _case(suite: ElementTree.Element, check: Check, class_name: str, seconds: float) -> None:
    attributes = {
        "classname": xml_text(class_name),
        "name": xml_text(check.name),
        "time": _seconds(seconds),
    }
    case = ElementTree.SubElement(suite, "testcase", attributes)
    message = check.accepted or check.found
    if check.mark in _ELEMENT:
        kind = check.mark.value if check.finding is None else check.finding.value
        attributes = {"message": xml_text(message), "type": kind}
        ElementTree.SubElement(case, _ELEMENT[check.mark], attributes).text = _body(check)
    else:
        ElementTree.SubElement(case, "system-out").text = _body(check)


def _body(check: Check) -> str:
    lines = [f"found:    {check.found}"]
    if check.required:
        lines.append(f"required: {check.required}")
    if check.accepted:
        lines.append(f"policy:   {check.accepted}")
    return xml_text("\n".join(lines))


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def xml_text(text: str) -> str:
    """`text` without the characters that XML 1.0 cannot hold; escaping is the writer's part."""
    return _ILLEGAL.sub("", text)
