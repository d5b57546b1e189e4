"""Word tables for splitting requests into steps: connectors, verbs, questions and references, by language.

The tables hold frequent words of English, German, Spanish, French, Italian, Portuguese, Dutch, Russian, Chinese and
Japanese. A word of a language without a table only loses a hint: punctuation and list marks work in every language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = [
    "ANAPHORA",
    "CONNECTOR",
    "CONTINUATION",
    "MESSAGE",
    "PARTICLES",
    "PASTED_TEXT",
    "PLACE_REFERENCES",
    "POLITE",
    "PRELUDE",
    "PREPOSITIONS",
    "PRONOUNS",
    "QUESTIONS",
    "REQUESTS",
    "SEQUENCE",
    "SUBORDINATORS",
    "THING_REFERENCES",
    "UNSPACED_VERBS",
    "VERBS",
    "is_lead_in",
]


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


def _alternatives(phrases: Iterable[str]) -> str:
    """Return a regular expression for any of the phrases, longer ones first."""
    return "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in sorted(phrases, key=len, reverse=True))


_AND: Final = ("and", "&", "plus", "und", "sowie", "y", "e", "et", "en", "и")
_ALSO: Final = (
    *("also", "too", "as well as", "as well", "besides", "additionally", "in addition", "furthermore", "moreover"),
    *(
        "while you're at it",
        "while you are at it",
        "while we're at it",
        "along with that",
        "likewise",
        "oh",
        "by the way",
    ),
    *("on top of that", "on top of this", "apart from that", "aside from that", "other than that", "beyond that"),
    *("on another note", "on a different note", "on a separate note", "separately", "unrelated", "speaking of which"),
    *("one more thing", "one last thing", "another thing", "before i forget", "and don't forget", "in any case", "btw"),
    *("at the same time", "in the meantime", "in parallel"),
    *("außerdem", "auch", "zudem", "ebenfalls", "también", "además", "de paso", "aussi", "en plus", "de plus"),
    *("ainsi que", "anche", "inoltre", "também", "além disso", "ook", "bovendien", "также", "ещё", "кроме того"),
    *("abgesehen davon", "übrigens", "nebenbei", "dazu", "noch etwas", "aparte de eso", "por cierto", "así como"),
    *("otra cosa", "una cosa más", "à part ça", "au fait", "encore une chose", "a parte questo", "a proposito"),
    *("un'altra cosa", "fora isso", "aliás", "a propósito", "bem como", "mais uma coisa", "trouwens", "daarnaast"),
    *("nog iets", "ach ja", "ach", "ah", "oh", "кстати", "ещё одно", "к тому же"),
)
_LEAD_WORDS: Final = _words(  # of lead-ins before a comma
    "and also but or oh ah ok okay well now then next while when once after before besides beside apart aside from",
    "other than that this these those it all everything else one two three another second third fourth last final",
    "first more thing things note topic matter in on to of the a an my our your you at as with for by if possible",
    "can could may time way top addition moving going done ready finished sorted settled over through not least",
    "same meanwhile separately unrelated related different separate quick small little side further additionally",
    "lastly finally again still up soon is are be been has have i we ps p.s pps p.p.s bonus extra",
)
_WISH_WORDS: Final = _words(  # of lead-ins before a colon, besides
    "query question request task item point favour favor order ask job wish need want like do would please here",
    "there's here's forget help remaining following",
)
_THEN: Final = (
    *("then", "next", "after that", "afterwards", "afterward", "later", "finally", "lastly", "last"),
    *("first", "firstly", "first of all", "second", "secondly", "third", "thirdly", "fourth", "fourthly", "to begin"),
    *("once that's done", "once that is done", "once done", "when that's done", "when done", "when you're done"),
    *(
        "following that",
        "subsequently",
        "once finished",
        "to start",
        "to finish",
        "in the end",
        "meanwhile",
        "from there",
    ),
    *("after this", "when finished", "with that done", "that done", "having done that", "to wrap up", "to round off"),
    *("if so", "if not", "if yes", "in that case", "either way"),
    *("dann", "danach", "anschließend", "zuerst", "zuletzt", "schließlich", "als nächstes", "zum schluss"),
    *("luego", "después", "entonces", "primero", "por último", "finalmente", "al final", "puis", "ensuite"),
    *("après", "après ça", "après cela", "d'abord", "enfin", "poi", "dopo", "quindi", "prima", "infine"),
    *("depois", "em seguida", "então", "primeiro", "por fim", "dan", "daarna", "vervolgens", "eerst", "ten slotte"),
    *("затем", "потом", "сначала", "наконец", "после этого", "во-первых", "во-вторых", "в-третьих"),
    *("erstens", "zweitens", "drittens", "im anschluss", "primero", "segundo", "tercero", "premièrement"),
    *("deuxièmement", "troisièmement", "secondo", "segundo", "terceiro", "ten eerste", "ten tweede", "ten derde"),
)
_UNSPACED_THEN: Final = (
    *(
        "然后",
        "接着",
        "之后",
        "随后",
        "接下来",
        "最后",
        "首先",
        "并且",
        "另外",
        "还有",
        "以及",
        "同时",
        "再帮我",
        "第一",
        "第二",
        "第三",
        "对了",
        "还要",
        "此外",
        "顺便",
    ),
    *("そして", "それから", "その後", "次に", "最後に", "まず", "あと、", "また、"),
)
_UNMARKED: Final = (
    *("then", "also", "after that", "as well as", "luego", "después", "danach", "sowie", "puis", "ensuite", "poi"),
    *("depois", "daarna", "затем", "потом"),
)

_DONE: Final = (  # "when you have finished", "as soon as this is done"
    r"(?:once|when|after|as soon as|if)"
    r" (?:(?:that|this|it|everything)(?:['’]s| is| has been| was| works)?|you(?:['’]ve|['’]re| have| are)?)"
    r" (?:all |been )?(?:done|finished|complete|completed|ready|over|through|sorted|settled)"
    r"(?: (?:that|this|it|with (?:that|this|it)))?"
)


def _chain_words(chained: Iterable[str], mark: str) -> str:
    """Return a regular expression for one to eight of the words, with a mark behind the last."""
    word = rf"(?:{_alternatives(chained)})(?:['’]\w{{1,2}})?"
    return rf"{word}(?:\s+{word}){{0,7}}\s*{mark}"


_COMMA: Final = r"[,，](?=\s)"
_COLON: Final = r"[:：](?=\s)"
#: A lead-in, which asks for nothing itself: "besides all that, …", "my second question is: …".
_LEAD: Final = rf"{_chain_words(_LEAD_WORDS, _COMMA)}|{_chain_words(_LEAD_WORDS | _WISH_WORDS, _COLON)}"

#: A connector at the start of a piece. Groups: `then` (sequence), `also`, `joint` (and), `lead` (a lead-in).
CONNECTOR: Final = re.compile(
    rf"(?:(?P<then>(?:{_DONE}|{_alternatives(_THEN)})(?![\w’'])"
    rf"|{_alternatives(_UNSPACED_THEN)}|[再并还先](?=[\u3400-\u9fff]))"
    rf"|(?P<also>(?:{_alternatives(_ALSO)})(?![\w’']))"
    rf"|(?P<joint>(?:{_alternatives(_AND)})(?![\w’']))"
    rf"|(?P<lead>{_LEAD}))",
    re.IGNORECASE,
)
#: Connectors that end a piece without a punctuation mark before them.
SEQUENCE: Final = re.compile(
    rf"(?<!\S)(?:{_alternatives((*(word for word in _AND if word != 'en'), *_UNMARKED))})(?!\S)"
    rf"|(?<=[\u3040-\u9fff])(?:{_alternatives(_UNSPACED_THEN)})",
    re.IGNORECASE,
)

VERBS: Final = _words(
    """
    accept activate add adjust alert allow analyse analyze answer apply approve archive arrange ask assign attach
    authenticate back ban begin block book bring browse build buy calculate call cancel capture change charge chart
    check choose clean clear close collect combine comment compare complete compose compress compute configure confirm
    connect contact convert copy count crawl create crop cut deactivate debug decide decode decrease define delete
    deliver deploy describe design detect determine develop dial dim disable discover dispatch display do download
    draft draw drop duplicate edit email enable encode encrypt end enter erase estimate evaluate examine execute
    explain explore export extract fetch file fill filter find finish fix follow forecast format forward fetch gather
    generate get give go grab grant group guide halt hang help hide highlight identify import improve include increase
    inform insert inspect install invite invoice issue join keep launch learn leave let link list listen load locate
    lock log look lower mail make manage map mark measure merge message modify monitor move mute name navigate note
    notify obtain open optimize order organize outline pause pay perform pick pin ping place plan play plot post
    predict prepare present preview print process produce provide publish pull purchase put query quote raise rate
    read rebook recommend reconcile record redirect reduce refund register reject release remind remove rename rent
    reopen repeat replace reply report request reschedule research reserve reset resize resolve restart restore
    resume retrieve retweet return reverse review rewrite ring rotate route run save say scale scan schedule scrape
    screenshot search see select sell send serve set share ship show shut sign simulate skip snap snooze solve sort
    speak specify split stage star start stop store stream submit subscribe subtract suggest summarise summarize
    swap switch sync tag take tell test text throw tick track trade transcribe transfer translate trash trigger
    turn tweet undo unlock unmute unsubscribe update upgrade upload use validate verify view visualize wake warn
    whatsapp withdraw write zip zoom
    """,
    """
    aktualisiere ändere bestelle bezahle buche drucke entferne erinnere erklär erkläre erstell erstelle exportiere
    fasse finde gib hol hole installiere kauf kaufe kopiere lade leg lege lies lösch lösche mach mache merk nenne
    öffne plane prüf prüfe ruf rufe rechne reserviere sag sage schalt schalte schau schick schicke schreib schreibe
    sende setz setze spiel spiele speichere starte stell stelle stopp stoppe storniere such suche teile trag trage
    übersetz übersetze vergleiche verschieb verschiebe verschick verschicke wandle wandel zeig zeige
    """,
    """
    abre actualiza activa agenda agrega anota añade apaga apunta avisa avísale ayúdame baja borra busca calcula cambia
    cancela cierra comparte compara compra comprueba consulta convierte copia crea cuenta dame descarga dile dime
    elimina encuentra enciende enséñame envía envíale escribe exporta guarda haz imprime lee llama lista manda mándale
    marca mira muestra muéstrame mueve obtén pide pon ponme prepara programa publica quita recuérdame reproduce reserva
    responde resume revisa sube traduce
    """,
    """
    achète active affiche ajoute annule appelle arrête calcule change cherche compare compte convertis copie crée
    demande dis dis-moi donne donne-moi écris efface enregistre envoie éteins exporte fais ferme imprime indique lance
    lis liste mets montre montre-moi note ouvre partage paie planifie prends prépare programme rappelle-moi recherche
    regarde réserve résume supprime télécharge traduis trouve vérifie
    """,
    """
    accendi aggiungi aggiorna annulla apri ascolta avvia avvisa calcola cambia cancella cerca chiama chiudi compra
    condividi confronta controlla converti copia crea dammi dimmi elimina esporta fai fammi guarda imposta invia leggi
    manda mandami metti mostra mostrami nota ordina paga pianifica prenota prepara ricordami riassumi rispondi salva
    scarica scrivi sposta spegni stampa suona togli traduci trova verifica
    """,
    """
    abra acende acrescenta adicione adiciona agende ajuda altera apaga apague atualiza avisa avise baixa baixe busca
    busque calcule calcula cancela cancele chame compara compare compra compre confere converta cria crie deixa
    desliga diga diz encontra encontre envia envie escreva escreve exclua exporta exporte faça faz fecha guarda imprima
    liga liste lista lembra manda mande marca marque me-diga mostra mostre mova muda ouve paga passa pega põe procura
    procure reserva reserve resuma salva salve tira toca toque traduz traduza veja vê verifica verifique
    """,
    """
    annuleer bekijk bel bereken bestel betaal boek controleer deel download geef haal kijk kopieer koop laat lees maak
    noteer open plan print regel reserveer schrijf speel sla stel stop stuur toon verander vergelijk vertaal vertel
    verwijder voeg wijzig zet zoek
    """,
    """
    включи выключи закажи закрой забронируй запиши запусти купи найди напиши напомни нарисуй открой отмени отправь
    переведи поставь покажи позвони посчитай поищи проверь сделай скажи скачай создай сохрани сравни удали узнай
    """,
)
#: Verbs that begin a piece of a language without spaces.
UNSPACED_VERBS: Final = (
    *("查", "找", "搜", "订", "预订", "发", "发送", "把", "给", "帮", "列出", "翻译", "翻成", "打开", "关", "关闭"),
    *(
        "创建",
        "新建",
        "删除",
        "下载",
        "上传",
        "保存",
        "存",
        "通知",
        "告诉",
        "提醒",
        "播放",
        "计算",
        "设置",
        "添加",
        "加",
    ),
    *("更新", "取消", "买", "卖", "画", "写", "看", "读", "转", "生成", "分享", "导出", "在", "每", "建", "显示", "请"),
)
QUESTIONS: Final = _words(
    "what what's whats when where which who who's whose whom why how how's is are am was were do does did can could",
    "will would should has have had may might was wie wo wann warum wer welche welcher welches wieviel gibt kannst",
    "qué cuál cuáles cuándo dónde quién cómo cuánto cuántos hay puedes que quel quelle quels quelles quand où qui",
    "comment combien pourquoi est-ce peux che cosa quale quali quando dove chi come quanto perché puoi qual quais",
    "quem onde como quanto quantos há pode wat wanneer waar welke hoe waarom wie hoeveel kun что где когда кто как",
    "какой какая какие сколько почему",
)
#: Beginnings of a request that is no imperative.
REQUESTS: Final = re.compile(
    r"(?:i\s+(?:also\s+)?(?:want|need|would|wish|have|am\s+(?:looking|trying)|like)"
    r"|i['’](?:d|m|ve|ll)\b|let['’]?s|let\s+me"
    r"|we\s+(?:need|want|have)|help\s+me|there\s+is|please|pls|kindly|can\s+you|could\s+you|would\s+you|will\s+you"
    r"|can\s+i|how\s+about|ich\s+(?:will|möchte|brauche)|bitte|kannst\s+du|quiero|necesito|quisiera|por\s+favor"
    r"|je\s+(?:veux|voudrais)|j['’]ai\s+besoin|s['’]il|vorrei|voglio|ho\s+bisogno|quero|preciso|gostaria"
    r"|ik\s+(?:wil|heb)|graag|хочу|мне\s+нужно|пожалуйста|我要|我想|请|帮)(?!\w)",
    re.IGNORECASE,
)
#: Polite words before a verb, which are skipped to see it.
POLITE: Final = _words(
    "please pls kindly just now maybe perhaps can could would will you try to help me bitte mir por favor me",
    "s'il te plaît per per favore alsjeblieft пожалуйста",
)
PRONOUNS: Final = _words(
    "i i'm i've i'll i'd my we we're our the a an this that these those it it's they he she his her their some any",
    "ich wir mein meine der die das ein eine el la los las un una mi je nous le les mon ma il lo io noi o a os as",
    "eu nós meu minha de het een ik wij я мы мой",
)
SUBORDINATORS: Final = _words(
    "because so since that which who if when while as until before although though for with without in on at by from",
    "to of into about including such like than or but nor not only weil dass wenn ob damit für mit ohne im am von zu",
    "porque para que con sin si cuando parce pour avec sans quand perché con senza com sem omdat zodat met zonder",
    "потому чтобы для с без если когда namely e.g i.e etc based using given",
)
PREPOSITIONS: Final = _words(
    "to in at from of for near around about into nach in bei von aus para en a de à en à di da"
)
PARTICLES: Final = _words("up out off down over on all me us new for with by and or is are be please")
PASTED_TEXT: Final = r"\b(?:(?-i:[A-Z]{2,12})|context|background)[:：][\s\S]{1,2000}?\s(?:query|question)[:：]"
"""Pattern of a text pasted before the request itself ("EMAIL: … query: …"), whatever the case of the other words."""

PLACE_REFERENCES: Final = _words("there here dort hier allí ahí là-bas lá ali там daar")
THING_REFERENCES: Final = _words(
    "it them that this those these him her its their same result results sie ihn isso ele ela hem haar его её их это",
    "ese eso esto ça cela questo quello",
)
ANAPHORA: Final = _words(
    "it them that this those these there here him her its their his same he she they result results former latter",
    "es dort ihn ihm ihr lo allí eso esto isso lá ali là-bas cela ça lì questo его её их там het daar 它 那里 那儿 这",
)

_ANNOUNCED: Final = _words(  # what the words before a list call its items
    "thing things task tasks step steps item items point points request requests question questions job jobs list",
    "checklist agenda todo to-do todos to-dos plan action actions chore chores errand errands instruction instructions",
    "priorities routine needs wishes order orders aufgabe aufgaben liste folgendes schritte punkte tareas lista tâches",
    "liste étapes taken stappen lijst",
)
_LEAD_IN_WORDS: Final = (  # words that ask for nothing themselves
    POLITE
    | PRONOUNS
    | QUESTIONS
    | SUBORDINATORS
    | PREPOSITIONS
    | PARTICLES
    | _LEAD_WORDS
    | _WISH_WORDS
    | _ANNOUNCED
    | _words(
        "let let's lets must might mind able kind us go ahead today now four five six several few couple some follows",
        "below hi hello hey good morning evening there assistant thanks peux-tu möchte will brauche necesito quiero",
        "veux voudrais vorrei quero wil",
    )
)
_EMPTY_VERBS: Final = _words("do let help go")  # no command alone: "do the following"
_AFTER_NOUN: Final = _words("for of from in on about with") | {""}  # "plan for today" is no command
_ASKED: Final = _words("i we you they")  # "can you", "what I want"
_ENDS_OPEN: Final = re.compile(
    r"\b(?:to|you|could|can|should|must|will|please|mind|following|these|below|follows)\W*\Z"
)
_LEAD_IN_WORD: Final = re.compile(r"[^\W\d_][\w'’-]*")
MAX_LEAD_IN_WORDS: Final = 12


def is_lead_in(text: str, mark: str) -> bool:
    """Tell whether what stands before the first mark of a list only announces it: "My tasks for today:", "I need to".

    Args:
        text: what stands before the mark.
        mark: the mark, with a colon before it.
    """
    return all(_announces(sentence, mark) for sentence in re.split(r"[.!?]\s", text))


def _announces(sentence: str, mark: str) -> bool:
    """Tell whether a sentence asks for nothing, or has no verb of its own and breaks off or names the list."""
    tokens = _LEAD_IN_WORD.findall(sentence.lower().replace("’", "'"))
    content = [token for token in tokens if token not in _LEAD_IN_WORDS]
    if _begins_request(tokens) or len(tokens) > MAX_LEAD_IN_WORDS or not VERBS.isdisjoint(content):
        return False
    if not _ANNOUNCED.isdisjoint(tokens) or _ENDS_OPEN.search(sentence):
        return True
    if not content:
        return bool(mark.strip(" \t\n.!?"))  # lines without marks are no list
    return len(content) == 1 and mark.strip().startswith((":", "："))


def _begins_request(tokens: list[str]) -> bool:
    """Tell whether a sentence begins as a question of its own or as a command: "what time", "order the following"."""
    start, behind = (*tokens, "", "")[:2]
    if start in _EMPTY_VERBS and behind in _ASKED:  # "do you know …"
        return True
    if start in QUESTIONS - _EMPTY_VERBS and behind not in _ASKED:  # "what time …", but not "what I want:"
        return True
    verb, behind = (*(token for token in tokens if token not in POLITE), "", "")[:2]
    return verb in VERBS - _EMPTY_VERBS and behind not in _AFTER_NOUN


# How a piece begins that goes on with the step before it, and asks for nothing of its own.
CONTINUATION: Final = re.compile(
    r"(?:make|keep|leave) (?:it|them|that|this) (?:\w+ ){0,2}\w+\W*\Z"  # "and make it loud"
    r"|(?!embed|shed)\w{3,}(?<!e)ed\b(?!.*\?.)"  # "signed up and then cancelled"
    r"|by (?:\w+ ){0,2}\w+\b(?!.*\?)"  # "then by name"
    r"|(?:when|if|whenever|once) (?:you|i) (?:\w+ ){1,4}\w+\W*\Z"  # "when you have a minute"
    r"|(?:if|whether|that) the (?:[\w'’-]+ ){1,8}(?:is|was|are|were|has|have|had) \w+\W*\Z"  # "if the invoice was paid"
    r"|(?:no|not|without|preferably|ideally|at least|at most|up to|max|min|any) (?:[\w'’-]+ ?){1,4}\W*\Z"
    r"|(?:one|two|three|four|five|six|\d+) (?:[\w'’-]+ ?){1,2}\W*\Z"
    r"|(?:my|our|the|its) (?:[\w'’-]+ ){1,4}(?:is|are) (?:[#\"'“‘(]?\w*\d|\S+@|[\"“])[^?!]*\Z"  # "my user ID is 12345"
    r"|(?:i|we) (?:drive|weigh|earn|was born|have had) [^?!]{1,80}\Z|(?:i['’]?m|i am|we are|we['’]re) \d[^?!,]{1,60}\Z"
    r"|(?:i['’]d like|i would like|i want|i prefer|get me|give me) (?:to (?:get|have|see) )?(?:the ones?|one|those)"
    r" (?:with|that|which|in|for|from)\b"
    r"|just (?:take|have) a look\W*\Z"
    r"|(?:many )?(?:thanks|thank you|cheers|regards|best|see you|talk soon)\b(?:[\s,]+[\w'’-]+){0,4}\W*\Z",
    re.IGNORECASE,
)
PRELUDE: Final = re.compile(  # "when you get a chance, …", "could you, if it's no trouble, …"
    r"\W*(?:(?:could|can|would|will) you\W+)?"
    r"(?:(?:when|whenever|if|once|as soon as) (?:you|it|it's|that's|possible)\b(?: [\w'’-]+){0,5}"
    r"|(?:please )?be so (?:kind|good|nice)"
    r"|(?:i['’]?m|i am|we are|we['’]re) (?:currently |now )?(?:at|in|from|near) (?!the mood)[\w '’-]{2,40}"
    r"|(?:i['’]?m|i am|we are|we['’]re) (?:writing|preparing|planning|learning|building|working on|moving|studying"
    r"|organi[sz]ing|hosting|cooking|training|travell?ing|visiting|staying|editing|teaching)\b[^.!?\n]{2,80})\W*\Z",
    re.IGNORECASE,
)
MESSAGE: Final = re.compile(  # what follows the colon is the text of a message
    r"\b(?:write|send|tell|text|message|reply|answer|post|tweet|translate|email|mail|say|dictate)\b[^:.?!\n]{0,80}:\s",
    re.IGNORECASE,
)
