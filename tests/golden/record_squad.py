"""Records the official scorer's numbers on made-up answers: `python record_squad.py evaluate-v2.0.py`.

evaluate-v2.0.py is the script of the SQuAD authors. Answers and predictions are drawn from words that its rules treat
in different ways: articles, punctuation, case, spaces, other scripts, and nothing at all.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

WORDS = (
    *("the", "A", "an", "theatre", "Anna", "anna's", "’s", "1911", "U.S."),
    *("-", "?!", "_", "  ", "Ångström", "café,", "東京"),
)


def text(rng: random.Random, longest: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(0, longest)))


def record(scorer: str) -> dict:
    """Returns {"questions", "predictions", "numbers"}, and the numbers of the answerable ones alone."""
    rng = random.Random(0)
    questions, predictions = [], {}
    for i in range(150):
        answers = [text(rng, 3) for _ in range(rng.choice((0, 1, 3)))]
        questions.append({"id": str(i), "answers": answers})
        predictions[str(i)] = rng.choice(
            [text(rng, 3), "", *answers, *(f"{answer} {text(rng, 2)}" for answer in answers)]
        )
    answerable = [question for question in questions if question["answers"]]
    return {
        "questions": questions,
        "predictions": predictions,
        "numbers": score(scorer, questions, predictions),
        "answerable": score(scorer, answerable, {q["id"]: predictions[q["id"]] for q in answerable}),
    }


def score(scorer: str, questions: list[dict], predictions: dict[str, str]) -> dict:
    asked = [{"id": q["id"], "answers": [{"text": answer} for answer in q["answers"]]} for q in questions]
    with tempfile.TemporaryDirectory() as folder:
        data, answers = Path(folder, "data.json"), Path(folder, "answers.json")
        data.write_text(json.dumps({"data": [{"paragraphs": [{"qas": asked}]}]}))
        answers.write_text(json.dumps(predictions))
        return json.loads(subprocess.check_output([sys.executable, scorer, data, answers]))


if __name__ == "__main__":
    lines = json.dumps(record(sys.argv[1]), ensure_ascii=False, indent=None)
    Path(__file__).with_name("squad.json").write_text(lines + "\n", encoding="utf-8")
