"""Covers secrets in texts: credentials that are known, and whatever looks like a credential, a card or an account.

To *cover* a secret is to replace it by asterisks. `redact` finds secrets by their names and forms: named values,
tokens, keys in addresses, cards and bank accounts. The forms of tokens, one line an issuer, are in `data/tokens.txt`.

No package is light enough: `detect-secrets` (27 kinds, last release in 2024) needs `requests`, and Presidio needs
spaCy. The patterns follow what issuers publish about their tokens. They cover everything that the plugins of
`detect-secrets` 1.5 cover, except its entropy tests. Cheap patterns decide which of the others a text needs.

A long run of letters and digits in random order is covered too, whoever issued it. A secret without a name, without a
known form and without such a run is not covered, such as a bare password in a sentence.

`Cover` replaces known credentials in texts from outside, because a server may echo what it was sent. They are replaced
literally and in the encodings that programs print: JSON, percent, base64, hexadecimal. Values that a server computes
from a credential (a hash, an encryption, one half of it) are not recognised.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from toolscout.trust.confusables import fold
from toolscout.trust.invisible import sanitise

__all__ = [
    "COVER",
    "CREDENTIAL_PREFIX",
    "MAX_REDACTED_CHARS",
    "Cover",
    "find_environment_credentials",
    "looks_secret",
    "redact",
]

COVER: Final = "***"
TOKENS_FILE: Final = Path(__file__).with_name("data") / "tokens.txt"
MAX_REDACTED_CHARS: Final = 100_000  # of a text; the rest is cut off, because it was not checked
MIN_NAMED_CHARS: Final = 4  # of a value after `password=`; a shorter one is a placeholder or a word
IBAN_CHARS: Final = range(15, 35)  # ISO 13616

#: "password" in languages without spaces: the value may follow at once, without a sign such as `=`.
_JOINED_WORDS: Final = "密码|密碼|口令|パスワード|暗証番号|비밀번호|암호|รหัสผ่าน"
#: "password" in twenty-five languages, in the forms that sentences need.
_PASSWORD_WORDS: Final = (
    r"contrase(?:ñ|n)a|contrasenya|mot[ _-]?de[ _-]?passe|\bmdp|kennwort|losungswort|senha|palavra[ _-]?passe"
    r"|wachtwoord|parol[aă](?:[ ]d['’]ordine|[ ]chiave|m)?"
    r"|has(?:ł|l)(?:o|em)|(?:ş|s)ifre(?:m)?|парол(?:ь|я|ем)|l(?:ö|o)senord(?:et)?"
    r"|passord(?:et)?|adgangskode(?:n)?|salasana(?:ni)?|heslo|jelsz(?:ó|o|avam)|κωδικ(?:ό|ο)ς|(?:kata[ _-]?)?\bsandi"
    r"|كلمة[ ](?:ال)?(?:مرور|سر)|סיסמ[האת]+|पासवर्ड|m(?:ậ|a)t[ ]kh(?:ẩ|a)u"
    r"|contrasinal|pasahitza|lozinka|лозинка|паролата|geslo|slaptažodis|parole?\b|parool|nenosiri|kata[ _-]?laluan"
    r"|zugangscode|رمز[ ]عبور|گذرواژه|پاس[ ]ورڈ|পাসওয়ার্ড|கடவுச்சொல்|పాస్‌వర్డ్|პაროლი|գաղտնաբառ"
    rf"|{_JOINED_WORDS}"
)
#: How names of secrets end. Any prefix is possible (`DB_`, `openai`), but "pass" must begin a word.
_LEET: Final = r"p[a4@][s5$]{2}w[o0]rd"  # p4ssw0rd
_PASSWORDS: Final = (
    rf"(?:password|{_LEET}|passwd|passphrase|passcode|passwort|(?<![a-z])pass|pwd|secret|{_PASSWORD_WORDS})"
)
_KEYS: Final = (
    r"(?:token|credentials?|authorization|connection[_-]?string|conn[_-]?str|session[_-]?id|sessionid"
    r"|(?:api|access|auth|private|secret|signing|encryption|account|master|shared|storage|subscription|license|deploy)"
    r"[ _-]?key)"
)
_ENDING: Final = r"(?:[_-]?\d{1,2}|[_-]?(?:id|key|value|base64|b64|hash|old|new|prod|dev|test|live))?"
_AROUND_SIGN: Final = r"(?:\s{0,3}|[ \t]{0,12})"
#: Between name and value: a sign, with the marks that JSON in a text, Markdown and Python put beside it.
_SIGN: Final = (
    rf"(?:\\{{0,7}}[\"'])?{_AROUND_SIGN}(?:=>|->|:=|[:=：＝])\*{{0,2}}{_AROUND_SIGN}"
    rf"(?:\\{{1,7}}[\"']|[`“«„]\s?|[bfru](?=[\"'])|[|>][+-]?\n\s{{0,40}})?"
)
#: What follows is no word: it has a digit, and a letter right behind a digit or a sign that words do not have.
_NO_WORD: Final = r"(?![:=：＝*])(?=\S{6})(?=[^\s\d]{0,60}\d)(?=\S{0,60}(?:\d[^\W\d_]|[^\s\w.,:;!?)'\"%/-]))"
#: Between name and value where no sign says that they belong together: a dash, a bracket, the next cell of a table or
#: the next string of a list, as in the rules of gitleaks.
_BETWEEN: Final = r"(?:\s?[—–(|]\s?|\s-\s|[\"'],\s?(?=[\"']))"
_PROSE: Final = r"(?!(?<=:\s)[a-z]+[ ]+[a-z])"  # several words after a colon are a sentence
_BARE: Final = rf"[^\s\"'`,;&<>{{}}()\[\]]{{{MIN_NAMED_CHARS},}}"
_QUOTED_VALUE: Final = rf"\"(?:[^\"\\\n]|\\.){{{MIN_NAMED_CHARS},400}}\"|'(?:[^'\\\n]|\\.){{{MIN_NAMED_CHARS},400}}'"
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
_NAMED_VALUE: Final = re.compile(
    rf"""
    (?P<key>
        (?i:{_PASSWORDS}{_ENDING}{_SIGN})
        | (?i:{_KEYS}{_ENDING}{_SIGN}(?:(?:bearer|basic|token|apikey|digest)\s+)?(?:token=)?){_PROSE}
        | (?i:<[\w:.-]{{0,40}}(?:{_PASSWORDS}|{_KEYS}){_ENDING}>)
        | (?i:{_PASSWORDS}{_ENDING}[\"']\s{{1,3}}value\s?=\s?)
        | (?i:(?:{_KEYS}|\bsecret)\s(?=(?:0x)?[0-9a-f]{{32}}|{_UUID}))
        | (?i:\bidentified\sby\s(?=["'])|\b(?:mysql\w*|mariadb)\s[^\n]{{0,80}}?(?<!\S)-p(?=\S)|\bsshpass\s-p[ ]?)
        | (?i:[?&](?:key|sig|auth|jwt|pw)=)
        | (?<![A-Za-z0-9])[A-Z][A-Z0-9_]{{0,64}}_(?:KEY|PAT|AUTH|SALT|DSN|CREDS?)\s?=\s?
        | (?i:(?<!\S)--?(?:[a-z]+-)*(?:password|passwd|passphrase|token|secret|api-?key|access-key)[ ])
        | (?i:(?:password|passphrase|passcode|passwort|pin|secret|token|api[ ]key|{_PASSWORD_WORDS})
            (?:\s(?:of|for|to|in|on|de|del|da|du|des|von|für|pour|para|per)(?:\s[^\W\d_]{{1,12}}){{1,4}})?
            \s(?:is|was|to|es|est|ist|é|è|jest|är|er|on|je|adalah)\s
            (?=[^\s\d]*\d)(?=\d*[^\s\d.,]))
        | (?i:(?:passwor[dt]|passphrase|passcode|passwd|(?<![a-z])(?:pass|pw)|\bclave|{_PASSWORD_WORDS})
            (?:{_SIGN}|{_BETWEEN}|(?:['’]s)?\s(?:[^\W\d_]{{1,8}}\s){{0,3}}){_NO_WORD})
        | (?i:\bpin\s(?:is|was|ist|est|es|è)\s(?=\d{{4,12}}\b))
        | (?:{_JOINED_WORDS})(?:[是为為はがを은는이가]|คือ)?\s?{_NO_WORD}
    )
    (?P<value>{_QUOTED_VALUE}|{_BARE})
    """,
    re.X,
)
#: The value comes before the name: "use … as password".
_VALUE_FIRST: Final = re.compile(
    rf"(?P<key>(?<!\S))(?P<value>(?=\S*\d)(?=\S{{0,60}}\d[^\W\d_]){_BARE})(?=\s(?i:as|als|como|comme|come)\s"
    rf"(?:[^\W\d_]{{1,8}}\s)?(?i:{_PASSWORDS})\b)"
)
_COOKIES: Final = re.compile(r"(?P<key>\b(?i:(?:set-)?cookie)\s?:\s?)(?P<value>[\w.-]+=[^\r\n\"']{4,})")
_USER_OPTION: Final = re.compile(r"(?P<key>(?<!\S)(?:-u|--user)[ =][\"']?[^\s:\"']+:)(?P<value>[^\s\"']{2,})")
_SCHEMES: Final = re.compile(
    r"(?P<key>\b(?i:bearer)\s+(?!(?i:authenti|authori|tokens?\b|certificates?\b|instruments?\b|scheme))"
    r"|\b(?i:basic|negotiate|digest)\s+(?=[\w.~+/-]*[\d+/_A-Z]))(?P<value>[\w.~+/-]{8,}={0,2})"
)
_USER_INFO: Final = re.compile(  # of a scheme only the last character: to read whole ones is quadratic
    r"(?P<key>[\w+.-]://(?:[^\s/:@?#]*:|(?=[^\s/:@]{16,}@)))(?P<value>[^\s/]+)(?=@)"
)
_HOOKS: Final = re.compile(
    r"(?P<key>https://(?:hooks\.slack\.com/(?:services|workflows)/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/"
    r"|[\w.-]+\.webhook\.office\.com/webhookb2/|api\.telegram\.org/bot))(?P<value>[\w/@:-]{8,})"
)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN (?:[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?|PGP MESSAGE)-----.*?"
    r"(?:-----END (?:[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?|PGP MESSAGE)-----|\Z)",
    re.S,
)
_PUTTY_KEY: Final = re.compile(r"PuTTY-User-Key-File-\d:.*", re.S)
_CARDS: Final = re.compile(
    r"(?<![\w.])(?:(?:\d{4}[ ._-]?){3}\d{4}(?:\d{3})?|3\d{3}[ ._-]?\d{6}[ ._-]?\d{4,5})(?!\w|[.]\d)"
)
_CARD_ISSUERS: Final = re.compile(
    r"4\d{15}(?:\d{3})?|5[0-8]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[0689]\d{12}|35\d{14}|6\d{15,18}"
)
_IBAN: Final = re.compile(r"\b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]){11,30}\b")
_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.)+[A-Za-z]{2,24}\b")
_PHONE: Final = re.compile(
    r"(?<![\w.+-])(?:\+\d{1,3}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){6,12}"
    r"|\(\d{3}\)[ .-]?\d{3}[ .-]\d{4}|\d{3}[.-]\d{3}[.-]\d{4})(?![\w-])"
)
#: Values that are not secret: placeholders, references to variables, words about credentials.
_PLACEHOLDER: Final = re.compile(
    r"[\"']?(?:\$[\w{(].*|%\w+%|<.*|\*+|x{3,}|\.{3,}|\{.*|null|none|true|false|undefined|required|optional"
    r"|string|str|bool|int|bytes|text|bearer|basic|missing|expired|invalid|wrong|empty|your[_-].*"
    r"|process\.env\..*|os\.environ.*|env\.\w+)[\"']?[.!?]?",
    re.I,
)
#: A part of every text that may have a name with its value. Most requests have none.
_MAY_NAME: Final = re.compile(
    rf"[:=：＝]|--?[A-Za-z]|(?i:word|phrase|code|wort|passwd|pin|secret|token|key"
    rf"|identified|mysql|mariadb|\bpass|\bpw|\bclave|{_PASSWORD_WORDS})"
    r"|(?i:bearer|basic|digest)\s"
)
#: A part of every name that `_NAMED_VALUE` knows, so that the expensive pattern runs on few texts.
_SECRET_STEM: Final = re.compile(
    r"pass|pwd|secret|token|key|contrase|kennwort|senha|wachtwoord|parola|hasło|haslo|şifre|sifre"
    r"|парол|senord|adgangskode|clave|pw|mdp|losungswort|كلمة|סיסמ|पासवर्ड|m(?:ậ|a)t kh"
    rf"|{_LEET}|salasana|heslo|jelsz|κωδικ|sandi|identified|mysql|mariadb|{_PASSWORD_WORDS}"
    r"|credential|authorization|conn|session|cookie|pin\s|[?&](?:sig|auth|jwt|pw)="
    r"|_(?:pat|auth|salt|dsn|creds?)\b",
    re.I,
)
#: Between the parts of a text that a program or a line break splits: `"abc" + "def"`, a backslash at the end of a line.
_SPLIT: Final = re.compile(
    r"[\"']\s{0,3}[+.&,]?\s{0,3}[\"']|\\\r?\n\s{0,20}|(?<=[A-Za-z0-9])-?\r?\n\s{0,20}(?=[A-Za-z0-9])"
)
#: Letters that stand apart, with the same sign between all of them; digits in hexadecimal.
_LETTERS_APART: Final = re.compile(
    r"(?<![^\s\"'])[A-Za-z0-9_-](?P<sign>[ .,|/])(?:[A-Za-z0-9_-](?P=sign)){17,}[A-Za-z0-9_-](?!\w)"
)
_HEXADECIMAL: Final = re.compile(r"(?<![0-9A-Za-z])(?:[2-7][0-9A-Fa-f]){19,}(?![0-9A-Za-z])")
_ESCAPED: Final = re.compile(r"\\u\{?([0-9a-fA-F]{2,4})\}?|\\x([0-9a-fA-F]{2})")
#: A run of letters and digits, as long as keys are. `_is_random` decides.
_LONG_RUN: Final = re.compile(r"[A-Za-z0-9_-]{18,}")
_RUN_PART: Final = re.compile(r"[A-Za-z0-9]{18,}")
_CHANGE: Final = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[a-z0-9])|(?<=[0-9])(?=[A-Za-z])")
MIN_CHANGES: Final = 0.4  # of lower case, capitals and digits for each character: words have a fourth of that
_MAY_BE_TOKEN: Final = re.compile(r"[\w.+/~:=!$-]{19,}")
_MAY_NUMBER: Final = re.compile(r"\d{4}|[A-Z]{2}\d{2}")


def redact(text: str, *, personal: bool = False) -> str:
    """Replace each credential, card number and bank account in a text with `***`.

    If a disguise hid one of them, the text is returned without disguises: look-alike letters, escapes, line breaks. A
    text in which anything is replaced loses its invisible characters.

    Args:
        text: at most `MAX_REDACTED_CHARS` of it are kept.
        personal: whether e-mail addresses and telephone numbers are replaced too.
    """
    text = text[:MAX_REDACTED_CHARS]
    covered = _cover_text(text, personal)
    # Invisible characters inside a secret hide it from the patterns. Most texts can have none.
    visible = text if text.isascii() and text.isprintable() else sanitise(text)
    if visible != text:
        visible_covered = _cover_text(visible, personal)
        has_secret = visible_covered != visible
        if has_secret:
            covered = visible_covered
    # Joints of strings (`"abc" + "def"`) and line breaks inside a token hide it too.
    plain = _SPLIT.sub("", _join_letters(_remove_disguise(text)))
    if plain != text:
        plain_covered = _cover_text(plain, personal)
        has_disguised_secret = plain_covered.count(COVER) > covered.count(COVER)
        if has_disguised_secret:
            return plain_covered
    return covered


def _remove_disguise(text: str) -> str:
    """Return a text without look-alike and invisible letters, accents and escapes, as the patterns expect it."""
    if any(sign in text for sign in ("%", "&#", "\\u", "\\x")):
        text = html.unescape(unquote(_ESCAPED.sub(_decode_escape, text)))
    if text.isascii() and text.isprintable():
        return text
    text = sanitise(text)
    if text.isascii():
        return text
    letters = unicodedata.normalize("NFKD", fold(text))  # accents become characters of their own
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _join_letters(text: str) -> str:
    """Return a text in which tokens of known form have no signs between their letters, and are not in hexadecimal."""
    text = _LETTERS_APART.sub(lambda match: _keep_token(match[0], match[0].replace(match["sign"], "")), text)
    return _HEXADECIMAL.sub(lambda match: _keep_token(match[0], bytes.fromhex(match[0]).decode()), text)


def _keep_token(written: str, joined: str) -> str:
    """Return the joined text if it is a token of known form, else what was written."""
    return joined if _compile_tokens().fullmatch(joined) else written


def _decode_escape(match: re.Match[str]) -> str:
    r"""Return the character of an escape, which is A for `\u0041` and `\x41`."""
    hexadecimal = match[1] or match[2]
    return chr(int(hexadecimal, 16))


def _cover_text(text: str, personal: bool) -> str:
    """Cover secrets in a text, and with `personal` also e-mail addresses and phone numbers.

    Most texts have no secret. So before each slow pattern, a fast one looks for a part that every match has.
    """
    if "-----BEGIN" in text or "PuTTY-User-Key-File" in text:
        text = _PRIVATE_KEY.sub(COVER, text)
        text = _PUTTY_KEY.sub(COVER, text)
    if "://" in text:
        text = _USER_INFO.sub(_cover_value, text)
        text = _HOOKS.sub(_cover_value, text)
    if _MAY_NAME.search(text):
        if _SECRET_STEM.search(text):
            text = _COOKIES.sub(_cover_value, text)
            text = _NAMED_VALUE.sub(_cover_named, text)
            text = _VALUE_FIRST.sub(_cover_value, text)
        text = _SCHEMES.sub(_cover_value, text)
        text = _USER_OPTION.sub(_cover_value, text)
    text = _MAY_BE_TOKEN.sub(_cover_tokens, text)
    if _MAY_NUMBER.search(text):
        text = _IBAN.sub(_cover_iban, text)
        text = _CARDS.sub(_cover_card, text)
    if personal:
        text = _EMAIL.sub(COVER, text)
        text = _PHONE.sub(COVER, text)
    return text


def is_card(number: str) -> bool:
    """Return whether a number is a payment card's, by issuer, length and check digit (ISO/IEC 7812)."""
    digits = [int(letter) for letter in number if letter.isdigit()]
    if not _CARD_ISSUERS.fullmatch("".join(map(str, digits))):
        return False
    # Every second digit, from the right, is doubled. If that gives two digits, both are added.
    doubled = [2 * digit for digit in digits[-2::-2]]
    total = sum(digits[-1::-2]) + sum(number // 10 + number % 10 for number in doubled)
    return total % 10 == 0


def is_iban(text: str) -> bool:
    """Return whether a text is an IBAN, by its length and its check digits (ISO 13616)."""
    iban = text.replace(" ", "")
    # For the check, the country and the check digits move to the end, and each letter is a number: A is 10, Z is 35.
    number = int("".join(str(int(letter, 36)) for letter in iban[4:] + iban[:4]))
    return len(iban) in IBAN_CHARS and number % 97 == 1


def _cover_value(match: re.Match[str]) -> str:
    """Cover the value after a key, such as what follows `Cookie:`."""
    return f"{match['key']}{COVER}"


def _cover_tokens(match: re.Match[str]) -> str:
    """Cover the tokens of known form in a long word, then what else looks random."""
    return _LONG_RUN.sub(_cover_random, _compile_tokens().sub(COVER, match[0]))


def _cover_random(match: re.Match[str]) -> str:
    """Cover a run of letters and digits as a whole if a part of it, between hyphens and underlines, looks random."""
    return COVER if any(map(_is_random, _RUN_PART.findall(match[0]))) else match[0]


def _is_random(text: str) -> bool:
    """Return whether a text has small letters, capitals and digits, and they change as often as in a random text."""
    has_all = re.search("[a-z]", text) and re.search("[A-Z]", text) and re.search("[0-9]", text)
    return bool(has_all) and len(_CHANGE.findall(text)) >= MIN_CHANGES * len(text)


@functools.cache
def _compile_tokens() -> re.Pattern[str]:
    """Return a pattern of every token in `data/tokens.txt`."""
    lines = TOKENS_FILE.read_text(encoding="utf-8").splitlines()
    entries = (line.partition(" = ") for line in lines if not line.startswith("#"))
    shapes = [shape for _issuer, _, shape in entries if shape]
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(shapes)})(?![A-Za-z0-9])")


def _cover_named(match: re.Match[str]) -> str:
    """Cover the value after the name of a secret, within its quotation marks. Placeholders stay."""
    value = match["value"]
    if _PLACEHOLDER.fullmatch(value) or value.startswith(COVER):
        return match[0]
    quotation_mark = value[0] if value[0] in "\"'" else ""
    return f"{match['key']}{quotation_mark}{COVER}{quotation_mark}"


def _cover_card(match: re.Match[str]) -> str:
    """Cover a number if its check digit is that of a card."""
    return COVER if is_card(match[0]) else match[0]


def _cover_iban(match: re.Match[str]) -> str:
    """Cover an IBAN. Words in capitals after it, which the pattern matches too, are kept."""
    groups = match[0].split(" ")
    for end in range(len(groups), 0, -1):
        if is_iban(" ".join(groups[:end])):
            return " ".join([COVER, *groups[end:]])
    return match[0]


# --- known credentials ------------------------------------------------------------------------------------------------

MIN_CREDENTIAL_CHARS: Final = 8  # a shorter value may be an ordinary word
MIN_UNNAMED_CHARS: Final = 16  # for a value with a name that does not suggest a secret
MIN_ENCODED_CHARS: Final = 10  # for an encoded form: base64 without its first and last letters may be short
MAX_COVERED_DEPTH: Final = 200
CREDENTIAL_PLACEHOLDER: Final = "[credential]"
CREDENTIAL_PREFIX: Final = "TOOLSCOUT_CREDENTIAL_"  # of variables with what a source needs
CREDENTIAL_VARIABLES: Final = (
    CREDENTIAL_PREFIX, "TOOLSCOUT_KEY", "TOOLSCOUT_LLM_KEY", "TOOLSCOUT_EMBEDDINGS_KEY", "TOOLSCOUT_IDENTITY_KEY",
)  # fmt: skip
_SECRET_VARIABLE: Final = re.compile(
    r"key|token|secret|passw|pwd|pass$|auth|credential|cookie|session|private|signature|dsn|bearer|login|pat$|jwt",
    re.IGNORECASE,
)


class Cover:
    """Replaces known credentials in texts and JSON values.

    Attributes:
        forms: the spellings that are replaced, the longest first: it may contain others. Empty: there is no credential.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Cover these credentials, except those of fewer than 8 characters, which may be ordinary words."""
        forms = {form for value in values for form in _encode_forms(value)}
        self.forms = sorted(forms, key=lambda form: (-len(form), form))

    def __bool__(self) -> bool:
        return bool(self.forms)

    @property
    def max_chars(self) -> int:
        """The length of the longest form of a credential; 0 if there is none."""
        return len(self.forms[0]) if self.forms else 0

    def finds(self, text: str) -> bool:
        """Return whether a text contains a credential."""
        return any(form in text for form in self.forms)

    def text(self, text: str) -> str:
        """Replace every credential in a text with a placeholder."""
        for form in self.forms:
            if form in text:
                text = text.replace(form, CREDENTIAL_PLACEHOLDER)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """Replace every credential in the texts and keys of a JSON value with a placeholder.

        Everything below `MAX_COVERED_DEPTH` levels becomes a placeholder too; `depth` is the level of `value`.
        """
        if isinstance(value, str):
            return self.text(value)
        if depth > MAX_COVERED_DEPTH:
            return CREDENTIAL_PLACEHOLDER  # nothing so deep is ever shown
        if isinstance(value, Mapping):
            return {self.value(key, depth + 1): self.value(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner, depth + 1) for inner in value]
        return value


def looks_secret(name: str, value: str) -> bool:
    """Return whether the value of a variable or header looks secret, judged by its name or its form."""
    if len(value) < MIN_CREDENTIAL_CHARS:
        return False
    if _SECRET_VARIABLE.search(name):
        return True
    if value.startswith(("/", "./", "~", "../")):  # a path
        return False
    if "://" in value:
        return bool(urlsplit(value).password)
    is_long_word = len(value) >= MIN_UNNAMED_CHARS and " " not in value
    return is_long_word and any(letter.isdigit() for letter in value)


def find_environment_credentials(environ: Mapping[str, str] | None = None) -> set[str]:
    """Return the values of the environment variables from which toolscout reads credentials."""
    environ = os.environ if environ is None else environ
    # The names are compared first: reading all values would take 4 x as long.
    names = [name for name in environ if name.startswith(CREDENTIAL_VARIABLES)]
    return {environ.get(name, "") for name in names} - {""}


def _encode_forms(value: str) -> Iterator[str]:
    """Yield a credential itself, and in the encodings that programs print. A short one has none: it is not covered."""
    if len(value) < MIN_CREDENTIAL_CHARS:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)
    data = value.encode("utf-8", "surrogatepass")
    encoded = [data.hex(), data.hex().upper()]
    # In base64, three bytes make four letters. So the letters of a credential within a longer text depend on its
    # position modulo 3, and its first and last letter also on the bytes beside it: these letters are left out.
    for n_bytes_before, n_shared_letters in enumerate((0, 2, 3)):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            letters = encode(b"\0" * n_bytes_before + data).decode().rstrip("=")
            is_last_shared = (n_bytes_before + len(data)) % 3 != 0
            encoded.append(letters[n_shared_letters:-1] if is_last_shared else letters[n_shared_letters:])
    yield from (form for form in encoded if len(form) >= MIN_ENCODED_CHARS)
