"""Losses: of each sample, by what targets ask for, of classes with weights."""
