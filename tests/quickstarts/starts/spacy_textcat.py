"""spaCy's training of a text classifier by its own loop."""

import random

import spacy
from spacy.training import Example

nlp = spacy.blank("en")
categories = nlp.add_pipe("textcat")
categories.add_label("POSITIVE")
categories.add_label("NEGATIVE")
texts = [("I love this", 1), ("a great day", 1), ("I hate this", 0), ("an awful day", 0)] * 3
examples = [
    Example.from_dict(nlp.make_doc(text), {"cats": {"POSITIVE": float(label), "NEGATIVE": float(not label)}})
    for text, label in texts
]
optimizer = nlp.initialize(lambda: examples)
for epoch in range(5):
    random.shuffle(examples)
    losses: dict[str, float] = {}
    for batch in spacy.util.minibatch(examples, size=4):
        nlp.update(batch, sgd=optimizer, losses=losses)
    print("epoch", epoch, losses)
nlp.to_disk("model")
print("RESULT", nlp("a great film").cats["POSITIVE"])
