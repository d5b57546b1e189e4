"""Makes prompts that need no tool, by rule: small talk, knowledge, writing, code, riddles.

`fit_decision.py` learns from them beside the prompts of Arena-Hard and Self-Instruct. The phrases were written for this
project; no prompt of any dataset was copied. The same seed gives the same prompts.
"""

from __future__ import annotations

import random
import re
from typing import Final

__all__ = ["make_chat"]

SLOT: Final = re.compile(r"\{(\w+)\}")
FIXED: Final = """
hi|hello there|hey, how are you?|good morning|thanks, that helped a lot|thank you so much!|you are wrong|no, try again|who are you?
what can you do?|are you a human?|do you have feelings?|tell me a joke|tell me something funny|I am bored|lol|ok|yes please|good night
what is your name|who made you|can you speak French?|are you smarter than other models?|I love you|I feel sad today|continue
go on|why?|what do you mean?|please explain that again|that makes no sense|can you be more precise?|rewrite that in simpler words
how are you doing today?|nice to meet you|what do you think about that?|let's play a game|ask me a riddle|are you sure?|make it shorter
what is the meaning of life?|can machines think?|what should I do with my life?|give me some advice|sing me a song|say something
"""
TEMPLATES: Final = """
what is {concept}?|what is {concept}|define {concept}|explain {concept}|explain {concept} to a child|how does {concept} work?
why is {concept} important?|what are the advantages and disadvantages of {concept}?|what is the difference between {concept} and {concept}?
give me {n} facts about {concept}|tell me about {person}|who was {person}?|when did {person} die?|what is {person} famous for?
compare {person} and {person}|why did {event} happen?|what caused {event}?|summarise {event}|what happened during {event}?
what is the capital of {country}?|what language do people speak in {country}?|what is {country} known for?|how big is {country}?
write a {form} about {topic}|write me a short {form} about {topic}|can you write a {form} on {topic}?|compose a {form} about {topic} in the style of {person}
give me ideas for a {form} about {topic}|write the beginning of a {form} in which {scene}|continue this {form}: {scene}
imagine that {scene}. What happens next?|pretend to be {role} and answer my questions|act as {role}. Explain {concept}.
you are {role}. I want you to help me understand {concept}.|from now on you speak like {role}|I want you to act as {role}
write {language} code that {task}|how do I {task} in {language}?|write a function in {language} to {task}|what does this {language} code do?
fix the bug in my {language} program that should {task}|explain {language} to a beginner|which is better, {language} or {language}?
refactor this {language} function so that it is easier to read|why do I get an error when I {task} in {language}?
if {puzzle}|solve this riddle: {puzzle}|think step by step: {puzzle}|is it true that {claim}?|why do people say that {claim}?
convince me that {claim}|argue against the view that {claim}|what do you think, {claim}?|debate: {claim}
how can I {goal}?|give me {n} tips to {goal}|what is the best way to {goal}?|make a plan to {goal}|I want to {goal}, what should I do?
how long does it take to {goal}?|should I {goal}?|my friend wants to {goal}. What would you say to them?
correct the grammar: {sentence}|rewrite this more politely: {sentence}|make this sound professional: {sentence}
what is the tone of this sentence: "{sentence}"|classify the sentiment: {sentence}|paraphrase: {sentence}|finish the sentence: {sentence}
give me {n} names for a {thing}|suggest a slogan for a {thing}|write a product description for a {thing}|write a review of a {thing}
draft a letter to {role} about {topic}|write an essay of {n}00 words on {topic}|write a speech about {topic} for {role}
outline an article on {topic}|write a dialogue between {role} and {role}|write a scene where {scene}
prove that {theorem}|solve {equation} for x|what is the derivative of {function}?|explain the proof that {theorem}
list {n} synonyms of "{word}"|use "{word}" in a sentence|what is the opposite of {word}?|what does "{word}" mean?|where does the word {word} come from?
recommend a book about {topic}|what are good questions to ask {role}?|what would {person} say about {topic}?
in which year was {person} born?|how many people live in {country}?|describe {country} in {n} sentences|what is the history of {concept}?
"""
WORDS: Final = {
    "concept": "gravity|inflation|photosynthesis|machine learning|democracy|a black hole|entropy|the stock market|DNA|blockchain|"
    "recursion|supply and demand|the greenhouse effect|natural selection|quantum computing|existentialism|a transistor|evolution|"
    "the immune system|object-oriented programming|a neural network|cognitive dissonance|plate tectonics|the placebo effect|jazz|"
    "compound interest|stoicism|relativity|the internet|an operating system|capitalism|a vaccine|a metaphor|chemical bonding|"
    "overfitting|a mortgage|the trolley problem|feminism|backpropagation|osmosis|the big bang|game theory|an algorithm|sociology",
    "person": "Marie Curie|Napoleon|Shakespeare|Einstein|Cleopatra|Leonardo da Vinci|Gandhi|Beethoven|Aristotle|Ada Lovelace|"
    "Nelson Mandela|Julius Caesar|Virginia Woolf|Alan Turing|Joan of Arc|Nietzsche|Mozart|Darwin|Kafka|Frida Kahlo",
    "event": "the French Revolution|the First World War|the fall of Rome|the Cold War|the moon landing|the Great Depression|"
    "the Black Death|the industrial revolution|the battle of Waterloo|the Renaissance|the fall of the Berlin wall",
    "country": "Peru|Japan|Norway|Kenya|Portugal|Canada|Vietnam|Egypt|Mongolia|New Zealand|Poland|Chile",
    "form": "poem|haiku|short story|song|blog post|essay|limerick|fairy tale|screenplay|sonnet|speech|children's story|article",
    "topic": "autumn|loneliness|a lost dog|friendship|climate change|the sea|artificial intelligence|war and peace|my grandmother|"
    "time travel|a small town|working from home|the moon|education|social media|dreams|cats|old books|courage|healthy food",
    "scene": "a robot learns to paint|two strangers share a train compartment|the sun does not rise|a king loses his crown|"
    "an astronaut finds a door|a cat becomes mayor|nobody can lie any more|a letter arrives a hundred years late",
    "role": "a pirate|a strict teacher|a medieval knight|a therapist|a career coach|Sherlock Holmes|a philosopher|a Linux terminal|"
    "a travel guide|a grumpy wizard|my boss|a historian|a job interviewer|a stand-up comedian|a nutritionist|the mayor",
    "language": "Python|JavaScript|C++|Java|Rust|SQL|Haskell|Go|R|TypeScript|PHP|Swift|bash",
    "task": "reverse a string|sort a list of dictionaries|find prime numbers|merge two sorted arrays|read a file line by line|"
    "implement a binary search tree|check whether a word is a palindrome|parse dates|remove duplicates|compute Fibonacci numbers|"
    "join two tables|handle exceptions|make a request in a loop|write a unit test|use a thread pool|draw a triangle of stars",
    "puzzle": "three cats catch three mice in three minutes, how many cats catch a hundred mice in a hundred minutes?|"
    "I have two coins that make thirty cents and one is not a nickel, what are they?|a farmer has seventeen sheep and all but nine "
    "run away, how many are left?|all roses are flowers and some flowers fade, do some roses fade?|John is taller than Mary and Mary "
    "is taller than Sue, who is the shortest?|the day before yesterday was Monday, what day is tomorrow?",
    "claim": "money makes people happy|humans only use ten percent of their brain|the earth is flat|reading is better than watching films|"
    "cats are smarter than dogs|technology makes us lonely|history repeats itself|homework should be banned|free will exists",
    "goal": "learn a language quickly|sleep better|become a better writer|stop procrastinating|prepare for a job interview|make friends|"
    "get over a breakup|save money as a student|start running|become a programmer|be more confident|lose weight|stay focused",
    "sentence": "me and him goes to school yesterday|the service was slow but the food was wonderful|give me the report now|"
    "I has went there two time|your product is terrible and I want my money back|the meeting could have been an email|"
    "once upon a time there was a|this film is the worst thing I have ever seen|success is not final",
    "thing": "coffee shop|smart watch|dog|bakery|podcast|vegan restaurant|start-up|rock band|candle|yoga studio|board game|backpack",
    "theorem": "the square root of two is irrational|there are infinitely many primes|the angles of a triangle sum to 180 degrees|"
    "every even number above two is the sum of two primes|the harmonic series diverges",
    "equation": "2x + 3 = 11|x^2 - 5x + 6 = 0|3(x - 2) = 9|x/4 + 1 = 7",
    "function": "x^3 sin x|e^(2x)|ln(x^2 + 1)|x / (1 + x)",
    "word": "happy|serendipity|big|irony|melancholy|resilient|ubiquitous|brave|nostalgia|to run|ephemeral|gossip",
    "n": "3|5|10|7|20|four",
}


def make_chat(count: int, seed: int = 0) -> list[str]:
    """Return `count` different prompts, in random order; fewer where the phrases give no more.

    Args:
        count: how many.
        seed: of the draw.
    """
    draw = random.Random(f"chat {seed}")
    words = {slot: text.split("|") for slot, text in WORDS.items()}
    templates = [text for line in TEMPLATES.strip().splitlines() for text in line.split("|")]
    prompts = dict.fromkeys(text for line in FIXED.strip().splitlines() for text in line.split("|"))
    for _ in range(20 * count):
        if len(prompts) >= count:
            break
        prompts[SLOT.sub(lambda slot: draw.choice(words[slot[1]]), draw.choice(templates))] = None
    chosen = list(prompts)
    draw.shuffle(chosen)
    return chosen[:count]
