"""Forms of text and labels that are read, each a small file with what it holds: tests read them all, and the page
docs/reference/forms.md shows most. `python -m tests.forms` writes the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unmask.commands.embedder_texts import read_pairs
from unmask.data.documents import Documents
from unmask.tasks.files import Columns, example_files, read_labelled
from unmask.tasks.kinds import task_named

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "forms.md"
TEXT, PAIRS = "text", "pairs of an embedder"
HEADINGS = {
    TEXT: "Text (`prepare`, `pretrain`, `embed`, `search`)",
    "classify": "Classes (`finetune --task classify`)",
    "multi_label": "Several labels (`--task multi_label`)",
    "regress": "Numbers (`--task regress`)",
    "pairs": "Pairs of texts with a class (`--task pairs`)",
    "tag": "Tags of words, and entities (`--task tag`)",
    "answer": "Questions (`--task answer`)",
    PAIRS: "Pairs that belong together (`embedder --pairs`)",
}


class Form(NamedTuple):
    """A form of files."""

    kind: str  # a key of `HEADINGS`
    name: str  # for the page
    file: str
    content: str | bytes
    holds: list[Any]  # documents; (text, label); (first, second, label); (words, tags); (question, context, answers)
    columns: Mapping[str, str] = {}  # columns that must be named, by role: `text`, `second`, `label`; `query`, ...
    shown: bool = True  # on the page: others are read as a user expects, or as a page says in words


FORMS = [
    # Text
    Form(TEXT, "CSV with a header", "a.csv", "id,text\n7,One sea.\n8,Two seas.\n", ["One sea.", "Two seas."]),
    Form(
        TEXT, "CSV of a spreadsheet, with decimal commas", "a.csv",
        "sep=;\nNr;Tiefe;Bemerkung\n1;2,5;Das Boot, alt, ruht.\n2;3,5;Die See ist tief, sagt man.\n",
        ["Das Boot, alt, ruht.", "Die See ist tief, sagt man."],
    ),
    Form(
        TEXT, "CSV of logs", "a.csv",
        "system,line\nsshd,Failed password for root\ncron,Session 7 is open\nsshd,Connection closed by root\n",
        ["Failed password for root", "Session 7 is open", "Connection closed by root"],
        shown=False,
    ),
    Form(
        TEXT, "CSV of Windows' Event Viewer, whose last column has no name", "a.csv",
        "Level,Date and Time,Source,Event ID,Task Category\n"
        "Information,3/1/2026 6:00:01 AM,Spooler,7036,None,The service has stopped.\n"
        'Error,3/1/2026 6:00:04 AM,Disk,11,None,"The driver, once more, found an error\non drive 1."\n',
        ["The service has stopped.", "The driver, once more, found an error\non drive 1."],
        shown=False,
    ),
    Form(
        TEXT, "CSV of PowerShell", "a.csv",
        '#TYPE System.Diagnostics.Eventing.Reader.EventLogRecord\n"Message","Id","ProviderName"\n'
        '"The service, once running, has stopped.","7036","Spooler"\n"The driver found an error.","11","Disk"\n',
        ["The service, once running, has stopped.", "The driver found an error."],
        shown=False,
    ),
    Form(
        TEXT, "CSV without a header, whose first cell could be a name", "a.csv",
        "post,The old stove waits for us.\ncomment,A lamp shines in the dark.\npost,The river moves on and on.\n",
        ["The old stove waits for us.", "A lamp shines in the dark.", "The river moves on and on."],
        shown=False,
    ),
    Form(
        TEXT, "CSV without a header: class, title, text", "a.csv",
        '"3","Wall St. Bears","Short sellers, Wall Street\'s band, see green again."\n'
        '"4","Oil Prices","Soaring crude prices, and the economy, hang over stocks."\n',
        ["Short sellers, Wall Street's band, see green again.",
         "Soaring crude prices, and the economy, hang over stocks."],
    ),
    Form(
        TEXT, "CSV with empty columns", "a.csv",
        "v1,v2,,,\nham,Ok lar... Joking wif u oni,,,\nspam,Free entry in a comp for £100 cash,,,\nham,So early,,,\n",
        ["Ok lar... Joking wif u oni", "Free entry in a comp for £100 cash", "So early"],
        shown=False,
    ),
    Form(TEXT, "molecules", "a.csv", "smiles\nCCO\nc1ccccc1\nCC(=O)O\n", ["CCO", "c1ccccc1", "CC(=O)O"]),
    Form(TEXT, "molecules, without a header", "a.csv", "CCO\nc1ccccc1\nCC(=O)O\n", ["CCO", "c1ccccc1", "CC(=O)O"],
         shown=False),
    Form(TEXT, "molecules, one per line", "a.smi", "CCO\nc1ccccc1\n", ["CCO", "c1ccccc1"]),
    Form(TEXT, "molecules with ids", "a.smi", "CCO\tZINC1\nc1ccccc1 benzene\n", ["CCO", "c1ccccc1"]),
    Form(
        TEXT, "headlines and stories: the longer column is the text", "a.csv",
        'headline,story\nA sea,"The sea is wide, and nobody has seen its end."\nA boat,It is small but goes on.\n',
        ["The sea is wide, and nobody has seen its end.", "It is small but goes on."],
    ),
    Form(
        TEXT, "TSV of pandas, with its index, and quotes where needed", "a.tsv",
        '\tstory\tkind\n0\t"He said ""no"",\nand left."\tx\n1\tShe stayed for the night.\ty\n',
        ['He said "no",\nand left.', "She stayed for the night."],
    ),
    Form(
        TEXT, "TSV whose quotes are letters", "a.tsv",
        'Quality\t#1 ID\t#1 String\n1\t70\t" The Nasdaq " fell 1.5 percent today\n0\t71\t"Not so fast" he said to me\n',
        ['" The Nasdaq " fell 1.5 percent today', '"Not so fast" he said to me'],
        shown=False,
    ),
    Form(TEXT, "UTF-16, with a byte-order mark", "a.txt", "Tôi đến từ Huế.\nXin chào.\n".encode("utf-16"),
         ["Tôi đến từ Huế.", "Xin chào."], shown=False),
    Form(TEXT, "UTF-16, without", "a.csv", "id,text\n7,Tôi đến từ Huế.\n".encode("utf-16-be"), ["Tôi đến từ Huế."],
         shown=False),
    Form(TEXT, "any plain text", "a.notes", "One sea.\nTwo seas.\n", ["One sea.", "Two seas."], shown=False),
    Form(
        TEXT, "chats", "a.jsonl",
        '{"messages": [{"role": "user", "content": "A sea?"}, {"role": "assistant", "content": "Yes."}]}\n',
        ["A sea?\n\nYes."],
    ),
    # Classes
    Form("classify", "CSV without a header", "a.csv", "A fine day.,good\nRain again.,bad\n",
         [("A fine day.", "good"), ("Rain again.", "bad")]),
    Form("classify", "rows without a label (null, empty, NaN; `-` and -1 beside other classes) are dropped", "a.jsonl",
         '{"text": "Sun.", "label": 0}\n{"text": "Rain.", "label": 2}\n{"text": "Fog.", "label": -1}\n'
         '{"text": "Ice.", "label": null}\n{"text": "Hail.", "label": 1}\n',
         [("Sun.", "0"), ("Rain.", "2"), ("Hail.", "1")], shown=False),
    Form("classify", "a text and a column of few values, under any names", "a.jsonl",
         "".join(f'{{"uid": "u{n}", "opinion": "It rains on day {n}.", "mood": {n % 2}}}\n' for n in range(6)),
         [(f"It rains on day {n}.", str(n % 2)) for n in range(6)], shown=False),
    Form("classify", "the only column of few values that is neither id nor date", "a.csv",
         "CompoundID,SMILES,active,assay_date\n007,CCO,1,2025-02-18\n008,CCCCO,,2025-02-18\n009,OCCO,0,2025-02-18\n",
         [("CCO", "1"), ("OCCO", "0")]),
    Form("classify", "CSV with semicolons", "a.csv", "text;label\nA fine day, really.;good\nRain, again.;bad\n",
         [("A fine day, really.", "good"), ("Rain, again.", "bad")]),
    Form("classify", "CSV of spam", "a.csv",
         "v1,v2,,,\nham,See you at nine,,,\nspam,Win a free prize now!,,,\nham,Not yet home.,,,\n",
         [("See you at nine", "ham"), ("Win a free prize now!", "spam"), ("Not yet home.", "ham")],
         {"text": "1", "label": "v1"}, shown=False),
    # Several labels
    Form("multi_label", "a column of 0 and 1 for each label", "a.csv", "id,text,wet,blue\n1,Sea.,1,1\n2,Rain.,1,0\n",
         [("Sea.", ("wet", "blue")), ("Rain.", ("wet",))]),
    Form("multi_label", "0 and 1 by place", "a.jsonl", '{"text": "Sea.", "labels": [1, 0, 1]}\n',
         [("Sea.", ("0", "2"))]),
    Form("multi_label", "lists", "a.jsonl", '{"text": "Sea.", "labels": ["wet", "blue"]}\n',
         [("Sea.", ("wet", "blue"))]),
    Form("multi_label", "lists as Python and numpy write them", "a.csv",
         "text,labels\nSea.,\"['wet', 'blue']\"\nSky.,['blue' 'high']\n",
         [("Sea.", ("wet", "blue")), ("Sky.", ("blue", "high"))]),
    Form("multi_label", "names separated by `;` (`finetune.label_separator` sets another sign)", "a.csv",
         "text,labels\nSea.,wet; blue\nFire.,\n", [("Sea.", ("wet", "blue")), ("Fire.", ())]),
    # Numbers
    Form("regress", "TSV", "a.tsv", "text\tscore\nA fine day.\t4.5\n", [("A fine day.", 4.5)]),
    Form("regress", "CSV of a spreadsheet, with decimal commas; the only column of numbers", "a.csv",
         "Nr;Struktur;logP (gemessen);Notiz\nM1;CCO;-0,31;\nM2;CCCCCCCC;1.005,18;k.A.\n",
         [("CCO", -0.31), ("CCCCCCCC", 1005.18)]),
    # Pairs of texts with a class
    Form("pairs", "premise and hypothesis", "a.jsonl",
         '{"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"}\n',
         [("It rains.", "It is wet.", "entailment")]),
    Form("pairs", "MRPC's columns", "a.tsv",
         "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
         + "".join(f"{n % 2}\t70{n}\t80{n}\tIt rains on day {n}.\tIt is wet on day {n}.\n" for n in range(6)),
         [(f"It rains on day {n}.", f"It is wet on day {n}.", str(n % 2)) for n in range(6)], shown=False),
    # Tags
    Form("tag", "CoNLL-2003", "a.conll", "Mira B-PER\nsings O\n\nOslo B-LOC\n",
         [(("Mira", "sings"), ("B-PER", "O")), (("Oslo",), ("B-LOC",))]),
    Form("tag", "comments, as `predict` writes them, also where there are no words", "a.conll",
         "# id = a 1\nMira\tB-PER\nsings\tO\n\n# id = b\n\n# id = c\nOslo\tB-LOC\n\n",
         [(("Mira", "sings"), ("B-PER", "O")), (("Oslo",), ("B-LOC",))], shown=False),
    Form("tag", "a no-break or ideographic space is a letter of its word", "a.conll",
         "10\u00a0000 O\n\u3000 O\nOslo B-LOC\n", [(("10\u00a0000", "\u3000", "Oslo"), ("O", "O", "B-LOC"))],
         shown=False),
    Form("tag", "CoNLL-2003 as .txt", "a.txt",
         "-DOCSTART- -X- -X- O\n\nMira NNP B-NP I-PER\nsings VBZ B-VP O\n\nOslo NNP B-NP I-LOC\n",
         [(("Mira", "sings"), ("I-PER", "O")), (("Oslo",), ("I-LOC",))]),
    Form("tag", "CoNLL-2012 (OntoNotes)", "a.v4_gold_conll",
         "#begin document (bc/x); part 000\nx 0 0 Mira NNP (S* - - - - (PERSON* -\nx 0 1 Lee NNP * - - - - *) -\n"
         "x 0 2 sings VBZ *) - - - - * -\n\nx 0 0 Oslo NNP (S*) - - - - (GPE) (3)\n\n#end document\n",
         [(("Mira", "Lee", "sings"), ("B-PERSON", "I-PERSON", "O")), (("Oslo",), ("B-GPE",))]),
    Form("tag", "CoNLL-U", "a.conllu",
         "1\tMira\tMira\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n2\tsings\tsing\tVERB\tVBZ\t_\t0\troot\t_\t_\n",
         [(("Mira", "sings"), ("PROPN", "VERB"))]),
    Form("tag", "words without a tag are ignored", "a.conllu",
         "1\tMira\tMira\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n2\tsings\tsing\t_\t_\t_\t0\troot\t_\t_\n",
         [(("Mira", "sings"), ("PROPN", None))], shown=False),
    Form("tag", "word and tag, one kind of entity (BioBERT's files)", "a.tsv", "Mira\tB\nLee\tI\n\"\tO\n\nOslo\tB\n",
         [(("Mira", "Lee", '"'), ("B", "I", "O")), (("Oslo",), ("B",))]),
    Form("tag", "BMES, as in Chinese files (also BIOES, BILOU)", "a.bmes",
         "王 B-NAME\n小 M-NAME\n红 E-NAME\n去 O\n沪 S-LOC\n",
         [(("王", "小", "红", "去", "沪"), ("B-NAME", "M-NAME", "E-NAME", "O", "S-LOC"))]),
    Form("tag", "one word per row", "a.csv",
         'Sentence #,Word,POS,Tag\nSentence: 1,Mira,NNP,B-PER\n,",",P,O\n,sings,VBZ,O\nSentence: 2,Oslo,NNP,B-LOC\n',
         [(("Mira", ",", "sings"), ("B-PER", "O", "O")), (("Oslo",), ("B-LOC",))]),
    Form("tag", "one word per row, tags in a column that you name", "a.csv",
         "sent_id;token;pos;ner\n1;Mira;NNP;B-PER\n1;sings;VBZ;O\n2;Oslo;NNP;B-LOC\n",
         [(("Mira", "sings"), ("NNP", "VBZ")), (("Oslo",), ("NNP",))], {"label": "pos"}),
    Form("tag", "lists of words and of tags", "a.jsonl", '{"tokens": ["Mira", "sings"], "ner_tags": ["B-PER", "O"]}\n',
         [(("Mira", "sings"), ("B-PER", "O"))]),
    Form("tag", "lists in cells, as JSON, Python or numpy write them", "a.csv",
         "tokens,tags\n\"['Mira', 'sings']\",['B-PER' 'O']\n", [(("Mira", "sings"), ("B-PER", "O"))], shown=False),
    Form("tag", "spans of characters (doccano: `label`)", "a.jsonl",
         '{"id": 1, "text": "Mira Lee sings.", "label": [[0, 8, "PER"]]}\n{"id": 2, "text": "No.", "label": []}\n',
         [(("Mira", "Lee", "sings", "."), ("B-PER", "I-PER", "O", "O")), (("No", "."), ("O", "O"))]),
    Form("tag", "spans as objects (doccano: `entities`, Label Studio)", "a.jsonl",
         '{"text": "Mira sings.", "entities": [{"id": 3, "label": "PER", "start_offset": 0, "end_offset": 4}]}\n',
         [(("Mira", "sings", "."), ("B-PER", "O", "O"))]),
    Form("tag", "spans with words (Prodigy); rejected ones are dropped", "a.jsonl",
         '{"text": "Mira sings.", "tokens": [{"text": "Mira", "start": 0, "end": 4, "id": 0}, {"text": "sings.", '
         '"start": 5, "end": 11, "id": 1}], "spans": [{"start": 0, "end": 4, "label": "PER"}], "answer": "accept"}\n'
         '{"text": "No.", "tokens": [{"text": "No.", "start": 0, "end": 3}], "spans": [], "answer": "reject"}\n',
         [(("Mira", "sings."), ("B-PER", "O"))]),
    Form("tag", "spaCy's JSON (its `.spacy` where spaCy is installed)", "a.json",
         '[["Mira sings.", {"entities": [[0, 4, "PER"]]}], ["红去沪。", {"entities": [[2, 3, "GPE"]]}]]',
         [(("Mira", "sings", "."), ("B-PER", "O", "O")), (("红", "去", "沪", "。"), ("O", "O", "B-GPE", "O"))]),
    Form("tag", "spaCy's `Doc.to_json`", "a.jsonl",
         '{"text": "Mira sings.", "ents": [{"start": 0, "end": 4, "label": "PER"}], "tokens": [{"id": 0, "start": 0, '
         '"end": 4}, {"id": 1, "start": 5, "end": 10}, {"id": 2, "start": 10, "end": 11}]}\n',
         [(("Mira", "sings", "."), ("B-PER", "O", "O"))], shown=False),
    # Questions
    Form("answer", "SQuAD's rows in `datasets`", "a.jsonl",
         '{"question": "Who?", "context": "Mira sings.", "answers": {"text": ["Mira"], "answer_start": [0]}}\n',
         [("Who?", "Mira sings.", ["Mira"])]),
    Form("answer", "CSV with lists as Python writes them", "a.csv",
         "question,context,answers\nWho?,Mira sings.,\"{'text': ['Mira'], 'answer_start': [0]}\"\n",
         [("Who?", "Mira sings.", ["Mira"])], shown=False),
    Form("answer", "CSV with one answer per row", "a.csv",
         "id,question,context,answer_text,answer_start\n7,Who?,Mira sings.,Mira,0\n8,Why?,Mira sings.,,\n",
         [("Who?", "Mira sings.", ["Mira"]), ("Why?", "Mira sings.", [])]),
    Form("answer", "CSV with one answer per row, without its place", "a.csv",
         "question,context,answer\nWho?,Mira sings.,Mira\nWhy?,Mira sings.,\n",
         [("Who?", "Mira sings.", ["Mira"]), ("Why?", "Mira sings.", [])], shown=False),
    Form("answer", "a list of answers, as within SQuAD's JSON", "a.jsonl",
         '{"question": "Who?", "context": "Mira sings.", "answers": [{"text": "Mira", "answer_start": 0}]}\n'
         '{"question": "Why?", "context": "Mira sings.", "answers": []}\n',
         [("Who?", "Mira sings.", ["Mira"]), ("Why?", "Mira sings.", [])]),
    Form("answer", "answers near their `answer_start`; others are dropped", "a.jsonl",
         '{"question": "Who?", "context": "Mira is.", "answers": {"text": ["is", "Ben"], "answer_start": [3, 0]}}\n',
         [("Who?", "Mira is.", ["is"])], shown=False),
    # Pairs that belong together
    Form(PAIRS, "a list of right answers, and one of wrong ones (FlagEmbedding)", "a.jsonl",
         '{"query": "sea?", "pos": ["It is wet.", "Water."], "neg": ["Sand.", "Fire."], "pos_scores": [0.9, 0.8]}\n',
         [("sea?", "It is wet.", "Sand."), ("sea?", "It is wet.", "Fire."),
          ("sea?", "Water.", "Sand."), ("sea?", "Water.", "Fire.")]),
    Form(PAIRS, "a list of texts that belong together", "a.jsonl", '{"set": ["Sea.", "Water.", "Waves."]}\n',
         [("Sea.", "Water."), ("Sea.", "Waves.")]),
    Form(PAIRS, "arrays: a query, a text, wrong ones", "a.jsonl",
         '["sea?", "It is wet."]\n["fire?", "Hot.", "Cold.", "Wet."]\n',
         [("sea?", "It is wet."), ("fire?", "Hot.", "Cold."), ("fire?", "Hot.", "Wet.")]),
    Form(PAIRS, "lists in cells", "a.csv",
         'query,pos,neg\nsea?,"[""It is wet."", ""Water.""]",[\'Sand.\']\n',
         [("sea?", "It is wet.", "Sand."), ("sea?", "Water.", "Sand.")], shown=False),
    Form(PAIRS, "objects with ids, titles and texts (Tevatron, DPR)", "a.jsonl",
         '{"query_id": "q1", "query": "sea?", "positive_passages": [{"docid": "d7", "title": "Sea", "text": "Wet."}], '
         '"negative_passages": [{"docid": "d8", "text": "Sand."}]}\n',
         [("sea?", "Sea Wet.", "Sand.")]),
    Form(PAIRS, "query and text", "a.csv", "query,text\nsea?,The sea is wet.\n", [("sea?", "The sea is wet.")]),
    Form(PAIRS, "several wrong answers in columns", "a.csv",
         "anchor,positive,negative_1,negative_2\nsea?,Wet.,Sand.,\nfire?,Hot.,Cold.,Wet.\n",
         [("sea?", "Wet.", "Sand."), ("fire?", "Hot.", "Cold."), ("fire?", "Hot.", "Wet.")]),
    Form(PAIRS, "two columns of any name, and a named one of 0 and 1", "a.jsonl",
         '{"qid": "a1", "frage": "See?", "antwort": "Nass.", "passt": 1}\n'
         '{"qid": "a2", "frage": "See?", "antwort": "Sand.", "passt": 0}\n', [("See?", "Nass.", "Sand.")],
         {"label": "passt"}),
    Form(PAIRS, "two texts with a score from 0 to 1; below 0.5 the second is a wrong answer", "a.csv",
         "sentence1,sentence2,score\nsea?,Wet.,0.9\nsea?,Sand.,0.1\n", [("sea?", "Wet.", "Sand.")]),
    Form(PAIRS, "two columns without a header", "a.tsv", "sea?\tThe sea is wet.\nfire?\tIt is hot.\n",
         [("sea?", "The sea is wet."), ("fire?", "It is hot.")]),
]  # fmt: skip


def holds(form: Form, folder: Path) -> list[Any]:
    """What the package reads from a form's file, in the form of `Form.holds`."""
    path = folder / form.file
    path.write_bytes(form.content if isinstance(form.content, bytes) else form.content.encode())
    if form.kind == TEXT:
        return [document.text for document in Documents(path, form.columns.get("text"))]
    if form.kind == PAIRS:
        queries, texts = read_pairs(example_files(path), form.columns, lambda _: None)
        rows = zip(queries, texts[: len(queries)], texts[len(queries) :], strict=True)
        return [tuple(filter(None, row)) for row in rows]
    records = read_labelled(path, task_named(form.kind), Columns(**form.columns)).records
    if form.kind == "tag":
        return [(record.words, record.tags) for record in records]
    if form.kind == "answer":
        return [(record.question, record.context, [answer.text for answer in record.answers]) for record in records]
    return [
        tuple(part for part in (record.first, record.second, record.label) if part is not None) for record in records
    ]


def page() -> str:
    """The page's table: each form with the first lines of its file, and what is read from them."""

    def cell(value: object) -> str:
        shown = str(value).replace("\r", "\\r").replace("\n", " ⏎ ").replace("\t", " ⇥ ").replace("|", "\\|")
        return f"`` {shown[:120]}{'…' if len(shown) > 120 else ''} ``"

    lines = []
    for kind, heading in HEADINGS.items():
        lines += [f"\n## {heading}\n", "| format | file | first record |", "| --- | --- | --- |"]
        for form in FORMS:
            if form.kind == kind and form.shown:
                option = "--set embedder.columns.{}={}" if kind == PAIRS else "--{} {}"
                named = ", ".join(option.format(role, column) for role, column in form.columns.items())
                name = f"{form.name} (`{named}`)" if named else form.name
                lines.append(f"| {name} (`{form.file}`) | {cell(form.content.strip())} | {cell(form.holds[0])} |")
    return "\n".join(lines).lstrip()


def written(text: str) -> str:
    """The page with the table made anew between its marks."""
    begin, end = "<!-- forms -->\n", "\n<!-- end forms -->"
    before, rest = text.split(begin)
    return before + begin + page() + end + rest.split(end)[1]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
