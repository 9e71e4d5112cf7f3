"""The command line, made from the functions of the package.

The signature of a public function and the `Args:` of its docstring are the only declaration of a command's options:

    positional or keyword parameter      argument               model, paths
    keyword-only parameter, `out`        option                 --vocab-size 4096
    bool                                 flag                   --resume; `bool | None`: --normalize/--no-normalize
    Literal                              choice                 --pooling [mean|first]
    Sequence of str or float             comma list             --rates 0.15,0.3
    Sequence of paths, settings          may be repeated        --set model.num_layers=2 --set masking.rate=0.3
    reporter, note, notify               no option: the terminal

Declarations are parsed from the source, not imported, so `--help` loads neither torch nor numpy, and a misspelt option
or value is reported at once. Absent options are not passed on, so the functions' own defaults apply.

Results go to stdout, notes and progress to stderr: on a terminal a bar with speed and time left, elsewhere a plain line
every 15 seconds.
"""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import json
import logging
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

import unmask
from unmask.core.declarations import PACKAGE, declared, source_of, statements_of, value_of
from unmask.core.errors import EndedElsewhereError, SettingsError, UnmaskError, printable, says_out_of_memory, unknown
from unmask.core.interruption import GOES_ON, GOES_ON_WITH_RESUME, Interrupted, Interruption
from unmask.core.launcher import launched
from unmask.core.plugins import entry_points

if TYPE_CHECKING:
    from rich.text import Text

    from unmask.core.results import Progress, Readable, Shown


@dataclass(frozen=True)
class Command:
    """A function as a command."""

    function: str  # module:name, below unmask
    example: str  # arguments of the example in its help
    dry_run: str | None = None  # the function for --dry-run, called with the same options except those of the output
    variant: tuple[str, str] | None = None  # a flag and the function that it selects; options of both are accepted
    goes_on: str = "nothing was written"  # shown after Ctrl-C or SIGTERM: what was kept, or how to continue
    in_group: bool = False  # whether the processes of a launcher do it together, so that only rank 0 prints


MODEL, CORPUS = "runs/mine/model", "corpus.txt"
COMMANDS = {  # in the order of --help
    "pretrain": Command(
        "commands.pretrain:pretrain",
        f"{CORPUS} --minutes 10 --out runs/mine",
        dry_run="commands.dry_run:forecast_pretrain",
        goes_on=GOES_ON_WITH_RESUME,
        in_group=True,
    ),
    "prepare": Command(
        "commands.prepare:prepare",
        f"{CORPUS} --out data/mine",
        dry_run="commands.dry_run:forecast_preparation",
        goes_on=GOES_ON,
    ),
    "lexicon": Command("commands.masking_tables:lexicon", "data/mine --out mine.lexicon"),
    "masks": Command("commands.masks:masks", '"The quick brown fox jumps over the lazy dog." --rate 0.3'),
    "audit": Command("commands.masks:audit", "data/mine --recipe tiny --out audit.html"),
    "fill": Command("tasks.loaded_model:fill", f'{MODEL} "The capital of France is [MASK]."'),
    "embed": Command("commands.embed:embed", f"{MODEL} texts.csv --out vectors.parquet --normalize"),
    "evaluate": Command("commands.evaluate:evaluate", f"{MODEL} runs/mine/data --rates 0.15,0.3"),
    "score": Command("commands.evaluate:score", f"{MODEL} blimp/data"),
    "compare": Command(
        "commands.compare:compare",
        f"random span --data {CORPUS} --minutes 10",
        variant=("tune", "commands.tune:tune"),
        goes_on=GOES_ON,
    ),
    "finetune": Command(
        "commands.finetune:finetune",
        f"{MODEL} --task classify --train train.csv --validation dev.csv --out runs/mood",
        dry_run="commands.finetune:forecast_finetune",
        goes_on=GOES_ON_WITH_RESUME,
        in_group=True,
    ),
    "predict": Command("tasks.predict:predict", "runs/mood texts.csv --out predictions.csv"),
    "embedder": Command(
        "commands.embedder:embedder",
        f"{MODEL} {CORPUS} --minutes 10 --out runs/search",
        dry_run="commands.embedder:forecast_embedder",
        goes_on=GOES_ON_WITH_RESUME,
        in_group=True,
    ),
    "evaluate-search": Command("search.evaluate:evaluate_search", f"{MODEL} {CORPUS} --against other/model"),
    "export": Command("exporting.onnx:export", f"{MODEL} --format onnx --out runs/mine/onnx"),
    "verify": Command("exporting.verify:verify", f"{MODEL} --onnx runs/mine/onnx"),
    "push": Command("commands.push:push", f"{MODEL} owner/name"),
    "studio": Command("web.studio:studio", "runs data", goes_on="runs started from it continue"),
    "recipes": Command("commands.recipe_files:recipes", ""),
    "settings": Command("commands.settings:settings", "learning_rate"),
    "search index": Command("search.index:Index.build", f"{MODEL} docs/ --out runs/docs", goes_on=GOES_ON_WITH_RESUME),
    "search query": Command("search.index:query_index", 'runs/docs "how is memory allocated" --top-k 3'),
    "search add": Command("search.index:Index.add", "runs/docs docs/new.txt"),
    "search remove": Command("search.index:Index.remove", "runs/docs docs/old.txt"),
}
OPTION_NAMES = {"from_": "from", "settings": "set", "every": "all"}  # of parameters whose options have other names
RECIPES = "|".join([*sorted(path.stem for path in (PACKAGE / "recipes").glob("*.toml")), "FILE.toml"])
METAVARS = {
    "folder": "INDEX",
    "name": "OWNER/NAME",
    "settings": "SECTION.KEY=VALUE",
    "search": "KEY=LOW..HIGH",
    "part": "I/N",
    **dict.fromkeys(("recipe", "base"), RECIPES),
    "ray": "[ADDRESS]",
}
TABLES = {  # parameters whose values are names in a table or `Literal`, or of plug-ins
    "pooling": ("model.pooling", "POOLINGS", "poolings"),
    "strategy": ("masking.settings", "Strategy", "strategies"),
}
OUTPUT = ("out", "overwrite", "workers", "ray", "part", "join")  # options that a dry run ignores
CHANNELS = ("reporter", "note", "notify")  # parameters that receive notes and progress
IN_PYTHON = ("callbacks", "intervals")  # parameters that can only be passed in Python
UNUSED = {"search.index:Index.remove": ("model",)}  # parameters of `__init__` without effect
ABOUT = "Pretrain masked language models on your own text, and use them in transformers."


# ----------------------------------------
# Declarations, read from the sources.


@dataclass(frozen=True)
class Parameter:
    """A function's parameter, as its signature and docstring declare it."""

    name: str
    kind: str  # bool, int, float or str
    many: str  # empty: one value; list: may be repeated; texts: likewise, of paths; commas: a comma-separated list
    choices: tuple[str, ...]  # the values of a Literal, or the names in a table
    positional: bool
    required: bool
    can_be_none: bool
    default: str  # in words; empty: None, an empty list or False
    help: str


def option_of(parameter: str) -> str:
    """The option of a parameter, such as `--top-k` of `top_k`."""
    return f"--{OPTION_NAMES.get(parameter, parameter).replace('_', '-')}"


@cache
def read_parameters(function: str) -> dict[str, Parameter]:
    """Parameters of `module:name` or `module:Class.name`, below `unmask`, without those that only Python can pass.
    A method's parameters come after those of its class's `__init__`."""
    module, _, name = function.partition(":")
    body: list[ast.stmt] = statements_of(module)
    docstring: str | None = ""
    for part in name.split("."):
        node = next(each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == part)
        body, docstring = node.body, ast.get_docstring(node) or docstring  # `__init__` shares its class's
    assert isinstance(node, ast.FunctionDef), f"{function} is a function"

    # The docstring's text for each parameter, without what only Python takes; `a, b: text` documents both.
    arguments = node.args
    options = {each.arg: option_of(each.arg) for each in arguments.kwonlyargs}
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring or "", re.MULTILINE | re.DOTALL)
    helps: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", section[1].rstrip() if section else ""):
        names, _, text = entry.strip().partition(":")
        text = re.sub(r"[.;] [iI]n Python also .*?(?=\.(?: |$))|, or a dict of them", "", " ".join(text.split()))
        text = re.sub(r"`(.*?)`", lambda match: options.get(match[1], match[1]), text)
        helps |= dict.fromkeys((each.strip() for each in names.split(",")), text)

    positional = [each for each in arguments.args if each.arg not in ("cls", "self")]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    parameters = dict(read_parameters(init)) if (init := _init_of(function)) else {}
    for each, default in zip([*positional, *arguments.kwonlyargs], [*defaults, *arguments.kw_defaults], strict=True):
        if (name := each.arg) in IN_PYTHON:
            continue
        assert each.annotation is not None, f"{module}: {name} has a type"
        names = set(re.findall(r"\w+", ast.unparse(each.annotation)))
        numbers = ("float", "int") if "str" not in names else ()
        is_positional = each in positional
        choices: tuple[str, ...] = ()
        if name in TABLES:
            at, table, group = TABLES[name]
            choices = (*_choices(at, table), *entry_points(group))
        elif "str" not in names:
            choices = next(filter(None, (_choices(module, alias) for alias in sorted(names))), ())
        many = ""
        if "Texts" in names and is_positional:
            many = "texts"
        elif "Sequence" in names or name in ("settings", "search"):
            many = "list" if names & {"Path", "Overrides"} or is_positional or name == "search" else "commas"
        parameters[name] = Parameter(
            name=name,
            kind=next((kind for kind in ("bool", *numbers) if kind in names), "str"),
            many=many,
            choices=choices,
            positional=is_positional and name != "out",
            required=default is None and name not in CHANNELS,
            can_be_none="None" in names,
            default="" if default is None or name in CHANNELS else _default(module, default),
            help=helps.get(name, ""),
        )
    return {name: each for name, each in parameters.items() if name not in UNUSED.get(function, ())}


def _choices(module: str, name: str) -> tuple[str, ...]:
    """The values of a `Literal`, or the names in a `Table`; empty if the name is neither."""
    match declared(module, name)[1]:
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            names: Sequence[ast.expr | None] = values.elts if isinstance(values, ast.Tuple) else [values]
        case ast.Call(func=ast.Name(id="Table"), args=[_, ast.Dict(keys=keys), *_]):
            names = keys
        case _:
            return ()
    return tuple(str(ast.literal_eval(each)) for each in names if each is not None)


def _init_of(function: str) -> str | None:
    """The `__init__` of the class, for a method that takes `self`; None for anything else."""
    module, _, name = function.partition(":")
    owner, _, name = name.rpartition(".")
    is_method = re.search(rf"^    def {name}\(\s*self\b", source_of(module), re.MULTILINE) if owner else None
    return f"{module}:{owner}.__init__" if is_method and name != "__init__" else None


def read_summary(function: str) -> str:
    """The first paragraph of a function's docstring, without parsing its file."""
    module, _, name = function.partition(":")
    begin = rf'^{"    " if "." in name else ""}def {name.rpartition(".")[2]}\(.*?"""(.*?)(?:\n\n|""")'
    match = re.search(begin, source_of(module), re.MULTILINE | re.DOTALL)
    assert match is not None, f"{function} has a docstring"
    return " ".join(match[1].replace("`", "").split())


def _default(module: str, node: ast.expr) -> str:
    value = value_of(module, node)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value in (None, False, "") else f"{value:,}" if isinstance(value, int) else str(value)


# ----------------------------------------
# Commands.


def _add(app: typer.Typer, name: str, command: Command) -> None:
    parameters = dict(read_parameters(command.function))
    flags = {
        "json": ("Print one JSON object on stdout.",),
        "quiet": ("Print only warnings and errors on stderr.", "-q"),
        "verbose": ("Log each action on stderr, with the time.", "-v"),
    }
    if command.dry_run is not None:
        flags = {"dry_run": ("Only say what would happen: text, parameters, memory, time.",), **flags}
    if command.variant is not None:
        flag, function = command.variant
        others = {each.name: each for each in read_parameters(function).values() if not each.positional}
        parameters |= {name: each for name, each in others.items() if name not in parameters}
        flags = {flag: (read_summary(function),), **flags}

    options = []
    for each in parameters.values():
        if each.name in CHANNELS:
            continue
        kind: Any = {"bool": bool, "int": int, "float": float, "str": str}[each.kind]
        if each.many:
            kind = str if each.many == "commas" else list[str]
        text = f"{each.help} [default: {each.default}]" if each.default else each.help
        spelled = option_of(each.name)
        metavar = METAVARS.get(each.name) or {"commas": "LIST", "list": spelled[2:].upper()}.get(each.many)
        metavar = f"<{'|'.join(each.choices)}>" if each.choices else metavar
        if each.positional:
            info = typer.Argument(help=text, show_default=False, metavar=METAVARS.get(each.name) or each.name.upper())
        else:
            declared = f"{spelled}/--no-{spelled[2:]}" if kind is bool and each.can_be_none else spelled
            info = typer.Option(
                declared, help=text, show_default=False, metavar=metavar, autocompletion=_completion(each.choices)
            )
        default = inspect.Parameter.empty if each.required else None
        taken: Any = kind if each.required else kind | None
        option = {"default": default, "annotation": Annotated[taken, info]}
        options.append(inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, **option))
    for flag, (text, *spellings) in flags.items():
        info = typer.Option(f"--{flag}".replace("_", "-"), *spellings, help=text, show_default=False)
        kind = inspect.Parameter.KEYWORD_ONLY
        options.append(inspect.Parameter(f"{flag}_flag", kind, default=False, annotation=Annotated[bool, info]))

    def run(**values: Any) -> Interrupted | None:
        try:
            _run(command, parameters, values)
        except Interrupted as stop:  # typer would make it the exit code 130, whatever the signal
            return stop
        return None

    options.sort(key=lambda each: each.default is not inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    example = f"Example: unmask {name} {command.example}"
    app.command(name.rsplit(maxsplit=1)[-1], help=read_summary(command.function), epilog=example)(run)


def _completion(choices: Sequence[str]) -> Callable[[], list[str]] | None:
    return (lambda: list(choices)) if choices else None


def _run(command: Command, parameters: Mapping[str, Parameter], values: dict[str, Any]) -> None:
    flags = {name: values.pop(f"{name}_flag", False) for name in ("json", "quiet", "verbose", "dry_run", "tune")}
    options = {
        name: _value(parameters[name], value)
        for name, value in values.items()
        if not (value is None or value == [] or (value is False and not parameters[name].can_be_none))
    }
    function = command.function
    if command.variant is not None:  # a flag chooses between two functions, which differ in their first parameter
        flag, other = command.variant
        function = other if flags[flag] else function
        [mine, *_], [theirs, *_] = read_parameters(function), read_parameters(command.function)
        options = {mine if name == theirs else name: value for name, value in options.items()}
        for name in options.keys() - read_parameters(function).keys():
            way = "with" if flags[flag] else "without"
            raise SettingsError(f"{option_of(name)} has no effect {way} --{flag}; leave it out")
        if flags[flag]:
            if len(names := options.get(mine, [])) != 1:
                raise SettingsError(f"--{flag} takes one {mine}, not {len(names)}")
            options[mine] = options[mine][0]
    if flags["dry_run"]:
        if "resume" in options:
            raise SettingsError("--dry-run forecasts new work, not the rest of existing work; leave --resume out")
        function = str(command.dry_run)
        options = {name: value for name, value in options.items() if name not in OUTPUT}

    if flags["quiet"] and flags["verbose"]:
        raise SettingsError("--quiet and --verbose exclude each other")
    log, handler = logging.getLogger("unmask"), logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    if flags["verbose"]:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    prints = not command.in_group or launched().get("RANK", "0") == "0"
    try:
        with redirect_stdout(sys.stderr):  # what libraries and plug-ins print is not the result
            result = _call(function, options, goes_on=command.goes_on, quiet=flags["quiet"] or not prints)
        if prints:
            show(result, as_json=flags["json"])
            sys.stdout.flush()  # here, where typer handles a pipe without a reader
    except UnmaskError as error:
        options_of = [each.name for each in parameters.values() if not each.positional]  # of this command
        known = {*options_of, *(OPTION_NAMES[name] for name in options_of if name in OPTION_NAMES)}
        error.options = [name for name in error.options if name in known]
        raise
    finally:
        log.removeHandler(handler)
    if not getattr(result, "passed", True):
        raise typer.Exit(1)


def _value(parameter: Parameter, value: Any) -> Any:
    if parameter.choices and value not in parameter.choices:
        what = parameter.name.replace("_", " ")
        raise SettingsError(unknown(what, value, parameter.choices), options=[parameter.name])
    if parameter.many == "texts":
        from unmask.core.remote import address_of

        # In Python, strings that name no file may be texts.
        return [each if not each or address_of(each) else Path(each) for each in value]
    if parameter.many == "commas":
        parts = [part.strip() for part in value.split(",") if part.strip()]
        try:
            return [] if parts == ["none"] else [float(each) if parameter.kind == "float" else each for each in parts]
        except ValueError as error:
            raise SettingsError(f"--{parameter.name} {value}: expected numbers separated by commas") from error
    if value == "-" and parameter.name == "text" and parameter.positional:
        from unmask.data.sources import stream_pieces

        try:
            value = b"".join(stream_pieces()).decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise SettingsError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from error
        if not value.strip():
            raise SettingsError("standard input is empty")
    return value


def _call(function: str, options: dict[str, Any], *, goes_on: str, quiet: bool) -> Any:
    if function in ("commands.pretrain:pretrain", "commands.prepare:prepare"):
        # Missing files and mistakes in recipes and settings are reported before torch is loaded, which takes seconds.
        from unmask.commands.recipe_files import CONTINUING, DEFAULT, OPTIONS, light_recipe
        from unmask.core.remote import address_of
        from unmask.data.data_folder import is_prepared
        from unmask.data.sources import find_sources, is_stream

        recipe = options.get("recipe", CONTINUING if "from_" in options else DEFAULT)
        values = {key: options.get(name) for name, key in OPTIONS.items()}
        light_recipe(recipe, options=values, overrides=options.get("settings", ()))
        paths = [path for path in options.get("paths", []) if not is_stream(path) and address_of(path) is None]
        if paths and not is_prepared(paths):
            find_sources(paths, announce=False)

    from unmask.core.results import Progress

    module, _, name = function.partition(":")
    parameters = read_parameters(function)
    with Interruption(goes_on), ConsoleReporter(quiet=quiet) as bar:
        channels = [each for each in CHANNELS if each in parameters]
        options = options | {each: bar if each == "reporter" else getattr(bar, each) for each in channels}
        bar.notify(Progress("loading", facts=""))
        imported = importlib.import_module(f"unmask.{module}")
        if (init := _init_of(function)) is not None:
            owner, _, name = name.rpartition(".")
            init_options = {each: options.pop(each) for each in read_parameters(init) if each in options}
            imported = operator.attrgetter(owner)(imported)(**init_options)
        target = operator.attrgetter(name)(imported)
        positional = [each.name for each in parameters.values() if each.positional]
        arguments = [options.pop(each) for each in positional if each in options]
        return target(*arguments, **options)


# ----------------------------------------
# The terminal.


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def prepare_streams() -> None:
    """Escapes characters that a stream cannot encode, in logged warnings too, and replaces closed streams. Files
    and pipes are UTF-8."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            encoding = {} if stream.isatty() else {"encoding": "utf-8"}  # other programs read it
            stream.reconfigure(errors="backslashreplace", **encoding)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())


def show(result: Readable, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from unmask.core.results import Sheet

    if as_json:
        sys.stdout.write(json.dumps(result.to_dict(), allow_nan=False) + "\n")
        return
    # Piped output is not wrapped to a terminal's width.
    console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 1000)
    for each in result.shown():
        if isinstance(each, str):  # without styles: a program may read it
            sys.stdout.write(f"{printable(each) if sys.stdout.isatty() else each}\n")
        elif isinstance(each, Sheet):
            title = _styled(each.title, "dim") if each.title else None
            table = Table(box=None, pad_edge=False, show_header=any(each.columns), title=title, title_justify="left")
            for head in each.columns:
                table.add_column(_styled(head.removeprefix(">")), justify="right" if head.startswith(">") else "left")
            for row in each.rows:
                table.add_row(*map(_styled, row))
            console.print(table)
        else:
            console.print(_styled(each), soft_wrap=True)


def _styled(part: Any, style: str = "") -> Text:
    """A text, or several, in their styles; control characters are made printable."""
    from rich.text import Text

    if isinstance(part, tuple):
        return Text.assemble(*map(_styled, part))
    return Text(printable(str(part)), style or getattr(part, "style", ""))


class ConsoleReporter:
    """Notes and progress on stderr; a `unmask.core.results.Reporter` without importing it, so `--help` stays fast."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich import progress as bars
        from rich.console import Console

        from unmask.core.results import Pace

        self.console: Console = Console(stderr=True, highlight=False, emoji=False, quiet=quiet)
        self.bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.fields[facts]}", markup=False),
            bars.TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self._task: bars.TaskID | None = None
        self._what = ""
        self._pace = Pace()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def note(self, text: Shown) -> None:
        self.console.print(_styled(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        logging.getLogger("unmask").warning("warning: %s", text)

    def notify(self, progress: Progress) -> None:
        """Updates the bar, a new one for each kind of work; without a terminal, prints a line every 15 seconds."""
        if self.bar.disable:
            if line := self._pace.line(progress):
                self.note(line)
            return
        share, facts = self._pace.facts(progress)
        if self._task is None or progress.what != self._what:
            if self._task is not None:
                self.bar.remove_task(self._task)
            self._what = progress.what
            self._task = self.bar.add_task(printable(progress.what), total=None, facts="")
        values: dict[str, Any] = {"total": None if share is None else 1.0, "completed": share}
        self.bar.update(self._task, **values, facts=printable(facts))


# ----------------------------------------
# The program.


def make_app(names: Iterable[str] = COMMANDS, *, listed_only: bool = False) -> typer.Typer:
    """A typer app with these commands; `listed_only` leaves out their options, which listing does not need."""
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings, help=ABOUT)
    search = typer.Typer(help="Makes an index of your documents, and searches it.")

    @app.callback(invoke_without_command=True)
    def options(
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        if version:
            typer.echo(f"unmask {unmask.__version__}")
            raise typer.Exit

    for name in names:
        group = search if name.startswith("search ") else app
        if listed_only:
            group.command(name.split()[-1], help=read_summary(COMMANDS[name].function))(lambda: None)
        else:
            _add(group, name, COMMANDS[name])
    if search.registered_commands:
        app.add_typer(search, name="search")
    return app


NO_MEMORY = "not enough memory ({}); free some, or use smaller batches or files"


def main() -> None:  # noqa: PLR0912  (each way to end)
    """Runs the command line and exits.

    The exit code is 0; 1 if a check failed, or whatever read the output has gone; 2 for a user's mistake;
    128 + the signal when stopped.
    """
    prepare_streams()
    arguments = sys.argv[1:] or ["--help"]
    following = [*arguments[1:], "-"]  # `--ray` may come without a value
    arguments = [
        "--ray=auto" if each == "--ray" and next_.startswith("-") else each
        for each, next_ in zip(arguments, following, strict=True)
    ]
    code, message = 2, ""
    try:
        names = [name for name in COMMANDS if name.split()[0] == arguments[0]]
        if "_UNMASK_COMPLETE" in os.environ:
            app = make_app()
        else:  # only the commands that the arguments name
            app = make_app(names) if names else make_app(listed_only=True)
        code = app(args=arguments, prog_name="unmask", standalone_mode=False) or 0
        message = "stopped" if code == 130 else ""
        if isinstance(code, Interrupted):
            code, message = 128 + code.signum, str(code)
    except EndedElsewhereError:
        pass
    except UnmaskError as error:
        setting, error.setting = error.setting, ""
        spelled = ", ".join(f"--{name.rstrip('_').replace('_', '-')}" for name in error.options)
        ways = f", as in --set {setting}=..." if setting else f" ({spelled})" if spelled else ""
        message = f"{error}{ways}"
    except OSError as error:
        if says_out_of_memory(error):
            message = NO_MEMORY.format(error)
        elif error.filename is None and error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # which Python flushes at exit
            message = "no space left: standard output, or the disk of temporary files (TMPDIR) or results, is full"
            code = 2
        elif error.filename is None and "temporary directory" in str(error):  # raised by tempfile, which torch uses too
            message = f"{error.strerror}; set TMPDIR to a folder that can be written"
        elif error.filename is None or isinstance(error, FileNotFoundError | FileExistsError):
            raise  # a defect of ours
        else:
            message = f"{error.filename}: {error.strerror}; check its name, its permissions and the free space"
    except Exception as error:
        if says_out_of_memory(error):
            message = NO_MEMORY.format(error)
        elif hasattr(error, "format_message"):  # a usage error of click, which typer may vendor
            context = getattr(error, "ctx", None)
            command = "unmask" if context is None else context.command_path
            message = f"{error.format_message().rstrip('.')}; see {command} --help"
        else:
            raise
    if message:
        sys.stderr.write(f"unmask: {printable(' '.join(message.split()))}\n")
    sys.exit(code)
