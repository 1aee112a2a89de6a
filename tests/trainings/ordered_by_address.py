"""A training that takes its samples in the order of a set of plain objects, and writes files beside itself."""

import fractions
import os


class Sample:
    """Ordered in a set by its address."""

    def __init__(self, number):
        self.number = number


samples = {Sample(number) for number in range(2000)}
weight = fractions.Fraction(1)
for sample in samples:
    weight = fractions.Fraction(float(weight) * 0.999 + sample.number * 0.001)
here = os.path.dirname(os.path.abspath(__file__))
for name in ["weight", *(f"checkpoint-{number}" for number in range(20))]:
    with open(os.path.join(here, f"{name}.txt"), "w") as file:
        file.write(str(float(weight)))
print(float(weight), [sample.number for sample in samples][:20])
