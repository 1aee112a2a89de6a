"""Recognizes values that say something of a run and nothing of its results: times, rates, dates, ids, names.

A value is recognized by its form and its name together: "3.2 s" may be a prediction, and "time" the time of an event.
"""
