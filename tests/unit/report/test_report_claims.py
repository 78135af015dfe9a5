"""Claims: typed, compared within their tolerance, and in step with ARTIFACT.md."""

from pathlib import Path

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.records import write
from lazytrain.report.benchmarked import benchmarked
from lazytrain.report.claims import claims_table, load_claims
from lazytrain.report.compare import Evidence, compare, paper_values
from lazytrain.report.differences import differences
from lazytrain.report.glance import glance, recorded_runs
from lazytrain.report.markdown import markers, with_section

ROOT = Path(__file__).parents[3]
CLAIMS = ROOT / "config" / "claims.yaml"


def rows_of(evidence, *accelerators):
    rows = compare(load_claims(CLAIMS), evidence, accelerators or ("gpu80",))
    return {(row.claim, row.accelerator): row for row in rows}


def test_the_papers_values_are_computed_from_its_tables(paper):
    values = paper_values(load_claims(CLAIMS), paper)
    assert values["C1"] == "1.243"  # 219.95 / 176.90
    assert values["C6"] == "0.878"  # 193.17 / 219.95
    assert values["C8"] == "0.060"  # 88.99 - 88.93
    assert values["C9"] == "1.000"  # 2 - 1


@pytest.mark.parametrize(("tflops", "verdict"), [(200.0, "holds"), (180.0, "differs")])
def test_a_ratio_is_judged_by_its_tolerance(make_record, paper, tflops, verdict):
    runs = [make_record(tflops=tflops), make_record("megatrain", tflops=161.4)]
    row = rows_of(Evidence(runs, [], paper))["C1", "gpu80"]
    assert row.verdict == verdict
    assert row.measured == f"{tflops / 161.4:.4f}"
    assert row.paper == "1.2434"


def test_a_missing_side_is_not_measured_and_shows_no_number(make_record, paper):
    row = rows_of(Evidence([make_record()], [], paper))["C1", "gpu80"]
    assert (row.verdict, row.measured, row.ratio) == ("not measured", "", "")


def test_out_of_memory_is_no_throughput(make_record, paper):
    runs = [
        make_record(status="oom", tflops=None, tokens_per_s=None),
        make_record("megatrain"),
    ]
    assert rows_of(Evidence(runs, [], paper))["C1", "gpu80"].verdict == "not measured"


def test_accuracy_spread_is_in_points(make_evaluation, paper):
    evaluations = [
        make_evaluation(exact_match=0.500),
        make_evaluation("megatrain", exact_match=0.504),
    ]
    row = rows_of(Evidence([], evaluations, paper), "cpu")["C8", "cpu"]
    assert (row.measured, row.verdict) == ("0.4000", "holds")


def test_the_batch_claim_is_made_for_small_cards_only(make_record, paper):
    runs = [
        make_record("lazytrain", accelerator=name, batch=2)
        for name in ("gpu24", "gpu80")
    ] + [
        make_record("megatrain", accelerator=name, batch=1)
        for name in ("gpu24", "gpu80")
    ]
    rows = rows_of(Evidence(runs, [], paper), "gpu24", "gpu80")
    assert rows["C9", "gpu24"].verdict == "holds"
    assert rows["C9", "gpu80"].verdict == "not measured"
    assert "gpu24" in rows["C9", "gpu80"].remark


def test_a_stand_in_is_named_in_the_remark(make_record, paper):
    values = {"accelerator": "cpu", "model": "27B-mini", "stands_for": "Qwen3.6-27B"}
    runs = [make_record(**values), make_record("megatrain", **values)]
    assert "27B-mini" in rows_of(Evidence(runs, [], paper), "cpu")["C1", "cpu"].remark


def test_other_batches_on_the_two_sides_are_named(make_record, paper):
    runs = [make_record(batch=144), make_record("megatrain", batch=96)]
    row = rows_of(Evidence(runs, [], paper))["C1", "gpu80"]
    assert row.remark == "batches differ: lazytrain 144, megatrain 96"
    same = [make_record(batch=96), make_record("megatrain", batch=96)]
    assert rows_of(Evidence(same, [], paper))["C1", "gpu80"].remark == ""
    failed = [runs[0], make_record("megatrain", batch=96, status="oom", tflops=None)]
    assert rows_of(Evidence(failed, [], paper))["C1", "gpu80"].remark == ""


def test_a_claim_id_is_used_once(tmp_path):
    text = CLAIMS.read_text().replace("id: C2\n", "id: C1\n")
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="used twice"):
        load_claims(path)


def test_the_artifact_holds_the_table_of_claims(paper):
    claims = load_claims(CLAIMS)
    text = (ROOT / "ARTIFACT.md").read_text()
    table = claims_table(claims, paper_values(claims, paper))
    remedy = "run `make documents`"
    assert with_section(text, "claims", table) == text, remedy


def test_the_readme_holds_the_table_of_recorded_runs():
    text = (ROOT / "README.md").read_text()
    table = glance(recorded_runs(ROOT / "results" / "recorded"))
    assert with_section(text, "results", table) == text, "run `make documents`"


def test_the_readme_holds_the_table_of_recorded_benchmarks(tmp_path):
    text = (ROOT / "README.md").read_text()
    rows = benchmarked(ROOT / "results" / "recorded")
    assert with_section(text, "benchmarks", rows) == text, "run `make documents`"
    assert benchmarked(tmp_path) == ""
    (tmp_path / "throughput-3B.json").write_text('{"model": "Qwen2.5-3B"}')
    with pytest.raises(InvalidInput, match="throughput-3B"):
        benchmarked(tmp_path)


def test_recorded_runs_are_shown_in_order_with_their_limits(make_record, tmp_path):
    for name in ("megatrain", "lazytrain"):
        write(make_record(name), tmp_path / name / "record.json")
    write(make_record(status="oom", scale="3B"), tmp_path / "oom" / "record.json")
    write(make_record(purpose="quality"), tmp_path / "quality" / "record.json")
    lines = glance(recorded_runs(tmp_path)).splitlines()[2:]
    assert [("OOM@72" in line, "161.4" in line) for line in lines] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert "megatrain" in lines[1]


def test_nothing_recorded_is_said_in_a_sentence(tmp_path):
    assert "No runs are recorded" in glance(recorded_runs(tmp_path))


def test_a_document_without_markers_is_refused():
    begin, end = markers("claims")
    text = with_section(f"a\n{begin}\nold\n{end}\nb", "claims", "new")
    assert text == f"a\n{begin}\n\nnew\n\n{end}\nb"
    with pytest.raises(InvalidInput, match="lacks the line"):
        with_section("no markers", "claims", "new")


def test_the_artifact_holds_the_table_of_differences(paper):
    text = (ROOT / "ARTIFACT.md").read_text()
    table = differences(recorded_runs(ROOT / "results" / "recorded"), paper)
    assert with_section(text, "differences", table) == text, "run `make documents`"


def test_differences_compare_under_one_rule_for_n(make_record, paper):
    runs = [
        make_record(system, "7B", "h200-cap70", **values)
        for system, values in (
            ("lazytrain", {"tokens_per_s": 9600.0, "tflops": 438.7}),
            ("megatrain", {"tokens_per_s": 4800.0, "tflops": 219.3}),
            ("resident", {}),
        )
    ]
    shared = {"model": "Qwen2.5-7B", "stands_for": "Qwen2.5-7B", "batch": 144}
    shared["num_parameters"] = 7_615_616_512
    runs = [run.model_copy(update=shared) for run in runs]
    lines = differences(runs, paper).splitlines()[2:]
    assert len(lines) == 2  # the paper has no resident row
    cells = [cell.strip() for cell in lines[1].split("|")[1:-1]]
    assert cells[0] == "h200-cap70 (H800 in the paper)"
    # 6 * 7.616e9 * 4758 tokens/s = 217.4 TFLOPS; it printed 199.84 with N = 7e9.
    assert cells[5:8] == ["438.7", "217.4", "2.02"]
    assert cells[8:] == ["2.00", "1.24"]
    assert "No recorded run" in differences(runs[2:], paper)


def test_an_ablation_at_another_scale_is_compared_with_the_printed_one(
    make_record, paper
):
    (claim,) = [c for c in load_claims(CLAIMS) if c.id == "C10"]
    runs = [
        make_record(system, "7B", tflops=tflops)
        for system, tflops in (("lazytrain", 400.0), ("lazytrain-no-milp", 352.0))
    ]
    (row,) = compare([claim], Evidence(runs, [], paper), ["gpu80"])
    assert (row.measured, row.paper) == ("0.8800", "0.8782")
    assert row.verdict == "holds"
