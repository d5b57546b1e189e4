"""Fits the bundled splitter: does a new step of the request begin at this cut?

It learns from compound requests joined from train requests (`joining.py`, edition `fit`), from short ones joined from
names of tools, and from requests with one gold tool and from phrases with a conjunction that are one need. It reads
only datasets with a licence, and no dev or test request. The threshold is chosen on the dev edition, whose ways of
joining differ, and on the dev lines of `suites/one_need.jsonl`.

    python benchmarks/fit_steps.py [--data DIR] [--out src/toolscout/search/data/steps.json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec
import numpy as np
from joining import SETS, WAYS, Joined, build_joined, join_parts

from toolscout.abstain.logistic import logistic
from toolscout.encoders import split_identifiers
from toolscout.lab.bench import load_dataset
from toolscout.search.steps import BUNDLED_STEPS, CLASSES, FEATURES, STEPS_FORMAT, Splitter, describe_cuts, find_cuts
from toolscout.search.step_words import VERBS

LICENCES = {"hammerbench": "Apache-2.0", "metatool": "MIT", "bfcl": "Apache-2.0", "seal_tools_in": "Apache-2.0"}
NAMES_FROM = "tool_corpora/toucan"  # MIT
COMPOUNDS = 1_500  # of each dataset
SHORT_COMPOUNDS = 5_000
SINGLES = 2_000  # of each dataset, at most
RIDGE = 1e-4
SINGLE_WEIGHT = 2.0  # of a cut in a request that is one need
PHRASE_WEIGHT = 6.0
SUITES = Path(__file__).parent / "suites"
SEED = 0
THRESHOLD = 0.4  # lower ones split single needs, higher ones miss steps

NOUN_PAIRS = """
    salt and pepper|fish and chips|bread and butter|pros and cons|research and development|profit and loss|arts and crafts
    rock and roll|bed and breakfast|trial and error|ups and downs|terms and conditions|name and address|first and last name
    date and time|width and height|lost and found|Romeo and Juliet|Beauty and the Beast|Johnson and Johnson|Ben and Jerry's
    Marks and Spencer|Crime and Punishment|Pride and Prejudice|mother and father|men and women|dogs and cats|tea and coffee
    wind and solar|input and output|start and end date|import and export|in and out|left and right|north and south
    France and Germany|Paris and Rome|USD and EUR|Monday and Friday|red and blue|hot and cold|old and new|likes and comments
    title and author|users and groups|files and folders|rows and columns|questions and answers|rules and regulations
    news and weather|sports and politics|length and weight|age and gender|mean and median|price and volume|check-in and checkout
    health and fitness|food and drink|oil and gas|law and order|search and rescue|cut and paste|stop and go|plug and play
    drag and drop|buy and hold|read and write access|pick and place|mix and match|wait and see|give and take|hide and seek
"""
FRAMES = """
    show {}|find {}|list all {}|{}|a report about {}|search for {} near me|what is {}|compare {} for me|get me {} please
    the difference between {}|photos of {}|I need {}|can you find {}?|how many {} are there|convert {} to text|play {}
    create a task called {}|update the {} of customer 12|who wrote {}|delete {} from the list|tips for {}|tickets for {}
"""
CONTEXTS = """
    I missed my train, so find me a taxi|My daughter turns six, what could I give her?|It's raining, is the park open?
    The order never came, where is it?|I'm tired and hungry, find a restaurant|We moved house, change my address to Elm St 4
    Since the app crashed, my data is gone, restore the backup|If it snows, tell me|When I get home, turn on the lights
    Hello, I hope you are well, could you book a room for two?|I like jazz, blues and soul, recommend an album
    a hotel with a gym, a pool and free wifi|a phone that is light, cheap and robust|flights from Oslo to Rome, nonstop
    Go and get the newest version|Come and look at this error|try and find my phone|go ahead and book it
    translate to French: see you tomorrow, bring cake and wine|remind me to call Ann and Bob|tell Eva to come and bring wine
    add milk, eggs, flour and butter to my list|invite Ann, Bob and Carl to the meeting|buy 3 apples and 2 pears
    the weather in Oslo, Bergen and Tromsø|share the folder with Kim and with Lee|a flat with two rooms, a kitchen and a bath
    summarise the pros, the cons and the price of this car|set title, author and date of the file|plot x, y and z
    text mum that I'm late and she should start without me|note that Tom paid and Eva didn't|say hi, good luck and bye
    resize the image to 200 and 300 pixels|between 5 and 6 pm|from Monday to Friday and on Sunday|round trip, two adults, one child
    why is the sky blue, and not green|a song that goes up and down and up|wash and fold service nearby
    Schuhe und Socken kaufen|Zeige Name und Adresse des Kunden|Rot und Blau mischen|Hotels mit Pool und Sauna|Hin- und Rückflug
    muestra nombre y correo|fotos de perros y gatos|ida y vuelta|hotel con piscina y gimnasio|el norte y el sur de Chile
    montre le nom et le prix|chiens et chats|hôtel avec piscine et parking|aller et retour|pain, beurre et lait
    mostra nome e cognome|cani e gatti|andata e ritorno|hotel con piscina e parcheggio|pane, burro e latte
    mostra nome e telefone|cães e gatos|ida e volta|hotel com piscina e academia|pão, manteiga e leite
    名称和价格|北京和上海的天气|鱼和熊掌|牛奶、面包和鸡蛋|имя и телефон клиента|кошки и собаки|犬と猫の写真
"""
FOREIGN_STEPS = """
    de: zeig mir das Wetter in Wien|buche einen Tisch für zwei|schreib Lena eine Mail|wie spät ist es in Tokio?|stell den Wecker auf sieben|such einen Flug nach Rom|lösche die letzte Datei|Licht im Flur aus|mach eine Aufgabe daraus|sag Tom Bescheid
    es: busca un vuelo a Lima|dime qué hora es en Tokio|reserva una mesa para dos|manda un correo a Lena|pon una alarma a las siete|borra el último archivo|apunta la cita en el calendario|qué tiempo hace en Madrid|avisa a Tomás|apaga la luz
    fr: cherche un vol pour Rome|réserve une table pour deux|envoie un mail à Léna|quelle heure est-il à Tokyo ?|mets une alarme à sept heures|supprime le dernier fichier|montre-moi la météo à Lyon|note le rendez-vous|préviens Tom|éteins la lumière
    it: cerca un volo per Lima|prenota un tavolo per due|manda una mail a Lena|che ore sono a Tokyo?|metti la sveglia alle sette|cancella l'ultimo file|mostrami il meteo di Milano|segna l'appuntamento|avvisa Tommaso|spegni la luce
    pt: busca um voo para Lima|reserve uma mesa para dois|mande um e-mail para a Lena|que horas são em Tóquio?|coloque o alarme às sete|apaga o último arquivo|mostra o tempo em Lisboa|marca a consulta na agenda|avisa o Tomás|desliga a luz
    nl: zoek een vlucht naar Rome|reserveer een tafel voor twee|stuur Lena een mail|hoe laat is het in Tokio?|zet de wekker op zeven|verwijder het laatste bestand|toon het weer in Gent|noteer de afspraak|vertel het Tom|zet het licht uit
    ru: найди рейс в Рим|забронируй столик на двоих|отправь письмо Лене|который час в Токио?|поставь будильник на семь|удали последний файл|покажи погоду в Казани|запиши встречу|скажи Тому|выключи свет
    zh: 查一下北京的天气|订一张去罗马的机票|给王芳发邮件|东京现在几点|把闹钟设到七点|删除最后一个文件|把会议记到日历|翻译成英文|通知团队|关灯
"""
FOREIGN_GLUES = {
    "de": (" und ", ", dann ", ". ", " und danach ", "; ", ", und ", ". Danach ", ". Außerdem ", "\n- ", " sowie "),
    "es": (" y ", ", luego ", ". ", " y después ", "; ", ", y ", ". Además, ", "\n- ", " y también "),
    "fr": (" et ", ", puis ", ". ", " et ensuite ", "; ", ", et ", ". Ensuite, ", "\n- ", " et aussi "),
    "it": (" e ", ", poi ", ". ", " e dopo ", "; ", ", e ", ". Poi ", "\n- ", " e anche "),
    "pt": (" e ", ", depois ", ". ", " e depois ", "; ", ", e ", ". Além disso, ", "\n- ", " e também "),
    "nl": (" en ", ", dan ", ". ", " en daarna ", "; ", ", en ", ". Daarna ", "\n- ", " en ook "),
    "ru": (" и ", ", затем ", ". ", " и потом ", "; ", ", и ", ". Потом ", "\n- ", " и ещё "),
    "zh": ("，然后", "，再", "。", "，并", "；", "，", "，最后", "\n- ", "，接着"),
}


def read_phrases(text: str) -> list[str]:
    """Return the phrases of a table."""
    return [phrase.strip() for line in text.strip().splitlines() for phrase in line.split("|")]


def list_one_needs() -> list[str]:
    """Return phrases with conjunctions that are one need."""
    pairs, frames = read_phrases(NOUN_PAIRS), read_phrases(FRAMES)
    draw = random.Random(SEED)
    return [*read_phrases(CONTEXTS), *(draw.choice(frames).replace("{}", pair) for pair in pairs for _ in range(4))]


def join_short(names: Sequence[str], count: int) -> Iterator[Joined]:
    """Yield compounds of names of tools, which are short imperatives, and of short foreign requests."""
    draw = random.Random(SEED)
    ways = WAYS["fit"]
    for number in range(count):
        parts = draw.sample(names, 2 + number % 3)
        way = list(ways)[number % len(ways)]
        text, spans = join_parts(parts, ways[way])
        yield Joined(text, spans, (), way)
    for line in FOREIGN_STEPS.strip().splitlines():
        language, _, steps = line.strip().partition(": ")
        for number in range(120):
            parts = draw.sample(steps.split("|"), 2 + number % 3)
            glue = FOREIGN_GLUES[language][number % len(FOREIGN_GLUES[language])]
            text, places = "", []
            for part in parts:
                text += glue if places else ""
                part = part.rstrip("?？ ") if glue[:1] != "." else part
                places.append((len(text), len(text) + len(part)))
                text += part
            yield Joined(text, tuple(places), (), language)


def label_cuts(joined: Joined) -> tuple[list[dict[str, float]], list[bool]]:
    """Return the features of each cut and whether it begins a part: the first cut in the gap before the part does."""
    cuts = find_cuts(joined.text)
    labels = [False] * len(cuts)
    for (_, end), (start, _) in zip(joined.spans, joined.spans[1:], strict=False):
        inside = [n for n, cut in enumerate(cuts) if cut.end > end - 2 and cut.start <= start and not labels[n]]
        if inside:
            labels[inside[0]] = True
    return describe_cuts(joined.text, cuts), labels


def read_names(root: Path) -> list[str]:
    """Return names of tools that are imperatives of two to five words, some with a value."""
    values = ("", " for Anna", " 4471", " in Berlin", " of last week", " \"Sales, Q3\"", " on Friday at 5", " for my team")
    draw, names = random.Random(SEED), []
    for line in (root / NAMES_FROM / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        words = split_identifiers(json.loads(line)["title"]).lower().split()
        if 2 <= len(words) <= 5 and words[0] in VERBS:
            article = draw.choice(("", "the ", "my ", "a "))
            names.append(f"{words[0]} {article}{' '.join(words[1:])}{draw.choice(values)}")
            if draw.random() < 0.25:
                names.append(f"{words[0]} {draw.choice(('it', 'that', 'them'))}{draw.choice(values[1:])}")
    return sorted(set(names))


def fit(rows: Sequence[Mapping[str, float]], labels: Sequence[bool], mass: Sequence[float]) -> dict[str, float]:
    """Return the weight of each feature."""
    names = [f"{kind}.{name}" for kind in CLASSES for name in FEATURES]
    place = {name: number for number, name in enumerate(names)}
    table = np.zeros((len(rows), len(names)))
    for number, row in enumerate(rows):
        for name, value in row.items():
            table[number, place[name]] = value
    weights = logistic(table, np.array(labels), RIDGE, np.array(mass))
    constant = weights[-1]  # every row has the bias of its class
    fitted: dict[str, float] = dict(zip(names, weights.tolist(), strict=False))
    for kind in CLASSES:
        fitted[f"{kind}.bias"] += float(constant)
    return {name: round(weight, 4) for name, weight in fitted.items() if round(weight, 4)}


def measure(splitter: Splitter, joined: Sequence[Joined]) -> tuple[float, float]:
    """Return the shares of compounds that are split exactly into their parts, and of begins that are found."""
    exact = found = total = 0
    for request in joined:
        rows, labels = label_cuts(request)
        logits = splitter.score_cuts(request.text, find_cuts(request.text))
        guesses = [logit >= np.log(splitter.threshold / (1 - splitter.threshold)) for logit in logits]
        exact += guesses == labels and sum(labels) == len(request.spans) - 1
        found += sum(guess and label for guess, label in zip(guesses, labels, strict=True))
        total += len(request.spans) - 1
    return exact / len(joined), found / total


def main() -> None:
    """Fit, choose the threshold, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--out", type=Path, default=BUNDLED_STEPS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    root = Path(options.data)
    rows: list[dict[str, float]] = []
    labels: list[bool] = []
    mass: list[float] = []
    counts: Counter[str] = Counter()
    compounds: list[Joined] = [*join_short(read_names(root), SHORT_COMPOUNDS)]
    datasets = {name: load_dataset(name, root) for name in SETS}
    singles: list[tuple[str, float]] = [(phrase, PHRASE_WEIGHT) for phrase in list_one_needs()]
    for name, dataset in datasets.items():
        compounds += build_joined(dataset, "fit", COMPOUNDS, SEED)
        texts, qrels = dataset.texts("train"), dataset.split("train")
        alone = [texts[query] for query, gold in qrels.items() if len(gold) == 1]
        singles += [(text, SINGLE_WEIGHT) for text in random.Random(SEED).sample(alone, min(SINGLES, len(alone)))]
    for request in compounds:
        found, begins = label_cuts(request)
        rows.extend(found)
        labels.extend(begins)
        mass.extend([1.0] * len(begins))
    for text, weight in singles:
        found = describe_cuts(text, find_cuts(text))
        rows.extend(found)
        labels.extend([False] * len(found))
        mass.extend([weight] * len(found))
    counts.update(compounds=len(compounds), singles=len(singles), cuts=len(rows), begins=sum(labels))
    weights = fit(rows, labels, mass)
    dev = {name: build_joined(dataset, "dev", 300, SEED) for name, dataset in datasets.items()}
    needs = [line for line in map(json.loads, (SUITES / "one_need.jsonl").open(encoding="utf-8"))]
    needs = [line["text"] for line in needs if line["split"] == "dev"]
    by_hand = [line for line in map(json.loads, (SUITES / "joined_by_hand.jsonl").open(encoding="utf-8"))]
    by_hand = [line for line in by_hand if line["split"] == "dev"]
    about = {
        "sets": LICENCES,
        "names": {NAMES_FROM: "MIT"},
        "seed": SEED,
        "counts": dict(counts),
        "command": "python benchmarks/fit_steps.py",
    }
    for threshold in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        splitter = Splitter(STEPS_FORMAT, about, weights, threshold)
        whole = sum(len(splitter.split(text)) == 1 for text in needs) / len(needs)
        right = sum(len(splitter.split(line["text"])) == len(line["steps"]) for line in by_hand)
        shares = {name: "/".join(f"{100 * share:.0f}" for share in measure(splitter, some)) for name, some in dev.items()}
        click.echo(f"{threshold}: left whole {100 * whole:.1f} %, by hand {right}/{len(by_hand)}, {shares}", err=True)
    splitter = Splitter(STEPS_FORMAT, about, weights, THRESHOLD)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(splitter), indent=1) + b"\n")
    click.echo(f"{options.out}: {dict(counts)}", err=True)


if __name__ == "__main__":
    main()
