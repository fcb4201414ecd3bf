"""Experiments: cells of model, ranks, batch and exchange, measured by the published protocols and reported in the published layouts."""
