"""AFTER a run: read what came back without believing it, judge it again, write down what was seen."""
