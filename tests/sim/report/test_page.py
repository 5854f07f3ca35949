"""The report is one file that needs no network."""

import re
from xml.etree import ElementTree as ET

from lab.experiments.catalogue import EXPERIMENTS

from millgate.sim.experiments.contract import Arm, ExperimentResult, answer
from millgate.sim.report.drawing import drawing, page


def answered() -> ExperimentResult:
    runs = [
        (Arm(series, load), [(load, {"goodput": value, "waste": 0.1})])
        for series, value in (("gate", 0.9), ("no <gate>", 0.1))
        for load in (1.0, 2.0)
    ]
    return answer(EXPERIMENTS["no_gate_vs_gate"], runs)


def test_a_drawing_is_one_well_formed_picture_with_every_series() -> None:
    tree = ET.fromstring(drawing(answered()))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]

    assert {"gate", "no <gate>", "0", "1", "2"} <= set(texts)
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_a_drawing_of_one_place_shows_its_values() -> None:
    """An experiment at one rate, as one without `rates` is, was an empty frame: a line needs two places."""
    runs = [(Arm("gate", 1.0), [(1.0, {"goodput": value})]) for value in (0.8, 0.9)]
    text = drawing(answer(EXPERIMENTS["no_gate_vs_gate"], runs))

    assert text.count("<circle") == 1


def test_a_report_holds_question_picture_numbers_and_loads_nothing() -> None:
    text = page(answered(), "python -m lab run no_gate_vs_gate")

    assert EXPERIMENTS["no_gate_vs_gate"].question in text
    assert "no &lt;gate&gt;" in text
    assert "<td>0.9</td>" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
