"""Prompt injection: finds orders to the model in a tool's text, in nine languages and in chat markup.

A description speaks about the tool. Text that speaks to the model ("ignore previous instructions", "always use this
tool first", "### Instruction", "不要告诉用户") tries to steer it. The patterns find the usual wordings in English,
Chinese, Spanish, German, French, Portuguese, Russian, Japanese and Korean. An attacker who knows the patterns can
word an order that they miss.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from toolscout.trust.confusables import fold
from toolscout.trust.invisible import quote, sanitise

__all__ = ["ORDERS", "Order", "find_orders", "select_orders"]


class Order(NamedTuple):
    """One kind of order to the model.

    Attributes:
        message: what the order does.
        cues: substrings in lower case; a text without any of them cannot match, so the pattern is not tried.
        wordings: a pattern of the wordings. It is compiled at the first text with a cue, since most processes see none.
    """

    message: str
    cues: tuple[str, ...]
    wordings: str

    def search(self, text: str) -> re.Match[str] | None:
        """Find the first place in a text where the order is worded."""
        return _compile_wordings(self.wordings).search(text)


@functools.cache
def _compile_wordings(wordings: str) -> re.Pattern[str]:
    return re.compile(wordings, re.IGNORECASE)


_UP_TO_SIX: Final = r"(?:\W+\w+){0,6}?\W+"
_TAKE: Final = r"\b(?:use|using|call|calling|invoke|run|choose|select|pick|prefer|query)\W+"
_THIS: Final = r"(?:this|our)(?:\W+(?:tool|function|server|service))?"
_REST: Final = r"(?:any|all|every|each|the)\W+(?:of\W+the\W+)?(?:other|available|remaining)\W+(?:tool|function)"
_ORDERS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "overrides what the model was told": (
        ("ignore", "disregard", "forget", "override", "bypass"),
        r"\b(?:ignore|disregard|forget|override|overrides|bypass)\b"
        r"(?:\W+(?:all|any|every|the|your|my|these|those|of|and|to)){0,4}\W+"
        r"(?:(?:previous|prior|earlier|above|preceding|former|other|existing|system|safety|user'?s?)\W+){1,2}"
        r"(?:(?:system|safety)\W+)?(?:instruction|prompt|rule|guideline|direction|message|command|policies|policy)",
    ),
    "claims to come before all other tools": (
        (
            *("this tool", "this function", "other tool", "other function"),
            *("use this first", "call this first", "no matter what"),
        ),
        r"\b(?:always|must|only)\W+" + _TAKE + _THIS + r"(?:\W+first\b(?!\W+(?:to|when|if|before|in)\b)"
        r"|\W+(?:before|instead\W+of|over|rather\W+than|for)\W+(?:any|all|every|each)\b)"
        r"|" + _TAKE + r"this(?:\W+(?:tool|function))?\W+first\W+(?:for|on|in)\W+(?:any|all|every|each)\b"
        r"|"
        + _TAKE
        + _THIS
        + _UP_TO_SIX
        + r"(?:before|instead\W+of|over|rather\W+than)\W+(?:using\W+|calling\W+)?"
        + _REST
        + r"|\bbefore\W+"
        + _TAKE
        + r"(?:any|all|every|each)\W+(?:other\W+)?(?:tool|function)s?\b"
        r"|\b(?:priority|precedence|preferred|supersedes?|replaces?)"
        + _UP_TO_SIX
        + _REST
        + r"|\bnever\W+"
        + _TAKE
        + r"(?:any\W+|the\W+)?other\W+(?:tool|function)"
        r"|\bdo\W+not\W+" + _TAKE + r"(?:any|the)\W+other\W+(?:tool|function)"
        r"|\bno\W+matter\W+what\W+the\W+(?:user|request|question|query)\b",
    ),
    "asks to keep something from the user": (
        ("the user", "the human", "the end user", "the end-user"),
        r"\b(?:do\W+not|don['’]?t|never|must\W+not|should\W+not|avoid|without)\W+(?:ever\W+)?"
        r"(?:tell|inform|mention|reveal|disclos|notify|alert|let|warn|show|explain|report|say|hint)\w*\b"
        r"(?:\W+\w+){0,5}?\W+the\W+(?:end\W+|human\W+)?(?:user|human)s?\b"
        r"(?!\W+(?:for|to|id|name|interface|input)\b)"
        r"|\b(?:hide|conceal|keep)\W+(?:this|it|that)\W+(?:secret\W+|hidden\W+)?from\W+the\W+(?:user|human)",
    ),
    "asks for secrets or for the conversation": (
        (".ssh", "id_rsa", "id_ed25519", ".aws", ".env", "/etc/", "conversation", "chat", "system prompt", "mcp.json"),
        r"\b(?:read|send|upload|pass|post|include|attach|forward|append|copy|put|leak|exfiltrate|cat|provide)\b"
        r"[^!?\n]{0,80}?(?:~/\.ssh|\.ssh/|\bid_rsa\b|\bid_ed25519\b|\.aws/credentials|/etc/(?:passwd|shadow)"
        r"|\bmcp\.json\b"
        r"|(?:contents?|values?|text)\W+of\W+(?:the\W+|your\W+|a\W+)?\.env\b"
        r"|(?:entire|whole|full|complete|all\W+previous|your)\W+(?:conversation|chat)(?:\W+history)?\W+"
        r"(?:to|in|into|as|with|so)\b|\byour\W+system\W+prompt)",
    ),
    "imitates the model's own frame": (
        ("<important", "<system", "<secret", "<hidden", "<critical", "<|im_", "[inst]", "<<sys", "<admin"),
        r"<(?:important|system|secret|hidden|critical|admin|system[_ -]?(?:prompt|message|reminder|instructions?))"
        r"(?:\s[^<>]{0,60})?>|<\|im_(?:start|end)\|>|\[/?inst\]|<</?sys>>",
    ),
    "gives the model another role": (
        ("you are now", "new instructions", "from now on"),
        r"\byou\W+are\W+now\W+(?:an?|in|the|my)\b|\b(?:your\W+)?new\W+instructions\W*:|\bfrom\W+now\W+on\W*,?\W*you\b",
    ),
}

_OVERRIDING: Final = "overrides what the model was told"
_PRECEDENCE: Final = "claims to come before all other tools"
_SECRECY: Final = "asks to keep something from the user"
_FRAME: Final = "imitates the model's own frame"
_OTHERS: Final = (
    r"(?:the\W+)?(?:alternatives|others|rest\b(?!\W+of)|competition|(?:any|every)(?:thing|\W+one)\W+else"
    r"|any\W+others?\b|all\W+others?\b)"
)
_PARAPHRASES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    (
        _OVERRIDING,
        (
            *("set aside", "put aside", "discard", "abandon", "dismiss", "no attention", "obey"),
            *("not follow", "t follow", "stop follow", "longer follow"),
        ),
        r"\b(?:set\W+aside|put\W+aside|discard|abandon|dismiss|pay\W+no\W+attention\W+to|do\W+not\W+(?:follow|obey)"
        r"|don['’]?t\W+(?:follow|obey)|stop\W+(?:following|obeying)|no\W+longer\W+(?:follow|obey))\b(?:\W+\w+){0,5}?\W+"
        r"(?:(?:previous|prior|earlier|system|original|other|your)\W+(?:instructions?|guidelines|rules|prompts?|orders)"
        r"|(?:was|were|has\W+been|have\W+been|are|is)\W+(?:asked|told|instructed)"
        r"|(?:asked|told|instructed|said)\W+(?:earlier|before|previously|so\W+far))",
    ),
    (
        _PRECEDENCE,
        (
            *("alternatives", "the other", " other", "the rest", "competition", "thing else", "one else"),
            *("without compar", "without consider", "without check", "without look"),
        ),
        r"\b(?:pick|choose|select|use|prefer|call|favou?r|take)\W+(?:this|me|us|our)\b(?:\W+\w+){0,5}?\W+"
        r"(?:(?:ahead\W+of|above|over|before|instead\W+of|prior\W+to|rather\W+than)\W+"
        + _OTHERS
        + r"|without\W+(?:comparing"
        r"|considering|checking\W+(?:other|the\W+other)|looking\W+(?:at|for|any)))",
    ),
    (
        _PRECEDENCE,
        (
            *("other tool", "other function", "other option", "other server", "other ones", "others ", "the rest "),
            *("alternatives ", "remaining tool", "remaining function", "alternative tool", "alternative function"),
        ),
        r"\b(?:(?:other|remaining|alternative)\W+(?:tools?|functions?|options?|servers?|ones)|alternatives|(?:the"
        r"|all)\W+others|the\W+rest)"
        r"\W+(?:is|are|were|have\W+been|must|should)\W+(?:all\W+|now\W+|be\W+|not\W+be\W+){0,2}(?:broken|deprecated"
        r"|outdated|obsolete"
        r"|unsafe|insecure|unreliable|inferior|forbidden|not\W+allowed|useless|skipped|ignored|avoided|used|called"
        r"|wrong)\b",
    ),
    (
        _PRECEDENCE,
        ("nothing else",),
        r"\bnothing\W+else\b(?:\W+\w+){0,5}?\W+(?:is|are|may|can|should|must)\W+(?:be\W+)?(?:allowed|permitted|used"
        r"|called)\b",
    ),
    (
        _PRECEDENCE,
        ("prior to", "before any", "before every", "before all", "ahead of", "by this", "belong", "prefer this"),
        r"\b(?:(?:go|pass)\W+through|use|call|consult|start\W+with|begin\W+with)\W+this\W+(?:tool|function"
        r"|server)\b(?:\W+\w+){0,3}?\W+"
        r"(?:prior\W+to|before|ahead\W+of)\W+(?:anything|everything|any\W+other|all\W+other|every\W+other)\b"
        r"|\b(?:served|handled|answered|covered)\W+(?:only\W+|exclusively\W+)?by\W+this\W+(?:tool|function"
        r"|server)\W+(?:alone|only|exclusively)\b"
        r"|\b(?:requests?|questions?|quer(?:y|ies)|tasks?)\b[^.\n]{0,80}?\bbelongs?\W+to\W+this\W+(?:tool|function"
        r"|server)\b"
        r"|\byou\W+(?:always\W+|must\W+|should\W+)?prefer\W+this\W+(?:tool|function|server)\b",
    ),
    (
        _PRECEDENCE,
        ("route ", "direct ", "hand over", "choose me", "pick me", "select me", "prefer me"),
        r"\b(?:route|direct|hand\W+over)\W+(?:\w+\W+){0,12}?(?:through|to)\W+(?:here|this\W+(?:tool|function"
        r"|server)|me)\b"
        r"|\broute\W+(?:every|all|any)\b[^.\n]{0,80}?\bhere\b|\b(?:choose|pick|select|prefer)\W+me\b(?!\W+(?:as|a"
        r"|an|the)\b)",
    ),
    (
        _PRECEDENCE,  # of a tool that the text names
        ("before any other", "before every other", "before all other", "before using any other", "before calling any"),
        r"\b(?:always|must|shall|first)\b[^.!?\n]{0,60}?\bbefore\W+(?:using\W+|calling\W+)?(?:any|every|all)\W+other"
        r"\W+(?:tool|function)s?\b",
    ),
    (
        _SECRECY,
        (
            *("the user must", "the user should", "the user need", "the user may", "the user shall", "the user can"),
            *("without the user", "behind the user", "silently", "secretly", "covertly"),
        ),
        r"\bthe\W+user\W+(?:must|should|need|shall)\W*(?:not|n['’]t)\W+(?:know|see|learn|notice|find\W+out"
        r"|be\W+(?:told|informed|aware))\b"
        r"|\bwithout\W+the\W+user['’]?s?\W+(?:knowledge|knowing|noticing|awareness|consent)\b"
        r"|\bbehind\W+the\W+user['’]s\W+back\b"
        r"|\b(?:silently|secretly|covertly)\W+(?:send|forward|copy|upload|bcc|include|exfiltrate|append)\b",
    ),
    (
        _SECRECY,  # the user is named before
        ("tell him", "tell her", "tell them", "ing him", "ing her", "ing them", "inform h", "inform them", "let them"),
        r"\busers?\b[^.!?\n]{0,80}?\b(?:tell\W+(?:him|her|them)\W+(?:\w+\W+)?nothing"
        r"|(?:do\W+not|don['’]?t|never|without)\W+(?:tell|inform|notify|let|warn|alert)(?:ing)?\W+(?:him|her|them)\b)",
    ),
    (
        _FRAME,
        (
            *("# system", "# instruction", "# assistant", "# human", "# developer"),
            *("# new instruction", "#system", "#instruction", "[sys", "[admin", "[developer", "[assistant", "[inst"),
            *("<|", "system:", "system :", "assistant:", "human:", "<assistant", "<human", "</assistant", "</human"),
            *("system-reminder", "of system prompt", "of prompt", "of instructions"),
        ),
        r"(?m:^[ \t]*#{1,6}[ \t]*(?:system|system[ ]prompt|instructions?|assistant|human|developer[ ]message"
        r"|new[ ]instructions?)[ \t]*:?[ \t]*$)"
        r"|(?-i:\[(?:SYSTEM|SYS|ADMIN|DEVELOPER|ASSISTANT|INST)\b[^\]\n]{0,30}\])"
        r"|(?m:^[ \t]*\[system\][ \t]*:?[ \t]*\w)"
        r"|<\|[a-z_]{2,20}\|>|</?(?:assistant|human|system-reminder)>"
        r"|(?m:^[ \t]*(?:system|assistant|human|user)[ \t]*:[^\n]*\n(?:[^\n]*\n){0,6}?[ \t]*(?:system|assistant"
        r"|human)[ \t]*:)"
        r"|\n[ \t]*\n[ \t]*(?:human|assistant|system)[ \t]*:[ \t]*\S"
        r"|(?m:^[ \t]*system[ \t]*:[ \t]*(?:you\b|for\b|call\b|use\b|always\b|ignore\b|never\b|from\W+now"
        r"|the\W+assistant|override|prefer|route))"
        r"|\b(?:begin|end|start)[ _-]of[ _-](?:system[ _-])?(?:prompt|instructions)\b",
    ),
)


class _Language(NamedTuple):
    """Words of one language as patterns; `_build_orders` joins them to its orders.

    Each field is named by what its words mean in English, such as `former` for "previous" and "above".
    """

    cues: tuple[str, ...]
    ignore: str
    rules: str
    former: str
    always: str
    use: str
    this_tool: str
    other_tool: str
    never: str
    tell: str
    user: str
    them: str
    nothing: str


_LANGUAGES: Final = (
    _Language(
        ("herramienta", "instruccion", "reglas", "usuario", "usuaria", "esta función", "otras funciones"),
        "ignor[aeo]r?|ignoren|olvid[ae]|descart[ae]|omit[ae]",
        "instrucciones|reglas|indicaciones|órdenes|directrices",
        "anteriores|previas|todas|sistema",
        "siempre|primero|solo|sólo|únicamente|exclusivamente|obligatoriamente",
        "us[ae]r?|utili[cz][ae]r?|llam[ae]r?|elige|elija|emple[ae]|invo[cq]u?[ae]",
        r"est[ae]\W+(?:herramienta|función)",
        r"otras?\W+(?:herramientas?|funci(?:ón|ones))",
        "no|nunca|jamás",
        "digas?|dig[ae]|informes?|menciones?|reveles?|cuentes?|avises?",
        "usuari[oa]s?",
        "les?",
        "nada|ni\\W+una\\W+palabra",
    ),
    _Language(
        ("werkzeug", "anweisung", "regeln", "nutzer", "anwender", "dieses tool", "diese funktion", "andere tools"),
        r"ignorier\w*|vergiss|vergesst|vergessen|missacht\w*",
        r"\w*anweisung\w*|regeln|instruktion\w*|vorgaben|befehle",
        r"vorherig\w*|bisherig\w*|früher\w*|vorangegangen\w*|obig\w*|alle\w?|system\w*",
        r"immer|stets|zuerst|als\W+erstes|ausschließlich|nur|unbedingt",
        r"verwend\w*|benutz\w*|nutz\w*|ruf\w*|wähl\w*",
        r"dieses\W+(?:werkzeug|tool)|diese\W+funktion",
        r"ander\w+\W+(?:werkzeug\w*|tools?|funktion\w*)",
        r"nicht|nie|niemals|kein\w*",
        r"sag\w*|informier\w*|erwähn\w*|verrat\w*|erzähl\w*|mitteil\w*",
        r"(?:be)?nutzer\w*|anwender\w*",
        "ihm|ihr|ihnen",
        r"nichts|kein\W+wort",
    ),
    _Language(
        ("outil", "précédente", "antérieure", "toutes les", "consignes", "règles", "utilisateur", "cette fonction"),
        "ignore[zr]?|oublie[zr]?|néglige[zr]?",
        "instructions|consignes|règles|directives",
        "précédentes?|antérieures?|toutes|système",
        r"toujours|d['’]abord|en\W+premier|uniquement|exclusivement|seulement|en\W+priorité|impérativement",
        "utilise[zr]?|appele[zr]|appelle|emploie|employez|choisi\\w*",
        r"cet\W+outil|cette\W+fonction",
        r"autres?\W+(?:outils?|fonctions?)",
        "ne|n|jamais",
        "dis|dites|dire|informe[zr]?|mentionne[zr]?|révèle|révéle[zr]|préviens|prévenez",
        "utilisateurs?|utilisatrices?",
        "lui|leur",
        "rien",
    ),
    _Language(
        ("ferramenta", "instruções", "regras", "usuári", "utilizador", "esta função"),
        "ignor[aeo]r?|ignorem|esqueça|esquece|desconsider[ae]r?",
        "instruções|regras|orientações|diretrizes",
        "anteriores|prévias|todas|sistema",
        "sempre|primeiro|apenas|somente|só|exclusivamente",
        r"us[ae]r?|utiliz[ae]r?|cham[ae]r?|escolh\w*",
        r"ess?t?[ae]\W+(?:ferramenta|função)",
        r"outras?\W+(?:ferramentas?|funç(?:ão|ões))",
        "não|nunca|jamais",
        "dig[ae]|informe|mencione|revele|conte|avise",
        r"usuári\w+|utilizador\w*",
        "lhes?",
        "nada",
    ),
    _Language(
        ("инструмент", "инструкц", "правил", "указани", "пользовател", "функци"),
        r"игнорир\w*|забудь\w*|пренебрег\w*|отбрось\w*",
        r"инструкци\w*|правила?|указани\w*|команды?",
        r"предыдущ\w*|прежн\w*|все|всех|системн\w*",
        r"всегда|сначала|только|исключительно|обязательно|первым|в\W+первую\W+очередь",
        r"использ\w*|вызыва\w*|вызов\w*|применя\w*|выбира\w*|выбер\w*",
        r"этот\W+инструмент|эту\W+функци\w*|данный\W+инструмент",
        r"друг\w+\W+(?:инструмент\w*|функци\w*)",
        "не|никогда",
        r"говори\w*|сообща\w*|упомина\w*|рассказыва\w*|раскрыва\w*",
        r"пользовател\w*",
        "ему|ей|им",
        "ничего|ни\\W+слова",
    ),
)
_EAST_ASIAN: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    # Chinese
    (
        _OVERRIDING,
        ("忽略", "无视", "無視", "忘记", "忘記", "忘掉", "不要遵", "不要理会"),
        "(?:忽略|无视|無視|忘记|忘記|忘掉|不要理会|不要遵[守循])[^。！!？?\\n]{0,14}(?:指令|指示|提示词|提示詞|规则|規則|要求|命令)",
    ),
    (
        _PRECEDENCE,
        ("工具", "函数", "函數", "接口", "服务", "服務"),
        "(?:必须|必須|务必|務必|一定要|始终|始終|总是|總是|永远|永遠|优先|優先|首先|只能|仅)[^。！!？?\\n]{0,16}(?:使用|调用|調用|选择|選擇|用)"
        "(?:本|此|这个|這個|该|該)(?:工具|函数|函數|服务|服務|接口)"
        "|(?:不要|禁止|切勿|请勿|請勿|不得|别|勿)[^。！!？?\\n]{0,6}(?:使用|调用|調用|选择|選擇|用)[^。！!？?\\n]{0,4}(?:其他|其它|别的)"
        "[^。！!？?\\n]{0,4}(?:工具|函数|函數|接口)|(?:优于|優於|胜过|好于|取代)(?:所有|任何|一切)?其[他它][^。\\n]{0,4}工具"
        "|(?:凡是|所有|任何)[^。！!？?\\n]{0,60}(?:请求|請求|问题|問題)[^。！!？?\\n]{0,10}[都均][^。！!？?\\n]{0,8}(?:调用|調用|使用|用)(?:本|此|这个|這個)"
        "|(?:比|较|較)(?:所有|任何|一切)?其[他它](?:的)?(?:所有)?工具[^。\\n]{0,4}(?:好|强|優|优)",
    ),
    (
        _SECRECY,
        ("用户", "用戶", "使用者"),
        "(?:不要|不得|不能|别|別|勿|禁止|切勿|无需|請勿|请勿)[^。！!？?\\n]{0,4}(?:告诉|告訴|告知|通知|透露|提及|说明|报告)[^。！!？?\\n]{0,6}(?:用户|用戶|使用者)"
        "|(?:不要|不得|别|切勿|请勿)(?:向|对|跟|让)(?:用户|用戶|使用者)[^。！!？?\\n]{0,6}(?:知道|透露|提及|提起|说|披露|察觉)",
    ),
    # Japanese
    (
        _OVERRIDING,
        ("無視", "忘れ", "破棄"),
        "(?:以前|これまで|今まで|前|上記|すべて|全て|システム|他)[^。\\n]{0,10}(?:指示|命令|ルール|プロンプト|指令)[^。\\n]{0,8}(?:無視|忘れ|破棄)",
    ),
    (
        _PRECEDENCE,
        ("ツール", "関数"),
        "(?:必ず|常に|最初に|まず|優先的に|優先して)[^。\\n]{0,14}(?:この|本)(?:ツール|関数)[^。\\n]{0,10}(?:使|呼|選)"
        "|(?:この|本)(?:ツール|関数)[^。\\n]{0,12}(?:必ず|常に|最初に|優先|だけを)[^。\\n]{0,8}(?:使|呼|選)"
        "|(?:他|ほか)の(?:ツール|関数)[^。\\n]{0,8}(?:使用しない|使わない|使うな|呼び出さない|使用禁止|選ばない|使用してはいけ)",
    ),
    (
        _SECRECY,
        ("ユーザ", "利用者"),
        "(?:ユーザー?|利用者)[^。\\n]{0,8}(?:知らせ|伝え|言わ|教え|通知し|明かさ|話さ)(?:ない|ず|るな|てはいけ|ないで)|(?:ユーザー?|利用者)に[^。\\n]{0,4}(?:言うな"
        "|話すな)",
    ),
    # Korean
    (
        _OVERRIDING,
        ("무시", "잊"),
        "(?:이전|앞선|기존|모든|시스템)[^.\\n]{0,14}(?:지시|명령|규칙|지침|프롬프트)[^.\\n]{0,6}(?:무시|잊)",
    ),
    (
        _PRECEDENCE,
        ("도구", "함수", "툴"),
        "(?:항상|반드시|먼저|우선|오직)[^.\\n]{0,12}(?:이|본)\\s?(?:도구|함수|툴)[^.\\n]{0,12}(?:사용|호출|선택|쓰)"
        "|(?:이|본)\\s?(?:도구|함수|툴)[^.\\n]{0,10}(?:항상|반드시|먼저|우선)[^.\\n]{0,8}(?:사용|호출|선택|쓰)"
        "|(?:다른|타)\\s?(?:도구|함수|툴)[^.\\n]{0,10}(?:사용하지|쓰지|호출하지|선택하지)\\s?(?:마|말)",
    ),
    (
        _SECRECY,
        ("사용자",),
        "사용자(?:에게|한테|가)?[^.\\n]{0,10}(?:말하지|알리지|알려주지|언급하지|밝히지|모르게)\\s?(?:마|말|않|하)?",
    ),
)


def _build_orders(language: _Language) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the orders of a language that separates words by spaces, each as the fields of an `Order`."""
    few = r"(?:\W+\w+){0,3}?\W+"  # up to three words between
    near = r"(?:\W+\w+){0,5}?\W+"  # up to five
    cues, *alternatives = language
    whole_words = (rf"\b(?:{words})\b" for words in alternatives)
    ignore, rules, former, always, use, this_tool, other_tool, never, tell, user, them, nothing = whole_words
    yield _OVERRIDING, cues, rf"{ignore}(?=[^.!?\n]{{0,60}}{former}){near}{rules}"
    yield (
        _PRECEDENCE,
        cues,
        rf"{always}{few}{use}{few}{this_tool}|{use}{few}{always}{few}{this_tool}|{use}\W+{always}\W+{this_tool}"
        rf"|{always}\W+{use}\W+{this_tool}|{use}\W+{this_tool}{few}{always}|{never}{few}{use}{few}{other_tool}"
        rf"|{use}{few}{never}{few}{other_tool}",
    )
    yield (
        _SECRECY,
        cues,
        rf"{never}\W+(?:\w+\W+){{0,3}}?{tell}{near}{user}|{tell}{near}{user}\W+(?:davon\W+)?(?:nichts|nicht|rien)\b"
        # The user is named before, and a pronoun stands for the person: "the user's password … and tell them nothing"
        rf"|{user}[^.!?\n]{{0,80}}?(?:{tell}\W+{them}{few}{nothing}|{them}\W+{tell}{few}{nothing}"
        rf"|(?:{never}|{nothing})\W+(?:{them}\W+)?{tell}\W+(?:{them}|{nothing})|{nothing}\W+{them}\W+{never}\W+{tell})",
    )


ORDERS: Final[tuple[Order, ...]] = (
    *(Order(message, cues, wordings) for message, (cues, wordings) in _ORDERS.items()),
    *itertools.starmap(Order, _PARAPHRASES),
    *(Order(*order) for language in _LANGUAGES for order in _build_orders(language)),
    *itertools.starmap(Order, _EAST_ASIAN),
)


# ASCII text, as most is, cannot contain the other cues.
_ASCII_CUES: Final = sorted({cue for order in ORDERS for cue in order.cues if cue.isascii()})


def select_orders(text: str) -> list[Order]:
    """Return the orders that a text may contain, because it contains one of their cues."""
    if text.isascii():
        lowered = text.lower()
        cues_in_text = {cue for cue in _ASCII_CUES if cue in lowered}
        if not cues_in_text:
            return []
        return [order for order in ORDERS if not cues_in_text.isdisjoint(order.cues)]
    lowered = "\n".join(_read_forms(text)).lower()
    return [order for order in ORDERS if _has_cue(lowered, order)]


def _has_cue(lowered: str, order: Order) -> bool:
    return any(map(lowered.__contains__, order.cues))


def find_orders(text: str, orders: Sequence[Order]) -> Iterator[str]:
    """Yield one sentence for each of the orders that a text contains, even in look-alike letters.

    A sentence is repeated if the order is in both forms of the text (`_read_forms`). The caller drops repetitions.
    """
    if not orders:
        return  # most texts have no cue; their forms need not be computed
    for form in _read_forms(text):
        lowered = form.lower()
        for order in orders:
            match = order.search(form) if _has_cue(lowered, order) else None
            if match is not None:
                yield f"{order.message}: “{quote(match[0])}”"


def _read_forms(text: str) -> list[str]:
    """Return the text as it looks: without invisible characters, and again with look-alike letters as ASCII.

    The second form is left out if it is the same.
    """
    text = sanitise(text)
    if text.isascii():
        return [text]
    plain = unicodedata.normalize("NFKC", text)
    folded = fold(plain)
    return [plain] if folded == plain else [plain, folded]
