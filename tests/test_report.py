"""The report as a person reads it: what is safe, why, and nothing that is not borne out."""

from __future__ import annotations

import ast
import html
import json
import os
import random
import re
import shlex
import shutil
import stat
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli import many_files, report
from batch_invariance.cli.cell_reading import read_cell
from batch_invariance.cli.main import build_parser
from batch_invariance.formats.html_charts import octave_of
from batch_invariance.formats.html_markup import element
from batch_invariance.formats.html_page import draw_cell
from batch_invariance.formats.html_style import DARK, LIGHT
from batch_invariance.invariance_diff.codewords import with_codewords
from batch_invariance.invariance_diff.gates import GATES
from batch_invariance.invariance_diff.report_data import FULL, detail_for
from batch_invariance.invariance_diff.report_repeat import repeat_of
from batch_invariance.invariance_diff.report_words import GATE_QUESTIONS, GATE_SHORTFALLS, Standing
from batch_invariance.profiles.spark.generate import SparkPlan, generate
from ci_fixtures import AMBER, RED, UNVERIFIED, call, unchanged, write_cert
from report_fixtures import (
    FOREIGN,
    HOSTILE_SHOWN,
    Node,
    contaminated,
    make_folder,
    read_page,
    sections,
)

ROOT = Path(__file__).resolve().parents[1]
LIVE = ROOT / "examples" / "certs"
FORMATS = ROOT / "src" / "batch_invariance" / "formats"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("certs"))


def page_of(*paths: Path, capsys: pytest.CaptureFixture[str], out: Path) -> str:
    done = call(report, capsys, *paths, "-o", out)
    assert (done.code, done.stderr) == (0, "")
    return out.read_text("utf-8")


@pytest.fixture
def page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Node:
    return read_page(page_of(folder, capsys=capsys, out=tmp_path / "report.html"))


def one(path: Path, capsys: pytest.CaptureFixture[str], out: Path) -> Node:
    """The section of a report of one certificate."""
    (section,) = sections(read_page(page_of(path, capsys=capsys, out=out))).values()
    return section


def chips(node: Node) -> list[str]:
    return [chip.text for chip in node.all("span", "chip")]


# The file.


def test_it_needs_nothing_else_and_runs_nothing(page: Node) -> None:
    tags = {node.tag for node in page.walk()}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    for node in page.walk():
        for name, value in node.attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src"):
                assert (value or "").startswith("#")
    policy = [m for m in page.all("meta") if "http-equiv" in m.attributes]
    assert "default-src 'none'" in str(policy[0].attributes["content"])
    assert "url(" not in page.all("style")[0].text
    assert "@import" not in page.all("style")[0].text


def test_it_can_be_read_without_seeing_it(page: Node) -> None:
    assert page.all("html")[0].attributes["lang"] == "en"
    headings = [int(n.tag[1]) for n in page.walk() if re.fullmatch("h[1-6]", n.tag)]
    assert headings.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))
    assert all(table.all("caption") for table in page.all("table"))
    for svg in page.all("svg"):
        assert svg.attributes.get("aria-label") or svg.attributes.get("aria-hidden") == "true"
    for head in page.all("th"):
        assert head.attributes["scope"] in ("col", "row", "colgroup")


def test_every_link_leads_somewhere(page: Node) -> None:
    ids = [n.attributes["id"] for n in page.walk() if "id" in n.attributes]
    assert len(set(ids)) == len(ids)
    targets = {(n.attributes["href"] or "")[1:] for n in page.walk() if "href" in n.attributes}
    assert targets <= set(ids)
    assert len(page.all("a", "cell")) == len(sections(page)) - 1  # the broken file has no field


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_stands_out_from_its_ground(palette: Mapping[str, str]) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    grounds = [(text, ground) for text in ("fg", "mute") for ground in ("bg", "card", "c-soft")]
    grounds.remove(("mute", "c-soft"))  # only names of requests stand on it
    grounds += [("link", "bg"), ("loud-fg", "loud"), ("mark-fg", "mark")]
    grounds += [(f"{letter}-fg", f"{letter}-bg") for letter in "gaurn"]
    grounds += [(f"{letter}-fg", "bg") for letter in "gru"]
    for text, ground in grounds:
        light, dark = sorted((luminance(palette[text]), luminance(palette[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_nothing_but_constants_becomes_markup_unescaped() -> None:
    seen = 0
    for path in sorted(FORMATS.glob("html_*.py")):
        if path.name == "html_markup.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Markup":
                seen += 1
                assert path.name == "html_style.py"
    assert seen == 2
    assert element("b", "<&>", title='"<').html == '<b title="&quot;&lt;">&lt;&amp;&gt;</b>'


# What it says.


def test_a_stranger_sees_first_which_cells_are_safe(page: Node) -> None:
    points = page.all("ul", "short")[0].all("li")
    said = [(chips(p)[0], p.all("strong")[0].text.strip(), p.text) for p in points]
    assert said[0][:2] == ("GREEN", "1")
    assert "safe as measured" in said[0][2]
    assert "green, ctx 512, N=4" in said[0][2]
    assert said[1][:2] == ("GREEN", "1")
    assert "canary" in said[1][2]
    assert "nothing about a real model" in said[1][2]
    assert [s[:2] for s in said[2:]] == [
        ("RED", "1"),
        ("NOT VERIFIED", "3"),
        ("UNVERIFIED", "2"),
        ("AMBER", "1"),
    ]


def test_without_a_safe_cell_it_says_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cert(tmp_path, RED)
    page = read_page(page_of(tmp_path, capsys=capsys, out=tmp_path / "r.html"))
    first = page.all("ul", "short")[0].all("li")[0]
    assert first.text.startswith("NONE SAFE0 of 1")


def test_the_legend_explains_every_word_in_the_matrix(page: Node) -> None:
    explained = {chip.text for chip in page.all("dl", "legend")[0].all("span", "chip")}
    shown = {cell.all("b")[0].text for cell in page.all("a", "cell")}
    assert shown == explained == {standing.value for standing in Standing}


def test_the_matrix_has_a_row_for_each_model_with_its_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, (ctx, n, flags) in enumerate(
        [(512, 2, ()), (512, 4, ()), (1024, 4, ()), (512, 4, ("-fa", "on"))]
    ):
        cell = {"model": "m", "ctx": ctx, "dispatch_n": n, "server_flags": flags}
        write_cert(tmp_path / str(i), unchanged, **cell)
    page = read_page(page_of(tmp_path, capsys=capsys, out=tmp_path / "r.html"))
    (matrix,) = page.all("table", "matrix")
    heads = [row.all("th") for row in matrix.all("thead")[0].all("tr")]
    assert [h.text for h in heads[0]] == ["Model and flags", "ctx 512", "ctx 1024"]
    assert [h.text for h in heads[1]] == ["N=2", "N=4", "N=4"]
    rows = matrix.all("tbody")[0].all("tr")
    assert [row.all("th")[0].all("small")[0].text.split(";")[0] for row in rows] == [
        "-fa on",
        "no further flags",
    ]
    assert [len(row.all("a")) for row in rows] == [1, 3]
    assert rows[0].text.count("not measured") == 2


def test_each_field_says_why_in_brief(page: Node) -> None:
    said = {}
    for row in page.all("table", "matrix")[0].all("tbody")[0].all("tr"):
        model = row.all("th")[0].children[0]
        said[model] = [span.text for span in row.all("a", "cell")[0].all("span")]
    assert said["green"][0] == "0 of 20 changed"
    assert said["red"][0] == "1 of 20 changed"
    assert said["amber"][0] == "1 of 20 in tokens alone"
    assert said["unverified"][0] == "requests lost"
    assert said["edited"] == ["claims GREEN"]
    assert re.fullmatch(r"\d+\.\d\dx as fast", said["green"][1])
    assert said["canary"][1].endswith("as fast, canary")
    assert set(GATE_SHORTFALLS) == {gate.name for gate in GATES} - {"F0_score", "tokens"}


def test_what_is_not_borne_out_is_never_green(page: Node) -> None:
    for name in ("alone, ctx 512, N=4", "edited, ctx 512, N=4"):
        section = sections(page)[name]
        assert chips(section)[0] == "NOT VERIFIED"
        assert "the file itself says GREEN" in section.text
        assert "claims PASS" in section.text
        letters = {c for n in section.walk() for c in n.classes}
        assert not letters & {"g", "cg", "o-p"}
        uses = {n.attributes["href"] for n in section.all("use")}
        assert "#i-g" not in uses
        assert "Verified:" not in section.text
    assert "there is no evidence at" in sections(page)["alone, ctx 512, N=4"].text
    assert "status: says" in sections(page)["edited, ctx 512, N=4"].text
    fields = [a for a in page.all("a", "cell") if "claims GREEN" in a.text]
    assert [a.all("b")[0].text for a in fields] == ["NOT VERIFIED", "NOT VERIFIED"]


def test_what_is_borne_out_says_so(page: Node) -> None:
    section = sections(page)["green, ctx 512, N=4"]
    assert chips(section) == ["GREEN"]
    assert "derived again from its evidence" in section.text
    assert "with 95 % confidence" in section.text


def test_an_unverified_run_bounds_nothing(page: Node) -> None:
    assert "95 %" not in sections(page)["unverified, ctx 512, N=4"].text


def test_a_broken_file_is_named_and_leads_to_its_fault(page: Node, folder: Path) -> None:
    section = sections(page)[str(folder / "broken.json")]
    assert chips(section) == ["NOT VERIFIED"]
    assert "is not JSON" in section.text


def test_the_worst_comes_first(page: Node) -> None:
    order = [chips(section)[0] for section in sections(page).values()]
    assert order == sorted(order, key=[s.value for s in Standing].index)


def test_every_gate_is_asked_in_words_and_measured_against_required(page: Node) -> None:
    (table,) = sections(page)["red, ctx 512, N=4"].all("table", "gates")
    rows = [[cell.text for cell in row.all("td")] for row in table.all("tbody")[0].all("tr")]
    assert {row[1] for row in rows} == {GATE_QUESTIONS[g.name] + g.name for g in GATES}
    assert rows[0][0] == "FAIL"
    assert rows[0][1].endswith("F0_score")
    assert rows[0][2] == "1 ids differ: i3"
    assert {row[3] for row in rows} == {gate.required for gate in GATES}


def test_the_gate_questions_are_those_of_the_table() -> None:
    assert list(GATE_QUESTIONS) == [gate.name for gate in GATES]


def test_a_change_stands_side_by_side_with_the_difference_marked(page: Node) -> None:
    section = sections(page)["red, ctx 512, N=4"]
    (change,) = section.all("div", "div")
    assert "i3: differs in 1 of" in change.text
    assert "lane" in change.text
    sides = [(f.all("figcaption")[0].text, f.all("mark")) for f in change.all("figure")]
    assert [name for name, _ in sides] == ["Alone (A)", "Batched (C)"]
    assert sides[1][1][0].text == "another"
    assert sides[0][1][0].text != "another"
    assert "Put down to" in section.text or "Not put down" in section.text


def test_a_real_divergence_shows_tokens_margin_and_logprobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = one(LIVE / "demo_dense_live_cert.json", capsys, tmp_path / "r.html")
    first = section.all("div", "div")[0]
    assert re.search(r"First different token \d+: alone it has token (\d+), batched", first.text)
    assert "nats away" in first.text
    logprobs = [[c.text for c in row.all("td")] for row in first.all("tbody")[0].all("tr")]
    assert len(logprobs) == 2
    assert float(logprobs[0][1]) > float(logprobs[1][1])
    assert float(logprobs[0][2]) < float(logprobs[1][2])
    assert "Put down to the batch" in section.text
    assert [c.text for c in section.all("mark")][:2] != ["", ""]


def test_a_real_cell_is_drawn_on_its_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = one(LIVE / "demo_dense_live_cert.json", capsys, tmp_path / "r.html")
    charts = section.all("svg", "time")
    label = str(charts[0].attributes["aria-label"])
    for arm in ("A ", "A2 ", "B ", "C ", "confirm ", "P "):
        assert f"{arm}" in label
    assert {n.classes[1] for n in charts[0].all("path")} >= {"a-a", "a-a2", "a-b", "a-c", "a-p"}
    whole = charts[1]
    names = {title.text.split(",")[0] for title in whole.all("title")}
    assert "code-output" in names
    assert any("forward passes shared" in title.text for title in whole.all("title"))
    assert whole.all("path", "q-flag")
    assert {t.text for t in whole.all("text", "row")} == {f"slot {i}" for i in range(4)}


def test_a_real_cell_shows_batches_drift_speed_and_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = LIVE / "demo_dense_live_cert.json"
    cert = json.loads(path.read_bytes())
    section = one(path, capsys, tmp_path / "r.html")
    captions = [table.all("caption")[0].text for table in section.all("table")]
    assert "Items that generated in a batch of each size" in captions
    assert "Tokens per second of wall time" in captions
    (chart,) = section.all("svg", "hist")
    assert {n.classes[0] for n in chart.all("path")} == {"h-drift", "h-margin"}
    for known in (
        cert["subject"]["model"]["sha256"],
        cert["workset_sha256"],
        cert["cell_sha256"],
        cert["observer"]["tool"],
        cert["ts_utc"],
        f"{cert['throughput']['speedup']:.2f}x",
        "pairs of ids met",
    ):
        assert known in section.text


def test_contamination_is_loud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cert(tmp_path, contaminated)
    page = read_page(page_of(tmp_path, capsys=capsys, out=tmp_path / "r.html"))
    assert page.all("ul", "short")[0].all("li")[0].text.startswith("CONTAMINATION1")
    (section,) = sections(page).values()
    (alarm,) = section.all("div", "loud")
    assert alarm.attributes["role"] == "alert"
    assert "The answer to i3 holds text of i" in alarm.text
    assert FOREIGN in alarm.all("mark")[0].text
    assert "an answer holds text of another request" in section.all("summary")[0].text


def test_what_others_wrote_shows_as_text(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page_of(folder, capsys=capsys, out=tmp_path / "r.html")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script" not in text
    assert "<img" not in text
    page = read_page(text)
    section = sections(page)[f"{HOSTILE_SHOWN}, ctx 512, N=4"]
    (change,) = section.all("div", "div")
    assert change.all("strong")[0].text == HOSTILE_SHOWN
    batched = change.all("figure")[1].all("div", "t")[0]
    assert batched.text == HOSTILE_SHOWN
    assert any(cell.text.startswith(HOSTILE_SHOWN) for cell in page.all("th"))
    assert HOSTILE_SHOWN in html.unescape(re.sub("<[^>]*>", "", text))


# How to repeat it.


@pytest.mark.parametrize("name", ["demo_dense_live_cert", "demo_twins_canary_cert"])
def test_the_command_to_repeat_is_one_that_the_program_takes(name: str) -> None:
    path = LIVE / f"{name}.json"
    cert = json.loads(path.read_bytes())
    cell = read_cell(path, FULL)
    assert cell.certificate is not None
    assert cell.run is not None
    repeat = repeat_of(cell.certificate, cell.run.header)
    assert repeat.command is not None
    words = shlex.split(repeat.command)
    assert words[0] == "batch-invariance"
    cut = words.index("--") if "--" in words else len(words)
    args = build_parser().parse_args(words[1:cut])
    assert (args.ctx, args.parallel, args.passes) == (
        cert["ctx"],
        cert["dispatch_n"],
        cert["n_passes"],
    )
    assert args.max_tokens == cell.run.header.plan.sampling.max_tokens
    assert args.seed == cert["schedule"]["seed"]
    assert tuple(words[cut + 1 :]) == tuple(cert["promotion_scope"]["valid_for"]["server_flags"])
    assert args.server_bin == cert["lifetimes"][0]["start"]["argv"][0]
    if cert["source"] == "canary":
        assert args.canary == "f16,twins,seed=0"
    else:
        assert args.model.name == cert["subject"]["model"]["file"]
        assert str(args.workset) == cert["workset"]["name"]
        assert any(cert["workset_sha256"] in note for note in repeat.notes)


def test_the_command_names_the_profile_and_the_codewords() -> None:
    """The profile's work-set is generated, so its options stand in the items alone."""
    cell = read_cell(LIVE / "demo_short_live_cert.json", FULL)
    assert cell.run is not None
    assert cell.certificate is not None
    header, certificate = cell.run.header, cell.certificate
    plan = SparkPlan(7, 2048, fills=(0.05, 0.3), per_family=2)
    made = generate(plan, lambda messages: sum(len(m.content.split()) for m in messages)).workset
    worded = with_codewords(made, 7)
    certificate = replace(
        certificate,
        workset=replace(certificate.workset, name=made.name),
        scorer=replace(certificate.scorer, name="spark"),
    )
    plain = repeat_of(certificate, replace(header, workset=made)).command
    assert plain is not None
    assert plain.endswith("--profile spark --fills 0.05,0.3 --per-family 2")
    assert repeat_of(certificate, replace(header, workset=worded)).command == f"{plain} --codewords"
    other = replace(certificate, scorer=replace(certificate.scorer, name="exact_match"))
    assert "--scorer exact_match" in str(repeat_of(other, header).command)


def test_without_evidence_the_command_says_what_it_does_not_know() -> None:
    cell = read_cell(LIVE / "demo_dense_live_cert.json", FULL)
    assert cell.certificate is not None
    repeat = repeat_of(cell.certificate, None)
    assert repeat.command is not None
    assert "--max-tokens" not in repeat.command
    assert "without the evidence" in repeat.notes[0]


# The verb.


def test_a_file_that_is_there_is_left_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    done = call(report, capsys, folder, "-o", out)
    assert done.code == 2
    assert "exists already" in done.stderr
    assert out.read_text() == "mine"
    assert call(report, capsys, folder, "-o", tmp_path / "no" / "r.html").code == 2


def test_the_report_quotes_answers_and_so_is_for_its_owner(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    done = call(report, capsys, folder, "-o", out, "--json")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    said = done.json
    assert said["bytes"] == out.stat().st_size
    cells = {str(cell.get("model")): cell for cell in said["cells"]}
    assert len(said["cells"]) == 9
    assert cells["green"]["verdict"] == "GREEN"
    assert cells["green"]["promotable"] is True
    assert (cells["edited"]["verdict"], cells["edited"]["promotable"]) == (None, False)
    assert cells["edited"]["claimed_verdict"] == "GREEN"
    assert cells["alone"]["verified"] is False
    assert cells["None"]["problems"]


def test_nothing_to_report_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(report, capsys, tmp_path, "-o", tmp_path / "r.html")
    assert done.code == 1
    assert "no certificate" in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_other_json_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cert(tmp_path)
    (tmp_path / "notes.json").write_text('{"a": 1}')
    page = read_page(page_of(tmp_path, capsys=capsys, out=tmp_path / "r.html"))
    assert "notes.json" in page.all("footer")[0].text


def test_several_processes_make_the_same_page(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(name: str) -> str:
        return re.sub("made [^<]*", "", page_of(folder, capsys=capsys, out=tmp_path / name))

    alone = made("alone.html")
    started: list[int] = []
    real = many_files._in_processes

    def counted(work: Any, tasks: Any, processes: int) -> Any:
        started.append(processes)
        return real(work, tasks, processes)

    monkeypatch.setattr(many_files, "WORTH_BYTES", 0)
    monkeypatch.setattr(many_files, "_processors", lambda: 2)
    monkeypatch.setattr(many_files, "_in_processes", counted)
    assert made("together.html") == alone
    assert started == [2]


def ends_in_a_child(parent: int) -> int:
    """Kills the process that it runs in, unless that is `parent`."""
    if os.getpid() != parent:
        os._exit(9)
    return parent


def test_a_process_that_dies_costs_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_files, "_processors", lambda: 2)
    mine = os.getpid()
    assert many_files.over_files(ends_in_a_child, [mine] * 4, 1 << 40) == [mine] * 4


@pytest.mark.parametrize("change", [RED, AMBER, UNVERIFIED, unchanged])
def test_one_of_two_hundred_cells_is_small(tmp_path: Path, change: Any) -> None:
    detail = detail_for(200)
    cell = read_cell(write_cert(tmp_path, change), detail)
    section = draw_cell(cell, 200, 200, detail)
    assert cell.problems == ()
    assert len(section.html.encode()) < 24_000


# Files that are wrong.


def test_no_broken_certificate_breaks_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values of every kind in every place: the report is made, and none of them is green."""
    source = write_cert(tmp_path / "source", RED)
    cert = json.loads(source.read_bytes())
    rng = random.Random(1)
    values: list[object] = [
        *(None, True, -1, 10**400, 1e308, "", "\ud800", "<b>", [], {}, [[]], {"a": [{}]}),
    ]
    certs = tmp_path / "certs"
    certs.mkdir()
    shutil.copy(source.with_suffix(".evidence.jsonl"), certs)
    for i in range(150):
        broken = json.loads(json.dumps(cert))
        place: Any = broken
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.2:
                break
            place = inner
        place[key] = rng.choice(values)
        if broken == cert:
            continue
        broken["status"], broken["verdict"] = "green", "GREEN"
        (certs / f"{i}.json").write_text(json.dumps(broken), "ascii")
    out = tmp_path / "r.html"
    done = call(report, capsys, certs, "-o", out, "--json")
    assert done.code == 0
    assert len(done.json["cells"]) + len(done.json["left_out"]) > 100
    assert not any(cell["verified"] for cell in done.json["cells"])
    page = read_page(out.read_text("utf-8"))
    assert {chips(s)[0] for s in page.all("details", "c")} == {"NOT VERIFIED"}


def test_a_deeply_nested_certificate_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_cert(tmp_path)
    cert = json.loads(path.read_bytes())
    nested: dict[str, object] = dict(cert["score_impact"], by_family=None)
    for _ in range(180):
        nested = dict(nested, by_family={"a": nested})
    cert["score_impact"] = nested
    path.write_text(json.dumps(cert))
    assert chips(one(path, capsys, tmp_path / "r.html"))[0] == "NOT VERIFIED"


@pytest.mark.parametrize(
    ("edge", "octave"),
    [("1.0", -1), ("1.25", 0), ("2.0", 0), ("0.0", None), ("x", None), ("inf", None)],
)
def test_a_bin_belongs_to_the_octave_below_its_edge(edge: str, octave: int | None) -> None:
    assert octave_of(edge) == octave
