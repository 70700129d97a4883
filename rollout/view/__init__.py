"""A small local web app that shows the rollouts of a run."""
